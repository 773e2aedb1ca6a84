//! The errors of UUIDs.

use crate::pg::ereport::errors;
use crate::pg::uuid::Uuid;
use idgen_core::uuid;

errors! {
    fn not_version_7(uuid: &Uuid) {
        ERRCODE_INVALID_PARAMETER_VALUE: "\"{uuid}\" is not a UUID of version 7";
        detail: "{}", version_text(uuid);
    }
}

fn version_text(uuid: &Uuid) -> String {
    match uuid::version(uuid.0) {
        Some(version) => format!("Its version is {version}."),
        None => "It does not have the variant of RFC 9562, which defines the versions.".to_owned(),
    }
}

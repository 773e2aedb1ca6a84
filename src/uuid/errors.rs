//! The errors of UUIDs.

use crate::pg::ereport::Report;
use crate::pg::uuid::Uuid;
use idgen_core::uuid;
use pgrx::prelude::*;

pub fn not_version_7(uuid: &Uuid) -> Report {
    let detail = match uuid::version(uuid.0) {
        Some(version) => format!("Its version is {version}."),
        None => "It does not have the variant of RFC 9562, which defines the versions.".to_owned(),
    };
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("\"{uuid}\" is not a UUID of version 7"))
        .detail(detail)
}

//! The errors of public ids.

use crate::pg::ereport::{Report, quoted};
use idgen_core::public_id::{MAX_PREFIX_BYTES, PublicIdError};
use pgrx::prelude::*;

pub fn unknown(prefix: &str) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT, format!("public id prefix \"{prefix}\" does not exist"))
        .hint(format!("Define it with SELECT public_id_define({});", quoted(prefix)))
}

pub fn exists(prefix: &str) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_DUPLICATE_OBJECT, format!("public id prefix \"{prefix}\" already exists"))
}

pub fn not_owner(prefix: &str) -> Report {
    let message = format!("must be owner of public id prefix \"{prefix}\"");
    Report::new(PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE, message)
}

pub fn may_not_use(prefix: &str, user: &str) -> Report {
    let message = format!("permission denied for public id prefix \"{prefix}\"");
    Report::new(PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE, message).hint(format!(
        "Ask its owner to run SELECT public_id_grant({}, {});",
        quoted(prefix),
        quoted(user)
    ))
}

pub fn prefix(prefix: &str) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("invalid prefix \"{prefix}\"")).detail(format!(
        "A prefix has 1 to {MAX_PREFIX_BYTES} lower-case letters of ASCII, digits and underscores, begins with a letter, \
         and does not end with an underscore."
    ))
}

pub fn unknown_form(form: &str) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("unknown form \"{form}\""))
        .hint("Use short or long.")
}

/// A number that has no text, or that is no masked number.
pub fn number(error: PublicIdError, prefix: &str, number: i64) -> Report {
    let report = match error {
        PublicIdError::NoShortKey => no_short_key(prefix),
        _ => Report::new(PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE, format!("\"{number}\" is not an id")),
    };
    report.detail(error.to_string())
}

fn no_short_key(prefix: &str) -> Report {
    let message = format!("public id prefix \"{prefix}\" masks no ids");
    Report::new(PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, message)
        .hint("Define another prefix with public_id_define().")
}

pub fn text(error: PublicIdError, prefix: &str, text: &str) -> Report {
    let message = format!("\"{text}\" is not a public id of prefix \"{prefix}\"");
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, message).detail(error.to_string())
}

pub fn second_short_key(prefix: &str, short: i32) -> Report {
    let message = format!("public id prefix \"{prefix}\" cannot have a second key of the short form");
    Report::new(PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, message)
        .detail(format!("Key {short} has the short form. A short text does not tell which key made it."))
        .hint(format!(
            "Define another prefix with public_id_define(), or run SELECT public_id_rotate({}, 'long');",
            quoted(prefix)
        ))
}

pub fn newest_key(prefix: &str, version: i32) -> Report {
    let message = format!("key {version} of public id prefix \"{prefix}\" is in use");
    Report::new(PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, message)
        .detail("The newest key makes the texts.")
        .hint("Add a key with public_id_rotate() first, or drop the prefix with public_id_drop().")
}

pub fn unknown_key(prefix: &str, version: i32) -> Report {
    let message = format!("public id prefix \"{prefix}\" has no key {version}");
    Report::new(PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT, message)
}

pub fn no_more_versions(prefix: &str) -> Report {
    let message = format!("public id prefix \"{prefix}\" has no more versions");
    Report::new(PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED, message)
        .detail("Its newest key has the last version, which a row inserted by hand can have.")
        .hint("Define another prefix with public_id_define().")
}

pub fn row_trigger_only() -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
        "idgen.public_key_row() must be called by the trigger of idgen.public_key",
    )
}

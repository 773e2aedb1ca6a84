//! The errors of public ids.

use crate::pg::ereport::{Report, errors, quoted};
use idgen_core::public_id::{MAX_PREFIX_BYTES, PublicIdError, is_valid_prefix};

errors! {
    fn unknown(prefix: &str) {
        ERRCODE_UNDEFINED_OBJECT: "public id prefix \"{prefix}\" does not exist";
        hint: "Define it with SELECT public_id_define({}); if it had keys before, restore the rows of idgen.public_key \
            instead.", quoted(prefix);
    }

    fn exists(prefix: &str) {
        ERRCODE_DUPLICATE_OBJECT: "public id prefix \"{prefix}\" already exists";
    }

    fn not_owner(prefix: &str) {
        ERRCODE_INSUFFICIENT_PRIVILEGE: "must be owner of public id prefix \"{prefix}\"";
    }

    fn may_not_use(prefix: &str, user: &str) {
        ERRCODE_INSUFFICIENT_PRIVILEGE: "permission denied for public id prefix \"{prefix}\"";
        hint: "Ask its owner to run SELECT public_id_grant({}, {});", quoted(prefix), quoted(user);
    }

    fn prefix(prefix: &str) {
        ERRCODE_INVALID_PARAMETER_VALUE: "invalid prefix \"{prefix}\"";
        detail: "A prefix has 1 to {MAX_PREFIX_BYTES} lower-case letters of ASCII, digits and underscores, begins \
            with a letter, and does not end with an underscore.";
    }

    fn unknown_form(form: &str) {
        ERRCODE_INVALID_PARAMETER_VALUE: "unknown form \"{form}\"";
        hint: "Use short or long.";
    }

    fn text(error: PublicIdError, prefix: &str, text: &str) {
        ERRCODE_INVALID_PARAMETER_VALUE: "\"{text}\" is not a public id of prefix \"{prefix}\"";
        detail: "{}", error.to_string();
    }

    fn second_short_key(prefix: &str, short: i32) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "public id prefix \"{prefix}\" cannot have a second key of the \
            short form";
        detail: "Key {short} has the short form. A short text does not tell which key made it.";
        hint: "Define another prefix with public_id_define(), or run SELECT public_id_rotate({}, 'long');",
            quoted(prefix);
    }

    fn newest_key(prefix: &str, version: i32) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "key {version} of public id prefix \"{prefix}\" is in use";
        detail: "The newest key makes the texts.";
        hint: "Add a key with public_id_rotate() first, or drop the prefix with public_id_drop().";
    }

    fn unknown_key(prefix: &str, version: i32) {
        ERRCODE_UNDEFINED_OBJECT: "public id prefix \"{prefix}\" has no key {version}";
    }

    fn no_more_versions(prefix: &str) {
        ERRCODE_PROGRAM_LIMIT_EXCEEDED: "public id prefix \"{prefix}\" has no more versions";
        detail: "Its newest key has the last version, which a row inserted by hand can have.";
        hint: "Define another prefix with public_id_define().";
    }

    fn not_an_id(number: i64, error: &PublicIdError) {
        ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE: "\"{number}\" is not an id";
        detail: "{error}";
    }

    fn no_short_key(prefix: &str, error: &PublicIdError) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "public id prefix \"{prefix}\" cannot mask ids";
        detail: "{error}";
        hint: "Define another prefix with public_id_define().";
    }
}

/// A prefix that was not found. One that cannot be defined gets the error of `public_id_define`.
pub fn missing(name: &str) -> Report {
    if is_valid_prefix(name) { unknown(name) } else { prefix(name) }
}

/// A number that has no text, or that is no masked number.
pub fn number(error: PublicIdError, prefix: &str, number: i64) -> Report {
    match error {
        PublicIdError::NoShortKey => no_short_key(prefix, &error),
        _ => not_an_id(number, &error),
    }
}

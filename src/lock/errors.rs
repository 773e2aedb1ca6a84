//! The errors of named locks.

use crate::pg::ereport::Report;
use pgrx::PgSqlErrorCode::*;

pub fn not_held(name: &str, is_transactions: bool) -> Report {
    if !is_transactions {
        return Report::new(ERRCODE_WARNING, format!("this session does not hold lock \"{name}\""));
    }
    Report::new(ERRCODE_WARNING, format!("lock \"{name}\" is held by the transaction"))
        .detail("A function with _xact in its name acquired it. The end of the transaction releases it.")
}

pub fn collision(name: &str, other: &str) -> Report {
    Report::new(ERRCODE_WARNING, format!("lock names \"{name}\" and \"{other}\" have the same key"))
        .detail("They are one lock: a session that holds one of them blocks both.")
        .hint("Use another name for one of them.")
}

pub fn names_unknown() -> Report {
    Report::new(ERRCODE_WARNING, "names of locks are known only when idgen is preloaded").hint(
        "Set shared_preload_libraries = 'idgen' in postgresql.conf and restart. Until then, lock_key(name) returns the \
         key of a name.",
    )
}

pub fn row_version_usage(detail: &str) -> Report {
    Report::new(
        ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
        "row_version() must be called by a BEFORE UPDATE row trigger",
    )
    .detail(detail)
    .hint("CREATE TRIGGER ... BEFORE UPDATE ON ... FOR EACH ROW EXECUTE FUNCTION row_version('column');")
}

pub fn stale_row(column: &str, now: Option<i64>, given: Option<i64>) -> Report {
    let text = |version: Option<i64>| version.map_or("NULL".to_owned(), |version| version.to_string());
    Report::new(
        ERRCODE_T_R_SERIALIZATION_FAILURE,
        format!("the row has changed since version {} was read", text(given)),
    )
    .detail(format!("Its {column} is {} now.", text(now)))
    .hint("Read the row again, and repeat the change.")
}

pub fn row_version_ended(column: &str) -> Report {
    Report::new(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE, format!("{column} has reached its maximum"))
}

//! The errors of named locks.

use crate::pg::ereport::errors;

errors! {
    fn collision(name: &str, other: &str) {
        ERRCODE_WARNING: "lock names \"{name}\" and \"{other}\" have the same key";
        detail: "They are one lock: a session that holds one of them blocks both.";
        hint: "Use another name for one of them.";
    }

    fn names_unknown() {
        ERRCODE_WARNING: "names of locks are known only when idgen is preloaded";
        hint: "Set shared_preload_libraries = 'idgen' in postgresql.conf and restart. Until then, lock_key(name) \
            returns the key of a name.";
    }

    fn row_version_usage(detail: &str) {
        ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED: "row_version() must be called by a BEFORE UPDATE row trigger";
        detail: "{}", detail;
        hint: "CREATE TRIGGER ... BEFORE UPDATE ON ... FOR EACH ROW EXECUTE FUNCTION row_version('column');";
    }

    fn row_version_ended(column: &str) {
        ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE: "{column} has reached its maximum";
    }

    fn not_held(name: &str) {
        ERRCODE_WARNING: "this session does not hold lock \"{name}\"";
    }

    fn held_by_transaction(name: &str) {
        ERRCODE_WARNING: "lock \"{name}\" is held by the transaction";
        detail: "A function with _xact in its name acquired it. The end of the transaction releases it.";
    }

    fn stale_row(column: &str, now: Option<i64>, given: Option<i64>) {
        ERRCODE_T_R_SERIALIZATION_FAILURE: "the row has changed since version {} was read", version_text(given);
        detail: "Its {column} is {} now.", version_text(now);
        hint: "Read the row again, and repeat the change.";
    }
}

fn version_text(version: Option<i64>) -> String {
    version.map_or("NULL".to_owned(), |version| version.to_string())
}

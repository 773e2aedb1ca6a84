//! The trigger `snowflake_change`: each version of a row gets an id, and each deleted key too. A consumer that reads by
//! these ids, up to the settled one, misses no change.
//!
//! The id of an update or a deletion is drawn once the row is locked, so the ids of one row rise. That of an insertion is
//! drawn before PostgreSQL looks for the key: it can wait there for a deletion that draws a later id. So a deleted key
//! counts only where the table has no such row.

use super::next::next_id;
use super::{errors, layouts};
use crate::pg::fired::{Before, Fired};
use crate::pg::function::{self, TriggerRow};
use crate::settings;
use pgrx::prelude::*;
use std::ffi::CStr;

/// A trigger BEFORE INSERT, UPDATE or DELETE, FOR EACH ROW. Its first argument is a column of type bigint, which gets an id
/// of `idgen.layout` with each insertion and update. The second is a table of the same schema, which gets the primary key of
/// each row that is deleted, or whose key is updated, and an id in a column of that name. As a trigger BEFORE TRUNCATE it
/// refuses (0A000). Raises 39P01 if it is called in another way, and what `snowflake_next()` raises.
#[pg_extern(sql = false)]
fn snowflake_change(fcinfo: pg_sys::FunctionCallInfo) -> TriggerRow {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    let trigger = unsafe { function::trigger_of(fcinfo) }
        .unwrap_or_else(|| errors::change_usage("It was not called by a trigger.").raise());
    let (column, deleted) = match function::trigger_arguments(trigger.trigger())[..] {
        [column] => (column, None),
        [column, deleted] => (column, Some(deleted)),
        _ => errors::change_usage("Its arguments are a column, and a table for deleted keys.").raise(),
    };
    let fired = Fired::of(&trigger);
    let Some(before) = fired.before() else {
        errors::change_usage("The trigger is not BEFORE, FOR EACH ROW.").raise();
    };
    let Some(number) = fired.bigint_column(column) else {
        errors::change_usage("Its first argument must name a column of type bigint.").raise();
    };
    let draw = || next_id(&mut layouts::attach_by_text(&settings::layout()));
    match before {
        Before::Insert { new } => fired.with_bigint(new, number, draw()),
        Before::Update { old, new } => {
            // Two ids, so that a consumer that reads in portions can stop between any two changes.
            if let Some(deleted) = deleted.filter(|_| fired.has_other_key(old, new)) {
                keep_key(fired, old, (deleted, column), draw());
            }
            fired.with_bigint(new, number, draw())
        }
        Before::Delete { old } => {
            let Some(deleted) = deleted else {
                errors::change_usage("A trigger for DELETE needs a table for deleted keys.").raise();
            };
            keep_key(fired, old, (deleted, column), draw());
            old
        }
        Before::Truncate => errors::truncation_unseen(&fired.table_name()).raise(),
    }
    .into()
}

fn keep_key(fired: Fired, old: pg_sys::HeapTuple, (table, column): (&CStr, &CStr), id: i64) {
    if !fired.insert_key(old, table, column, id) {
        errors::change_usage("The table has no primary key, or a deferrable one.").raise();
    }
}

//! The triggers of `snowflake_change`: each version of a row gets an id, and each deleted key too. A consumer that reads by
//! these ids, and whose position is the settled one at most, misses no change.
//!
//! The id of an update is drawn once the row is locked, so the ids of one row rise. That of an insertion is drawn before
//! PostgreSQL looks for the key: it can wait there for a deletion that draws a later id. So a deleted key counts only where
//! the table has no such row. Keys are kept by a trigger AFTER the change, because one BEFORE it does not see what later
//! triggers and generated columns make of the row.

use super::next::next_id;
use super::{errors, layouts};
use crate::pg::fired::{Fired, Key, Moment};
use crate::pg::function::{self, TriggerRow};
use crate::settings;
use pgrx::prelude::*;
use std::ffi::CStr;

/// As a trigger BEFORE INSERT OR UPDATE, FOR EACH ROW: an id of `idgen.layout` for its only argument, a column of type bigint.
/// AFTER UPDATE OR DELETE, FOR EACH ROW: the primary key of each row that is deleted, or whose key has changed, goes into the
/// table of the second argument, in the schema of this table, with an id in the column of the first. BEFORE TRUNCATE it refuses
/// (0A000). Raises 39P01 if it is called in another way, and what `snowflake_next()` raises.
#[pg_extern(sql = false)]
fn snowflake_change(fcinfo: pg_sys::FunctionCallInfo) -> TriggerRow {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    let trigger = unsafe { function::trigger_of(fcinfo) }
        .unwrap_or_else(|| errors::change_usage("It was not called by a trigger.").raise());
    let fired = Fired::of(&trigger);
    match (fired.moment(), &function::trigger_arguments(trigger.trigger())[..]) {
        (Some(Moment::BeforeTruncate), _) => errors::truncation_unseen(&fired.table_name()).raise(),
        (Some(Moment::BeforeInsertOrUpdate { new }), [column]) => numbered(fired, new, column),
        (Some(Moment::AfterUpdate { old, new }), [column, table]) => {
            let key = require_key(fired);
            if key.differs(old, new) {
                keep_key(&key, old, table, column);
            }
            old
        }
        (Some(Moment::AfterDelete { old }), [column, table]) => {
            keep_key(&require_key(fired), old, table, column);
            old
        }
        (Some(Moment::BeforeInsertOrUpdate { .. }), _) => {
            errors::change_usage("Before a change its only argument is a column.").raise()
        }
        (Some(_), _) => {
            errors::change_usage("After a change its arguments are a column, and a table for keys.").raise()
        }
        (None, _) => errors::change_usage("The trigger is for another event, or not FOR EACH ROW.").raise(),
    }
    .into()
}

fn draw() -> i64 {
    next_id(&mut layouts::attach_by_text(&settings::layout()))
}

fn numbered(fired: Fired, new: pg_sys::HeapTuple, column: &CStr) -> pg_sys::HeapTuple {
    let Some(number) = fired.bigint_column(column) else {
        errors::change_usage("Its first argument must name a column of type bigint that is not generated.").raise();
    };
    fired.with_bigint(new, number, draw())
}

/// Also for an update that keeps the key: the first one that does not must not be the first that fails.
fn require_key<'a>(fired: Fired<'a>) -> Key<'a> {
    let refuse = || errors::change_usage("The table has no primary key, or a deferrable one.").raise();
    fired.key().unwrap_or_else(refuse)
}

fn keep_key(key: &Key, old: pg_sys::HeapTuple, table: &CStr, column: &CStr) {
    if !key.insert(old, table, column, draw()) {
        errors::change_usage("A trigger or a rule of the table for keys has refused one.").raise();
    }
}

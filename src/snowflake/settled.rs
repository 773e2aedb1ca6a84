//! What consumers read by. `snowflake_settled`: an id at or below which nothing can still be committed on this server. They
//! read up to it, so that they miss no row of a transaction that commits late. And the triggers of `snowflake_change`, by
//! which they miss no change: each version of a row gets an id, and each deleted key too.
//!
//! The id of an update is drawn once the row is locked, so the ids of one row rise. That of an insertion is drawn before
//! PostgreSQL looks for the key: it can wait there for a deletion that draws a later id. So a deleted key counts only where
//! the table has no such row. Keys are kept by a trigger AFTER the change, because one BEFORE it does not see what later
//! triggers and generated columns make of the row.

use super::next::next_id;
use super::{errors, layouts, node};
use crate::args;
use crate::clock::{self, GENERATORS};
use crate::draws::{self, OpenDraws};
use crate::pg::advisory_lock::LockKind;
use crate::pg::datum::Text;
use crate::pg::fired::{Fired, Key, Moment};
use crate::pg::function::{self, TriggerRow};
use crate::settings;
use crate::shmem::Part;
use idgen_core::generator::settled;
use idgen_core::layout::{Layout, Node};
use idgen_core::snowflake::IdSpace;
use pgrx::prelude::*;
use std::ffi::CStr;

/// The greatest id of `idgen.layout` at or below which no transaction of this server can commit a row any more. Use it in
/// a later statement than the one that returns it. -1 if no id is settled. Raises 55000 without preload, or while there is
/// a prepared transaction whose ids are unknown; 25006 on a standby; 25001 unless the transaction is READ COMMITTED.
#[pg_extern(sql = false)]
fn snowflake_settled() -> i64 {
    settled(&settings::layout(), DRAWS.reader)
}

/// As `snowflake_settled()`, for a layout. Raises 22004 for NULL and 22023 for an invalid layout.
#[pg_extern(sql = false)]
fn snowflake_settled_in(layout: Option<Text>) -> i64 {
    settled(&args::required(layout, "layout"), DRAWS.reader)
}

/// The greatest settled id of the layout with this text, for the function `reader`.
pub fn settled(layout: &str, reader: &str) -> i64 {
    let layout = layouts::parsed(layout);
    DRAWS.require_readable(reader);
    // Ids go on from the mark, which no transaction of an earlier start can have reached.
    clock::ensure_begun();
    let before_next = || {
        // Under the lock, because worker ids change under it. Nothing is then issued in the layout before the slot, also where the
        // reader's worker id has issued nothing.
        GENERATORS.exclusive(|table| {
            let space = current_space(&layout);
            (space, space.id_before(table.begin_to_settle(&space)))
        })
    };
    let (space, id) = settled::settled(&layout, before_next, || DRAWS.open());
    GENERATORS.exclusive(|table| table.settle(&space, id))
}

/// The space of the current worker id. Where it has none, or one that does not fit, nothing is issued in the layout, and
/// what is later issued begins in a later tick: any worker id serves.
fn current_space(layout: &Layout) -> IdSpace {
    let node = node::CURRENT.require().get().unwrap_or_default();
    let space = layout.id_space(node).or_else(|_| layout.id_space(Node::default()));
    space.expect("worker id 0 fits each layout")
}

/// The times of open transactions' earliest ids, in milliseconds since 1970.
pub static DRAWS: OpenDraws = OpenDraws {
    processes: Part::new(c"idgen earliest draws", draws::processes),
    units: LockKind::new(b"pb"),
    rest: LockKind::new(b"pr"),
    drawn: "id",
    reader: "snowflake_settled()",
    since_version: "0.12.0",
};

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

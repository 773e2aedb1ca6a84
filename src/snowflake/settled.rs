//! `snowflake_settled`: an id at or below which nothing can still be committed on this server. Consumers read up to it,
//! so that they miss no row of a transaction that commits late.

use super::{layouts, node};
use crate::args;
use crate::clock::{self, GENERATORS};
use crate::draws::{self, OpenDraws};
use crate::pg::advisory_lock::LockKind;
use crate::pg::datum::Text;
use crate::settings;
use crate::shmem::Part;
use idgen_core::generator::settled;
use idgen_core::layout::{Layout, Node};
use idgen_core::snowflake::IdSpace;
use pgrx::prelude::*;

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
        // Under the lock, because worker ids change under it.
        GENERATORS.shared(|table| {
            let space = current_space(&layout);
            (space, space.id_before(table.free_slot(&space)))
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

//! What a coordinator does for attached servers: the effects of [`idgen_core::segment::fleet`]. Their reports are in the table
//! `idgen.segment_server`.

use crate::args;
use crate::error;
use crate::pg::datum::{Composite, Text};
use crate::pg::ereport::Report;
use crate::pg::latch::WaitEvent;
use crate::pg::spi::{ExtensionTable, Query, optional_text, text, value};
use crate::pg::{recovery, xact};
use crate::place;
use crate::segment::{errors, store};
use idgen_core::history::{HistoryState, Identity};
use idgen_core::segment::fleet::rows::{self, Privilege, Refused, Server, TagRows};
use idgen_core::segment::fleet::{Reply, ServerReport, SharedTag};
use idgen_core::segment::tag::{MAX_STEP, TagRow};
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;

/// Called by an attached server. Records the highest value that it has received, and grants it `count` values, or as many
/// as there are up to the upper bound; 0 only reports. Without a grant, `first_id` is NULL. `waits_for` then names the
/// servers whose reports are missing, if any are. The values count once `segment_confirm()` has returned. Raises 22004 for
/// NULL, 22023 unless the count is 0 to 1000000000, 42704 if there is no such segment, 42501 without the privilege of
/// a server, 2200H past the upper bound, 55000 if the segment is attached itself or was created in this transaction,
/// 55P03 if another transaction keeps the row locked for a second, 25006 on a standby.
#[pg_extern(sql = false)]
fn segment_request(
    tag: Option<Text>,
    server: Option<i64>,
    name: Option<Text>,
    received: Option<i64>,
    count: Option<i64>,
) -> Composite<6> {
    let (tag, server) = (args::required(tag.as_deref(), "tag"), args::required(server, "server"));
    let (name, received) = (args::required(name.as_deref(), "name"), args::required(received, "received"));
    let (count, counts) = (args::required(count, "count"), 0..=MAX_STEP);
    if !counts.contains(&count) {
        errors::count_out_of_range(count, counts).raise();
    }
    error::refuse_on_standby("grant values");
    let mut rows = Rows { name };
    let answer = rows::request(&mut rows, tag, Server { number: server, received }, count as u64);
    let (origin, reply) = answer.unwrap_or_else(|refused| refuse(tag, refused));
    let (range, waits_for) = match reply {
        Reply::Granted(range) => (Some(range), None),
        Reply::Waits { unreported } => (None, Some(rows.names(tag, unreported))),
        Reply::Exhausted => (None, None),
    };
    let (first, count) = range.map(|range| (range.first, range.count as i64)).unzip();
    Composite([
        first.into(),
        count.into(),
        origin.stride.into(),
        origin.residue.into(),
        Text::from(origin.source).into(),
        waits_for.map(Text::from).into(),
    ])
}

/// Called by a server that is detached. Its last report counts. Does nothing if the server is not known. Also forgets a
/// server of a segment that was dropped. Raises 22004 for NULL, 42704 if there is no such segment, 42501 without the
/// privilege of a server, 2200H if the server has received values above the upper bound, 55000 and 55P03 as
/// `segment_request`, 25006 on a standby.
#[pg_extern(sql = false)]
fn segment_leave(tag: Option<Text>, server: Option<i64>, received: Option<i64>) {
    let tag = args::required(tag.as_deref(), "tag");
    let (server, received) = (args::required(server, "server"), args::required(received, "received"));
    error::refuse_on_standby("forget a server");
    let left = rows::leave(&mut Rows::default(), tag, Server { number: server, received });
    left.unwrap_or_else(|refused| refuse(tag, refused));
}

/// The operator's decision that the servers that have not reported are gone for good: the coordinator grants from above
/// `max_id` on, and above all reports. Give the highest value that a missing server can have received. Raises 22004 for
/// NULL, 42704 and 42501 as `segment_alter`, 22023 for a `max_id` above the upper bound, 55000 if the segment is attached
/// itself, 25006 on a standby.
#[pg_extern(sql = false)]
fn segment_resume(tag: Option<Text>, max_id: Option<i64>) {
    let (tag, max_id) = (args::required(tag.as_deref(), "tag"), args::required(max_id, "max_id"));
    error::refuse_on_standby("resume a segment");
    rows::resume(&mut Rows::default(), tag, max_id).unwrap_or_else(|refused| refuse(tag, refused));
}

fn refuse(tag: &str, refused: Refused) -> ! {
    match refused {
        Refused::Unknown => errors::missing(tag),
        Refused::Chained => errors::chained(tag),
        Refused::Detached => errors::detached_itself(tag),
        Refused::CreatedHere => errors::changed_here(tag),
        Refused::Exhausted { upper_bound } => errors::exhausted(tag, upper_bound),
        Refused::AboveUpperBound { max_id, upper_bound } => errors::above_upper_bound(tag, max_id, upper_bound),
    }
    .raise()
}

/// Waits until the synchronous standbys have all that this server has committed. Returns at once if there are none. Raises
/// 25006 on a standby.
#[pg_extern(sql = false)]
fn segment_confirm() {
    xact::refuse_during_recovery(c"segment_confirm()");
    recovery::wait_for_flushed(&CONFIRM_WAIT);
}

static CONFIRM_WAIT: WaitEvent = WaitEvent::new(c"IdgenSegmentConfirm");

/// Tags that the current user may see of which no values are granted, each with the number of servers that have not reported.
/// Fails where this server has no identity, which only tags with a recorded history need.
pub fn withheld() -> Result<Vec<(String, usize)>, Report> {
    if recovery::is_in_progress() {
        return Ok(Vec::new());
    }
    let mut withheld = Vec::new();
    for row in store::shared() {
        let Some(recorded) = &row.link.history else { continue };
        if place::identity()?.state_of(recorded) == HistoryState::Own {
            continue;
        }
        let (shared, current) = SharedTag::read(&mut Rows::default(), &row, None);
        let missing = shared.unreported(&current).len();
        if missing > 0 {
            withheld.push((row.tag, missing));
        }
    }
    Ok(withheld)
}

/// The rows of a coordinator's tags, for the procedures of the core.
#[derive(Default)]
pub struct Rows<'a> {
    /// Of the server that reports.
    name: &'a str,
}

impl TagRows for Rows<'_> {
    fn identity(&self) -> &Identity {
        place::identity().unwrap_or_else(|report| report.raise())
    }

    fn exists(&mut self, tag: &str) -> bool {
        store::find(tag).is_some()
    }

    fn lock_report(&mut self, tag: &str, server: i64) -> bool {
        SEGMENT_SERVER.refuse_during_recovery();
        !LOCK_ONE.write_losable(&[tag.into(), server.into()], |_| ()).is_empty()
    }

    fn lock(&mut self, tag: &str, privilege: Privilege) -> TagRow {
        if privilege == Privilege::Serve {
            SEGMENT_SERVER.lock(pg_sys::RowExclusiveLock);
        }
        store::find_and_lock(tag, privilege)
    }

    fn reports(&mut self, tag: &str, server: Option<i64>) -> Vec<ServerReport> {
        let read = |row: &SpiHeapTupleData| ServerReport {
            server: value(row, 1),
            max_id: value(row, 2),
            history: text(row, 3),
        };
        match server {
            Some(server) => ONE.read_latest(&[tag.into(), server.into()], read),
            None => ALL.read_latest(&[tag.into()], read),
        }
    }

    fn names(&mut self, tag: &str, servers: Vec<i64>) -> String {
        let names = NAMES.read_latest(&[tag.into(), servers.into()], |row| optional_text(row, 1));
        names.into_iter().flatten().collect()
    }

    fn share(&mut self, row: &TagRow, shared: &SharedTag, report: Option<&ServerReport>) {
        let (creation, max_id, history) = (row.key.creation, shared.allocation.max_id, shared.history.as_deref());
        let Some(report) = report else { return store::raise(creation, max_id, None, history) };
        let args = [
            row.tag.as_str().into(),
            report.server.into(),
            self.name.into(),
            report.max_id.into(),
            report.history.as_str().into(),
            creation.into(),
            max_id.into(),
            history.into(),
        ];
        store::allocate(&WRITE, creation, max_id, &args);
        crate::pg::crash_point!("fleet: grant written");
    }

    fn clear_reports(&mut self, row: &TagRow, received: i64) {
        errors::set_back(&row.tag, received, row.definition.max_id).warn();
        SEGMENT_SERVER.write(&CLEAR, &[row.tag.as_str().into()]);
    }

    fn delete_report(&mut self, tag: &str, server: i64) {
        SEGMENT_SERVER.write(&DELETE, &[tag.into(), server.into()]);
    }
}

pub static SEGMENT_SERVER: ExtensionTable = ExtensionTable::new(c"segment_server");

static ONE: Query = SEGMENT_SERVER.query(
    "SELECT server, max_id, history FROM idgen.segment_server \
     WHERE tag OPERATOR(pg_catalog.=) $1 AND server OPERATOR(pg_catalog.=) $2",
);
static ALL: Query = SEGMENT_SERVER
    .query("SELECT server, max_id, history FROM idgen.segment_server WHERE tag OPERATOR(pg_catalog.=) $1");

static NAMES: Query = SEGMENT_SERVER.query(
    "SELECT pg_catalog.string_agg(name, ', ' ORDER BY name) FROM idgen.segment_server \
     WHERE tag OPERATOR(pg_catalog.=) $1 AND server OPERATOR(pg_catalog.=) ANY ($2)",
);

static LOCK_ONE: Query = SEGMENT_SERVER.query(
    "SELECT FROM idgen.segment_server \
     WHERE tag OPERATOR(pg_catalog.=) $1 AND server OPERATOR(pg_catalog.=) $2 FOR UPDATE",
);
/// Keeps reports from being deleted, not from being updated.
static LOCK_ALL: Query =
    SEGMENT_SERVER.query("SELECT FROM idgen.segment_server WHERE tag OPERATOR(pg_catalog.=) $1 FOR KEY SHARE");

/// Inserts or replaces a server's report, and writes the row of the tag, which is locked: neither without the other.
static WRITE: Query = SEGMENT_SERVER.query(
    "WITH reported AS ( \
         INSERT INTO idgen.segment_server (tag, server, name, max_id, history, reported_at) \
         VALUES ($1, $2, $3, $4, $5, pg_catalog.clock_timestamp()) ON CONFLICT (tag, server) DO UPDATE \
         SET name = excluded.name, max_id = excluded.max_id, history = excluded.history, reported_at = excluded.reported_at \
         RETURNING tag) \
     UPDATE idgen.segment SET max_id = GREATEST(max_id, $7), history = $8 FROM reported \
     WHERE creation OPERATOR(pg_catalog.=) $6 RETURNING max_id, version",
);

/// The servers of a tag have to report again. Their highest values still count.
static CLEAR: Query =
    SEGMENT_SERVER.query("UPDATE idgen.segment_server SET history = '' WHERE tag OPERATOR(pg_catalog.=) $1");

static DELETE: Query = SEGMENT_SERVER
    .query("DELETE FROM idgen.segment_server WHERE tag OPERATOR(pg_catalog.=) $1 AND server OPERATOR(pg_catalog.=) $2");

static KEEP: Query = SEGMENT_SERVER
    .query("UPDATE idgen.segment_server SET max_id = GREATEST(max_id, $2) WHERE tag OPERATOR(pg_catalog.=) $1");

/// A tag is dropped, whose values end at `max_id`. Its servers still have some of them. A tag that is created again
/// under this name waits for their reports, and begins past them.
pub fn keep(tag: &str, max_id: i64) {
    SEGMENT_SERVER.write(&KEEP, &[tag.into(), max_id.into()]);
}

/// True if a tag of this name has servers, which then stay until the transaction ends. Waits for those that are leaving.
pub fn are_known(tag: &str) -> bool {
    !LOCK_ALL.write_losable(&[tag.into()], |_| ()).is_empty()
}

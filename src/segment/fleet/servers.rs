//! What a coordinator does for attached servers: it grants ranges of a tag, and after a change of its history it first
//! waits until each server has reported the highest value that it has received.
//!
//! The values that a lost history has granted are known to their servers only. So this coordinator begins past the
//! highest value that any of them reports. The reports are in the table `idgen.segment_server`.

use super::errors;
use crate::args;
use crate::error;
use crate::pg::datum::{Composite, Text};
use crate::pg::latch::WaitEvent;
use crate::pg::spi::{ExtensionTable, Query, optional, text, user, value};
use crate::pg::{recovery, session, xact};
use crate::place;
use crate::segment::errors as segment_errors;
use crate::segment::store::{self, Link, Privilege, TagRow};
use idgen_core::history::HistoryState;
use idgen_core::segment::fleet::{Reply, ServerReport, SharedTag, Standing};
use idgen_core::segment::tag::{Allocation, MAX_STEP, TagDefinition};
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::sync::OnceLock;

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
        segment_errors::count_out_of_range(count, counts).raise();
    }
    let row = lock_shared(tag);
    let (mut shared, max_id) = reported(tag, &row, server, received);
    let (range, waits_for) = match shared.grant(count as u64, history()) {
        Reply::Granted(range) => (Some(range), None),
        Reply::Waits { unreported } => (None, Some(names(tag, unreported))),
        Reply::Exhausted if count == 0 => (None, None),
        Reply::Exhausted => segment_errors::exhausted(tag, row.definition.upper_bound).raise(),
    };
    refuse_beyond_bound(tag, &shared);
    let args = [
        tag.into(),
        server.into(),
        name.into(),
        max_id.into(),
        history().into(),
        row.key.creation.into(),
        shared.allocation.max_id.into(),
        shared.history.as_deref().into(),
    ];
    store::as_allocation(|| SEGMENT_SERVER.write(&WRITE, &args));
    let (first, count) = range.map(|range| (range.first, range.count as i64)).unzip();
    // Identifies the tag and its definition: after any change of it, servers discard what they hold.
    let (system, database) = (recovery::system_identifier(), session::database());
    let source = format!("{system}/{database}/{}/{}", row.key.creation, row.version);
    Composite([
        first.into(),
        count.into(),
        row.definition.stride.into(),
        row.definition.residue.into(),
        Text::from(source).into(),
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
    if forgets_of_dropped(tag, server) {
        return;
    }
    let row = lock_shared(tag);
    let (mut shared, _) = reported(tag, &row, server, received);
    shared.leave(server, history()).expect("it has reported");
    SEGMENT_SERVER.write(&DELETE, &[tag.into(), server.into()]);
    write_tag(tag, row.key.creation, &shared);
}

/// The operator's decision that the servers that have not reported are gone for good: the coordinator grants from above
/// `max_id` on, and above all reports. Give the highest value that a missing server can have received. Raises 22004 for
/// NULL, 42704 and 42501 as `segment_alter`, 22023 for a `max_id` above the upper bound, 55000 if the segment is attached
/// itself, 25006 on a standby.
#[pg_extern(sql = false)]
fn segment_resume(tag: Option<Text>, max_id: Option<i64>) {
    let (tag, max_id) = (args::required(tag.as_deref(), "tag"), args::required(max_id, "max_id"));
    error::refuse_on_standby("resume a segment");
    let row = store::find_and_lock(tag, Privilege::Alter);
    refuse_attached(tag, &row);
    if max_id > row.definition.upper_bound {
        errors::above_upper_bound(tag, max_id, row.definition.upper_bound).raise();
    }
    let mut shared = shared_tag(tag, &row.definition, &row.link, None);
    shared.resume(max_id, history());
    write_tag(tag, row.key.creation, &shared);
}

/// Waits until the synchronous standbys have all that this server has committed. Returns at once if there are none. Raises
/// 25006 on a standby.
#[pg_extern(sql = false)]
fn segment_confirm() {
    xact::refuse_during_recovery(c"segment_confirm()");
    recovery::wait_for_flushed(&CONFIRM_WAIT);
}

static CONFIRM_WAIT: WaitEvent = WaitEvent::new(c"IdgenSegmentConfirm");

/// What the coordinator's own next values follow, or why it may take none. The caller has locked the row.
pub fn own_allocation(tag: &str, creation: i64, definition: &TagDefinition, link: &Link) -> Result<Allocation, String> {
    if link.history.clone().is_none_or(|recorded| in_the_present_form(recorded) == history()) {
        return Ok(definition.allocation());
    }
    let mut shared = shared_tag(tag, definition, link, None);
    match shared.settle(history()) {
        Standing::Waits { unreported } => Err(errors::waits_for(tag, &names(tag, unreported))),
        Standing::Grants => {
            write_tag(tag, creation, &shared);
            Ok(shared.allocation)
        }
    }
}

/// Tags that the current user may see of which no values are granted, each with the number of servers that have not reported.
pub fn withheld() -> Vec<(String, usize)> {
    if recovery::is_in_progress() {
        return Vec::new();
    }
    let shared = SHARED.read_latest(&[user().into()], |row| (text(row, 1), text(row, 2)));
    let interrupted = shared.into_iter().filter(|(_, recorded)| in_the_present_form(recorded.clone()) != history());
    let waiting = interrupted.filter_map(|(tag, _)| {
        let row = store::find(&tag)?;
        match shared_tag(&tag, &row.definition, &row.link, None).standing(history()) {
            Standing::Waits { unreported } => Some((tag, unreported.len())),
            Standing::Grants => None,
        }
    });
    waiting.collect()
}

/// Forgets a server of a tag that was dropped. False if there is a tag of this name.
fn forgets_of_dropped(tag: &str, server: i64) -> bool {
    error::refuse_on_standby("forget a server");
    if store::find(tag).is_some() {
        return false;
    }
    // Before the lock, for which refills of all tags wait: no role takes it that does not know the server's number.
    if ONE.read_latest(&[tag.into(), server.into()], read).is_empty() {
        segment_errors::unknown(tag).raise();
    }
    // A transaction that creates the tag again waits for this one, and then finds the server gone.
    store::SEGMENT.lock(pg_sys::ShareRowExclusiveLock);
    let is_dropped = store::find(tag).is_none();
    if is_dropped {
        SEGMENT_SERVER.write(&DELETE, &[tag.into(), server.into()]);
    }
    is_dropped
}

/// Locks the row of a tag for which the current user may act as a server.
fn lock_shared(tag: &str) -> TagRow {
    error::refuse_on_standby("grant values");
    SEGMENT_SERVER.lock(pg_sys::RowExclusiveLock);
    let row = store::find_and_lock(tag, Privilege::Serve);
    refuse_attached(tag, &row);
    // This session counts the values that it has drawn from the tag, and raises `max_id` when it commits.
    if row.created_here {
        segment_errors::changed_here(tag).raise();
    }
    row
}

fn refuse_attached(tag: &str, row: &TagRow) {
    if row.link.is_attached() {
        errors::chained(tag).raise();
    }
}

/// The tag with a new report, and the highest value that the server has ever reported. While the history is the tag's, and has
/// granted what the server has received, the reports of others do not matter.
fn reported(tag: &str, row: &TagRow, server: i64, received: i64) -> (SharedTag, i64) {
    let TagRow { definition, link, .. } = row;
    let mut shared = shared_tag(tag, definition, link, (received <= definition.max_id).then_some(server));
    let was_current = shared.history.as_deref() == Some(history());
    let report = shared.report(server, received, history());
    if was_current && shared.history.as_deref() != Some(history()) {
        errors::set_back(tag, received, definition.max_id).warn();
        SEGMENT_SERVER.write(&CLEAR, &[tag.into()]);
    }
    (shared, report.max_id)
}

/// While the history is the tag's, only the report of this server is read, if it is given.
fn shared_tag(tag: &str, definition: &TagDefinition, link: &Link, server: Option<i64>) -> SharedTag {
    let recorded = link.history.clone().map(in_the_present_form);
    // The caller has locked the row of the tag, without which no report changes.
    let servers = match server {
        Some(server) if recorded.as_deref() == Some(history()) => ONE.read_latest(&[tag.into(), server.into()], read),
        _ => ALL.read_latest(&[tag.into()], read),
    };
    SharedTag { history: recorded, allocation: definition.allocation(), servers }
}

fn write_tag(tag: &str, creation: i64, shared: &SharedTag) {
    refuse_beyond_bound(tag, shared);
    store::share(creation, shared.allocation.max_id, shared.history.as_deref());
}

/// Raises 2200H if a server has received values above the upper bound.
fn refuse_beyond_bound(tag: &str, shared: &SharedTag) {
    let Allocation { max_id, upper_bound, .. } = shared.allocation;
    if max_id > upper_bound {
        segment_errors::exhausted(tag, upper_bound).raise();
    }
}

/// The text of what grants from this database. A failover, a restore and a copy begin another history.
fn history() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| place::identity().to_string())
}

/// The current history, if a row has it in the form of an earlier release. Otherwise what the row has.
fn in_the_present_form(recorded: String) -> String {
    match place::identity().state_of(&recorded) {
        HistoryState::Own => history().to_owned(),
        HistoryState::Interrupted | HistoryState::Copied => recorded,
    }
}

/// One row for each tag and server.
pub static SEGMENT_SERVER: ExtensionTable = ExtensionTable::new(c"segment_server");

static ONE: Query = SEGMENT_SERVER.query(
    "SELECT server, max_id, history FROM idgen.segment_server \
     WHERE tag OPERATOR(pg_catalog.=) $1 AND server OPERATOR(pg_catalog.=) $2",
);
static ALL: Query = SEGMENT_SERVER
    .query("SELECT server, max_id, history FROM idgen.segment_server WHERE tag OPERATOR(pg_catalog.=) $1");

fn read(row: &SpiHeapTupleData) -> ServerReport {
    ServerReport { server: value(row, 1), max_id: value(row, 2), history: in_the_present_form(text(row, 3)) }
}

static NAMES: Query = SEGMENT_SERVER.query(
    "SELECT pg_catalog.string_agg(name, ', ' ORDER BY name) FROM idgen.segment_server \
     WHERE tag OPERATOR(pg_catalog.=) $1 AND server OPERATOR(pg_catalog.=) ANY ($2)",
);

/// The names of some servers of a tag, in one text.
fn names(tag: &str, servers: Vec<i64>) -> String {
    let names = NAMES.read_latest(&[tag.into(), servers.into()], |row| optional::<Text>(row, 1).map(String::from));
    names.into_iter().flatten().collect()
}

/// Inserts or replaces a server's report, and writes the row of the tag, which is locked.
static WRITE: Query = SEGMENT_SERVER.query(
    "WITH reported AS ( \
         INSERT INTO idgen.segment_server (tag, server, name, max_id, history, reported_at) \
         VALUES ($1, $2, $3, $4, $5, pg_catalog.clock_timestamp()) ON CONFLICT (tag, server) DO UPDATE \
         SET name = excluded.name, max_id = excluded.max_id, history = excluded.history, reported_at = excluded.reported_at) \
     UPDATE idgen.segment SET max_id = GREATEST(max_id, $7), history = $8 WHERE creation OPERATOR(pg_catalog.=) $6",
);

/// The servers of a tag have to report again. Their highest values still count.
static CLEAR: Query =
    SEGMENT_SERVER.query("UPDATE idgen.segment_server SET history = '' WHERE tag OPERATOR(pg_catalog.=) $1");

/// A server is no longer attached.
static DELETE: Query = SEGMENT_SERVER
    .query("DELETE FROM idgen.segment_server WHERE tag OPERATOR(pg_catalog.=) $1 AND server OPERATOR(pg_catalog.=) $2");

static KEEP: Query = SEGMENT_SERVER
    .query("UPDATE idgen.segment_server SET max_id = GREATEST(max_id, $2) WHERE tag OPERATOR(pg_catalog.=) $1");

/// A tag is dropped, whose values end at `max_id`. Its servers still have some of them. A tag that is created again
/// under this name waits for their reports, and begins past them.
pub fn keep(tag: &str, max_id: i64) {
    SEGMENT_SERVER.write(&KEEP, &[tag.into(), max_id.into()]);
}

static KNOWN: Query =
    SEGMENT_SERVER.query("SELECT FROM idgen.segment_server WHERE tag OPERATOR(pg_catalog.=) $1 LIMIT 1");

/// True if a tag of this name has servers.
pub fn are_known(tag: &str) -> bool {
    !KNOWN.read_latest(&[tag.into()], |_| ()).is_empty()
}

/// The tags that servers have been attached to, those that the current user may see, and the history that last granted values.
static SHARED: Query = Query::new(&store::SEGMENT, || {
    format!("SELECT tag, history FROM idgen.segment WHERE history IS NOT NULL AND {} ORDER BY tag", store::is_visible())
});

//! The servers that are attached to tags of this coordinator: the table `idgen.segment_server`.

use crate::pg::datum::Text;
use crate::pg::spi::{ExtensionTable, Query, optional, text, user, value};
use crate::segment::store;
use idgen_core::segment::fleet::ServerReport;
use pgrx::spi::SpiHeapTupleData;

/// One row for each tag and server.
pub static SEGMENT_SERVER: ExtensionTable = ExtensionTable::new(c"segment_server");

static ONE: Query = SEGMENT_SERVER.query(
    "SELECT server, max_id, history FROM idgen.segment_server \
     WHERE tag OPERATOR(pg_catalog.=) $1 AND server OPERATOR(pg_catalog.=) $2",
);
static ALL: Query = SEGMENT_SERVER
    .query("SELECT server, max_id, history FROM idgen.segment_server WHERE tag OPERATOR(pg_catalog.=) $1");

/// The report of one server, if it is known. The caller has locked the row of the tag, without which no report changes.
pub fn report(tag: &str, server: i64) -> Vec<ServerReport> {
    ONE.read_latest(&[tag.into(), server.into()], read)
}

/// As [`report`], of all servers.
pub fn reports(tag: &str) -> Vec<ServerReport> {
    ALL.read_latest(&[tag.into()], read)
}

fn read(row: &SpiHeapTupleData) -> ServerReport {
    ServerReport { server: value(row, 1), max_id: value(row, 2), history: text(row, 3) }
}

static NAMES: Query = SEGMENT_SERVER.query(
    "SELECT pg_catalog.string_agg(name, ', ' ORDER BY name) FROM idgen.segment_server \
     WHERE tag OPERATOR(pg_catalog.=) $1 AND server OPERATOR(pg_catalog.=) ANY ($2)",
);

/// The names of some servers of a tag, in one text.
pub fn names(tag: &str, servers: Vec<i64>) -> String {
    let names = NAMES.read_latest(&[tag.into(), servers.into()], |row| optional::<Text>(row, 1).map(String::from));
    names.into_iter().flatten().collect()
}

static WRITE: Query = SEGMENT_SERVER.query(
    "INSERT INTO idgen.segment_server (tag, server, name, max_id, history, reported_at) \
     VALUES ($1, $2, $3, $4, $5, pg_catalog.clock_timestamp()) ON CONFLICT (tag, server) DO UPDATE \
     SET name = excluded.name, max_id = excluded.max_id, history = excluded.history, reported_at = excluded.reported_at",
);

/// Inserts or replaces a server's report.
pub fn write(tag: &str, name: &str, report: &ServerReport) {
    let ServerReport { server, max_id, history } = report;
    let args = [tag.into(), (*server).into(), name.into(), (*max_id).into(), history.as_str().into()];
    SEGMENT_SERVER.write(&WRITE, &args);
}

static CLEAR: Query =
    SEGMENT_SERVER.query("UPDATE idgen.segment_server SET history = '' WHERE tag OPERATOR(pg_catalog.=) $1");

/// The servers of a tag have to report again. Their highest values still count.
pub fn clear_reports(tag: &str) {
    SEGMENT_SERVER.write(&CLEAR, &[tag.into()]);
}

static DELETE: Query = SEGMENT_SERVER
    .query("DELETE FROM idgen.segment_server WHERE tag OPERATOR(pg_catalog.=) $1 AND server OPERATOR(pg_catalog.=) $2");

/// A server is no longer attached.
pub fn delete(tag: &str, server: i64) {
    SEGMENT_SERVER.write(&DELETE, &[tag.into(), server.into()]);
}

static KEEP: Query = SEGMENT_SERVER.query(
    "UPDATE idgen.segment_server SET max_id = GREATEST(max_id, $2) \
     WHERE tag OPERATOR(pg_catalog.=) $1",
);

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

static SHARED: Query = Query::new(&store::SEGMENT, || {
    format!("SELECT tag, history FROM idgen.segment WHERE history IS NOT NULL AND {} ORDER BY tag", store::is_visible())
});

/// The tags that servers have been attached to, those that the current user may see, and the history that last granted values.
pub fn shared_tags() -> Vec<(String, String)> {
    let read = |row: &SpiHeapTupleData| (text(row, 1), text(row, 2));
    SHARED.read_latest(&[user().into()], read)
}

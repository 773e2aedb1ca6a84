//! The row of `idgen.worker_history`, and a mark that outlives the extension.

use super::errors;
use super::{number, place};
use crate::lease::{pending, term, tokens};
use crate::pg::owner::ExtensionTable;
use crate::pg::recovery;
use crate::pg::spi::{Query, optional, text, value};
use crate::pg::timestamp;
use crate::settings;
use idgen_core::worker::history::{History, Identity, State};
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::ffi::{CStr, CString};

/// At most one row. The SQL of 0.7 does not have it.
static WORKER_HISTORY: ExtensionTable = ExtensionTable::new(c"idgen", c"worker_history");

/// What a grant or a renewal has to know of the history.
#[derive(Clone, Copy, Default)]
pub struct Known {
    /// When it was interrupted last; `None` if it is complete.
    pub since_us: Option<i64>,
    /// The longest time from the clock to the end of a rectangle that was ever possible.
    pub longest_us: i64,
}

impl From<&History> for Known {
    fn from(history: &History) -> Self {
        Self { since_us: history.since_us, longest_us: history.longest_us }
    }
}

/// For a grant of a pool with this ttl: makes the row, or records an interruption or longer rectangles.
pub fn for_grant(ttl_us: i64) -> Known {
    if WORKER_HISTORY.find().is_none() {
        return Known::default();
    }
    let (identity, longest_us) = (identity(), longest_of(ttl_us));
    let is_enough = |history: &History| is_own(history, &identity) && history.longest_us >= longest_us;
    if let Some(history) = read().filter(is_enough) {
        return Known::from(&history);
    }
    // One transaction at a time makes or changes the row. A later one reads what it has written.
    WORKER_HISTORY.lock(pg_sys::ShareRowExclusiveLock);
    let history = match read() {
        Some(history) if is_enough(&history) => return Known::from(&history),
        Some(history) if is_own(&history, &identity) => history,
        Some(history) => interrupted(&history, identity),
        None => begun(identity),
    };
    let history = with_longest(history, longest_us);
    write(&history);
    Known::from(&history)
}

/// For the holder of a token: an error if the token is from before an interruption.
pub fn for_holder(pool: &str, token: i64) -> Known {
    let history = WORKER_HISTORY.find().and_then(|_| read());
    // Right after an upgrade there is none yet.
    let Some(history) = history else {
        return Known::default();
    };
    if !is_own(&history, &identity()) || token < history.first_token {
        errors::token_before_interruption(pool).raise();
    }
    Known::from(&history)
}

/// Begins a new history in this database, for one that is a copy whose origin grants no more. Returns from when on worker ids
/// are granted without a lead. `since`: when the origin granted last, where the clock here was wrong when that was noticed.
#[pg_extern(sql = "CREATE FUNCTION worker_begin_history(since timestamptz DEFAULT NULL) RETURNS timestamptz \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn worker_begin_history(since: Option<TimestampWithTimeZone>) -> TimestampWithTimeZone {
    term::refuse_where_nothing_can_be_written(c"worker_begin_history()");
    let stated_us = since.map(|since| super::finite_us("since", since));
    WORKER_HISTORY.lock(pg_sys::ShareRowExclusiveLock);
    let identity = identity();
    let first = || History { identity: identity.clone(), since_us: None, first_token: 0, longest_us: 0 };
    let history = with_longest(read().unwrap_or_else(first), longest_us());
    let mut begun = interrupted(&history, identity);
    if stated_us.is_some() {
        // What the mark says is corrected too, and what was longer before is over.
        (begun.since_us, begun.longest_us) = (stated_us, longest_us());
        unmark();
    }
    write(&begun);
    pending::require_durability();
    let since_us = begun.since_us.expect("it was interrupted");
    number::time(since_us.saturating_add(begun.longest_us))
}

/// False if it is interrupted; an error if this is a copy.
fn is_own(history: &History, identity: &Identity) -> bool {
    match history.state(identity) {
        State::Own => true,
        State::Interrupted => false,
        State::Copied => errors::copy_of_the_coordinator().raise(),
    }
}

fn interrupted(history: &History, identity: Identity) -> History {
    let history = with_longest(history.clone(), marked().map_or(0, |mark| mark.longest_us));
    History {
        identity,
        since_us: Some(history.interrupted_us(number::now_us())),
        first_token: tokens::next(),
        longest_us: history.longest_us,
    }
}

/// The first grant of this database. Its history is not complete where the server has granted before, from a database or an
/// extension that was dropped, or where worker ids are known that no lease goes with: they were restored.
/// Terms that are there go on.
fn begun(identity: Identity) -> History {
    let mark = marked();
    let is_incomplete = mark.is_some() || has_restored_rows();
    let mark = mark.unwrap_or(Mark { until_us: i64::MIN, longest_us: 0 });
    let since_us = is_incomplete.then(|| number::now_us().max(mark.until_us));
    with_longest(History { identity, since_us, first_token: 0, longest_us: mark.longest_us }, longest_us())
}

fn with_longest(history: History, longest_us: i64) -> History {
    History { longest_us: history.longest_us.max(longest_us), ..history }
}

fn identity() -> Identity {
    Identity {
        // SAFETY: reads shared memory.
        system_identifier: unsafe { pg_sys::GetSystemIdentifier() } as i64,
        timeline: recovery::timeline() as i32,
        // SAFETY: a variable of this process.
        database: unsafe { pg_sys::MyDatabaseId }.to_u32(),
        place: place::of_data_directory().unwrap_or_else(|e| errors::no_place(&e).raise()),
    }
}

static READ: Query = Query::new(&WORKER_HISTORY, || {
    "SELECT system_identifier, timeline, database, place, since, first_token, \
     (pg_catalog.extract('epoch', longest) OPERATOR(pg_catalog.*) 1000000)::bigint FROM idgen.worker_history"
        .to_owned()
});

fn read() -> Option<History> {
    let read = |row: &SpiHeapTupleData| History {
        identity: Identity {
            system_identifier: value(row, 1),
            timeline: value(row, 2),
            database: value::<pg_sys::Oid>(row, 3).to_u32(),
            place: text(row, 4),
        },
        since_us: Some(timestamp::to_us(value(row, 5))).filter(|since_us| *since_us != i64::MIN),
        first_token: value(row, 6),
        longest_us: value(row, 7),
    };
    READ.read_latest(&[], read).pop()
}

static WRITE: Query = Query::new(&WORKER_HISTORY, || {
    "INSERT INTO idgen.worker_history AS history (system_identifier, timeline, database, place, since, first_token, longest) \
     VALUES ($1, $2, $3, $4, $5, $6, $7 OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval) \
     ON CONFLICT (one) DO UPDATE SET system_identifier = excluded.system_identifier, timeline = excluded.timeline, \
     database = excluded.database, place = excluded.place, since = excluded.since, first_token = excluded.first_token, \
     longest = excluded.longest"
        .to_owned()
});

fn write(history: &History) {
    let until_us = history.since_us.map_or(i64::MIN, |since_us| since_us.saturating_add(history.longest_us));
    mark(Mark { until_us, longest_us: history.longest_us });
    let Identity { system_identifier, timeline, database, place } = &history.identity;
    let since = history.since_us.map_or_else(TimestampWithTimeZone::negative_infinity, number::time);
    let args = [
        (*system_identifier).into(),
        (*timeline).into(),
        pg_sys::Oid::from(*database).into(),
        place.as_str().into(),
        since.into(),
        history.first_token.into(),
        history.longest_us.into(),
    ];
    WRITE.write_latest(&args, |_| ());
}

static LONGEST_TTL: Query = Query::new(&WORKER_HISTORY, || {
    "SELECT (pg_catalog.max(pg_catalog.extract('epoch', defined.ttl)) OPERATOR(pg_catalog.*) 1000000)::bigint \
     FROM idgen.lease_definition AS defined \
     WHERE EXISTS (SELECT FROM idgen.worker_number AS known WHERE known.pool OPERATOR(pg_catalog.=) defined.name)"
        .to_owned()
});

/// The longest time from the clock to the end of a rectangle, of any pool.
fn longest_us() -> i64 {
    let ttl_us: Option<i64> = LONGEST_TTL.read_latest(&[], |row| optional(row, 1)).pop().flatten();
    longest_of(ttl_us.unwrap_or(0))
}

fn longest_of(ttl_us: i64) -> i64 {
    ttl_us.saturating_add(settings::worker_max_lead_us(ttl_us))
}

static RESTORED: Query = Query::new(&WORKER_HISTORY, || {
    "SELECT 1 FROM idgen.worker_number AS known \
     WHERE NOT EXISTS (SELECT FROM idgen.lease WHERE lease.name OPERATOR(pg_catalog.=) known.pool \
                       AND lease.slot OPERATOR(pg_catalog.=) known.number) LIMIT 1"
        .to_owned()
});

/// A dump has rectangles, and no leases.
fn has_restored_rows() -> bool {
    !RESTORED.read_latest(&[], |_| ()).is_empty()
}

const PROVIDER: &CStr = c"idgen workers";

/// What the mark is written on: a database with OID 0, like the mark of the clock. No dump includes it, and it outlives the
/// extension and the database.
fn object() -> pg_sys::ObjectAddress {
    pg_sys::ObjectAddress { classId: pg_sys::DatabaseRelationId, objectId: pg_sys::InvalidOid, objectSubId: 0 }
}

/// What the label says.
struct Mark {
    /// When grants began last after an interruption; long ago if there was none.
    until_us: i64,
    /// As in `History`, over all databases.
    longest_us: i64,
}

/// `None` if no database of this server has granted worker ids.
fn marked() -> Option<Mark> {
    // SAFETY: the object is a local; the result is null or a C string in this transaction's memory, copied at once.
    let text = unsafe {
        let text = pg_sys::GetSecurityLabel(&object(), PROVIDER.as_ptr());
        if text.is_null() {
            return None;
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    };
    let mut numbers = text.split(' ').map(|number| number.parse().ok());
    let mut next = |default| numbers.next().flatten().unwrap_or(default);
    Some(Mark { until_us: next(i64::MIN), longest_us: next(0) })
}

/// Leaves a mark that this server has granted worker ids, until when its grants waited, and for how long at most.
fn mark(mark: Mark) {
    lock_mark();
    let known = marked().unwrap_or(Mark { until_us: i64::MIN, longest_us: 0 });
    let (until_us, longest_us) = (known.until_us.max(mark.until_us), known.longest_us.max(mark.longest_us));
    set_mark(Some(&format!("{until_us} {longest_us}")));
}

fn unmark() {
    lock_mark();
    set_mark(None);
}

/// Until the end of the transaction: another database may write the same row.
fn lock_mark() {
    /// Nothing else locks this part of a database that does not exist.
    const PART: u16 = 1;
    // SAFETY: a lock that the end of the transaction releases.
    unsafe {
        let mode = pg_sys::ExclusiveLock as pg_sys::LOCKMODE;
        pg_sys::LockSharedObject(pg_sys::DatabaseRelationId, pg_sys::InvalidOid, PART, mode);
    }
}

fn set_mark(text: Option<&str>) {
    let text = text.map(|text| CString::new(text).expect("numbers have no NUL"));
    let text = text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    // SAFETY: the object is a local, and the texts are C strings; null removes the label.
    unsafe {
        pg_sys::SetSecurityLabel(&object(), PROVIDER.as_ptr(), text);
        // The next look is in the same transaction.
        pg_sys::CommandCounterIncrement();
    }
}

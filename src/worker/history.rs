//! The row of `idgen.worker_history`, and a mark that outlives the extension.

use super::{number, place};
use crate::clock::label;
use crate::lease::{term, tokens, transaction};
use crate::owner::Table;
use crate::query::{Query, optional, text, value};
use crate::{error, settings, timestamp};
use idgen_core::worker::history::{History, Identity, State};
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::ffi::{CStr, CString};

/// At most one row. The SQL of 0.7 does not have it.
static WORKER_HISTORY: Table = Table::new(c"worker_history");

/// What a grant or a renewal has to know of the history.
#[derive(Clone, Copy)]
pub struct Known {
    /// When it was interrupted last; `None` if it is complete.
    pub since_us: Option<i64>,
}

/// For a grant of a pool with this ttl: makes the row, or records an interruption.
pub fn for_grant(ttl_us: i64) -> Known {
    if WORKER_HISTORY.find().is_none() {
        return Known { since_us: None };
    }
    let identity = identity();
    if let Some(history) = read().filter(|history| is_own(history, &identity)) {
        return Known { since_us: history.since_us };
    }
    // One transaction at a time makes or changes the row. A later one reads what it has written.
    WORKER_HISTORY.lock(pg_sys::ShareRowExclusiveLock);
    let longest_us = longest_us().max(longest_of(ttl_us));
    let history = match read() {
        Some(history) if is_own(&history, &identity) => return Known { since_us: history.since_us },
        Some(history) => interrupted(&history, identity, longest_us),
        None => begun(identity),
    };
    write(&history, longest_us);
    Known { since_us: history.since_us }
}

/// For the holder of a token: an error if the token is from before an interruption.
pub fn for_holder(pool: &str, token: i64) -> Known {
    let history = WORKER_HISTORY.find().and_then(|_| read());
    // Right after an upgrade there is none yet.
    let Some(history) = history else {
        return Known { since_us: None };
    };
    if !is_own(&history, &identity()) || token < history.first_token {
        error::worker::token_before_interruption(pool).raise();
    }
    Known { since_us: history.since_us }
}

/// Begins a new history in this database, for one that is a copy whose origin grants no more. Returns from when on worker ids
/// are granted without a lead.
#[pg_extern(sql = "CREATE FUNCTION worker_begin_history() RETURNS timestamptz \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn worker_begin_history() -> TimestampWithTimeZone {
    term::refuse_where_nothing_can_be_written(c"worker_begin_history()");
    WORKER_HISTORY.lock(pg_sys::ShareRowExclusiveLock);
    let identity = identity();
    let history = read().unwrap_or_else(|| History { identity: identity.clone(), since_us: None, first_token: 0 });
    let longest_us = longest_us();
    let begun = interrupted(&history, identity, longest_us);
    write(&begun, longest_us);
    transaction::is_to_be_durable();
    let since_us = begun.since_us.expect("it was interrupted");
    number::time(since_us.saturating_add(longest_us))
}

/// False if it is interrupted; an error if this is a copy.
fn is_own(history: &History, identity: &Identity) -> bool {
    match history.state(identity) {
        State::Own => true,
        State::Interrupted => false,
        State::Copied => error::worker::copy_of_the_coordinator().raise(),
    }
}

fn interrupted(history: &History, identity: Identity, longest_us: i64) -> History {
    let since_us = history.interrupted_us(number::now_us(), longest_us);
    History { identity, since_us: Some(since_us), first_token: tokens::next() }
}

/// The first grant of this database. Its history is not complete where the server has granted before, from a database or an
/// extension that was dropped, or where worker ids are known that no lease goes with: they were restored.
/// Terms that are there go on.
fn begun(identity: Identity) -> History {
    let marked_us = marked_until_us();
    let is_incomplete = marked_us.is_some() || has_restored_rows();
    let since_us = is_incomplete.then(|| number::now_us().max(marked_us.unwrap_or(i64::MIN)));
    History { identity, since_us, first_token: 0 }
}

fn identity() -> Identity {
    Identity {
        // SAFETY: reads shared memory.
        system_identifier: unsafe { pg_sys::GetSystemIdentifier() } as i64,
        timeline: label::timeline() as i32,
        // SAFETY: a variable of this process.
        database: unsafe { pg_sys::MyDatabaseId }.to_u32(),
        place: place::of_data_directory().unwrap_or_else(|e| error::worker::no_place(&e).raise()),
    }
}

static READ: Query = Query::new(&WORKER_HISTORY, || {
    "SELECT system_identifier, timeline, database, place, since, first_token FROM idgen.worker_history".to_owned()
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
    };
    READ.look(&[], read).pop()
}

static WRITE: Query = Query::new(&WORKER_HISTORY, || {
    "INSERT INTO idgen.worker_history AS history (system_identifier, timeline, database, place, since, first_token) \
     VALUES ($1, $2, $3, $4, $5, $6) \
     ON CONFLICT (one) DO UPDATE SET system_identifier = excluded.system_identifier, timeline = excluded.timeline, \
     database = excluded.database, place = excluded.place, since = excluded.since, first_token = excluded.first_token"
        .to_owned()
});

/// Rectangles end at most `longest_us` after the clock, or after the time when grants began after an interruption.
fn write(history: &History, longest_us: i64) {
    mark(history.since_us.map_or(i64::MIN, |since_us| since_us.saturating_add(longest_us)));
    let Identity { system_identifier, timeline, database, place } = &history.identity;
    let since = history.since_us.map_or_else(TimestampWithTimeZone::negative_infinity, number::time);
    let args = [
        (*system_identifier).into(),
        (*timeline).into(),
        pg_sys::Oid::from(*database).into(),
        place.as_str().into(),
        since.into(),
        history.first_token.into(),
    ];
    WRITE.write(&args, |_| ());
}

static LONGEST_TTL: Query = Query::new(&WORKER_HISTORY, || {
    "SELECT (pg_catalog.max(pg_catalog.extract('epoch', defined.ttl)) OPERATOR(pg_catalog.*) 1000000)::bigint \
     FROM idgen.lease_definition AS defined \
     WHERE EXISTS (SELECT FROM idgen.worker_number AS known WHERE known.pool OPERATOR(pg_catalog.=) defined.name)"
        .to_owned()
});

/// The longest time from the clock to the end of a rectangle, of any pool.
fn longest_us() -> i64 {
    let ttl_us: Option<i64> = LONGEST_TTL.look(&[], |row| optional(row, 1)).pop().flatten();
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
    !RESTORED.look(&[], |_| ()).is_empty()
}

const PROVIDER: &CStr = c"idgen workers";

/// What the mark is written on: a database with OID 0, like the mark of the clock. No dump includes it, and it outlives the
/// extension and the database.
fn object() -> pg_sys::ObjectAddress {
    pg_sys::ObjectAddress { classId: pg_sys::DatabaseRelationId, objectId: pg_sys::InvalidOid, objectSubId: 0 }
}

/// `None` if no database of this server has granted worker ids. Otherwise when grants began last after an interruption; long
/// ago if there was none.
fn marked_until_us() -> Option<i64> {
    // SAFETY: the object is a local; the result is null or a C string in this transaction's memory, copied at once.
    let text = unsafe {
        let text = pg_sys::GetSecurityLabel(&object(), PROVIDER.as_ptr());
        if text.is_null() {
            return None;
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    };
    Some(text.parse().unwrap_or(i64::MIN))
}

/// Leaves a mark that this server has granted worker ids, and until when its grants waited.
fn mark(until_us: i64) {
    /// Nothing else locks this part of a database that does not exist.
    const PART: u16 = 1;
    // SAFETY: a lock that the end of the transaction releases: another database may write the same row.
    unsafe {
        let mode = pg_sys::ExclusiveLock as pg_sys::LOCKMODE;
        pg_sys::LockSharedObject(pg_sys::DatabaseRelationId, pg_sys::InvalidOid, PART, mode);
    }
    let until_us = marked_until_us().map_or(until_us, |marked_us| marked_us.max(until_us));
    let text = CString::new(until_us.to_string()).expect("a number has no NUL");
    // SAFETY: the object is a local, and both texts are C strings.
    unsafe { pg_sys::SetSecurityLabel(&object(), PROVIDER.as_ptr(), text.as_ptr()) };
}

//! The coordinator's history: detects that another server or database has granted from these rows. The row of
//! `idgen.worker_history` has the history. A security label, which outlives the extension and the database, records
//! that this server has granted worker ids.
//!
//! An interruption of the history begins an epoch, and so ends all tokens: since the last grant that is known here, others may
//! have been granted. It changes no row of a worker id, because an open transaction may have locked that.

use super::errors;
use super::pool::{WORKER_HISTORY, WORKER_ID, WORKER_POOL};
use crate::args;
use crate::pg::spi::{Query, micros, optional_text, value};
use crate::pg::xact::{self, Durability};
use crate::pg::{datum, recovery, session, shared_objects, system_clock};
use crate::place;
use crate::settings;
use idgen_core::history::{History, HistoryState, Past};
use idgen_core::worker::PoolBounds;
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::ffi::CStr;

/// The bounds of the rectangles of a pool with this ttl, by the clock and the settings of now.
pub fn bounds(history: &History, ttl_us: i64) -> PoolBounds {
    PoolBounds {
        now_us: system_clock::now_us(),
        ttl_us,
        max_lead_us: settings::worker_max_lead_us(ttl_us),
        since_us: history.since_us,
        longest_forgotten_us: history.longest_us,
    }
}

/// With the definition of a pool: a copy, a failover or a restore before its first grant ends the history too.
pub fn begin() {
    if read().is_none() {
        // Waits for another transaction that defines the first pool, and then keeps what its row has by then.
        write(&begun(), false);
    }
}

/// True if a history allows grants and renewals in a pool with this ttl as it is: nothing has to be recorded before them. Raises
/// 55000 if this database is a copy.
pub fn is_sufficient(history: &History, ttl_us: i64) -> bool {
    // A row of an earlier release has the identity in another form.
    let is_current = is_own(history) && history.identity == place::identity().to_string();
    is_current && history.longest_us >= longest_of(ttl_us)
}

/// For a grant or a renewal in a pool with this ttl. Records an interruption, or longer rectangles before one is granted, and
/// then keeps the history locked: the caller must wait for no row after it. Raises 55000 if this database is a copy.
pub fn for_grant(ttl_us: i64) -> History {
    if let Some(history) = read().filter(|history| is_sufficient(history, ttl_us)) {
        return history;
    }
    // One transaction at a time changes the row. The next one reads the new row after it gets the lock.
    WORKER_HISTORY.lock(pg_sys::ShareRowExclusiveLock);
    let history = match read() {
        Some(history) if is_sufficient(&history, ttl_us) => return history,
        Some(history) if is_own(&history) => History { identity: place::identity().to_string(), ..history },
        Some(history) => interrupted(&history),
        None => begun(),
    };
    let history = with_longest(history, longest_of(ttl_us));
    write_for_grants(&history);
    history
}

/// A holder says that it was told a later end than this database knows: the database was set back, and nothing else has shown
/// it. Ends the history. False if that cannot be: the data of a running server are not replaced, so it has every renewal of a
/// term that has begun since its start. Nor if the history has been interrupted since it was read.
pub fn note_lost_grants(known: Option<&History>, acquired_us: i64) -> bool {
    if acquired_us >= session::server_start_us() {
        return false;
    }
    WORKER_HISTORY.lock(pg_sys::ShareRowExclusiveLock);
    let history = read();
    // Another holder may have ended it during the wait.
    let is_known = history.as_ref().map(|history| history.epoch) == known.map(|known| known.epoch);
    if is_known {
        write_for_grants(&interrupted(&history.unwrap_or_else(begun)));
        errors::grants_are_lost().warn();
    }
    is_known
}

/// Begins a new history, for a copy of a coordinator whose origin grants no more. Returns the time from which worker
/// ids are granted without a wait. `since` replaces the time of the interruption where the clock was wrong; NULL keeps
/// it. Raises 22008 if `since` is infinite.
#[pg_extern(sql = false)]
fn worker_begin_history(since: Option<TimestampWithTimeZone>) -> TimestampWithTimeZone {
    xact::require_read_write(c"worker_begin_history()");
    let stated_us = since.map(|since| args::finite_us(since, "since"));
    WORKER_HISTORY.lock(pg_sys::ShareRowExclusiveLock);
    let longest_us = longest_of(LONGEST_TTL.read_latest(&[], |row| value(row, 1)).pop().unwrap_or(0));
    let mut history = interrupted(&with_longest(read().unwrap_or_else(begun), longest_us));
    if stated_us.is_some() {
        // Corrects the label too, and drops longer rectangles of the past.
        (history.since_us, history.longest_us) = (stated_us, longest_us);
        shared_objects::lock_part(PART);
        shared_objects::write_label(PROVIDER, None);
    }
    write_for_grants(&history);
    xact::require_durability(Durability::Failover);
    let since_us = history.since_us.expect("it was interrupted");
    datum::from_us_or_infinity(since_us.saturating_add(history.longest_us))
}

/// The longest ttl of the pools in microseconds.
static LONGEST_TTL: Query = Query::new(&WORKER_POOL, || {
    format!("SELECT COALESCE(pg_catalog.max({}), 0) FROM idgen.worker_pool", micros("ttl"))
});

/// The time at which new rectangles begin, if an interruption holds them back from now, in microseconds since 1970.
pub fn held_back_until_us() -> Option<i64> {
    let history = read()?;
    let until_us = history.since_us?.saturating_add(history.longest_us);
    (until_us > system_clock::now_us()).then_some(until_us)
}

/// False if the history is interrupted, which nothing has recorded yet: no token is current. Raises 55000 if this database is a
/// copy.
pub fn is_own(history: &History) -> bool {
    match place::identity().state_of(&history.identity) {
        HistoryState::Own => true,
        HistoryState::Interrupted => false,
        HistoryState::Copied => errors::copy_of_the_coordinator().raise(),
    }
}

/// The history after an interruption.
fn interrupted(history: &History) -> History {
    with_longest(history.clone(), 0).interrupted(place::identity(), system_clock::now_us())
}

/// The history of a database that has no row.
fn begun() -> History {
    let now_us = system_clock::now_us();
    let writing_us = recovery::began_to_write_us().map_or(0, |began_us| system_clock::boot_us() - began_us);
    let past = Past {
        is_new: ANY.read_latest(&[], |_| ()).is_empty(),
        now_us,
        began_us: now_us - writing_us,
        label_until_us: read_label().map(|(until_us, _)| until_us),
    };
    History::begun(place::identity(), past)
}

static ANY: Query = WORKER_ID.query("SELECT FROM idgen.worker_id LIMIT 1");

/// Writes the row, and raises both values of the label to it at least.
fn write_for_grants(history: &History) {
    let waits_until_us = history.since_us.map_or(i64::MIN, |since_us| since_us.saturating_add(history.longest_us));
    shared_objects::lock_part(PART);
    let (until_us, longest_us) = read_label().unwrap_or((i64::MIN, 0));
    let (until_us, longest_us) = (until_us.max(waits_until_us), longest_us.max(history.longest_us));
    shared_objects::write_label(PROVIDER, Some(&format!("{until_us} {longest_us}")));
    write(history, true);
}

/// With the longest rectangle so far: the row may lack that of a dropped database or extension, which the label has.
fn with_longest(history: History, longest_us: i64) -> History {
    let of_label_us = read_label().map_or(0, |(_, longest_us)| longest_us);
    History { longest_us: history.longest_us.max(longest_us).max(of_label_us), ..history }
}

fn longest_of(ttl_us: i64) -> i64 {
    ttl_us.saturating_add(settings::worker_max_lead_us(ttl_us))
}

/// The columns of a history, for [`from_row`]. NULL if there is no row.
pub fn columns() -> String {
    format!("history.identity, history.since, {}, history.epoch", micros("history.longest"))
}

/// The history in a row, whose columns begin at this one.
pub fn from_row(row: &SpiHeapTupleData, column: usize) -> Option<History> {
    Some(History {
        identity: optional_text(row, column)?,
        since_us: Some(datum::to_us(value(row, column + 1))).filter(|since_us| *since_us != i64::MIN),
        longest_us: value(row, column + 2),
        epoch: value(row, column + 3),
    })
}

static READ: Query =
    Query::new(&WORKER_HISTORY, || format!("SELECT {} FROM idgen.worker_history AS history", columns()));

/// `None` before the first pool.
fn read() -> Option<History> {
    READ.read_latest(&[], |row| from_row(row, 1)).pop().flatten()
}

static WRITE: Query = WORKER_HISTORY.query(
    "INSERT INTO idgen.worker_history AS history (identity, since, longest, epoch) \
     VALUES ($1, $2, $3 OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval, $4) \
     ON CONFLICT (one) DO UPDATE SET identity = excluded.identity, since = excluded.since, longest = excluded.longest, \
     epoch = excluded.epoch WHERE $5",
);

fn write(history: &History, replaces: bool) {
    let since = history.since_us.map_or_else(TimestampWithTimeZone::negative_infinity, datum::from_us_or_infinity);
    let identity = history.identity.as_str();
    let (longest_us, epoch) = (history.longest_us, history.epoch);
    WRITE.write_latest(&[identity.into(), since.into(), longest_us.into(), epoch.into(), replaces.into()], |_| ());
}

const PROVIDER: &CStr = c"idgen workers";
/// The part of the label's object that writers lock: another database may write the same label.
const PART: u16 = 1;

/// The label, over all databases of the server: the end of the wait after the last interruption, `i64::MIN` if there was none;
/// and the longest time as in `History`. `None` if no database of this server has granted worker ids.
fn read_label() -> Option<(i64, i64)> {
    let text = shared_objects::read_label(PROVIDER)?;
    let mut numbers = text.split(' ').map(|number| number.parse().ok());
    let mut next = |default| numbers.next().flatten().unwrap_or(default);
    Some((next(i64::MIN), next(0)))
}

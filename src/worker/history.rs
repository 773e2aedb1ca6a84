//! The coordinator's history: detects that another server or database has granted from these rows. The row of
//! `idgen.worker_history` has the history. A security label, which outlives the extension and the database, records
//! that this server has granted worker ids.

use super::errors;
use super::store::finite_us;
use crate::lease;
use crate::lease::pending;
use crate::pg::spi::{ExtensionTable, Query, optional, text, value};
use crate::pg::{datum, recovery, session, shared_objects, system_clock, xact};
use crate::place;
use crate::settings;
use idgen_core::coordinator::Place;
use idgen_core::worker::PoolBounds;
use idgen_core::worker::history::{History, HistoryState, Identity, Past};
use parking_lot::Mutex;
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::ffi::CStr;
use std::sync::Once;

/// The part of the history that bounds rectangles.
#[derive(Clone, Copy, Default)]
pub struct HistoryBounds {
    /// The time of the last interruption; `None` if the history is complete.
    since_us: Option<i64>,
    /// The longest time from the clock to the end of a rectangle, under any settings so far.
    longest_us: i64,
}

impl From<&History> for HistoryBounds {
    fn from(history: &History) -> Self {
        Self { since_us: history.since_us, longest_us: history.longest_us }
    }
}

impl HistoryBounds {
    /// The bounds of the rectangles of a pool with this ttl, by the clock and the settings of now.
    pub fn of_pool(self, ttl_us: i64) -> PoolBounds {
        PoolBounds {
            now_us: system_clock::now_us(),
            ttl_us,
            max_lead_us: settings::worker_max_lead_us(ttl_us),
            since_us: self.since_us,
            longest_forgotten_us: self.longest_us,
        }
    }
}

/// The first history, as the running transaction found it before it defined a lease.
static FIRST: Mutex<Option<History>> = Mutex::new(None);

/// With the first definition of a lease, which may become a pool: a copy, a failover or a restore before the first grant then
/// ends the history. The row is written just before the commit, so that no grant waits for a transaction that stays open.
pub fn begin() {
    if is_missing() && FIRST.lock().is_none() {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| xact::on_xact_event(at_xact_event));
        let first = begun(identity());
        *FIRST.lock() = Some(first);
    }
}

/// A prepared transaction may stay open too.
fn at_xact_event(event: pg_sys::XactEvent::Type) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_PRE_COMMIT, XACT_EVENT_PRE_PREPARE};
    if matches!(event, XACT_EVENT_ABORT | XACT_EVENT_PRE_COMMIT | XACT_EVENT_PRE_PREPARE) {
        let first = FIRST.lock().take().filter(|_| event == XACT_EVENT_PRE_COMMIT);
        first.into_iter().for_each(|first| xact::write_before_commit(|| write_first(&first)));
    }
}

/// Waits for nobody: a grant that finds no row counts as interrupted.
fn write_first(first: &History) {
    if is_missing() && WORKER_HISTORY.try_lock(pg_sys::ShareRowExclusiveLock).is_some() && is_missing() {
        write(first);
    }
}

fn is_missing() -> bool {
    WORKER_HISTORY.find().is_some() && read().is_none()
}

/// For a grant of a pool with this ttl. Records an interruption, or longer rectangles. Raises 55000 if this database is a
/// copy.
pub fn for_grant(ttl_us: i64) -> HistoryBounds {
    let (identity, longest_us) = (identity(), longest_of(ttl_us));
    // A row of an earlier release has the identity in another form.
    let is_current = |history: &History| {
        is_own(history, &identity) && history.identity == identity && history.longest_us >= longest_us
    };
    if let Some(history) = read().filter(is_current) {
        return HistoryBounds::from(&history);
    }
    // One transaction at a time changes the row. The next one reads the new row after it gets the lock.
    WORKER_HISTORY.lock(pg_sys::ShareRowExclusiveLock);
    // The statement that grants may have defined the pool too.
    let first = FIRST.lock().take();
    let history = match read() {
        Some(history) if is_current(&history) => return HistoryBounds::from(&history),
        Some(history) if is_own(&history, &identity) => History { identity, ..history },
        Some(history) => interrupted(&history, identity),
        None => first.unwrap_or_else(|| begun(identity)),
    };
    // The row of a definition does not have the longest rectangle of a dropped database or extension.
    let history = with_longest(history, longest_us.max(longest_of_label()));
    write_for_grants(&history);
    HistoryBounds::from(&history)
}

/// For a renewal by the holder of a token, under a pool with this ttl. Records longer rectangles before one is granted.
/// Raises 55000 if the token is older than an interruption.
pub fn for_holder(pool: &str, token: i64, ttl_us: i64) -> HistoryBounds {
    let known = || require_known(pool, token).as_ref().map(HistoryBounds::from);
    match known() {
        Some(bounds) if bounds.longest_us < longest_of(ttl_us) => {
            for_grant(ttl_us);
            // It may have waited for worker_begin_history().
            known().unwrap_or_default()
        }
        bounds => bounds.unwrap_or_default(),
    }
}

/// The history, if it has the grant of this token. Raises 55000 if the token is older than an interruption.
pub fn require_known(pool: &str, token: i64) -> Option<History> {
    let history = read()?;
    if !is_own(&history, &identity()) || token < history.first_token {
        errors::token_before_interruption(pool).raise();
    }
    Some(history)
}

/// A holder says that it was told a later end than this database knows: the database was set back, and nothing else has shown
/// it. Ends the history. False if that cannot be: the data of a running server are not replaced, so it has every renewal of a
/// term that has begun since its start. Also if the history was interrupted since then, so that no holder can end it again
/// and again.
pub fn note_lost_grants(acquired_us: i64) -> bool {
    let start_us = session::server_start_us();
    if acquired_us >= start_us {
        return false;
    }
    WORKER_HISTORY.lock(pg_sys::ShareRowExclusiveLock);
    let history = read().filter(|history| history.since_us < Some(start_us));
    if let Some(history) = &history {
        write_for_grants(&interrupted(history, identity()));
        errors::grants_are_lost().warn();
    }
    history.is_some()
}

/// Begins a new history, for a copy of a coordinator whose origin grants no more. Returns the time from which worker
/// ids are granted without a wait. `since` replaces the time of the interruption where the clock was wrong; NULL keeps
/// it. Raises 22008 if `since` is infinite.
#[pg_extern(sql = false)]
fn worker_begin_history(since: Option<TimestampWithTimeZone>) -> TimestampWithTimeZone {
    xact::require_read_write(c"worker_begin_history()");
    let stated_us = since.map(|since| finite_us("since", since));
    WORKER_HISTORY.lock(pg_sys::ShareRowExclusiveLock);
    let identity = identity();
    let history = with_longest(read().unwrap_or_else(|| begun(identity.clone())), longest_us());
    let mut history = interrupted(&history, identity);
    if stated_us.is_some() {
        // Corrects the label too, and drops longer rectangles of the past.
        (history.since_us, history.longest_us) = (stated_us, longest_us());
        remove_label();
    }
    write_for_grants(&history);
    pending::require_durability();
    let since_us = history.since_us.expect("it was interrupted");
    datum::from_us_or_infinity(since_us.saturating_add(history.longest_us))
}

/// The time at which new rectangles begin, if an interruption holds them back from now, in microseconds since 1970.
pub fn held_back_until_us() -> Option<i64> {
    let history = read()?;
    let until_us = history.since_us?.saturating_add(history.longest_us);
    (until_us > system_clock::now_us()).then_some(until_us)
}

/// False if the history is interrupted. Raises 55000 if this database is a copy.
fn is_own(history: &History, identity: &Identity) -> bool {
    match history.state(identity) {
        HistoryState::Own => true,
        HistoryState::Interrupted => false,
        HistoryState::Copied => errors::copy_of_the_coordinator().raise(),
    }
}

fn interrupted(history: &History, identity: Identity) -> History {
    let history = with_longest(history.clone(), longest_of_label());
    History {
        identity,
        since_us: Some(history.interrupted_us(system_clock::now_us())),
        first_token: lease::next_token(),
        longest_us: history.longest_us,
    }
}

/// The history of a database that has no row. Existing leases go on.
fn begun(identity: Identity) -> History {
    let now_us = system_clock::now_us();
    let writing_us = recovery::began_to_write_us().map_or(0, |began_us| system_clock::boot_us() - began_us);
    let past = Past {
        is_new: is_new(),
        now_us,
        began_us: now_us - writing_us,
        label_until_us: read_label().map(|label| label.until_us),
    };
    History::begun(identity, past)
}

/// The longest time from the clock to the end of a rectangle, in all databases of this server so far.
fn longest_of_label() -> i64 {
    read_label().map_or(0, |label| label.longest_us)
}

/// Writes the row, and raises the label to it.
fn write_for_grants(history: &History) {
    let until_us = history.since_us.map_or(i64::MIN, |since_us| since_us.saturating_add(history.longest_us));
    raise_label(Label { until_us, longest_us: history.longest_us });
    write(history);
}

fn with_longest(history: History, longest_us: i64) -> History {
    History { longest_us: history.longest_us.max(longest_us), ..history }
}

fn identity() -> Identity {
    Identity {
        system_identifier: recovery::system_identifier() as i64,
        timeline: recovery::timeline() as i32,
        database: session::database(),
        place: place::current(),
    }
}

/// The longest time from the clock to the end of a rectangle, of any pool.
fn longest_us() -> i64 {
    longest_of(longest_ttl_us().unwrap_or(0))
}

fn longest_of(ttl_us: i64) -> i64 {
    ttl_us.saturating_add(settings::worker_max_lead_us(ttl_us))
}

/// At most one row.
pub static WORKER_HISTORY: ExtensionTable = ExtensionTable::new(c"worker_history");

static READ: Query = WORKER_HISTORY.query(
    "SELECT system_identifier, timeline, database, place, since, first_token, \
     (pg_catalog.extract('epoch', longest) OPERATOR(pg_catalog.*) 1000000)::bigint FROM idgen.worker_history",
);

fn read() -> Option<History> {
    let read = |row: &SpiHeapTupleData| History {
        identity: Identity {
            system_identifier: value(row, 1),
            timeline: value(row, 2),
            database: value::<pg_sys::Oid>(row, 3).to_u32(),
            place: Place::parse(&text(row, 4)),
        },
        since_us: Some(datum::to_us(value(row, 5))).filter(|since_us| *since_us != i64::MIN),
        first_token: value(row, 6),
        longest_us: value(row, 7),
    };
    READ.read_latest(&[], read).pop()
}

static WRITE: Query = WORKER_HISTORY.query("INSERT INTO idgen.worker_history AS history (system_identifier, timeline, database, place, since, first_token, longest) \
     VALUES ($1, $2, $3, $4, $5, $6, $7 OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval) \
     ON CONFLICT (one) DO UPDATE SET system_identifier = excluded.system_identifier, timeline = excluded.timeline, \
     database = excluded.database, place = excluded.place, since = excluded.since, first_token = excluded.first_token, \
     longest = excluded.longest");

fn write(history: &History) {
    let Identity { system_identifier, timeline, database, place } = &history.identity;
    let place = place.to_string();
    let since = history.since_us.map_or_else(TimestampWithTimeZone::negative_infinity, datum::from_us_or_infinity);
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

static LONGEST_TTL: Query = WORKER_HISTORY.query(
    "SELECT (pg_catalog.max(pg_catalog.extract('epoch', defined.ttl)) OPERATOR(pg_catalog.*) 1000000)::bigint \
     FROM idgen.lease_definition AS defined \
     WHERE EXISTS (SELECT FROM idgen.worker_number AS known WHERE known.pool OPERATOR(pg_catalog.=) defined.name)",
);

/// The longest ttl of the pools that have granted worker ids.
fn longest_ttl_us() -> Option<i64> {
    LONGEST_TTL.read_latest(&[], |row| optional(row, 1)).pop().flatten()
}

static IS_NEW: Query = WORKER_HISTORY
    .query("SELECT NOT EXISTS (SELECT FROM idgen.lease_definition) AND NOT EXISTS (SELECT FROM idgen.worker_number)");

/// True if no lease is defined in this database, and no worker id of it is known.
fn is_new() -> bool {
    IS_NEW.read_latest(&[], |row| value(row, 1)).contains(&true)
}

const PROVIDER: &CStr = c"idgen workers";
/// The part of the label's object that writers lock: another database may write the same label.
const PART: u16 = 1;

/// The text of the label, over all databases of the server.
struct Label {
    /// The end of the wait after the last interruption; `i64::MIN` if there was none.
    until_us: i64,
    /// As in `History`.
    longest_us: i64,
}

/// `None` if no database of this server has granted worker ids.
fn read_label() -> Option<Label> {
    let text = shared_objects::read_label(PROVIDER)?;
    let mut numbers = text.split(' ').map(|number| number.parse().ok());
    let mut next = |default| numbers.next().flatten().unwrap_or(default);
    Some(Label { until_us: next(i64::MIN), longest_us: next(0) })
}

/// Raises both values of the label to at least these.
fn raise_label(label: Label) {
    shared_objects::lock_part(PART);
    let known = read_label().unwrap_or(Label { until_us: i64::MIN, longest_us: 0 });
    let (until_us, longest_us) = (known.until_us.max(label.until_us), known.longest_us.max(label.longest_us));
    shared_objects::write_label(PROVIDER, Some(&format!("{until_us} {longest_us}")));
}

fn remove_label() {
    shared_objects::lock_part(PART);
    shared_objects::write_label(PROVIDER, None);
}

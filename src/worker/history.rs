//! The coordinator's history, which detects that another server or database has granted from these rows. The row of
//! `idgen.worker_history` has the history. A security label, which outlives the extension and the database, records
//! that this server has granted worker ids. The core decides what is recorded.

use super::pool::{Database, WORKER_HISTORY, WORKER_ID, WORKER_POOL};
use crate::args;
use crate::pg::spi::{Query, micros, optional_text, value};
use crate::pg::xact::{self, Durability};
use crate::pg::{datum, recovery, session, shared_objects, system_clock};
use crate::place;
use crate::settings;
use idgen_core::history::{History, Identity};
use idgen_core::worker::recording::{self, HistoryStore, Label};
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::ffi::CStr;

/// For a copy of a coordinator whose origin grants no more, as [`recording::begin_another`]. Returns the time from which worker
/// ids are granted without a wait. `since` NULL keeps the time of the interruption. Raises 22008 if `since` is infinite.
#[pg_extern(sql = false)]
fn worker_begin_history(since: Option<TimestampWithTimeZone>) -> TimestampWithTimeZone {
    xact::require_read_write(c"worker_begin_history()");
    let stated_us = since.map(|since| args::finite_us(since, "since"));
    let until_us = recording::begin_another(&mut Database, stated_us);
    xact::require_durability(Durability::Failover);
    datum::from_us_or_infinity(until_us)
}

static LONGEST_TTL: Query = Query::new(&WORKER_POOL, || {
    format!("SELECT COALESCE(pg_catalog.max({}), 0) FROM idgen.worker_pool", micros("ttl"))
});

static ANY: Query = WORKER_ID.query("SELECT FROM idgen.worker_id LIMIT 1");

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

static WRITE: Query = WORKER_HISTORY.query(
    "INSERT INTO idgen.worker_history AS history (identity, since, longest, epoch) \
     VALUES ($1, $2, $3 OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval, $4) \
     ON CONFLICT (one) DO UPDATE SET identity = excluded.identity, since = excluded.since, longest = excluded.longest, \
     epoch = excluded.epoch WHERE $5",
);

const PROVIDER: &CStr = c"idgen workers";
/// The part of the label's object that writers lock.
const PART: u16 = 1;

impl HistoryStore for Database {
    /// Raises 55000 without preload, and 58030 if a file of the data directory cannot be read.
    fn identity(&self) -> &Identity {
        place::identity().unwrap_or_else(|report| report.raise())
    }

    fn now_us(&self) -> i64 {
        system_clock::wall_us()
    }

    fn started_us(&self) -> i64 {
        session::server_start_us()
    }

    fn max_lead_us(&self, ttl_us: i64) -> i64 {
        settings::worker_max_lead_us(ttl_us)
    }

    fn writing_us(&self) -> i64 {
        recovery::began_to_write_us().map_or(0, |began_us| system_clock::boot_us() - began_us)
    }

    fn has_rows(&mut self) -> bool {
        !ANY.read_latest(&[], |_| ()).is_empty()
    }

    fn read(&mut self) -> Option<History> {
        READ.read_latest(&[], |row| from_row(row, 1)).pop().flatten()
    }

    fn lock(&mut self) {
        WORKER_HISTORY.lock(pg_sys::ShareRowExclusiveLock);
    }

    fn write(&mut self, history: &History, replaces: bool) {
        let since = history.since_us.map_or_else(TimestampWithTimeZone::negative_infinity, datum::from_us_or_infinity);
        let History { identity, longest_us, epoch, .. } = history;
        let args = [identity.as_str().into(), since.into(), (*longest_us).into(), (*epoch).into(), replaces.into()];
        WRITE.write_latest(&args, |_| ());
    }

    fn read_label(&mut self) -> Option<Label> {
        shared_objects::read_label(PROVIDER).as_deref().map(Label::parse)
    }

    fn lock_label(&mut self) {
        shared_objects::lock_part(PART);
    }

    fn write_label(&mut self, label: Option<Label>) {
        shared_objects::write_label(PROVIDER, label.map(|label| label.to_string()).as_deref());
    }

    fn longest_ttl_us(&mut self) -> i64 {
        LONGEST_TTL.read_latest(&[], |row| value(row, 1)).pop().unwrap_or(0)
    }
}

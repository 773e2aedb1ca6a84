//! The row of `idgen.worker_history`.

use crate::pg::datum;
use crate::pg::spi::{ExtensionTable, Query, optional, text, value};
use idgen_core::coordinator::Place;
use idgen_core::worker::history::{History, Identity};
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;

/// At most one row.
pub static WORKER_HISTORY: ExtensionTable = ExtensionTable::new(c"worker_history");

static READ: Query = WORKER_HISTORY.query(
    "SELECT system_identifier, timeline, database, place, since, first_token, \
     (pg_catalog.extract('epoch', longest) OPERATOR(pg_catalog.*) 1000000)::bigint FROM idgen.worker_history",
);

pub fn read() -> Option<History> {
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

pub fn write(history: &History) {
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
pub fn longest_ttl_us() -> Option<i64> {
    LONGEST_TTL.read_latest(&[], |row| optional(row, 1)).pop().flatten()
}

static IS_NEW: Query = WORKER_HISTORY
    .query("SELECT NOT EXISTS (SELECT FROM idgen.lease_definition) AND NOT EXISTS (SELECT FROM idgen.worker_number)");

/// True if no lease is defined in this database, and no worker id of it is known.
pub fn is_new() -> bool {
    IS_NEW.read_latest(&[], |row| value(row, 1)).contains(&true)
}

//! Since when the counters of all views count: the column `stats_reset`.

use crate::pg::timestamp;
use crate::shmem::{self, Part};
use pgrx::prelude::*;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Microseconds since 1970. The counters begin at zero when shared memory is initialised.
static RESET_US: Part<AtomicI64> = Part::new(c"idgen reset time", |_| AtomicI64::new(timestamp::now_us()));

pub fn init() {
    shmem::register(&[&RESET_US]);
}

/// The time of the last reset of the counters; NULL without preload.
#[pg_extern(sql = false)]
pub fn stat_get_reset_time() -> Option<TimestampWithTimeZone> {
    timestamp::from_us(RESET_US.get()?.load(Relaxed))
}

/// The counters have been set to zero now.
pub fn set() {
    if let Some(reset_us) = RESET_US.get() {
        reset_us.store(timestamp::now_us(), Relaxed);
    }
}

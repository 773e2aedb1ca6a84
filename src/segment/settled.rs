//! `segment_settled`: a value at or below which nothing can still be committed on this server. See
//! [`idgen_core::segment::settled`].

use super::Drawing;
use super::attach::{self, ValueSource};
use super::state::{SEGMENTS, SharedRing, in_tenancy, ring};
use crate::draws::{self, OpenDraws};
use crate::error::Check;
use crate::pg::advisory_lock::LockKind;
use crate::pg::function::CallSite;
use crate::shmem::Part;
use idgen_core::segment::TagKey;
use idgen_core::segment::settled::{Reading, Scan};
use idgen_core::tenancy::Ended;
use pgrx::prelude::*;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicI64};

/// How many readings there were when open transactions drew their first value.
pub static DRAWS: OpenDraws = OpenDraws {
    processes: Part::new(c"idgen segment draws", draws::processes),
    units: LockKind::new(b"sb"),
    rest: LockKind::new(b"sr"),
    drawn: "value",
    reader: "segment_settled()",
    since_version: "0.21.0",
};

/// The readings of settled values, of all tags: in a pair of cache lines that draws share.
#[repr(align(128))]
#[derive(Default)]
pub struct Readings(AtomicI64);

pub static READINGS: Part<Readings> = Part::new(c"idgen segment readings", |_| Readings::default());

/// The transaction of this process has drawn a value.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// Before each draw of a value that the transaction can commit.
#[inline]
pub fn enter() {
    if !ENTERED.load(Relaxed) {
        enter_first();
    }
}

#[cold]
fn enter_first() {
    // Acquire: the draw comes after this load, so a reading that it does not count has looked at the values before.
    DRAWS.lower_to(READINGS.require().0.load(Acquire));
    ENTERED.store(true, Relaxed);
}

/// At each event of a transaction of this process.
pub fn at_xact_event(event: pg_sys::XactEvent::Type) {
    ENTERED.store(false, Relaxed);
    DRAWS.at_xact_event(event);
}

/// A transaction that is open for long holds back consumers, if there are any.
pub fn check() -> Check {
    const NAME: &str = "settled values";
    match READINGS.get().is_some_and(|readings| readings.0.load(Relaxed) > 0) {
        true => DRAWS.check(NAME),
        false => Check::ok(NAME, "no session has asked since the start"),
    }
}

/// The greatest value of a segment at or below which no transaction of this server can commit a row any more, as far as
/// is known: where transactions overlap, it takes two calls. Use it in a later statement than the one that returns it. -1
/// if no value is settled. Draws a value where none is left in memory. Raises 25001 unless the transaction is READ
/// COMMITTED, 55000 while there is a prepared transaction whose values are unknown, and what `segment_next` raises, except
/// for a segment that has ended.
#[pg_extern(sql = false)]
fn segment_settled(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    DRAWS.require_readable(DRAWS.reader);
    // SAFETY: PostgreSQL passes the call's own fcinfo, with one argument as declared.
    let site = unsafe { CallSite::new(fcinfo, Some(0)) };
    let mut attached = attach::of_call(&site);
    let mut reader = Drawing { attached: &mut attached, site: &site, want: 1, is_block: false };
    loop {
        match reader.position() {
            Ok(Some(value)) => return settle(reader.attached.row.key, value).unwrap_or(-1),
            // The transaction that created the tag is this one.
            Ok(None) => return -1,
            Err(Ended) => reader.attach_again(None),
        }
    }
}

impl Drawing<'_> {
    /// All values up to this one were drawn before, or never will be. `None` for a tag that no other session sees.
    fn position(&mut self) -> Result<Option<i64>, Ended> {
        let ValueSource::Ring { shared: SharedRing { index, handle, .. }, .. } = self.attached.source else {
            return Ok(None);
        };
        let left = in_tenancy(index, handle, |_| ring(index).remaining(handle)).ok_or(Ended)?;
        Ok(Some(match left.current.or(left.next) {
            Some(run) => run.first - 1,
            // What is drawn here, nobody commits. All later values are greater.
            None => self.next_run().map_or_else(|ended| ended.definition.max_id, |run| run.last()),
        }))
    }
}

/// By a reading that has found the tag at this value.
fn settle(key: TagKey, value: i64) -> Option<i64> {
    let readings = &READINGS.require().0;
    // Acquire: these readings have looked at the values before the scan.
    let begun = readings.load(Acquire);
    let open = DRAWS.open();
    // Prepared transactions can have the count of an earlier start.
    readings.fetch_max(open.iter().copied().max().unwrap_or(0), AcqRel);
    let new = Reading { value, number: readings.fetch_add(1, AcqRel) + 1 };
    let scan = Scan { begun, earliest: open.into_iter().min() };
    SEGMENTS.exclusive(|segments| segments.settling.of(key).settle(new, scan))
}

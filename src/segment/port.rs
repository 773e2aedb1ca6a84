//! What both workers that fill rings do on this server, for the procedures of the core.

use super::fleet::errors::waits_for;
use super::fleet::servers;
use super::{errors, state, store, workers};
use crate::pg::system_clock;
use crate::pg::xact::{self, Durability};
use idgen_core::segment::refill::Filling;
use idgen_core::segment::tag::{NotLocked, TagRow};
use idgen_core::segment::{NewRange, NoValues, TagKey, ValueRun};

/// A worker, with what only its kind has.
pub struct Port<W>(pub W);

pub const BUSY: &str = "A transaction that has not ended holds a lock on the segment's row in idgen.segment.";

impl<W> Filling for Port<W> {
    type Reason = String;

    fn reason(&mut self, missing: NoValues) -> String {
        match missing {
            NoValues::Busy => BUSY.to_owned(),
            NoValues::Unreported { tag, servers } => waits_for(&tag, &servers::names(&tag, servers)),
            NoValues::BeyondBound { tag, upper_bound } => errors::exhausted(&tag, upper_bound).raise(),
            NoValues::Skipped(range) => format!(
                "The wait for the synchronous standby was canceled, so the values {} to {} are skipped.",
                range.first,
                range.last()
            ),
            NoValues::NotAskedFor(ValueRun { first, count, stride }) => format!(
                "The coordinator has granted values that were not asked for: {count} from {first} on, by {stride}."
            ),
            NoValues::Withheld { waits_for } => format!(
                "The coordinator grants nothing, because servers have not reported what they have received: {waits_for}."
            ),
        }
    }

    fn now_us(&mut self) -> i64 {
        system_clock::boot_us()
    }

    fn transaction<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> Result<R, String> {
        let done = workers::in_transaction(|| work(self));
        crate::pg::crash_point!("segment: committed");
        done
    }

    fn require_durability(&mut self) {
        xact::require_durability(Durability::Failover);
    }

    fn was_cancelled(&mut self) -> bool {
        workers::was_cancelled()
    }

    fn lock(&mut self, creation: i64) -> Result<TagRow, NotLocked> {
        let locked = store::lock(creation);
        crate::pg::crash_point!("segment: row locked");
        locked
    }

    fn install(&mut self, key: TagKey, new: NewRange) {
        state::install(key, new);
        crate::pg::crash_point!("segment: installed");
    }
}

//! When a worker id that is set by hand counts beside a pool: until the first lease, if this place has issued ids under it.
//! Otherwise the pool may have granted it to another server.

use super::memory::{LastWorkerId, MemoryFile};
use crate::coordinator::Place;

/// The worker id of the settings, and how this server uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSetting {
    pub worker_id: u32,
    /// It is not set, and acts as 0.
    pub is_undecided: bool,
    /// It is the worker id of this server, until a lease replaces it.
    pub is_in_use: bool,
    /// Ids were issued under it, before a pool was configured, and none was leased since.
    pub has_issued: bool,
}

impl WorkerSetting {
    /// True if a pool that is configured ends its use.
    pub fn yields_to_pool(&self) -> bool {
        self.is_in_use && (self.is_undecided || !self.has_issued)
    }

    /// What a server with a pool remembers before its first lease.
    pub(super) fn before_lease(&self) -> LastWorkerId {
        match self.is_in_use && self.has_issued {
            true => LastWorkerId::ByHand(self.worker_id),
            false => LastWorkerId::Unknown,
        }
    }
}

/// What a start of the server makes of the worker id of the settings, `None` if it is undecided. Returns whether ids were
/// issued under it here, and whether it is in use.
pub fn at_start(file: &MemoryFile, here: Option<&Place>, set: Option<u32>, has_pool: bool) -> (bool, bool) {
    let has_issued = match (file, here, set) {
        (MemoryFile::Valid(memory), Some(here), Some(worker_id)) => memory.allows_by_hand(here, worker_id),
        _ => false,
    };
    let is_in_use = match (has_pool, set) {
        (true, _) => has_issued,
        (false, None) => *file == MemoryFile::Missing,
        (false, Some(_)) => true,
    };
    (has_issued, is_in_use)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::memory::Memory;

    #[test]
    fn worker_id_by_hand_is_in_use_at_a_start_as_far_as_no_pool_can_have_granted_it() {
        let here = Place::new("4-5", "6-7", "one");
        let file = |worker| MemoryFile::Valid(Memory { place: here.clone(), worker });
        let at_start = |file: &MemoryFile, set, has_pool| at_start(file, Some(&here), set, has_pool);
        let (by_hand, leased) = (file(LastWorkerId::ByHand(5)), file(LastWorkerId::Unknown));
        let unreadable = MemoryFile::Unreadable(String::new());
        assert_eq!(at_start(&by_hand, Some(5), true), (true, true));
        for (file, set) in [(&by_hand, Some(6)), (&by_hand, None), (&leased, Some(5)), (&MemoryFile::Missing, Some(5))]
        {
            assert_eq!(at_start(file, set, true), (false, false), "{set:?}");
        }
        // Without a pool the operator decides, and the default counts only on a server that never had one.
        assert_eq!(at_start(&leased, Some(5), false), (false, true));
        assert_eq!(at_start(&MemoryFile::Missing, None, false), (false, true));
        assert_eq!([&leased, &unreadable].map(|file| at_start(file, None, false)), [(false, false); 2]);
    }

    #[test]
    fn pool_ends_the_use_of_a_setting_under_which_nothing_was_issued() {
        let setting = WorkerSetting { worker_id: 5, is_undecided: false, is_in_use: true, has_issued: true };
        assert!(!setting.yields_to_pool());
        assert_eq!(setting.before_lease(), LastWorkerId::ByHand(5));
        assert_eq!(WorkerSetting { has_issued: false, ..setting }.before_lease(), LastWorkerId::Unknown);
        assert!(WorkerSetting { has_issued: false, ..setting }.yields_to_pool());
        assert!(WorkerSetting { is_undecided: true, ..setting }.yields_to_pool());
        assert!(!WorkerSetting { is_in_use: false, has_issued: false, ..setting }.yields_to_pool(), "it has none");
    }
}

//! The workers of each database that fill rings. For the holder of the lock of the table of rings.

/// How long a start may take before it counts as failed, and another is tried.
const START_US: i64 = 5_000_000;

/// From the failure of a worker to the start of the next one. Waiting sessions would otherwise start one after the other
/// while the cause lasts.
const PAUSE_US: i64 = 1_000_000;

/// The rings that a worker fills: those of one database, from its own rows or from the coordinator. These are two
/// workers, so that a coordinator which does not answer delays no refill from an own row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duty {
    pub database: u32,
    pub is_attached: bool,
}

/// The worker of one duty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refiller {
    duty: Duty,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No start before this time: one is under way, or the last worker has failed.
    Idle { until_us: i64, has_failed: bool },
    /// Identifies the process, which is woken by its latch.
    Running { latch: usize },
}

/// The action of a caller that needs a refill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Wake {
        latch: usize,
    },
    Start,
    /// Another process has just started one, or it is too early for another start.
    Wait,
}

/// All workers. There are as many entries as the server has background workers, so a running worker always finds one.
pub struct Refillers<'a>(pub &'a mut [Option<Refiller>]);

impl Refillers<'_> {
    /// A ring of the duty needs a refill. For a caller that does not ask again, the next start after a failure is at once.
    pub fn call(&mut self, duty: Duty, asks_again: bool, now_us: i64) -> Call {
        match self.phase(duty) {
            Some(Phase::Running { latch }) => return Call::Wake { latch },
            Some(Phase::Idle { until_us, has_failed }) if now_us < until_us && (asks_again || !has_failed) => {
                return Call::Wait;
            }
            _ => {}
        }
        // Without an entry nothing prevents a second start; the second worker then exits by itself.
        self.set(duty, Phase::Idle { until_us: now_us.saturating_add(START_US), has_failed: false });
        Call::Start
    }

    /// The latch of the worker that runs.
    pub fn latch_of(&self, duty: Duty) -> Option<usize> {
        match self.phase(duty)? {
            Phase::Running { latch } => Some(latch),
            Phase::Idle { .. } => None,
        }
    }

    /// A worker begins. False if the duty has one already.
    pub fn begin(&mut self, duty: Duty, latch: usize) -> bool {
        self.latch_of(duty).is_none() && self.set(duty, Phase::Running { latch })
    }

    /// A start has failed.
    pub fn give_up(&mut self, duty: Duty) {
        self.remove(|refiller| {
            refiller.duty == duty && matches!(refiller.phase, Phase::Idle { has_failed: false, .. })
        });
    }

    /// A worker ends, unless there is demand that it can serve. A session calls after it has stored demand, under the same
    /// lock. So either the demand is seen here, or the session finds that the worker is gone.
    pub fn end(&mut self, duty: Duty, latch: usize, has_demand: bool) -> bool {
        if !has_demand {
            self.remove(|refiller| *refiller == Refiller { duty, phase: Phase::Running { latch } });
        }
        !has_demand
    }

    /// A worker exits that has not ended before.
    pub fn fail(&mut self, duty: Duty, latch: usize, now_us: i64) {
        if self.latch_of(duty) == Some(latch) {
            self.set(duty, Phase::Idle { until_us: now_us.saturating_add(PAUSE_US), has_failed: true });
        }
    }

    fn remove(&mut self, matches: impl Fn(&Refiller) -> bool) {
        for entry in self.0.iter_mut() {
            *entry = entry.filter(|refiller| !matches(refiller));
        }
    }

    fn phase(&self, duty: Duty) -> Option<Phase> {
        self.0.iter().flatten().find(|refiller| refiller.duty == duty).map(|refiller| refiller.phase)
    }

    /// False if there is no entry. A worker that does not run yet loses its entry to one that needs it.
    fn set(&mut self, duty: Duty, phase: Phase) -> bool {
        let rank = |entry: &Option<Refiller>| match entry {
            Some(refiller) if refiller.duty == duty => Some(0),
            None => Some(1),
            Some(refiller) => (!matches!(refiller.phase, Phase::Running { .. })).then_some(2),
        };
        let ranked = self.0.iter_mut().filter_map(|entry| Some((rank(entry)?, entry)));
        let Some((_, entry)) = ranked.min_by_key(|(rank, _)| *rank) else { return false };
        *entry = Some(Refiller { duty, phase });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;
    const OWN: Duty = Duty { database: 7, is_attached: false };
    const ATTACHED: Duty = Duty { is_attached: true, ..OWN };
    const OTHER: Duty = Duty { database: 8, ..OWN };

    #[test]
    fn one_caller_starts_a_worker_and_the_others_wait_for_it() {
        let mut entries: [Option<Refiller>; 2] = [None; 2];
        let mut all = Refillers(&mut entries);
        assert_eq!(all.call(OWN, true, 0), Call::Start);
        assert_eq!(all.call(OWN, true, SECOND), Call::Wait);
        assert_eq!(all.call(OTHER, true, SECOND), Call::Start);
        assert!(all.begin(OWN, 70));
        assert_eq!(all.call(OWN, true, 60 * SECOND), Call::Wake { latch: 70 });
        assert!(!all.begin(OWN, 71), "a duty has one worker");
        all.give_up(OWN);
        all.end(OWN, 71, false);
        assert_eq!(all.call(OWN, true, 60 * SECOND), Call::Wake { latch: 70 });
        assert!(!all.end(OWN, 70, true));
        assert_eq!(all.call(OWN, true, 60 * SECOND), Call::Wake { latch: 70 });
        assert!(all.end(OWN, 70, false));
        assert_eq!(all.call(OWN, true, 60 * SECOND), Call::Start);
    }

    #[test]
    fn two_duties_of_a_database_have_a_worker_each() {
        let mut entries: [Option<Refiller>; 2] = [None; 2];
        let mut all = Refillers(&mut entries);
        assert_eq!(all.call(OWN, true, 0), Call::Start);
        assert_eq!(all.call(ATTACHED, true, 0), Call::Start);
        assert_eq!(all.latch_of(ATTACHED), None);
        assert!(all.begin(OWN, 70));
        assert!(all.begin(ATTACHED, 71));
        assert_eq!(all.call(OWN, true, 0), Call::Wake { latch: 70 });
        assert_eq!(all.call(ATTACHED, true, 0), Call::Wake { latch: 71 });
        assert_eq!(all.latch_of(ATTACHED), Some(71));
        all.end(ATTACHED, 71, false);
        assert_eq!(all.call(OWN, true, 0), Call::Wake { latch: 70 });
        assert_eq!(all.call(ATTACHED, true, 0), Call::Start);
        all.give_up(OWN);
        assert_eq!(all.call(ATTACHED, true, 0), Call::Wait);
    }

    #[test]
    fn failed_start_is_tried_again() {
        let mut entries: [Option<Refiller>; 1] = [None];
        let mut all = Refillers(&mut entries);
        assert_eq!(all.call(OWN, true, 0), Call::Start);
        assert_eq!(all.call(OWN, true, 6 * SECOND), Call::Start);
        all.give_up(OWN);
        assert_eq!(all.call(OWN, true, 6 * SECOND), Call::Start);
    }

    #[test]
    fn failed_worker_is_replaced_after_a_pause_and_one_that_ends_at_once() {
        let mut entries: [Option<Refiller>; 1] = [None];
        let mut all = Refillers(&mut entries);
        assert!(all.begin(OWN, 70));
        all.fail(OWN, 71, 0);
        assert_eq!(all.call(OWN, true, 0), Call::Wake { latch: 70 }, "another process");
        all.fail(OWN, 70, 0);
        assert_eq!(all.call(OWN, true, SECOND - 1), Call::Wait);
        assert_eq!(all.call(OWN, false, SECOND - 1), Call::Start);
        assert_eq!(all.call(OWN, false, SECOND - 1), Call::Wait, "for the start that is under way");
        assert!(all.begin(OWN, 70));
        all.fail(OWN, 70, 0);
        assert_eq!(all.call(OWN, true, SECOND), Call::Start);
        assert!(all.begin(OWN, 71));
        all.end(OWN, 71, false);
        all.fail(OWN, 71, SECOND);
        assert_eq!(all.call(OWN, true, SECOND), Call::Start);
    }

    #[test]
    fn running_worker_finds_an_entry_whatever_is_starting() {
        let mut entries: [Option<Refiller>; 1] = [None];
        let mut all = Refillers(&mut entries);
        assert_eq!(all.call(OWN, true, 0), Call::Start);
        assert_eq!(all.call(OTHER, true, 0), Call::Start);
        assert!(all.begin(OWN, 70));
        assert!(!all.begin(OTHER, 80), "there are as many entries as background workers");
        assert_eq!(all.call(OTHER, true, 0), Call::Start);
    }
}

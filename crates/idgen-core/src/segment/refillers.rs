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
    /// A start is under way: no other one before this time.
    Starting { until_us: i64 },
    /// The last worker has failed: likewise.
    Failed { until_us: i64 },
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
    /// A ring of the duty needs a refill.
    pub fn call(&mut self, duty: Duty, now_us: i64) -> Call {
        match self.find(duty).map(|refiller| refiller.phase) {
            Some(Phase::Running { latch }) => return Call::Wake { latch },
            Some(Phase::Starting { until_us } | Phase::Failed { until_us }) if now_us < until_us => return Call::Wait,
            _ => {}
        }
        // Without an entry nothing prevents a second start; the second worker then exits by itself.
        self.set(duty, Phase::Starting { until_us: now_us.saturating_add(START_US) });
        Call::Start
    }

    /// As [`call`](Self::call), for a caller that does not ask again: after a failure, the next start is at once.
    pub fn call_once(&mut self, duty: Duty, now_us: i64) -> Call {
        self.remove(|refiller| refiller.duty == duty && matches!(refiller.phase, Phase::Failed { .. }));
        self.call(duty, now_us)
    }

    /// The latch of the worker that runs.
    pub fn latch_of(&self, duty: Duty) -> Option<usize> {
        match self.find(duty)?.phase {
            Phase::Running { latch } => Some(latch),
            Phase::Starting { .. } | Phase::Failed { .. } => None,
        }
    }

    /// A worker begins. False if the duty has one already.
    pub fn begin(&mut self, duty: Duty, latch: usize) -> bool {
        let is_first = !matches!(self.find(duty), Some(Refiller { phase: Phase::Running { .. }, .. }));
        is_first && self.set(duty, Phase::Running { latch })
    }

    /// A start has failed.
    pub fn give_up(&mut self, duty: Duty) {
        self.remove(|refiller| refiller.duty == duty && matches!(refiller.phase, Phase::Starting { .. }));
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
            self.set(duty, Phase::Failed { until_us: now_us.saturating_add(PAUSE_US) });
        }
    }

    fn remove(&mut self, matches: impl Fn(&Refiller) -> bool) {
        for entry in self.0.iter_mut() {
            *entry = entry.filter(|refiller| !matches(refiller));
        }
    }

    fn find(&self, duty: Duty) -> Option<Refiller> {
        self.0.iter().copied().flatten().find(|refiller| refiller.duty == duty)
    }

    /// False if there is no entry. A worker that does not run yet loses its entry to one that needs it.
    fn set(&mut self, duty: Duty, phase: Phase) -> bool {
        let is_own = |entry: &Option<Refiller>| entry.is_some_and(|refiller| refiller.duty == duty);
        let is_idle =
            |entry: &Option<Refiller>| entry.is_some_and(|refiller| !matches!(refiller.phase, Phase::Running { .. }));
        let index = self.0.iter().position(is_own);
        let index =
            index.or_else(|| self.0.iter().position(Option::is_none)).or_else(|| self.0.iter().position(is_idle));
        if let Some(index) = index {
            self.0[index] = Some(Refiller { duty, phase });
        }
        index.is_some()
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
        assert_eq!(all.call(OWN, 0), Call::Start);
        assert_eq!(all.call(OWN, SECOND), Call::Wait);
        assert_eq!(all.call(OTHER, SECOND), Call::Start);
        assert!(all.begin(OWN, 70));
        assert_eq!(all.call(OWN, 60 * SECOND), Call::Wake { latch: 70 });
        assert!(!all.begin(OWN, 71), "a duty has one worker");
        all.give_up(OWN);
        all.end(OWN, 71, false);
        assert_eq!(all.call(OWN, 60 * SECOND), Call::Wake { latch: 70 });
        assert!(!all.end(OWN, 70, true));
        assert_eq!(all.call(OWN, 60 * SECOND), Call::Wake { latch: 70 });
        assert!(all.end(OWN, 70, false));
        assert_eq!(all.call(OWN, 60 * SECOND), Call::Start);
    }

    #[test]
    fn two_duties_of_a_database_have_a_worker_each() {
        let mut entries: [Option<Refiller>; 2] = [None; 2];
        let mut all = Refillers(&mut entries);
        assert_eq!(all.call(OWN, 0), Call::Start);
        assert_eq!(all.call(ATTACHED, 0), Call::Start);
        assert_eq!(all.latch_of(ATTACHED), None);
        assert!(all.begin(OWN, 70));
        assert!(all.begin(ATTACHED, 71));
        assert_eq!(all.call(OWN, 0), Call::Wake { latch: 70 });
        assert_eq!(all.call(ATTACHED, 0), Call::Wake { latch: 71 });
        assert_eq!(all.latch_of(ATTACHED), Some(71));
        all.end(ATTACHED, 71, false);
        assert_eq!(all.call(OWN, 0), Call::Wake { latch: 70 });
        assert_eq!(all.call(ATTACHED, 0), Call::Start);
        all.give_up(OWN);
        assert_eq!(all.call(ATTACHED, 0), Call::Wait);
    }

    #[test]
    fn failed_start_is_tried_again() {
        let mut entries: [Option<Refiller>; 1] = [None];
        let mut all = Refillers(&mut entries);
        assert_eq!(all.call(OWN, 0), Call::Start);
        assert_eq!(all.call(OWN, 6 * SECOND), Call::Start);
        all.give_up(OWN);
        assert_eq!(all.call(OWN, 6 * SECOND), Call::Start);
    }

    #[test]
    fn failed_worker_is_replaced_after_a_pause_and_one_that_ends_at_once() {
        let mut entries: [Option<Refiller>; 1] = [None];
        let mut all = Refillers(&mut entries);
        assert!(all.begin(OWN, 70));
        all.fail(OWN, 71, 0);
        assert_eq!(all.call(OWN, 0), Call::Wake { latch: 70 }, "another process");
        all.fail(OWN, 70, 0);
        assert_eq!(all.call(OWN, SECOND - 1), Call::Wait);
        assert_eq!(all.call_once(OWN, SECOND - 1), Call::Start);
        assert_eq!(all.call_once(OWN, SECOND - 1), Call::Wait, "for the start that is under way");
        assert!(all.begin(OWN, 70));
        all.fail(OWN, 70, 0);
        assert_eq!(all.call(OWN, SECOND), Call::Start);
        assert!(all.begin(OWN, 71));
        all.end(OWN, 71, false);
        all.fail(OWN, 71, SECOND);
        assert_eq!(all.call(OWN, SECOND), Call::Start);
    }

    #[test]
    fn running_worker_finds_an_entry_whatever_is_starting() {
        let mut entries: [Option<Refiller>; 1] = [None];
        let mut all = Refillers(&mut entries);
        assert_eq!(all.call(OWN, 0), Call::Start);
        assert_eq!(all.call(OTHER, 0), Call::Start);
        assert!(all.begin(OWN, 70));
        assert!(!all.begin(OTHER, 80), "there are as many entries as background workers");
        assert_eq!(all.call(OTHER, 0), Call::Start);
    }
}

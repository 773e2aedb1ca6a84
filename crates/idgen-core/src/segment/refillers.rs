//! The refill worker of each database. For the holder of the lock of the table of rings.

/// How long a start may take before it counts as failed, and another is tried.
const START_US: i64 = 5_000_000;

/// The refill worker of one database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refiller {
    database: u32,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Starting {
        since_us: i64,
    },
    /// Identifies the process, which is woken by its latch.
    Running {
        latch: usize,
    },
}

/// The action of a caller that needs a refill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Wake {
        latch: usize,
    },
    Start,
    /// Another process has just started one.
    Wait,
}

/// All refill workers. There are as many entries as the server has background workers, so a running worker always finds
/// one.
pub struct Refillers<'a>(pub &'a mut [Option<Refiller>]);

impl Refillers<'_> {
    /// A database needs a refill.
    pub fn call(&mut self, database: u32, now_us: i64) -> Call {
        match self.find(database).map(|refiller| refiller.phase) {
            Some(Phase::Running { latch }) => return Call::Wake { latch },
            Some(Phase::Starting { since_us }) if now_us < since_us.saturating_add(START_US) => return Call::Wait,
            _ => {}
        }
        // Without an entry nothing prevents a second start; the second worker then exits by itself.
        self.set(database, Phase::Starting { since_us: now_us });
        Call::Start
    }

    /// A worker begins. False if the database has one already.
    pub fn begin(&mut self, database: u32, latch: usize) -> bool {
        let is_first = !matches!(self.find(database), Some(Refiller { phase: Phase::Running { .. }, .. }));
        is_first && self.set(database, Phase::Running { latch })
    }

    /// A start has failed.
    pub fn give_up(&mut self, database: u32) {
        self.remove(|refiller| refiller.database == database && matches!(refiller.phase, Phase::Starting { .. }));
    }

    /// A worker ends.
    pub fn end(&mut self, database: u32, latch: usize) {
        self.remove(|refiller| *refiller == Refiller { database, phase: Phase::Running { latch } });
    }

    fn remove(&mut self, matches: impl Fn(&Refiller) -> bool) {
        for entry in self.0.iter_mut() {
            *entry = entry.filter(|refiller| !matches(refiller));
        }
    }

    fn find(&self, database: u32) -> Option<Refiller> {
        self.0.iter().copied().flatten().find(|refiller| refiller.database == database)
    }

    /// False if there is no entry. A worker that is still starting loses its entry to one that needs it.
    fn set(&mut self, database: u32, phase: Phase) -> bool {
        let is_own = |entry: &Option<Refiller>| entry.is_some_and(|refiller| refiller.database == database);
        let is_starting =
            |entry: &Option<Refiller>| matches!(entry, Some(Refiller { phase: Phase::Starting { .. }, .. }));
        let index = self.0.iter().position(is_own);
        let index =
            index.or_else(|| self.0.iter().position(Option::is_none)).or_else(|| self.0.iter().position(is_starting));
        if let Some(index) = index {
            self.0[index] = Some(Refiller { database, phase });
        }
        index.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    #[test]
    fn one_caller_starts_a_worker_and_the_others_wait_for_it() {
        let mut entries: [Option<Refiller>; 2] = [None; 2];
        let mut all = Refillers(&mut entries);
        assert_eq!(all.call(7, 0), Call::Start);
        assert_eq!(all.call(7, SECOND), Call::Wait);
        assert_eq!(all.call(8, SECOND), Call::Start);
        assert!(all.begin(7, 70));
        assert_eq!(all.call(7, 60 * SECOND), Call::Wake { latch: 70 });
        assert!(!all.begin(7, 71), "a database has one worker");
        all.give_up(7);
        all.end(7, 71);
        assert_eq!(all.call(7, 60 * SECOND), Call::Wake { latch: 70 });
        all.end(7, 70);
        assert_eq!(all.call(7, 60 * SECOND), Call::Start);
    }

    #[test]
    fn failed_start_is_tried_again() {
        let mut entries: [Option<Refiller>; 1] = [None];
        let mut all = Refillers(&mut entries);
        assert_eq!(all.call(7, 0), Call::Start);
        assert_eq!(all.call(7, 6 * SECOND), Call::Start);
        all.give_up(7);
        assert_eq!(all.call(7, 6 * SECOND), Call::Start);
    }

    #[test]
    fn running_worker_finds_an_entry_whatever_is_starting() {
        let mut entries: [Option<Refiller>; 1] = [None];
        let mut all = Refillers(&mut entries);
        assert_eq!(all.call(7, 0), Call::Start);
        assert_eq!(all.call(8, 0), Call::Start);
        assert!(all.begin(7, 70));
        assert!(!all.begin(8, 80), "there are as many entries as background workers");
        assert_eq!(all.call(8, 0), Call::Start);
    }
}

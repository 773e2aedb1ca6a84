//! Which database has a refill worker. All of this happens under the lock of the table of rings.

/// How long a start may take before it counts as failed, and another is tried.
const START_US: i64 = 5_000_000;

/// The refill worker of one database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refiller {
    database: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Starting {
        since_us: i64,
    },
    /// By what a process is woken; of no meaning here.
    Running {
        latch: usize,
    },
}

/// What whoever wants a refill has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Wake {
        latch: usize,
    },
    Start,
    /// Somebody has just started one.
    Wait,
}

/// Every worker there is. There are as many places as the server has background workers, so one is always free for a
/// worker that runs.
pub struct Refillers<'a>(pub &'a mut [Option<Refiller>]);

impl Refillers<'_> {
    /// Somebody wants a refill in a database.
    pub fn call(&mut self, database: u32, now_us: i64) -> Call {
        match self.find(database).map(|refiller| refiller.state) {
            Some(State::Running { latch }) => return Call::Wake { latch },
            Some(State::Starting { since_us }) if now_us < since_us.saturating_add(START_US) => return Call::Wait,
            _ => {}
        }
        // Without a place nothing prevents a second start; the second worker then goes away by itself.
        self.set(database, State::Starting { since_us: now_us });
        Call::Start
    }

    /// A worker begins. False if the database has one already.
    pub fn begin(&mut self, database: u32, latch: usize) -> bool {
        let is_first = !matches!(self.find(database), Some(Refiller { state: State::Running { .. }, .. }));
        is_first && self.set(database, State::Running { latch })
    }

    /// A start has failed.
    pub fn give_up(&mut self, database: u32) {
        self.remove(|refiller| refiller.database == database && matches!(refiller.state, State::Starting { .. }));
    }

    /// A worker has come to its end.
    pub fn end(&mut self, database: u32, latch: usize) {
        self.remove(|refiller| *refiller == Refiller { database, state: State::Running { latch } });
    }

    fn remove(&mut self, is_meant: impl Fn(&Refiller) -> bool) {
        for place in self.0.iter_mut() {
            *place = place.filter(|refiller| !is_meant(refiller));
        }
    }

    fn find(&self, database: u32) -> Option<Refiller> {
        self.0.iter().copied().flatten().find(|refiller| refiller.database == database)
    }

    /// False if there is no place. A start that has failed leaves its place to whoever needs one.
    fn set(&mut self, database: u32, state: State) -> bool {
        let is_own = |place: &Option<Refiller>| place.is_some_and(|refiller| refiller.database == database);
        let is_starting =
            |place: &Option<Refiller>| matches!(place, Some(Refiller { state: State::Starting { .. }, .. }));
        let index = self.0.iter().position(is_own);
        let index =
            index.or_else(|| self.0.iter().position(Option::is_none)).or_else(|| self.0.iter().position(is_starting));
        if let Some(index) = index {
            self.0[index] = Some(Refiller { database, state });
        }
        index.is_some()
    }
}

//! Records the calls of all sessions of a test by one clock, for the checkers of `idgen_sim::history`.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use idgen_sim::history::order::Draw;
use idgen_sim::history::{Call, NEVER, Ns, Outcome};
use postgres::error::SqlState;
use postgres::fallible_iterator::FallibleIterator;
use postgres::{Client, Error, Row};

/// Now, by the monotonic clock of this process.
pub fn now() -> Ns {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as Ns
}

/// The server has ended the session, or the connection is lost: a call that ran may have taken effect.
pub fn is_lost(error: &Error) -> bool {
    error.as_db_error().is_none_or(|error| error.severity() == "FATAL")
}

/// The error of a token that is not, or no more, that of a term.
pub fn is_stale(error: &Error) -> bool {
    error.code() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE)
}

pub fn outcome<R>(result: Result<R, Error>) -> Outcome<R> {
    result.map_or_else(|error| if is_lost(&error) { Outcome::Unknown } else { Outcome::Failed }, Outcome::Answered)
}

/// Calls of one kind, by all sessions.
pub struct Recorder<Op, R> {
    numbers: AtomicU32,
    calls: Mutex<Vec<Call<Op, R>>>,
}

impl<Op, R> Default for Recorder<Op, R> {
    fn default() -> Self {
        Recorder { numbers: AtomicU32::new(1), calls: Mutex::default() }
    }
}

impl<Op, R: Copy> Recorder<Op, R> {
    /// A number that nothing else has: for a new connection, or for what a call writes.
    pub fn number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a call and records it. A call that is lost can take effect for ever, unless the end of its session is recorded.
    pub fn call(&self, session: u32, op: Op, call: impl FnOnce() -> Result<R, Error>) -> Outcome<R> {
        let sent = now();
        let outcome = outcome(call());
        let returned = if matches!(outcome, Outcome::Unknown) { NEVER } else { now() };
        self.add(Call { session, op, sent, returned, outcome });
        outcome
    }

    pub fn add(&self, call: Call<Op, R>) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    pub fn len(&self) -> usize {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn into_calls(self) -> Vec<Call<Op, R>> {
        self.calls.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ids that sessions have received.
#[derive(Default)]
pub struct Draws<T> {
    count: AtomicUsize,
    draws: Mutex<Vec<Draw<T>>>,
}

impl<T> Draws<T> {
    /// Runs a statement that draws ids, and records them. They are kept also if the connection is lost before the last one.
    pub fn draw<I: IntoIterator<Item = T>>(
        &self,
        client: &mut Client,
        sql: &str,
        ids_of: impl Fn(&Row) -> I,
    ) -> Result<(), Error> {
        let (mut ids, sent) = (Vec::new(), now());
        let mut returned = sent;
        let mut read = || {
            let mut rows = client.query_raw(sql, std::iter::empty::<i32>())?;
            while let Some(row) = rows.next()? {
                ids.extend(ids_of(&row));
                returned = now();
            }
            Ok(())
        };
        let result = read();
        self.add(Draw { sent, returned, ids });
        result
    }

    pub fn add(&self, draw: Draw<T>) {
        self.count.fetch_add(draw.ids.len(), Ordering::Relaxed);
        self.draws.lock().unwrap_or_else(PoisonError::into_inner).push(draw);
    }

    /// How many ids were received.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub fn into_draws(self) -> Vec<Draw<T>> {
        self.draws.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

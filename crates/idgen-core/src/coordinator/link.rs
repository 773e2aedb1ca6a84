//! When a connection to the coordinator is kept, probed or replaced, which host is tried first, and when to try again.
//!
//! A process makes one request at a time. It asks for a connection with [`Link::request`], acts on the [`Step`], and tells
//! the outcome. The link holds the connection between requests, so a connection that has failed cannot be used again.

use std::time::{Duration, Instant};

/// A connection costs the coordinator several times the CPU time of a request, so it is kept. But the next one resolves
/// the coordinator's name again, and the network may cut a connection that is idle for longer.
const LONGEST_USE: Duration = Duration::from_mins(5);

/// The link of one process to the coordinator. `C` is an open connection.
pub struct Link<C> {
    /// A connection that has answered within this time is used without a probe, and one that then breaks is replaced at once.
    /// Only for requests that may be repeated.
    fresh: Duration,
    kept: Option<Kept<C>>,
    /// When the running request got the kept connection.
    reused_at: Option<Instant>,
    /// Counts failed tries, so that each begins at another host.
    first_host: usize,
    failures: u32,
    retry_at: Option<Instant>,
    connected_in: Duration,
}

struct Kept<C> {
    connection: C,
    terms: Terms,
    answered_at: Instant,
}

/// Under which a connection was opened.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The time limit of its requests, which the coordinator enforces too.
    pub limit: Duration,
    pub opened_at: Instant,
    /// The coordinator has room for a connection that stays unused.
    pub may_stay: bool,
}

/// How a request gets its connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<C> {
    Use(C),
    /// Use it if the coordinator answers. Otherwise call [`Link::unanswered`], and connect.
    Probe(C),
    Connect {
        first_host: usize,
    },
}

/// What follows a failure.
#[derive(Debug, PartialEq, Eq)]
pub enum Retry {
    /// The kept connection was broken, as by a restart of the coordinator. This is no failure of the coordinator.
    Now,
    At(Instant),
}

impl Terms {
    fn allow_pause_until(&self, time: Instant) -> bool {
        self.may_stay && time < self.opened_at + LONGEST_USE
    }
}

impl<C> Link<C> {
    pub fn new(fresh: Duration) -> Self {
        Self {
            fresh,
            kept: None,
            reused_at: None,
            first_host: 0,
            failures: 0,
            retry_at: None,
            connected_in: Duration::ZERO,
        }
    }

    /// The next host to connect to first.
    pub fn first_host(&self) -> usize {
        self.first_host
    }

    /// How many requests in a row the coordinator has failed.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// No request is due before this time.
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// How long the last connection took; zero before the first one.
    pub fn connected_in(&self) -> Duration {
        self.connected_in
    }

    /// A request is to be made, with this time limit.
    pub fn request(&mut self, now: Instant, limit: Duration) -> Step<C> {
        let kept = self.kept.take().filter(|kept| kept.terms.limit == limit);
        let step = match kept {
            Some(kept) if now < kept.answered_at + self.fresh => Step::Use(kept.connection),
            Some(kept) if kept.terms.allow_pause_until(now) => Step::Probe(kept.connection),
            _ => Step::Connect { first_host: self.first_host },
        };
        self.reused_at = (!matches!(step, Step::Connect { .. })).then_some(now);
        step
    }

    /// The kept connection has not answered. Returns the host to connect to first.
    pub fn unanswered(&mut self) -> usize {
        self.reused_at = None;
        self.first_host
    }

    pub fn connected(&mut self, took: Duration) {
        self.connected_in = took;
    }

    /// The coordinator has answered the request, if only by an error that concerns nothing else. Ends a row of failures.
    pub fn answered(&mut self, now: Instant, connection: C, terms: Terms) {
        self.kept = Some(Kept { connection, terms, answered_at: now });
        (self.failures, self.retry_at) = (0, None);
    }

    /// The request has failed, and its connection is closed. The next try begins at the next host. `jitter` is random in [0, 1).
    pub fn failed(&mut self, now: Instant, longest_pause: Duration, jitter: f64) -> Retry {
        if self.reused_at.take().is_some_and(|reused_at| now < reused_at + self.fresh) {
            return Retry::Now;
        }
        let at = now + retry_pause(self.failures, longest_pause, jitter);
        self.retry_at = Some(at);
        self.failures += 1;
        self.skip_host();
        Retry::At(at)
    }

    /// The next connection begins at another host.
    pub fn skip_host(&mut self) {
        self.first_host += 1;
    }

    /// No request is to be made during this pause. Closes a connection that could not be used after it, or is not wanted.
    pub fn pause(&mut self, now: Instant, pause: Duration, is_wanted: bool) {
        self.kept.take_if(|kept| !is_wanted || !kept.terms.allow_pause_until(now + pause));
    }

    /// The coordinator may be another one, and what failed may succeed.
    pub fn reset(&mut self) {
        *self = Self { connected_in: self.connected_in, ..Self::new(self.fresh) };
    }
}

/// The pause after a failed try. It doubles with each failure in a row, up to the longest one. A random part of it, at
/// least half, so that servers do not return together; `jitter` is random in [0, 1). Rounding may give 1.
pub fn retry_pause(failures_before: u32, longest: Duration, jitter: f64) -> Duration {
    const FIRST: Duration = Duration::from_millis(50);
    (FIRST * 2u32.pow(failures_before.min(10))).min(longest).mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests;

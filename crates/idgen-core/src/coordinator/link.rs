//! When a connection to the coordinator is kept, probed or replaced, which host is tried first, and when to try again.
//!
//! A process makes one request at a time. It asks for a connection with [`Link::request`], acts on the [`Step`], and tells
//! the outcome. The link holds the connection between requests, so one that has failed cannot be used again.

use std::time::{Duration, Instant};

/// The link of one process to the coordinator. `C` is an open connection.
#[derive(Debug)]
pub struct Link<C> {
    /// A connection that has answered within this time is used without a probe, and one that then breaks is replaced at once.
    /// Only for requests that may be repeated.
    fresh: Duration,
    kept: Option<Kept<C>>,
    /// When the running request got the kept connection.
    reused_at: Option<Instant>,
    /// The host to connect to first. Counts failed tries, so that each begins at another one.
    pub first_host: usize,
    /// Requests in a row that the coordinator has failed.
    pub failures: u32,
    /// No request is due before this time.
    pub retry_at: Option<Instant>,
}

#[derive(Debug)]
struct Kept<C> {
    connection: C,
    /// The time limit of its requests, which the coordinator enforces too.
    limit: Duration,
    /// It may stay unused until then.
    stays_until: Instant,
    answered_at: Instant,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Step<C> {
    Use(C),
    /// Use it if the coordinator answers, else connect.
    Probe(C),
    Connect,
}

impl<C> Link<C> {
    pub fn new(fresh: Duration) -> Self {
        Self { fresh, kept: None, reused_at: None, first_host: 0, failures: 0, retry_at: None }
    }

    /// A request is to be made, with this time limit.
    pub fn request(&mut self, now: Instant, limit: Duration) -> Step<C> {
        self.reused_at = Some(now);
        match self.kept.take().filter(|kept| kept.limit == limit) {
            Some(kept) if now < kept.answered_at + self.fresh => Step::Use(kept.connection),
            Some(kept) if now < kept.stays_until => Step::Probe(kept.connection),
            _ => Step::Connect,
        }
    }

    /// The request gets a new connection. Returns the host to connect to first.
    pub fn connect(&mut self) -> usize {
        self.reused_at = None;
        self.first_host
    }

    /// The coordinator has answered the request, if only by an error that concerns nothing else. Ends a row of failures.
    pub fn answered(&mut self, now: Instant, connection: C, limit: Duration, stays_until: Instant) {
        self.kept = Some(Kept { connection, limit, stays_until, answered_at: now });
        (self.failures, self.retry_at) = (0, None);
    }

    /// The request has failed, and its connection is closed. The next try is due after the pause, and begins at the next host.
    /// True if it may be made at once: the kept connection was broken, as by a restart of the coordinator.
    pub fn failed(&mut self, now: Instant, pause: Duration) -> bool {
        if self.reused_at.take().is_some_and(|reused_at| now < reused_at + self.fresh) {
            return true;
        }
        self.retry_at = Some(now + pause);
        self.failures += 1;
        self.first_host += 1;
        false
    }

    /// No request is to be made until then. Closes a connection that may not stay that long.
    pub fn pause(&mut self, until: Instant) {
        self.kept.take_if(|kept| kept.stays_until <= until);
    }

    pub fn close(&mut self) {
        self.kept = None;
    }

    /// The coordinator may be another one, and what failed may succeed.
    pub fn reset(&mut self) {
        *self = Self::new(self.fresh);
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

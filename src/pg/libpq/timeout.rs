//! How long a call waits for the network.

use super::error::Error;
use crate::pg::latch;
use crate::pg::wait_event::WaitEvent;
use std::ffi::c_int;
use std::time::{Duration, Instant};

/// How long a call waits, and what ends the wait early.
#[derive(Clone, Copy)]
pub struct Timeout {
    pub duration: Duration,
    pub event: &'static WaitEvent,
    /// Tested before each sleep. If true, the call returns an [`Error`].
    pub is_interrupted: fn() -> bool,
}

impl Timeout {
    pub fn deadline(self) -> Deadline {
        Deadline { at: Instant::now() + self.duration, event: self.event, is_interrupted: self.is_interrupted }
    }

    pub fn with_duration(self, duration: Duration) -> Self {
        Self { duration, ..self }
    }
}

/// When a wait ends.
#[derive(Clone, Copy)]
pub struct Deadline {
    at: Instant,
    event: &'static WaitEvent,
    is_interrupted: fn() -> bool,
}

impl Deadline {
    /// Waits for a socket. False after the deadline.
    pub fn wait(self, socket: c_int, event: u32) -> Result<bool, Error> {
        loop {
            if (self.is_interrupted)() {
                return Err(Error::new("interrupted"));
            }
            let left = self.at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let is_ready = latch::wait_or_socket(socket, event, left.max(Duration::from_millis(1)), self.event);
            if is_ready {
                return Ok(true);
            }
        }
    }
}

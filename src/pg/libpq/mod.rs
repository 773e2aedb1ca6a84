//! Connections to another server: libpq, asynchronous, waiting on the latch, so that neither the network nor the other server
//! delays a stop of this one. The only files that call libpq are here.

use super::latch;
use super::wait_event::WaitEvent;
use pgrx::prelude::*;
use std::ffi::{CStr, CString, c_char, c_int};
use std::time::{Duration, Instant};

mod answer;
mod connection;
mod options;
mod resolver;

pub use connection::Connection;
pub use resolver::Resolver;

/// Why there is no connection, or no answer.
#[derive(Debug)]
pub struct Trouble {
    /// `None` if the error is not the other server's.
    pub sqlstate: Option<String>,
    pub message: String,
}

impl Trouble {
    pub fn new(message: impl Into<String>) -> Self {
        Self { sqlstate: None, message: message.into() }
    }
}

/// How long a call waits, and what ends its waiting early.
#[derive(Clone, Copy)]
pub struct Patience {
    pub time: Duration,
    /// Asked before each sleep. If true, the call returns a [`Trouble`].
    pub is_interrupted: fn() -> bool,
}

impl Patience {
    fn deadline(self) -> Deadline {
        Deadline { at: Instant::now() + self.time, is_interrupted: self.is_interrupted }
    }

    fn for_time(self, time: Duration) -> Self {
        Self { time, ..self }
    }
}

/// The end of a wait.
#[derive(Clone, Copy)]
struct Deadline {
    at: Instant,
    is_interrupted: fn() -> bool,
}

impl Deadline {
    /// Waits for a socket. False when the time is over.
    fn wait(self, socket: c_int, event: u32) -> Result<bool, Trouble> {
        loop {
            if (self.is_interrupted)() {
                return Err(Trouble::new("interrupted"));
            }
            let left = self.at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let is_ready =
                latch::wait_or_socket(socket, event, left.max(Duration::from_millis(1)), WaitEvent::EXTENSION);
            check_for_interrupts!();
            if is_ready {
                return Ok(true);
            }
        }
    }
}

/// # Safety
/// Null or a C string.
unsafe fn string(text: *const c_char) -> String {
    // SAFETY: by the above.
    if text.is_null() { String::new() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() }
}

/// Cuts the text at a NUL, as PostgreSQL does.
fn c_string(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

fn on_one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

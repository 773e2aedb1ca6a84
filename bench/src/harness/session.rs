//! The cost of single calls of one session.

use super::server::cpu_ns;
use idgen_testkit::sql::backend_pid;
use postgres::Client;
use std::time::{Duration, Instant};

pub struct Session {
    client: Client,
    pid: i32,
}

/// What some calls have cost.
#[derive(Default)]
pub struct Cost {
    calls: u64,
    seconds: f64,
    cpu_ns: f64,
}

impl Session {
    pub fn new(mut client: Client) -> Self {
        let pid = backend_pid(&mut client);
        Self { client, pid }
    }

    /// Runs `work`, which makes `calls` calls, and adds what they cost.
    pub fn measure<T>(&mut self, cost: &mut Cost, calls: u64, work: impl FnOnce(&mut Client) -> T) -> T {
        let (cpu_before, start) = (cpu_ns(self.pid), Instant::now());
        let result = work(&mut self.client);
        cost.seconds += start.elapsed().as_secs_f64();
        cost.cpu_ns += cpu_ns(self.pid) - cpu_before;
        cost.calls += calls;
        result
    }

    /// For what is not measured.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl Cost {
    /// The time of a call as its client sees it, and the CPU time of the backend, in microseconds.
    pub fn us_per_call(&self) -> [f64; 2] {
        [self.seconds * 1e6, self.cpu_ns / 1e3].map(|total| total / self.calls as f64)
    }
}

/// Calls with 0, 1, 2 and so on, until the time is over. Calls at least once.
pub fn repeat(time: Duration, mut call: impl FnMut(u64)) {
    let start = Instant::now();
    for number in 0.. {
        call(number);
        if start.elapsed() >= time {
            return;
        }
    }
}

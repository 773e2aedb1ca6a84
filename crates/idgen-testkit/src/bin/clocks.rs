//! For every line it reads, prints CLOCK_REALTIME, CLOCK_MONOTONIC and CLOCK_BOOTTIME in nanoseconds. A test runs it under
//! the fake clock of a server to read the clocks as the server does.

use std::io::Write;

use nix::time::{ClockId, clock_gettime};

fn main() {
    for line in std::io::stdin().lines() {
        line.expect("standard input is readable");
        let clocks = [ClockId::CLOCK_REALTIME, ClockId::CLOCK_MONOTONIC, ClockId::CLOCK_BOOTTIME].map(nanoseconds);
        println!("{} {} {}", clocks[0], clocks[1], clocks[2]);
        std::io::stdout().flush().expect("standard output is writable");
    }
}

fn nanoseconds(clock: ClockId) -> i64 {
    let time = clock_gettime(clock).expect("Linux has this clock");
    time.tv_sec() * 1_000_000_000 + time.tv_nsec()
}

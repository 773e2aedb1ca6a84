//! Clock steps under a running server.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use idgen_testkit::FakeClock;
use idgen_testkit::sql::backend_pid;
use nix::time::{ClockId, clock_gettime};
use postgres::Client;

use crate::{builder, number};

/// The server's clock must be `offset_ms` from a concurrent reading of the true clock.
fn assert_offset(client: &mut Client, offset_ms: i64) {
    let true_us = || i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap();
    let before = true_us();
    let shown = number(client, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint");
    let after = true_us();
    let expected = before + offset_ms * 1000..=after + offset_ms * 1000;
    assert!(expected.contains(&shown), "offset {offset_ms} ms: {shown} is not in {expected:?}");
}

#[test]
fn fake_clock_of_a_running_server_steps_both_ways() {
    let cluster = builder().fake_clock().start();
    let mut client = cluster.client();
    assert_offset(&mut client, 0);
    for offset_ms in [3_600_000, -3_600_000, 500, -1, 86_400_000, 0] {
        cluster.clock().set_offset_ms(offset_ms);
        assert_offset(&mut client, offset_ms);
        assert_offset(&mut cluster.client(), offset_ms);
    }
}

#[test]
fn fake_clock_keeps_its_offset_over_crash_and_restart() {
    let cluster = builder().fake_clock().start();
    cluster.clock().set_offset_ms(-7_200_000);
    cluster.kill9_postmaster();
    cluster.start_again();
    assert_offset(&mut cluster.client(), -7_200_000);
    cluster.kill9(backend_pid(&mut cluster.client()));
    cluster.wait_until_ready();
    assert_offset(&mut cluster.client(), -7_200_000);
    cluster.clock().set_offset_ms(7_200_000);
    cluster.restart();
    assert_offset(&mut cluster.client(), 7_200_000);
}

#[test]
fn standby_has_its_own_fake_clock() {
    let primary = builder().fake_clock().start();
    let standby = primary.standby_builder().fake_clock().start();
    primary.clock().set_offset_ms(60_000);
    standby.clock().set_offset_ms(-60_000);
    assert_offset(&mut primary.client(), 60_000);
    assert_offset(&mut standby.client(), -60_000);
    standby.promote();
    assert_offset(&mut standby.client(), -60_000);
}

/// A process under the clock of a server, which reports its clocks.
struct Observer {
    process: Child,
    answers: BufReader<ChildStdout>,
}

impl Observer {
    fn new(clock: &FakeClock) -> Observer {
        let mut command = Command::new(env!("CARGO_BIN_EXE_clocks"));
        clock.apply_to(&mut command);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Observer { process, answers }
    }

    /// CLOCK_REALTIME, CLOCK_MONOTONIC and CLOCK_BOOTTIME in nanoseconds.
    fn clocks(&mut self) -> [i64; 3] {
        writeln!(self.process.stdin.as_ref().unwrap()).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        let clocks: Vec<i64> = answer.split_ascii_whitespace().map(|word| word.parse().unwrap()).collect();
        clocks.try_into().unwrap()
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        self.process.wait().unwrap();
    }
}

fn true_clocks() -> [i64; 3] {
    [ClockId::CLOCK_REALTIME, ClockId::CLOCK_MONOTONIC, ClockId::CLOCK_BOOTTIME].map(|clock| {
        let time = clock_gettime(clock).unwrap();
        time.tv_sec() * 1_000_000_000 + time.tv_nsec()
    })
}

/// Each offset moves its own clock, the wall clock or the boot clock, and no other.
#[test]
fn offset_moves_only_its_own_clock() {
    let cluster = builder().fake_clock().start();
    let mut observer = Observer::new(cluster.clock());
    for (wall_ms, boot_ms) in [(0, 0), (3_600_000, 0), (-3_600_000, 0), (500, 0), (-86_400_000, 0), (0, 3_600_000)] {
        cluster.clock().set_offset_ms(wall_ms);
        if boot_ms != 0 {
            cluster.clock().set_boot_offset(Duration::from_millis(boot_ms));
            observer = Observer::new(cluster.clock());
        }
        let before = true_clocks();
        let seen = observer.clocks();
        let after = true_clocks();
        for (clock, offset) in [wall_ms * 1_000_000, 0, boot_ms as i64 * 1_000_000].into_iter().enumerate() {
            let expected = before[clock] + offset..=after[clock] + offset;
            let case = format!("{wall_ms} and {boot_ms} ms: {seen:?}, true clocks {before:?} to {after:?}");
            assert!(expected.contains(&seen[clock]), "{case}");
        }
    }
}

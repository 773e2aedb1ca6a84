//! Two servers: one has the leases, the other one the rows and the fence of `sql/fence.sql`, without idgen. Holders read
//! a counter, add to it for a term, and are paused past the end of their leases.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use idgen_testkit::lease::try_acquire;
use idgen_testkit::parallel::End;
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, value};
use idgen_testkit::{Cluster, pause_in_a_wait, rounds};
use postgres::Client;

use crate::fences::fenced_server;
use crate::server;

const HOLDERS: usize = 4;
const UPDATES_OF_A_TERM: usize = 100;

struct Storm {
    with_leases: Cluster,
    with_rows: Cluster,
    is_fenced: bool,
    /// The storm is over after this many updates, or when a holder has failed.
    wanted: usize,
    has_ended: AtomicBool,
    acknowledged: AtomicUsize,
    refused: AtomicUsize,
    /// The token that was granted last, and its holder's session at the rows.
    holder: Mutex<(i64, i32)>,
    /// The highest token with which an update was acknowledged.
    written: AtomicI64,
}

impl Storm {
    fn run(is_fenced: bool) -> Storm {
        let storm = Storm {
            with_leases: server(),
            with_rows: fenced_server(),
            is_fenced,
            wanted: rounds(1_000, 100_000),
            has_ended: AtomicBool::new(false),
            acknowledged: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            holder: Mutex::new((0, 0)),
            written: AtomicI64::new(0),
        };
        thread::scope(|scope| {
            for _ in 0..HOLDERS {
                scope.spawn(|| storm.hold());
            }
            scope.spawn(|| storm.pause_holders());
        });
        storm
    }

    fn is_over(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed) || self.acknowledged.load(Ordering::Relaxed) >= self.wanted
    }

    /// The updates that were acknowledged and are not in the counter.
    fn lost(&self) -> usize {
        let n: i64 = value(&mut self.with_rows.client(), "SELECT n FROM counter");
        let acknowledged = self.acknowledged.load(Ordering::Relaxed);
        println!("{acknowledged} updates acknowledged, {n} in the counter, {} refused", self.refusals());
        acknowledged - usize::try_from(n).expect("a count")
    }

    fn refusals(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }

    fn holder(&self) -> (i64, i32) {
        *self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self) {
        let _end = End(&self.has_ended);
        let (mut leases, mut rows) = (self.with_leases.client(), self.with_rows.client());
        let pid = backend_pid(&mut rows);
        while !self.is_over() {
            let granted = try_acquire(&mut leases, "'counter', timeout => '1 s', ttl => '100 ms'");
            let Some(token) = granted.map(|grant| grant.token) else { continue };
            {
                let mut holder = self.holder.lock().unwrap_or_else(PoisonError::into_inner);
                *holder = (token, pid).max(*holder);
            }
            let mut n = None;
            for _ in 0..UPDATES_OF_A_TERM {
                n = self.add_one(&mut rows, token, n);
                if n.is_none() || self.is_over() {
                    break;
                }
            }
            // Fails if another holder has the lease.
            let _ = leases.simple_query(&format!("SELECT lease_release('counter', {token})"));
        }
    }

    /// Adds one to what the holder knows, which it reads at the beginning of a term only. Returns the sum, or `None` if the
    /// fence refuses the token.
    fn add_one(&self, rows: &mut Client, token: i64, known: Option<i64>) -> Option<i64> {
        execute(rows, "BEGIN");
        if self.is_fenced
            && let Err(error) = rows.simple_query(&format!("SELECT fence.pass('counter', {token})"))
        {
            assert_eq!(error.code().map(|code| code.code()), Some("55000"), "{error}");
            execute(rows, "ROLLBACK");
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let n = 1 + known.unwrap_or_else(|| value(rows, "SELECT n FROM counter"));
        execute(rows, &format!("UPDATE counter SET n = {n}"));
        execute(rows, "COMMIT");
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        self.written.fetch_max(token, Ordering::Relaxed);
        Some(n)
    }

    /// Pauses the session of one holder after the other, until the next one has written or waits for it.
    fn pause_holders(&self) {
        let mut observer = self.with_rows.client();
        let mut last = 0;
        while !self.is_over() {
            let (token, pid) = self.holder();
            if token == last {
                thread::yield_now();
                continue;
            }
            last = token;
            let Some(_paused) = pause_in_a_wait(pid) else { return };
            let waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)";
            self.with_rows.wait_for(PATIENCE, "the next holder", || {
                self.is_over() || self.written.load(Ordering::Relaxed) > token || value(&mut observer, waits)
            });
        }
    }
}

#[test]
fn fence_in_another_database_loses_no_update_of_paused_holders() {
    let storm = Storm::run(true);
    assert_eq!(storm.lost(), 0);
    assert!(storm.refusals() > 0, "no holder was late");
}

/// The same holders without the fence.
#[test]
fn paused_holders_lose_updates_without_the_fence() {
    let lost = Storm::run(false).lost();
    // One in a hundred of a soak.
    let least = rounds(1, 1_000);
    assert!(lost >= least, "{lost} updates lost, fewer than {least}");
}

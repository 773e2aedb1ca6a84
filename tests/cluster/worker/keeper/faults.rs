//! What goes wrong in a fleet, one after the other.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use idgen_testkit::sql::{PATIENCE, execute, value};
use idgen_testkit::{Cluster, Stop, pause};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Worker;
use super::load::Load;
use super::random::Random;
use crate::POOL;
use idgen_testkit::grants::{Seen, epoch_us};

/// What happens to one server.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    BackendKilled,
    KeeperKilled,
    PostmasterKilled,
    StoppedAtOnce,
    Restarted,
    KeeperEnded,
    /// Until the lease has ended.
    KeeperPaused,
    /// While the server is given another number, until the times of the old one are over.
    BackendPaused,
    Revoked,
    /// A copy is started beside it, and draws too.
    Copied,
    /// Ahead by less than a lease lasts, back behind the true time, and to it again.
    ClockStepped,
    /// Ahead by more than a lease lasts, and back again.
    ClockLeapt,
    /// A copy of its memory renews with its token before it does.
    Twinned,
    /// It leases from the other pool from now on.
    Moved,
    /// It issues under a worker id that is set by hand for a while.
    SetByHand,
}

pub const ALL: [Fault; 15] = [
    Fault::BackendKilled,
    Fault::KeeperKilled,
    Fault::PostmasterKilled,
    Fault::StoppedAtOnce,
    Fault::Restarted,
    Fault::KeeperEnded,
    Fault::KeeperPaused,
    Fault::BackendPaused,
    Fault::Revoked,
    Fault::Copied,
    Fault::ClockStepped,
    Fault::ClockLeapt,
    Fault::Twinned,
    Fault::Moved,
    Fault::SetByHand,
];

/// The pool beside the first one. Its worker ids begin above those of that.
pub const OTHER_POOL: &str = "others";
/// Where worker ids that are set by hand begin, above those of both pools. The next ones are the other servers'.
pub const FIRST_BY_HAND: i32 = 500;

impl Fault {
    /// Can it happen while no coordinator answers?
    pub fn needs_coordinator(self) -> bool {
        matches!(self, Fault::BackendPaused | Fault::Revoked | Fault::Twinned | Fault::Moved | Fault::SetByHand)
    }

    pub fn needs_fake_clock(self) -> bool {
        matches!(self, Fault::ClockStepped | Fault::ClockLeapt)
    }

    /// Has it happen to a server under load. `coordinator`: where there is one that answers. Returns what a copy of the server
    /// has seen, if there was one.
    pub fn happen(self, load: &Load, coordinator: Option<&Cluster>, random: &mut Random) -> Option<Seen> {
        let server = load.cluster;
        match self {
            Fault::BackendKilled => {
                load.with_victim(|pid| server.kill9(pid));
                server.wait_until_ready();
            }
            Fault::KeeperKilled => {
                server.kill9(keeper(server));
                server.wait_until_ready();
            }
            Fault::PostmasterKilled => {
                server.kill9_postmaster();
                server.start_again();
            }
            Fault::StoppedAtOnce => {
                server.stop(Stop::Immediate);
                server.start_again();
            }
            Fault::Restarted => server.restart(),
            Fault::KeeperEnded => {
                let pid = keeper(server);
                end(pid);
                Worker::wait_until(server, "its keeper gone", |worker| worker.keeper != Some(pid));
            }
            Fault::KeeperPaused => {
                // A fault before may have cost the server its lease; without one there is none that ends.
                Worker::wait_until(server, "a lease", |worker| worker.until_us.is_some());
                let paused = pause(keeper(server));
                Worker::wait_for_state(server, "ended");
                paused.resume();
            }
            Fault::BackendPaused => load.with_victim(|pid| {
                let paused = pause(pid);
                revoke(load, coordinator.expect("one that answers"));
                paused.resume();
            }),
            Fault::Revoked => revoke(load, coordinator.expect("one that answers")),
            Fault::Copied => return Some(copy(server, coordinator.is_some())),
            Fault::ClockStepped => {
                let step_ms = 1 + random.below(1000) as i64;
                for offset_ms in [step_ms, -2 * step_ms, 0] {
                    server.clock().set_offset_ms(offset_ms);
                    wait_for_ids_or_end(load, coordinator.is_some());
                }
            }
            Fault::ClockLeapt => {
                server.clock().set_offset_ms(2000 + random.below(2000) as i64);
                // The lease is asked for from there on; where nobody answers, it is over.
                wait_for_ids_or_end(load, coordinator.is_some());
                server.clock().set_offset_ms(0);
            }
            Fault::Twinned => twin(load, coordinator.expect("one that answers")),
            Fault::Moved => {
                let is_other =
                    Worker::wait_for_state(server, "leased").number.is_some_and(|number| number >= FIRST_OTHER);
                server.set_conf("idgen.worker_pool", if is_other { POOL } else { OTHER_POOL });
                server.reload();
                Worker::wait_until(server, "one of the other pool", |worker| {
                    worker.number.is_some_and(|number| is_other != (number >= FIRST_OTHER))
                });
                load.wait_for_ids();
            }
            Fault::SetByHand => {
                let pool: String = value(&mut server.client(), "SHOW idgen.worker_pool");
                server.set_conf("idgen.worker_id", &load.by_hand.to_string());
                server.set_conf("idgen.worker_pool", "");
                server.restart();
                Worker::wait_until(server, "the one by hand", |worker| worker.number == Some(load.by_hand));
                load.wait_for_ids();
                server.set_conf("idgen.worker_pool", &pool);
                server.reload();
                Worker::wait_for_state(server, "leased");
                load.wait_for_ids();
                server.set_conf("idgen.worker_id", "-1");
                server.restart();
            }
        }
        None
    }
}

/// Where the worker ids of the other pool begin.
pub const FIRST_OTHER: i32 = 100;

/// Renews with the server's token and the end that the server was told last, as a copy of its memory would, and writes down what the
/// copy may use now: the server may not.
fn twin(load: &Load, coordinator: &Cluster) {
    let mut client = coordinator.client();
    let own = format!("owner LIKE '%{}'", load.cluster.data_dir().display());
    let (before, after) = (epoch_us("known.not_after"), epoch_us("renewed.not_after"));
    let renew = format!(
        "SELECT known.number, known.token, {before}, {after}
         FROM idgen.worker_number AS known, worker_renew(known.pool, known.token, known.not_after) AS renewed
         WHERE known.token = (SELECT max(token) FROM told WHERE {own})"
    );
    let mut renewed = None;
    coordinator.wait_for(PATIENCE, "the copy to be first", || {
        renewed =
            client.query_opt(&renew, &[]).ok().flatten().filter(|row| row.get::<_, i64>(2) < row.get::<_, i64>(3));
        renewed.is_some()
    });
    let row = renewed.expect("waited for");
    let (number, token): (i32, i64) = (row.get(0), row.get(1));
    let (until_us, twins_us): (i64, i64) = (row.get(2), row.get(3));
    execute(
        &mut client,
        &format!(
            "INSERT INTO told (number, token, owner, from_us, until_us)
             SELECT number, token, owner, from_us, {until_us} FROM told WHERE token = {token} LIMIT 1;
             INSERT INTO told (number, token, owner, from_us, until_us)
             VALUES ({number}, -{token}, 'a copy of its memory', {until_us}, {twins_us})"
        ),
    );
    let is_over = format!("SELECT max(token) > {token} FROM told WHERE {own}");
    coordinator.wait_for(PATIENCE, "another term", || value(&mut client, &is_over));
}

fn keeper(server: &Cluster) -> i32 {
    Worker::wait_until(server, "a keeper", |worker| worker.keeper.is_some()).keeper.expect("waited for")
}

pub fn end(pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("a process of the server");
}

/// Takes a server's number away, and waits until it was granted another rectangle and the times of the old one are over. Not
/// by asking the server: one of its processes may stand still with a lock in its hands.
fn revoke(load: &Load, coordinator: &Cluster) {
    let mut client = coordinator.client();
    let own = format!("owner LIKE '%{}'", load.cluster.data_dir().display());
    let before: i64 = value(&mut client, &format!("SELECT max(token) FROM told WHERE {own}"));
    execute(&mut client, &format!("SELECT lease_revoke(pool, worker_id) FROM idgen.workers WHERE {own}"));
    let is_over = format!(
        "SELECT max(token) > {before} AND max(until_us) FILTER (WHERE token = {before}) < {}
         FROM told WHERE {own}",
        epoch_us("clock_timestamp()")
    );
    let began = Instant::now();
    coordinator.wait_for(PATIENCE, "another rectangle", || {
        // A keeper that waits for such a lock goes on when the process does.
        value(&mut client, &is_over) || began.elapsed() > Duration::from_secs(5)
    });
}

/// A copy has no number until it was granted one of its own. What is drawn from it, if there is a coordinator.
fn copy(server: &Cluster, is_answered: bool) -> Seen {
    let copy = server.copy();
    // It is never set by hand.
    let load = Load::new(&copy, 0);
    let mut ids = Vec::new();
    if is_answered {
        std::thread::scope(|scope| {
            let _end = load.run(scope, 2);
            copy.wait_for(PATIENCE, "its ids", || load.count.load(Ordering::Relaxed) > 10_000);
        });
        ids = load.into_seen().0;
    } else {
        let error = copy.client().simple_query("SELECT snowflake_next()").expect_err("no number");
        assert_eq!(error.code().map(|code| code.code()), Some("55000"), "{error:?}");
    }
    Seen { data_dir: copy.data_dir(), ids }
}

fn wait_for_ids_or_end(load: &Load, is_answered: bool) {
    if is_answered {
        load.wait_for_ids();
    } else {
        Worker::wait_for_state(load.cluster, "ended");
    }
}

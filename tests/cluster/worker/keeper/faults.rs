//! The faults of a fleet.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastrand::Rng;
use idgen_testkit::sql::{PATIENCE, execute, value};
use idgen_testkit::{Cluster, Stop, pause};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Worker;
use super::load::Load;
use crate::POOL;
use idgen_testkit::grants::{Seen, epoch_us};

/// A fault of one server.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    BackendKilled,
    KeeperKilled,
    PostmasterKilled,
    StoppedAtOnce,
    Restarted,
    KeeperEnded,
    /// Until its lease has ended.
    KeeperPaused,
    /// While the server gets another worker id, until the times of the old one are over.
    BackendPaused,
    TokenEnded,
    /// A copy starts beside it and draws too.
    Copied,
    /// Ahead by less than a lease, then behind the true time, then back to it.
    ClockStepped,
    /// Ahead by more than a lease, then back.
    ClockLeapt,
    /// A copy of its memory renews with its token first.
    Twinned,
    /// It leases from the other pool from now on.
    Moved,
    /// It uses a worker id set by hand for a while.
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
    Fault::TokenEnded,
    Fault::Copied,
    Fault::ClockStepped,
    Fault::ClockLeapt,
    Fault::Twinned,
    Fault::Moved,
    Fault::SetByHand,
];

/// The second pool. Its worker ids begin above those of the first one.
pub const OTHER_POOL: &str = "others";
/// The first server's worker id set by hand, above those of both pools. The other servers have the next ones.
pub const FIRST_BY_HAND: i32 = 500;

impl Fault {
    /// True if the fault needs a coordinator that answers.
    pub fn needs_coordinator(self) -> bool {
        matches!(self, Fault::BackendPaused | Fault::TokenEnded | Fault::Twinned | Fault::Moved | Fault::SetByHand)
    }

    pub fn needs_fake_clock(self) -> bool {
        matches!(self, Fault::ClockStepped | Fault::ClockLeapt)
    }

    /// Makes the fault happen to a server under load. `coordinator` is `None` if none answers. Returns the ids of a copy of the
    /// server, if there is one.
    pub fn happen(self, load: &Load, coordinator: Option<&Cluster>, random: &mut Rng) -> Option<Seen> {
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
                server.kill9_and_restart();
            }
            Fault::StoppedAtOnce => {
                server.restart_by(Stop::Immediate);
            }
            Fault::Restarted => server.restart(),
            Fault::KeeperEnded => {
                let pid = keeper(server);
                end(pid);
                Worker::wait_until(server, "the end of the keeper", |worker| worker.keeper != Some(pid));
            }
            Fault::KeeperPaused => {
                // An earlier fault may have cost the server its lease: only an existing lease can end.
                Worker::wait_until(server, "a lease", |worker| worker.until_us.is_some());
                let paused = pause(keeper(server));
                Worker::wait_for_state(server, "ended");
                paused.resume();
            }
            Fault::BackendPaused => load.with_victim(|pid| {
                let paused = pause(pid);
                end_token(load, coordinator.expect("a coordinator that answers"));
                paused.resume();
            }),
            Fault::TokenEnded => end_token(load, coordinator.expect("a coordinator that answers")),
            Fault::Copied => return Some(copy(server, coordinator.is_some())),
            Fault::ClockStepped => {
                let step_ms = 1 + random.usize(..1000) as i64;
                for offset_ms in [step_ms, -2 * step_ms, 0] {
                    server.clock().set_offset_ms(offset_ms);
                    wait_for_ids_or_end(load, coordinator.is_some());
                }
            }
            Fault::ClockLeapt => {
                server.clock().set_offset_ms(2000 + random.usize(..2000) as i64);
                // The next lease must begin there. If no coordinator answers, the lease is over.
                wait_for_ids_or_end(load, coordinator.is_some());
                server.clock().set_offset_ms(0);
            }
            Fault::Twinned => twin(load, coordinator.expect("a coordinator that answers")),
            Fault::Moved => {
                let is_other = Worker::wait_for_state(server, "leased")
                    .worker_id
                    .is_some_and(|worker_id| worker_id >= FIRST_OTHER);
                server.reload_with("idgen.worker_pool", if is_other { POOL } else { OTHER_POOL });
                Worker::wait_until(server, "a worker id of the other pool", |worker| {
                    worker.worker_id.is_some_and(|worker_id| is_other != (worker_id >= FIRST_OTHER))
                });
                load.wait_for_ids();
            }
            Fault::SetByHand => {
                let pool: String = value(&mut server.client(), "SHOW idgen.worker_pool");
                server.set_conf("idgen.worker_id", &load.by_hand.to_string());
                server.restart_with("idgen.worker_pool", "");
                Worker::wait_until(server, "the worker id set by hand", |worker| {
                    worker.worker_id == Some(load.by_hand)
                });
                load.wait_for_ids();
                server.reload_with("idgen.worker_pool", &pool);
                Worker::wait_for_state(server, "leased");
                load.wait_for_ids();
                server.restart_with("idgen.worker_id", "-1");
            }
        }
        None
    }
}

/// The first worker id of the other pool.
pub const FIRST_OTHER: i32 = 100;

/// The last token that was granted to the owner in this condition.
fn last_token(own: &str) -> String {
    format!("SELECT token FROM recorded WHERE {own} ORDER BY n DESC LIMIT 1")
}

/// Renews with the server's token and its last known end, as a copy of its memory would. Records the renewal as granted to
/// the copy: the server must not use it.
fn twin(load: &Load, coordinator: &Cluster) {
    let mut client = coordinator.client();
    let own = format!("owner LIKE '%{}'", load.cluster.data_dir().display());
    let (before, after) = (epoch_us("known.not_after"), epoch_us("renewed.not_after"));
    let renew = format!(
        "SELECT known.worker_id, known.token, {before}, {after}
         FROM idgen.worker_id AS known, worker_renew(known.pool, known.token, known.not_after) AS renewed
         WHERE known.token = ({})",
        last_token(&own)
    );
    let mut renewed = None;
    coordinator.wait_for(PATIENCE, "the renewal by the copy", || {
        renewed =
            client.query_opt(&renew, &[]).ok().flatten().filter(|row| row.get::<_, i64>(2) < row.get::<_, i64>(3));
        renewed.is_some()
    });
    let row = renewed.expect("waited for");
    let (worker_id, token): (i32, i64) = (row.get(0), row.get(1));
    let (until_us, twins_us): (i64, i64) = (row.get(2), row.get(3));
    execute(
        &mut client,
        &format!(
            "INSERT INTO recorded (worker_id, token, owner, from_us, until_us)
             SELECT worker_id, token, owner, from_us, {until_us} FROM recorded WHERE token = {token} LIMIT 1;
             INSERT INTO recorded (worker_id, token, owner, from_us, until_us)
             VALUES ({worker_id}, -{token}, 'a copy of its memory', {until_us}, {twins_us})"
        ),
    );
    let last = last_token(&own);
    coordinator.wait_for(PATIENCE, "another term", || value::<i64>(&mut client, &last) != token);
}

fn keeper(server: &Cluster) -> i32 {
    Worker::wait_until(server, "a keeper", |worker| worker.keeper.is_some()).keeper.expect("waited for")
}

pub fn end(pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("a process of the server");
}

/// Ends the token of a server, and waits until it has another rectangle and the times of the old one are over. It does not
/// query the server: one of its processes may be paused while it holds a lock.
fn end_token(load: &Load, coordinator: &Cluster) {
    let mut client = coordinator.client();
    let own = format!("owner LIKE '%{}'", load.cluster.data_dir().display());
    let before: i64 = value(&mut client, &last_token(&own));
    // The rows are locked before their ends are read: the server's keeper goes on to renew.
    let of_rows = format!("WHERE token IS NOT NULL AND {own}");
    execute(
        &mut client,
        &format!(
            "BEGIN; SELECT FROM idgen.worker_id {of_rows} FOR UPDATE;
             SELECT worker_correct(pool, worker_id, not_after, force => true) FROM idgen.worker_id {of_rows}; COMMIT"
        ),
    );
    let is_over = format!(
        "SELECT (array_agg(token ORDER BY n DESC))[1] <> {before}
             AND max(until_us) FILTER (WHERE token = {before}) < {} FROM recorded WHERE {own}",
        epoch_us("clock_timestamp()")
    );
    let began = Instant::now();
    coordinator.wait_for(PATIENCE, "another rectangle", || {
        // A keeper that waits for such a lock resumes with the process.
        value(&mut client, &is_over) || began.elapsed() > Duration::from_secs(5)
    });
}

/// Starts a copy, which has no worker id until it leases one, and draws from it if a coordinator answers.
fn copy(server: &Cluster, is_answered: bool) -> Seen {
    let copy = server.copy();
    // Its worker id is never set by hand.
    let load = Load::new(&copy, 0);
    let mut ids = Vec::new();
    if is_answered {
        std::thread::scope(|scope| {
            let _end = load.run(scope, 2);
            copy.wait_for(PATIENCE, "ids of the copy", || load.count.load(Ordering::Relaxed) > 10_000);
        });
        ids = load.into_seen().0;
    } else {
        let error = copy.client().simple_query("SELECT snowflake_next()").expect_err("the copy has no worker id");
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

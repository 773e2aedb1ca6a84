//! What locks and leases have in common: clients that acquire and release, each its own name or all the same one.

use crate::harness::pgbench::transactions_by_client;
use crate::harness::server::Server;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// The numbers of clients where each has its own name.
pub const CLIENTS: [u32; 2] = [1, 8];
/// The numbers of waiters where all clients want the same name; one more client holds it.
pub const WAITERS: [u32; 3] = [2, 8, 32];
/// The ttl of a lock on another server, in seconds. No lock is held as long.
pub const TTL_S: u32 = 30;

/// One client's lock on another server.
pub trait Lock {
    fn acquire(&mut self);
    fn release(&mut self);
}

/// The speed of acquiring and releasing.
pub struct Cycles {
    /// Cycles per second, of all clients.
    pub rate: f64,
    pub acquire_ms: f64,
    pub release_ms: f64,
}

/// Each client acquires and releases its own lock in a thread, until the time is over.
pub fn cycles<L: Lock>(clients: u32, seconds: u32, connect: impl Fn(u32) -> L + Sync) -> Cycles {
    /// What one client has done, and the seconds that it took.
    struct Work {
        count: f64,
        acquiring: f64,
        total: f64,
    }
    let barrier = Barrier::new(clients as usize);
    let work = |client: u32| {
        let mut lock = connect(client);
        barrier.wait();
        let start = Instant::now();
        let (mut count, mut acquiring) = (0, Duration::ZERO);
        while start.elapsed() < Duration::from_secs(seconds.into()) {
            let before = Instant::now();
            lock.acquire();
            acquiring += before.elapsed();
            lock.release();
            count += 1;
        }
        Work { count: count.into(), acquiring: acquiring.as_secs_f64(), total: start.elapsed().as_secs_f64() }
    };
    let work = &work;
    let all: Vec<Work> = thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|client| scope.spawn(move || work(client))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a client failed")).collect()
    });
    let sum = |of: fn(&Work) -> f64| all.iter().map(of).sum::<f64>();
    let (count, acquiring, total) = (sum(|work| work.count), sum(|work| work.acquiring), sum(|work| work.total));
    Cycles {
        rate: sum(|work| work.count / work.total),
        acquire_ms: acquiring / count * 1000.0,
        release_ms: (total - acquiring) / count * 1000.0,
    }
}

/// The target for fairness. A client that starts slightly later gets slightly less.
pub const FAIR: f64 = 0.99;
pub const FAIRNESS: &str =
    "Fairness is Jain's index of the grants by client: 1 if all have as many, 1/n if one of n has all.";

/// All clients acquire and release one lock. Returns hand-offs per second and fairness.
pub fn contend(server: &Server, script: &str, waiters: u32, seconds: u32) -> [f64; 2] {
    let grants = transactions_by_client(server, script, waiters + 1, seconds);
    [grants.iter().sum::<f64>() / f64::from(seconds), jain(&grants)]
}

/// Jain's fairness index.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::jain;

    #[test]
    fn fairness_is_1_for_equal_shares_and_falls_to_one_nth() {
        assert_eq!(jain(&[5.0, 5.0, 5.0, 5.0]), 1.0);
        assert_eq!(jain(&[5.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[2.0, 1.0]), 0.9);
    }
}

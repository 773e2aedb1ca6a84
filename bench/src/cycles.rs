//! Locks that are taken and let go of, over and over, by clients that do not meet: each has a name of its own.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// A lock of another server, as one client has it.
pub trait Lock {
    fn acquire(&mut self);
    fn release(&mut self);
}

/// Longer than any lock is held here, in seconds.
pub const TTL_S: u32 = 30;

/// How it went.
pub struct Cycles {
    /// How many in a second, of all clients.
    pub rate: f64,
    /// How long each took for its client.
    pub acquire_ms: f64,
    pub release_ms: f64,
}

/// So many clients, a thread each, go on for so many seconds.
pub fn cycles<L: Lock>(clients: u32, seconds: u32, connect: impl Fn(u32) -> L + Sync) -> Cycles {
    let start = Barrier::new(clients as usize);
    let work = |client: u32| {
        let mut lock = connect(client);
        start.wait();
        let began = Instant::now();
        let (mut count, mut acquiring) = (0, Duration::ZERO);
        while began.elapsed() < Duration::from_secs(seconds.into()) {
            let before = Instant::now();
            lock.acquire();
            acquiring += before.elapsed();
            lock.release();
            count += 1;
        }
        (f64::from(count), acquiring.as_secs_f64(), began.elapsed().as_secs_f64())
    };
    let (work, mut all) = (&work, Vec::new());
    thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|client| scope.spawn(move || work(client))).collect();
        all.extend(threads.into_iter().map(|thread| thread.join().expect("the other server does as it is told")));
    });
    let sum = |of: fn(&(f64, f64, f64)) -> f64| all.iter().map(of).sum::<f64>();
    let (count, acquiring, time) = (sum(|done| done.0), sum(|done| done.1), sum(|done| done.2));
    Cycles {
        rate: sum(|done| done.0 / done.2),
        acquire_ms: acquiring / count * 1000.0,
        release_ms: (time - acquiring) / count * 1000.0,
    }
}

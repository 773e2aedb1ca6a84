//! The lock that Redis' own documentation recommends for one server: a key that expires, and a checked release.

use crate::redis::Redis;
use redis::{Connection, cmd};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
/// Longer than any lock is held here.
const TTL_MS: u32 = 30_000;

/// How many thousand locks a second so many clients take and let go of, each with a name of its own.
pub fn rate(redis: &Redis, clients: u32, seconds: u32) -> f64 {
    let start = Barrier::new(clients as usize);
    let work = |client: u32| {
        let mut connection = redis.connect();
        start.wait();
        let began = Instant::now();
        let mut locks = 0;
        while began.elapsed() < Duration::from_secs(seconds.into()) {
            lock(&mut connection, &format!("bench:{client}"), &format!("{client}-{locks}"));
            locks += 1;
        }
        f64::from(locks) / began.elapsed().as_secs_f64() / 1000.0
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|client| scope.spawn(move || work(client))).collect();
        threads.into_iter().map(|thread| thread.join().expect("Redis does as it is told")).sum()
    })
}

fn lock(connection: &mut Connection, name: &str, token: &str) {
    let set = cmd("SET").arg(name).arg(token).arg("NX").arg("PX").arg(TTL_MS).query::<Option<String>>(connection);
    assert_eq!(set.expect("SET").as_deref(), Some("OK"), "nobody else has the name");
    let deleted = cmd("EVAL").arg(RELEASE).arg(1).arg(name).arg(token).query::<i32>(connection);
    assert_eq!(deleted.expect("EVAL"), 1, "it is still held");
}

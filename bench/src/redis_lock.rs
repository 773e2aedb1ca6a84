//! The lock that Redis' own documentation recommends for one server: a key that expires, and a checked release.

use crate::cycles::{Lock, TTL_S};
use crate::redis::Redis;
use redis::{Connection, cmd};

const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

pub struct RedisLock {
    connection: Connection,
    name: String,
    token: u64,
}

impl RedisLock {
    pub fn connect(redis: &Redis, client: u32) -> Self {
        Self { connection: redis.connect(), name: format!("bench:{client}"), token: 0 }
    }
}

impl Lock for RedisLock {
    fn acquire(&mut self) {
        self.token += 1;
        let mut set = cmd("SET");
        set.arg(&self.name).arg(self.token).arg("NX").arg("PX").arg(1000 * TTL_S);
        let answer = set.query::<Option<String>>(&mut self.connection);
        assert_eq!(answer.expect("SET").as_deref(), Some("OK"), "nobody else has the name");
    }

    fn release(&mut self) {
        let mut eval = cmd("EVAL");
        eval.arg(RELEASE).arg(1).arg(&self.name).arg(self.token);
        assert_eq!(eval.query::<i32>(&mut self.connection).expect("EVAL"), 1, "it is still held");
    }
}

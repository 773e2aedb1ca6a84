//! Redis, and the lock that its documentation recommends for one server: a key that expires, and a checked release.

use super::Process;
use crate::harness::server::Server;
use crate::locking::{Lock, TTL_S};
use idgen_testkit::sql::PATIENCE;
use redis::{Client, Connection, cmd};
use std::path::PathBuf;

pub struct Redis {
    _process: Process,
    socket: PathBuf,
    pub version: String,
}

impl Redis {
    /// Starts it with these settings, on a socket only. Returns `None` if it is not installed.
    pub fn start(server: &Server, settings: &[&str]) -> Option<Self> {
        let dir = server.dir().join("redis");
        std::fs::create_dir_all(&dir).expect("cannot create the directory of Redis");
        let socket = dir.join("socket");
        let process = Process::start("redis-server", |command| {
            command.args(["--port", "0", "--unixsocket"]).arg(&socket).arg("--dir").arg(&dir).args(settings);
        })?;
        let mut redis = Self { _process: process, socket, version: String::new() };
        server.cluster.wait_for(PATIENCE, "Redis to take connections", || redis.try_connect().is_ok());
        let info: String = cmd("INFO").arg("server").query(&mut redis.connect()).expect("INFO failed");
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        version.expect("INFO has no version").clone_into(&mut redis.version);
        Some(redis)
    }

    fn connect(&self) -> Connection {
        self.try_connect().expect("cannot connect to Redis")
    }

    fn try_connect(&self) -> redis::RedisResult<Connection> {
        Client::open(format!("unix://{}", self.socket.display()))?.get_connection()
    }
}

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
        assert_eq!(answer.expect("SET failed").as_deref(), Some("OK"), "the lock is free");
    }

    fn release(&mut self) {
        let mut eval = cmd("EVAL");
        eval.arg(RELEASE).arg(1).arg(&self.name).arg(self.token);
        assert_eq!(eval.query::<i32>(&mut self.connection).expect("EVAL failed"), 1, "the lock is held");
    }
}

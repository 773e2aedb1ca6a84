//! A Redis of our own.

use crate::beside::Beside;
use crate::server::Server;
use idgen_testkit::sql::PATIENCE;
use redis::{Client, Connection};
use std::path::PathBuf;

pub struct Redis {
    _process: Beside,
    socket: PathBuf,
    pub version: String,
}

impl Redis {
    /// Starts it with these settings, reached through a socket only. `None`, and a word about it, where it is not installed.
    pub fn start(server: &Server, settings: &[&str]) -> Option<Self> {
        let dir = server.dir().join("redis");
        std::fs::create_dir_all(&dir).expect("the directory of Redis can be made");
        let socket = dir.join("socket");
        let process = Beside::start("redis-server", |command| {
            command.args(["--port", "0", "--unixsocket"]).arg(&socket).arg("--dir").arg(&dir).args(settings);
        })?;
        // From here on it is stopped, whatever happens.
        let mut redis = Self { _process: process, socket, version: String::new() };
        server.cluster.wait_for(PATIENCE, "Redis to take connections", || redis.try_connect().is_ok());
        let info: String = redis::cmd("INFO").arg("server").query(&mut redis.connect()).expect("Redis tells of itself");
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        version.expect("Redis tells its version").clone_into(&mut redis.version);
        Some(redis)
    }

    pub fn connect(&self) -> Connection {
        self.try_connect().expect("Redis takes connections")
    }

    fn try_connect(&self) -> redis::RedisResult<Connection> {
        Client::open(format!("unix://{}", self.socket.display()))?.get_connection()
    }
}

//! A Redis of our own, on the machine and in the directory of the server that it stands beside.

use crate::server::Server;
use idgen_cluster_tests::sql::PATIENCE;
use redis::{Client, Connection};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Stopped when dropped.
pub struct Redis {
    child: Child,
    socket: PathBuf,
    pub version: String,
}

impl Redis {
    /// Starts it with these settings, reached through a socket only. `None`, and a word about it, where it is not installed.
    pub fn start(server: &Server, settings: &[&str]) -> Option<Self> {
        let dir = server.dir().join("redis");
        std::fs::create_dir_all(&dir).expect("the directory of Redis can be made");
        let socket = dir.join("socket");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--unixsocket"]).arg(&socket).arg("--dir").arg(&dir).args(settings);
        let child = match command.stdin(Stdio::null()).stdout(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                eprintln!("redis-server is not installed: measured without it");
                return None;
            }
            Err(error) => panic!("redis-server: {error}"),
        };
        // From here on it is stopped, whatever happens.
        let mut redis = Self { child, socket, version: String::new() };
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

impl Drop for Redis {
    fn drop(&mut self) {
        // Only fails where it has ended by itself, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

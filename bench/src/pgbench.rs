//! Load from many sessions.

use crate::server::Server;
use std::io::Write;
use std::process::{Child, Stdio};

/// Longer than any measurement, in seconds: for a load that is stopped.
pub const FOREVER: u32 = 600;

/// A load that runs.
pub struct Load(Child);

impl Load {
    /// So many clients repeat a statement for so many seconds.
    pub fn start(server: &Server, statement: &str, clients: u32, seconds: u32) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32).min(clients);
        let mut child = server
            .cluster
            .program("pgbench")
            .args(["--no-vacuum", "--protocol=prepared", "--file=-", "postgres"])
            .args([format!("--client={clients}"), format!("--jobs={threads}"), format!("--time={seconds}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("pgbench can be started");
        // Dropped at the end of the statement, which is the end of the script.
        let mut script = child.stdin.take().expect("a pipe");
        writeln!(script, "{statement};").expect("pgbench reads its script");
        Self(child)
    }

    /// Ends it at once. The sessions notice when they answer.
    pub fn stop(mut self) {
        self.0.kill().expect("a child can be killed");
        self.0.wait().expect("a child ends");
    }

    /// Waits for its end, and returns how many statements were done in a second.
    pub fn rate(self) -> f64 {
        let output = self.0.wait_with_output().expect("pgbench ends");
        let text = String::from_utf8_lossy(&output.stdout);
        let rate = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        let errors = || String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "pgbench failed\n{}", errors());
        rate.unwrap_or_else(|| panic!("pgbench says no rate\n{text}{}", errors()))
    }
}

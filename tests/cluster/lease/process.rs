//! A client in a separate process, which can be killed and paused.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};

use idgen_testkit::sql::{PATIENCE, value};
use idgen_testkit::{Cluster, Paused, pause};

pub struct Psql {
    process: Child,
    answers: BufReader<ChildStdout>,
    /// The process id of its backend.
    pub backend: i32,
}

impl Psql {
    pub fn start(cluster: &Cluster) -> Psql {
        let mut command = cluster.program("psql");
        command.args(["-X", "-q", "-A", "-t", "-d", "postgres"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("psql is installed");
        let answers = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut psql = Psql { process, answers, backend: 0 };
        psql.backend = psql.ask("SELECT pg_backend_pid()").parse().expect("a process id");
        psql
    }

    /// Sends statements without waiting for the answer.
    pub fn send(&mut self, sql: &str) {
        let stdin = self.process.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{sql};").expect("psql is running");
    }

    /// Sends a query and returns the line of its answer.
    pub fn ask(&mut self, sql: &str) -> String {
        self.send(sql);
        self.answer()
    }

    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("psql answers");
        line.trim_end().to_owned()
    }

    pub fn pause(&self) -> Paused {
        pause(i32::try_from(self.process.id()).expect("a process id is an i32"))
    }

    /// Kills the client with SIGKILL.
    pub fn kill(mut self) {
        self.end();
    }

    /// The same, and waits for the end of its backend.
    pub fn kill_and_wait(self, cluster: &Cluster) {
        let gone = format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {}", self.backend);
        self.kill();
        let mut observer = cluster.client();
        cluster.wait_for(PATIENCE, "the end of the backend", || value(&mut observer, &gone));
    }

    fn end(&mut self) {
        // The process may have exited.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Psql {
    fn drop(&mut self) {
        self.end();
    }
}

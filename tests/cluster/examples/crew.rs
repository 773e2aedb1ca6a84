//! Any number of workers that share the slots of a lease, and what happens to them.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use idgen_testkit::sql::{PATIENCE, value};
use idgen_testkit::{Cluster, Example, Paused};
use nix::sys::signal::Signal;
use postgres::Client;

use crate::impatient;

pub struct Crew<'cluster> {
    cluster: &'cluster Cluster,
    /// Below `examples`.
    program: &'static str,
    /// Copies the program to where it runs.
    copy: fn(&Cluster, &str) -> PathBuf,
    lease: &'static str,
    ttl: &'static str,
    /// After the owner and the ttl.
    arguments: Vec<String>,
    /// By their owners.
    working: BTreeMap<String, Example>,
    paused: Vec<(String, Example, Paused)>,
    started: usize,
    /// How many may exist at once.
    most: usize,
    /// By those that have ended.
    printed: Vec<String>,
}

impl<'cluster> Crew<'cluster> {
    pub fn new(cluster: &'cluster Cluster, program: &'static str, lease: &'static str, ttl: &'static str) -> Self {
        Crew {
            cluster,
            program,
            copy: impatient,
            lease,
            ttl,
            arguments: Vec::new(),
            working: BTreeMap::new(),
            paused: Vec::new(),
            started: 0,
            most: 5,
            printed: Vec::new(),
        }
    }

    pub fn with_arguments(mut self, arguments: &[String]) -> Self {
        self.arguments = arguments.to_vec();
        self
    }

    /// They wait as long as the program says.
    pub fn patient(mut self) -> Self {
        self.copy = Example::copy;
        self
    }

    pub fn with_at_most(mut self, most: usize) -> Self {
        self.most = most;
        self
    }

    pub fn start(&mut self, count: usize) {
        for _ in 0..count {
            let owner = format!("worker-{}", self.started);
            self.started += 1;
            let mut command = self.cluster.program("/usr/bin/python3");
            command.arg("-u").arg((self.copy)(self.cluster, self.program)).env("PYTHONDONTWRITEBYTECODE", "1");
            command.args([&self.cluster.conninfo(), self.lease, &owner, self.ttl]).args(&self.arguments);
            self.working.insert(owner, Example::start(self.cluster, &mut command));
        }
    }

    /// One of the things that happen to workers, chosen by a random number. One worker at least goes on.
    pub fn disturb(&mut self, random: u64) {
        let index = usize::try_from(random / 8).expect("an index");
        match random % 8 {
            0..=3 if self.working.len() > 1 => {
                let owner = self.working.keys().nth(index % self.working.len()).expect("a worker").clone();
                let mut worker = self.working.remove(&owner).expect("a worker");
                match random % 4 {
                    0 | 1 => {
                        let guard = worker.pause();
                        self.paused.push((owner, worker, guard));
                    }
                    2 => {
                        worker.kill();
                        self.printed.extend(worker.lines());
                    }
                    _ => self.terminate(worker),
                }
            }
            4 | 5 if !self.paused.is_empty() => {
                let (owner, worker, guard) = self.paused.swap_remove(index % self.paused.len());
                guard.resume();
                self.working.insert(owner, worker);
            }
            _ if self.working.len() + self.paused.len() < self.most => self.start(1),
            _ => (),
        }
    }

    /// Terminates the worker that was started last.
    pub fn terminate_last(&mut self) {
        let (_, worker) = self.working.pop_last().expect("a worker");
        self.terminate(worker);
    }

    fn terminate(&mut self, mut worker: Example) {
        worker.signal(Signal::SIGTERM);
        let (status, errors) = worker.wait(self.cluster);
        // One that has just been started does not handle the signal yet.
        assert!(status.success() || status.signal() == Some(Signal::SIGTERM as i32), "{status}: {errors}");
        self.printed.extend(worker.lines());
    }

    /// Waits until the workers that go on hold all slots, and none holds two more than another.
    pub fn wait_until_fair(&self, client: &mut Client) {
        let slots: i64 =
            value(client, &format!("SELECT slots::bigint FROM idgen.lease_definition WHERE name = '{}'", self.lease));
        let sql = "SELECT owner, count(*) FROM idgen.leases WHERE name = $1 AND state = 'held' GROUP BY owner";
        self.cluster.wait_for(PATIENCE, "equal shares", || {
            let rows = client.query(sql, &[&self.lease]).expect("a query of the view");
            let held: BTreeMap<String, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
            let shares: Vec<i64> = self.working.keys().map(|owner| held.get(owner).copied().unwrap_or(0)).collect();
            // None is held by another one.
            shares.iter().sum::<i64>() == slots
                && shares.iter().max().zip(shares.iter().min()).is_some_and(|(most, least)| most - least <= 1)
        });
    }

    /// Pauses the worker until the guard is dropped. It counts as one that works.
    pub fn pause(&self, owner: &str) -> Paused {
        self.working[owner].pause()
    }

    /// Resumes and terminates all. Returns what all have printed.
    pub fn end(mut self) -> Vec<String> {
        for (owner, worker, guard) in std::mem::take(&mut self.paused) {
            guard.resume();
            self.working.insert(owner, worker);
        }
        for (_, worker) in std::mem::take(&mut self.working) {
            self.terminate(worker);
        }
        self.printed
    }
}

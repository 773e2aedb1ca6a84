//! The examples that use leases: a fenced job, a leader election, and workers on shards.

mod fenced_job;
mod leader;
mod sharded_worker;

use idgen_testkit::{Cluster, Example};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait_for_one;

/// Starts a program of `examples/python` with the connection string of the superuser as its first argument.
fn start(cluster: &Cluster, program: &str, arguments: &[&str]) -> Example {
    let mut command = Example::command(cluster, &format!("python/{program}"));
    Example::start(cluster, command.arg(cluster.conninfo()).args(arguments))
}

/// Waits until a session waits for a transaction that has fenced, and so has locked the row of the lease.
fn wait_for_a_wait_for_the_fence(cluster: &Cluster) {
    let waiting = "pg_locks JOIN pg_stat_activity USING (pid)
                   WHERE NOT granted AND locktype = 'transactionid' AND query ~ 'acquire'";
    wait_for_one(cluster, "a session to wait for the fence", waiting);
}

/// Waits until a session waits for a table that the test has locked.
fn wait_for_a_wait_for_the_table(cluster: &Cluster) {
    wait_for_one(cluster, "a session to wait for the table", "pg_locks WHERE NOT granted AND locktype = 'relation'");
}

fn terminate(example: &Example) {
    kill(Pid::from_raw(example.pid()), Signal::SIGTERM).expect("the program runs");
}

//! The programs of `examples/`, under what people and machines do to them.

mod consumers;
mod crew;
mod due_tasks;
mod faults;
mod fence_storm;
mod fenced_job;
mod fences;
mod imported;
mod leaders;
mod programs;
mod sharded_worker;
mod site;
mod switch_over;
mod tcc_manager;
mod transactions;

use std::path::PathBuf;

use idgen_testkit::sql::{execute, value, wait_for_one};
use idgen_testkit::{Cluster, Example, run};
use nix::sys::signal::Signal;
use postgres::Client;

fn server() -> Cluster {
    Cluster::builder().conf("fsync", "off").start_with_extension()
}

/// Starts a program of `examples/python` as the superuser.
fn start(cluster: &Cluster, program: &str, arguments: &[&str]) -> Example {
    let mut command = Example::command(cluster, &format!("python/{program}"));
    Example::start(cluster, command.arg(cluster.conninfo()).args(arguments))
}

/// A copy of a program that waits for two seconds where the program, or one that it imports, waits for longer.
fn impatient(cluster: &Cluster, path: &str) -> PathBuf {
    let copy = Example::copy(cluster, path);
    for entry in std::fs::read_dir(copy.parent().expect("a folder")).expect("a folder of ours") {
        let file = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let patient = text.lines().find(|line| line.starts_with("PATIENCE = ") && *line != IMPATIENCE);
        if let Some(line) = patient {
            // In one step: another copy may be starting.
            let new = file.with_extension("new");
            std::fs::write(&new, text.replace(line, IMPATIENCE)).expect("a folder of ours");
            std::fs::rename(&new, &file).expect("a folder of ours");
        }
    }
    copy
}

const IMPATIENCE: &str = "PATIENCE = 2.0";

/// Runs a few lines of Python, which import a program of `examples/python`. Their argument is the connection string of the
/// superuser. Returns what they print.
fn run_python(cluster: &Cluster, program: &str, lines: &str) -> String {
    let program = Example::copy(cluster, &format!("python/{program}"));
    let mut python = cluster.program("/usr/bin/python3");
    python.current_dir(program.parent().expect("a directory")).args(["-c", lines]).arg(cluster.conninfo());
    run(python.env("PYTHONDONTWRITEBYTECODE", "1"))
}

/// Ends the input of a program, and waits for it to end well. Returns the lines that it has printed.
fn finish(mut example: Example, cluster: &Cluster) -> Vec<String> {
    example.end_input();
    let (status, errors) = example.wait(cluster);
    assert!(status.success(), "{status}: {errors}");
    example.lines()
}

/// Ends a program by SIGTERM, and waits for it to end well.
fn terminate(example: Example, cluster: &Cluster) -> Vec<String> {
    example.signal(Signal::SIGTERM);
    finish(example, cluster)
}

/// A counter of `idgen.stat_lease`.
fn counter(client: &mut Client, column: &str) -> i64 {
    value(client, &format!("SELECT {column} FROM idgen.stat_lease"))
}

fn wait_until_expired(cluster: &Cluster, name: &str) {
    let rows = format!("idgen.leases WHERE name = '{name}' AND state = 'expired'");
    wait_for_one(cluster, "the lease to expire", &rows);
}

/// Waits until a program waits for the lease that another one holds.
fn wait_until_queued(cluster: &Cluster) {
    let waiting =
        "pg_stat_activity WHERE state = 'active' AND query ~ 'lease_try_acquire' AND wait_event_type = 'Extension'";
    wait_for_one(cluster, "a program to wait for the lease", waiting);
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

/// A file of `examples`.
fn read(path: &str) -> String {
    let path = format!("{}/../../examples/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Creates the tables of a program's header, and the role that it names.
fn create_tables(client: &mut Client, program: &str) {
    execute(client, "CREATE ROLE app LOGIN");
    let text = read(&format!("python/{program}"));
    let header = text.split("\"\"\"").nth(1).expect("a header");
    let indented = header.lines().filter(|line| line.starts_with("    ") && !line.contains("python3"));
    execute(client, &indented.collect::<Vec<_>>().join("\n"));
}

/// The same numbers in another order for each seed.
fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..count).collect();
    let factor = seed.wrapping_mul(2).wrapping_add(0x9E37_79B9_7F4A_7C15);
    numbers.sort_by_key(|number| (number + 1).wrapping_mul(factor).rotate_left(29));
    numbers
}

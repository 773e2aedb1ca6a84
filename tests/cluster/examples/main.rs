//! The programs of `examples/`, under what people and machines do to them.

mod consumers;
mod faults;
mod leaders;
mod programs;
mod segment_blocks;
mod site;
mod transactions;

use idgen_testkit::sql::execute;
use idgen_testkit::{Cluster, Example};
use postgres::Client;

fn server() -> Cluster {
    Cluster::builder().conf("fsync", "off").start_with_extension()
}

/// Starts a program of `examples/python` as the superuser, with these lines as its input.
fn start(cluster: &Cluster, program: &str, arguments: &[&str], input: &[String]) -> Example {
    let mut command = Example::command(cluster, &format!("python/{program}"));
    let mut example = Example::start(cluster, command.arg(cluster.conninfo()).args(arguments));
    input.iter().for_each(|line| example.send(line));
    example.end_input();
    example
}

/// Waits for a program to end well. Returns the lines that it has printed.
fn finish(mut example: Example, cluster: &Cluster) -> Vec<String> {
    let (status, errors) = example.wait(cluster);
    assert!(status.success(), "{status}: {errors}");
    example.lines()
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
    numbers
        .sort_by_key(|number| (number + 1).wrapping_mul(seed.wrapping_mul(2) + 0x9E37_79B9_7F4A_7C15).rotate_left(29));
    numbers
}

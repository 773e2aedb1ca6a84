//! Queries that run in parallel workers, and not in their leader; and the end of sessions that run side by side.

use std::sync::atomic::{AtomicBool, Ordering};

use postgres::Client;

use crate::sql::{column, execute};

/// Creates a table with a column `n` from 1 to this number, and makes the session scan tables in workers alone.
pub fn with_workers(client: &mut Client, table: &str, rows: usize) {
    execute(
        client,
        &format!(
            "CREATE TABLE {table} AS SELECT n FROM generate_series(1, {rows}) AS n;
             ANALYZE {table};
             SET max_parallel_workers_per_gather = 4;
             SET parallel_leader_participation = off;
             SET parallel_setup_cost = 0;
             SET parallel_tuple_cost = 0;
             SET min_parallel_table_scan_size = 0;"
        ),
    );
}

/// Runs a statement, and returns its plan. Panics if no worker was launched: the leader has then run it.
pub fn run_in_workers(client: &mut Client, statement: &str) -> Vec<String> {
    let plan: Vec<String> = column(client, &format!("EXPLAIN (ANALYZE, VERBOSE, COSTS OFF, TIMING OFF) {statement}"));
    let launched = plan.iter().find_map(|line| line.split_once("Workers Launched: ")).map(|(_, count)| count);
    assert!(launched.is_some_and(|count| count != "0"), "{plan:#?}");
    plan
}

/// Ends the load of a test when dropped, also if a check fails: otherwise the test would wait for its sessions forever.
pub struct End<'a>(pub &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

//! Storms on real servers, whose committed changes are replayed through the rules of the models: a step that the rules do
//! not allow fails. Controls write rows by hand, and the replay refuses them.

mod controls;
mod fleet;
mod lease;
mod storm;
mod worker;

use idgen_sim::model::trace::Report;
use idgen_sim::model::trace::decoded::{self, Transaction};
use idgen_testkit::sql::{column, execute};
use idgen_testkit::{Builder, Cluster};

/// A server whose changes can be decoded. Only processes crash here, not the machine.
fn builder() -> Builder {
    let builder =
        Cluster::builder().conf("wal_level", "logical").conf("fsync", "off").conf("statement_timeout", "1min");
    builder.conf("max_prepared_transactions", "50")
}

/// Decodes all changes from now on, those of prepared transactions when they are prepared. A standby does not have the slot: begin again after its promotion.
fn begin_trace(cluster: &Cluster) {
    cluster.execute("SELECT pg_create_logical_replication_slot('trace', 'test_decoding', twophase => true)");
}

/// The transactions since the trace began, or was taken last.
fn take_trace(cluster: &Cluster) -> Vec<Transaction> {
    let mut client = cluster.client();
    // Decoding ends where WAL is flushed, and a release does not wait for that.
    execute(&mut client, "SELECT pg_logical_emit_message(true, 'trace', 'flush')");
    execute(&mut client, "SET timezone = 'UTC'; SET datestyle = 'ISO'; SET intervalstyle = 'postgres'");
    let options = "'include-timestamp', 'on', 'skip-empty-xacts', 'on'";
    let sql = format!("SELECT data FROM pg_logical_slot_get_changes('trace', NULL, NULL, {options})");
    let lines: Vec<String> = column(&mut client, &sql);
    decoded::transactions(lines.iter().map(String::as_str))
}

/// Every step is allowed, and there are at least as many of each of these kinds.
fn assert_allowed(report: &Report, at_least: &[(&str, usize)]) {
    println!("{:?}", report.steps);
    assert!(
        report.refused.is_empty(),
        "{} steps: {:#?}",
        report.refused.len(),
        &report.refused[..report.refused.len().min(5)]
    );
    for (kind, least) in at_least {
        assert!(report.count(kind) >= *least, "only {} of {kind}", report.count(kind));
    }
}

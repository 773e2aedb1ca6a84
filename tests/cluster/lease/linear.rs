//! What a call costs does not grow with what its transaction has done before. Counts scans, or the processor time of the
//! server's process, which waits of a busy machine do not lengthen.

use idgen_testkit::lease::acquire;
use idgen_testkit::sql::{backend_pid, execute, value};
use postgres::Client;

use crate::builder;

/// User and system time of a process, in clock ticks of 10 ms.
fn cpu_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    // The name in parentheses may contain blanks. Its fields are the first two.
    let (_, fields) = stat.rsplit_once(')').expect("a process has a name");
    fields.split_ascii_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}

/// The processor time that a statement takes.
fn cost(client: &mut Client, sql: &str) -> u64 {
    let pid = backend_pid(client);
    let before = cpu_ticks(pid);
    execute(client, sql);
    cpu_ticks(pid) - before
}

/// Terms of this many leases, each with its number as the token.
fn terms(client: &mut Client, count: i32) {
    acquire(client, "'1', '1 day'");
    execute(
        client,
        &format!(
            "UPDATE idgen.lease SET token = 1;
             INSERT INTO idgen.lease (name, slot, token, depth, role, acquired_at, ttl_us, ends_us, clock, revoked)
             SELECT i::text, slot, i, depth, role, acquired_at, ttl_us, ends_us, clock, revoked
             FROM idgen.lease, generate_series(2, {count}) AS i;
             ANALYZE idgen.lease"
        ),
    );
}

#[test]
fn guarded_row_and_fence_cost_the_same_after_many_fences() {
    const MANY: i32 = 20_000;
    let cluster = builder().conf("max_locks_per_transaction", "256").start_with_extension();
    let mut client = cluster.client();
    terms(&mut client, MANY);
    execute(
        &mut client,
        "CREATE TABLE t (n int);
         CREATE TRIGGER guard BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION lease_guard('1')",
    );
    let guarded = format!("INSERT INTO t SELECT generate_series(1, {MANY})");
    let fence = |from: i32, to: i32| format!("SELECT lease_fence(i::text, i) FROM generate_series({from}, {to}) AS i");
    execute(&mut client, "BEGIN; SELECT lease_fence('1', 1)");
    // The first statement of each kind reads catalogs and makes plans.
    execute(&mut client, &format!("{}; INSERT INTO t VALUES (0)", fence(1, 10)));
    let alone = cost(&mut client, &guarded);
    let first_fences = cost(&mut client, &fence(2, MANY / 2));
    let last_fences = cost(&mut client, &fence(MANY / 2 + 1, MANY));
    let after_all = cost(&mut client, &guarded);
    execute(&mut client, "COMMIT");
    assert!(after_all <= 2 * alone + 5, "{MANY} guarded rows: {alone} ticks, after {MANY} fences {after_all}");
    assert!(2 * last_fences <= 3 * first_fences + 10, "{first_fences} ticks, then {last_fences} for as many fences");
}

#[test]
fn term_is_bound_with_as_many_scans_after_many_others() {
    let cluster = builder().conf("max_locks_per_transaction", "256").start_with_extension();
    let mut client = cluster.client();
    // Statistics of a transaction, which count its own scans only.
    execute(&mut client, "BEGIN");
    let mut scans = |from: i32, to: i32| -> i64 {
        let count = "SELECT coalesce(idx_scan, 0) + seq_scan FROM pg_stat_xact_all_tables
                     WHERE relid = 'idgen.lease'::regclass";
        let before: i64 = value(&mut client, count);
        let terms = format!("generate_series({from}, {to}) AS i");
        execute(&mut client, &format!("SELECT lease_acquire(i::text, bind_session => true) FROM {terms}"));
        value::<i64>(&mut client, count) - before
    };
    let first = scans(1, 128);
    let last = scans(129, 256);
    assert!(first > 0);
    // A sweep of 128 terms may fall into either half.
    assert!(last <= 2 * first, "{first} scans to bind 128 terms, then {last}");
}

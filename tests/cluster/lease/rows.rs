//! The rows of leases are written without SQL: what a fence locks, what else is in the table, and what a change costs.

use idgen_testkit::lease::{acquire, take_if_free};
use idgen_testkit::rounds;
use idgen_testkit::sql::{execute, expect_error, hint, value};

use crate::{builder, renew, scenario};

/// A fence shares the key of the version that it finds, and of the one that another transaction is about to commit.
#[test]
fn fence_beside_an_uncommitted_renewal_holds_for_the_renewed_row() {
    for end in ["COMMIT", "ROLLBACK"] {
        scenario(
            &"holder: SELECT lease_define('a')
             holder: SELECT token FROM lease_acquire('a', '300 ms') -> $token
             renewer: BEGIN; SELECT lease_renew('a', $token)
             writer: BEGIN; SELECT lease_fence('a', $token)
             renewer: END
             until: SELECT state FROM idgen.leases WHERE name = 'a' -> expired
             taker waits for transactionid: SELECT token FROM lease_acquire('a')
             writer: COMMIT
             taker ends -> $next > $token
             writer: SELECT lease_fence('a', $token) -> error 55000"
                .replace("END", end),
        );
    }
}

/// An attempt that loses a race for the row leaves no lock on the version of the winner, who could not release it.
#[test]
fn contended_row_is_handed_over_and_no_release_waits_for_the_end_of_the_term() {
    let cluster = builder().start_with_extension();
    execute(&mut cluster.client(), "SELECT lease_define('a', ttl => '1 hour')");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = cluster.client();
                for _ in 0..rounds(800, 20_000) {
                    let token = acquire(&mut client, "'a'").token;
                    assert!(value::<bool>(&mut client, &format!("SELECT lease_release('a', {token})")));
                }
            });
        }
    });
}

/// Here a superuser has locked the row, and rolls back.
#[test]
fn renewal_that_has_waited_for_the_row_lasts_its_ttl_from_then_on() {
    scenario(
        "a: SELECT token FROM lease_acquire('a', '10 min') -> $token
         b: BEGIN; SELECT FROM idgen.lease FOR UPDATE
         a waits for transactionid: SELECT lease_renew('a', $token)
         b: SELECT extract(epoch FROM clock_timestamp()) -> $end
         b: ROLLBACK
         a ends
         b: SELECT extract(epoch FROM expires_at) >= $end + 600 FROM idgen.leases -> t",
    );
}

#[test]
fn renewal_that_comes_too_late_leaves_no_lock_on_the_row() {
    scenario(
        "a: SELECT lease_define('a')
         a: SELECT token FROM lease_acquire('a', '1 hour') -> $token
         a: BEGIN; SELECT lease_release('a', $token)
         late: BEGIN
         late waits for transactionid: SELECT count(*) FROM lease_renew_many('{a}', '{$token}')
         a: COMMIT
         late ends -> 0
         other: SELECT count(*) FROM lease_try_acquire('a') -> 1
         late: COMMIT",
    );
}

/// A fence that waits for a take-over finds out whether it was committed.
#[test]
fn fence_waits_for_a_take_over_that_is_about_to_commit() {
    for (end, outcome) in [("COMMIT", "error 55000"), ("ROLLBACK", "''")] {
        scenario(
            &"holder: SELECT lease_define('a')
             holder: SELECT token FROM lease_acquire('a', '100 ms') -> $token
             until: SELECT state FROM idgen.leases WHERE name = 'a' -> expired
             taker: BEGIN; SELECT FROM lease_acquire('a')
             writer waits for transactionid: SELECT lease_fence('a', $token)
             taker: END
             writer ends -> OUTCOME"
                .replace("END", end)
                .replace("OUTCOME", outcome),
        );
    }
}

/// The savepoint locks and writes the row, which its transaction has locked before in a weaker mode.
#[test]
fn fence_waits_for_a_take_over_in_a_savepoint() {
    for (work, end, outcome) in [
        ("SELECT lease_revoke('a')", "COMMIT", "error 55000"),
        ("SELECT lease_revoke('a')", "ROLLBACK", "''"),
        ("SELECT lease_fence('a', $token), lease_release('a', $token)", "COMMIT", "error 55000"),
    ] {
        scenario(
            &"holder: SELECT lease_define('a')
             holder: SELECT token FROM lease_acquire('a', '1 day') -> $token
             taker: BEGIN; WORK
             taker: SAVEPOINT s; SELECT FROM lease_acquire('a', '1 day'); RELEASE s
             holder waits for transactionid: SELECT lease_fence('a', $token)
             taker: END
             holder ends -> OUTCOME"
                .replace("WORK", work)
                .replace("END", end)
                .replace("OUTCOME", outcome),
        );
    }
}

/// A write without SQL runs no triggers and checks no constraints, so a table that has any is refused.
#[test]
fn changed_table_is_refused_with_the_reason() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    execute(&mut client, "CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'");
    let held = acquire(&mut client, "'held', '1 day'").token;
    for (change, undo) in [
        (
            "CREATE TRIGGER audit BEFORE UPDATE ON idgen.lease FOR EACH ROW EXECUTE FUNCTION audit()",
            "DROP TRIGGER audit ON idgen.lease",
        ),
        (
            "ALTER TABLE idgen.lease ADD CHECK (name <> 'x') NOT VALID",
            "ALTER TABLE idgen.lease DROP CONSTRAINT lease_name_check",
        ),
        (
            "ALTER TABLE idgen.lease ADD long text GENERATED ALWAYS AS (name || slot) STORED",
            "ALTER TABLE idgen.lease DROP long",
        ),
        (
            "DROP INDEX idgen.lease_key",
            "CREATE UNIQUE INDEX lease_key ON idgen.lease (name text_pattern_ops, slot);
             ALTER TABLE idgen.lease REPLICA IDENTITY USING INDEX lease_key",
        ),
    ] {
        execute(&mut client, change);
        for call in [
            "lease_acquire('held')".to_owned(),
            format!("lease_renew('held', {held})"),
            format!("lease_fence('held', {held})"),
            format!("lease_release('held', {held})"),
        ] {
            let error = expect_error(&mut client, &format!("SELECT {call}"), "55000");
            assert!(hint(&error).contains("notify => true"), "{change}: {call}: {error:?}");
        }
        execute(&mut client, undo);
        renew(&mut client, "held", held);
    }
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.leases WHERE state = 'held'"), 1);
}

/// Indexes and columns that a superuser has added, publications, and storage out of line are as with SQL.
#[test]
fn additions_to_the_table_stay_right() {
    let cluster = builder().conf("wal_level", "logical").start_with_extension();
    let mut client = cluster.client();
    execute(
        &mut client,
        "CREATE INDEX by_owner ON idgen.lease (upper(owner)); CREATE INDEX ON idgen.lease USING brin (ends_us);
         ALTER TABLE idgen.lease ADD note text DEFAULT 'kept'; ALTER TABLE idgen.lease ALTER data SET STORAGE external;
         SELECT lease_define('a'); CREATE PUBLICATION p FOR TABLE idgen.lease",
    );
    execute(&mut client, "SELECT pg_create_logical_replication_slot('s', 'test_decoding')");
    for owner in ["one", "two"] {
        let data =
            "(SELECT jsonb_build_object('text', string_agg(md5(i::text), '')) FROM generate_series(1, 500) AS i)";
        let token = acquire(&mut client, &format!("'a', '1 day', '{owner}', {data}")).token;
        let by_index = format!(
            "SET enable_seqscan = off;
             SELECT note || ' ' || length(data->>'text') FROM idgen.lease WHERE upper(owner) = upper('{owner}')"
        );
        let (set, query) = by_index.split_once(';').unwrap();
        execute(&mut client, set);
        assert_eq!(value::<String>(&mut client, query.trim()), "kept 16000");
        renew(&mut client, "a", token);
        assert!(value::<bool>(&mut client, &format!("SELECT lease_release('a', {token})")));
    }
    let decoded = "SELECT count(*) FROM pg_logical_slot_get_changes('s', NULL, NULL) WHERE data LIKE 'table idgen.lease: UPDATE%'";
    // A release is not flushed by itself.
    execute(&mut client, "CREATE TABLE flushed ()");
    // A first grant, which inserts, then a renewal, a release, another grant, and these two again.
    assert_eq!(value::<i64>(&mut client, decoded), 5);
    execute(&mut client, "ALTER TABLE idgen.lease REPLICA IDENTITY NOTHING");
    expect_error(&mut client, "SELECT lease_acquire('a')", "55000");
    for identity in [
        // As tools do for tables without a primary key.
        "ALTER TABLE idgen.lease REPLICA IDENTITY FULL",
        "CREATE UNIQUE INDEX other ON idgen.lease (token); CREATE UNIQUE INDEX ON idgen.lease_definition (ttl);
         ALTER TABLE idgen.lease REPLICA IDENTITY USING INDEX other;
         ALTER TABLE idgen.lease_definition REPLICA IDENTITY USING INDEX lease_definition_ttl_idx",
    ] {
        execute(&mut client, identity);
        let mut session = cluster.client();
        let token = take_if_free(&mut session, "a").expect("a grant");
        renew(&mut session, "a", token);
        assert!(value::<bool>(&mut session, &format!("SELECT lease_release('a', {token})")), "{identity}");
    }
}

/// A grant, a renewal and a release write no index, so the table does not grow with them.
#[test]
fn changes_of_a_row_are_hot_and_stay_on_its_page() {
    let cluster = builder().conf("autovacuum", "off").start_with_extension();
    let mut client = cluster.client();
    execute(&mut client, "SELECT lease_define('a')");
    execute(&mut client, "SELECT lease_release('a', token) FROM lease_acquire('a')");
    execute(
        &mut client,
        "DO $$ DECLARE t bigint; BEGIN
             FOR i IN 1..500 LOOP
                 t := token FROM lease_acquire('a'); COMMIT;
                 PERFORM lease_renew('a', t); COMMIT;
                 PERFORM lease_release('a', t); COMMIT;
             END LOOP;
         END $$",
    );
    let pages = "SELECT pg_relation_size('idgen.lease') / 8192";
    assert!(value::<i64>(&mut client, pages) <= 2, "{} pages", value::<i64>(&mut client, pages));
    execute(&mut client, "SELECT pg_stat_force_next_flush()");
    let others = "SELECT n_tup_upd - n_tup_hot_upd FROM pg_stat_all_tables WHERE relid = 'idgen.lease'::regclass";
    assert!(value::<i64>(&mut client, others) <= 1, "{} are not HOT", value::<i64>(&mut client, others));
}

/// Terms of many slots are found at once by a session that has not granted them, and after a restart all are read once.
#[test]
fn term_among_many_slots_reads_as_many_rows_as_one_alone() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    execute(&mut client, "SELECT lease_define('many', 500)");
    execute(
        &mut client,
        "SELECT count(*) FROM generate_series(1, 500) AS i, LATERAL lease_acquire('many', '1 day', i::text)",
    );
    for restarts in [false, true] {
        if restarts {
            cluster.restart();
        }
        let mut other = cluster.client();
        let reads = "SELECT idx_tup_fetch FROM pg_stat_xact_all_tables WHERE relid = 'idgen.lease'::regclass";
        let tokens: Vec<i64> =
            value(&mut other, "SELECT array_agg(token) FROM idgen.lease WHERE slot = 0 OR slot > 400");
        execute(&mut other, "BEGIN");
        renew(&mut other, "many", tokens[0]);
        let before: i64 = value(&mut other, reads);
        for token in &tokens {
            renew(&mut other, "many", *token);
            execute(&mut other, &format!("SELECT lease_fence('many', {token})"));
        }
        let each = (value::<i64>(&mut other, reads) - before) / tokens.len() as i64;
        assert!(each <= 7, "{each} rows for each renewal and fence");
        execute(&mut other, "COMMIT");
    }
}

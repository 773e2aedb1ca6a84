//! Options of pg_dump and pg_restore, used by an ordinary owner of a database: parallel jobs, one transaction, data only.

use std::collections::BTreeSet;

use idgen_testkit::dump::{as_keeper, dump, file, restore, target};
use idgen_testkit::lease::acquire;
use idgen_testkit::segment::next;
use idgen_testkit::sql::{column, execute, ids, value};
use idgen_testkit::{Cluster, run};
use postgres::Client;

use crate::segment_dump::{ROWS, with_database_of_an_ordinary_role};

/// The restored database has the rows of its origin but for terms of leases. It repeats neither a value in the table `drawn`
/// nor a token.
fn assert_restored(cluster: &Cluster, database: &str, shop: &mut Client) {
    let mut dba = cluster.client_in(database);
    assert_eq!(column::<String>(&mut dba, ROWS), column::<String>(shop, ROWS), "{database}");
    assert_eq!(value::<i64>(&mut dba, "SELECT count(*) FROM idgen.lease"), 0, "{database}");
    let highest: i64 = value(shop, "SELECT max(token) FROM idgen.lease");
    let token = acquire(&mut dba, "'job'").token;
    assert!(token > highest, "{database}: {token} after {highest}");
    let mut seen: BTreeSet<i64> = ids(&mut dba, "SELECT id FROM drawn").into_iter().collect();
    assert_eq!(seen.len(), 30, "{database}");
    let mut drawer = cluster.client_as(database, "drawer");
    let draws = (0..30).map(|_| next(&mut drawer, "t"));
    assert!(draws.into_iter().all(|id| id % 10 == 3 && seen.insert(id)), "{database}: a value repeats");
    let creation = "SELECT creation FROM idgen.segment";
    assert_ne!(value::<i64>(&mut dba, creation), value::<i64>(shop, creation), "{database}");
}

#[test]
fn ordinary_owner_dumps_and_restores_a_database_smoke() {
    let (cluster, mut shop) = with_database_of_an_ordinary_role();
    let options: [(&[&str], &[&str]); 6] = [
        (&["-Fc"], &[]),
        (&["-Fc"], &["-1"]),
        (&["-Fp"], &[]),
        (&["-Fp"], &["-1"]),
        (&["-Fp", "--inserts"], &[]),
        (&["-Fd", "-j", "2"], &["-j", "2"]),
    ];
    let archives = [0, 1, 2, 3, 4, 5].map(|index| dump(&cluster, &format!("dump_{index}"), options[index].0));
    // The origin draws on after the dump.
    execute(&mut shop, "SELECT segment_next('t') FROM generate_series(1, 30)");
    for (index, (_, restores)) in options.into_iter().enumerate() {
        let database = format!("restored_{index}");
        target(&cluster, &database);
        restore(&cluster, &database, restores, &archives[index]);
        assert_restored(&cluster, &database, &mut shop);
    }
}

/// A restore in one transaction that fails leaves no segment behind.
#[test]
fn failed_restore_in_one_transaction_leaves_no_segment() {
    let (cluster, _shop) = with_database_of_an_ordinary_role();
    let archive = dump(&cluster, "archive", &["-Fc"]);
    let mut dba = target(&cluster, "failed");
    // The restore creates a table of this name after it has written the rows of idgen, or before: -1 undoes both.
    execute(&mut dba, "CREATE TABLE drawn ()");
    let output = as_keeper(&cluster, "pg_restore", "failed", &["-1"]).arg(&archive).output().expect("it runs");
    assert!(!output.status.success());
    assert_eq!(column::<String>(&mut dba, ROWS), [""; 0]);
}

/// Rows of a guarded table cannot be inserted without a fence, so the restore disables the trigger. It must not disable
/// that of idgen.segment, which an ordinary role cannot do.
#[test]
fn ordinary_owner_restores_data_under_a_lease_guard() {
    let (cluster, mut shop) = with_database_of_an_ordinary_role();
    let mut keeper = cluster.client_as("shop", "keeper");
    execute(
        &mut shop,
        "CREATE TABLE guarded (n int);
         ALTER TABLE guarded OWNER TO keeper;
         CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION lease_guard('writer')",
    );
    let token = acquire(&mut keeper, "'writer'").token;
    let fenced = format!("BEGIN; SELECT lease_fence('writer', {token}); INSERT INTO guarded VALUES (1), (2); COMMIT");
    execute(&mut keeper, &fenced);
    let schema = dump(&cluster, "schema_only", &["-Fc", "--schema-only"]);
    let data = dump(&cluster, "data_only", &["-Fc", "--data-only"]);
    let mut dba = target(&cluster, "copied");
    restore(&cluster, "copied", &[], &schema);
    assert_eq!(column::<String>(&mut dba, ROWS), [""; 0], "--schema-only has no rows");

    for (options, reason) in [
        (&["--data-only", "-N", "idgen"][..], "lease"),
        (&["--data-only", "--disable-triggers"], "must be owner of table"),
    ] {
        let output = as_keeper(&cluster, "pg_restore", "copied", options).args(["-1"]).arg(&data).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && message.contains(reason), "{options:?}: {message}");
    }
    restore(&cluster, "copied", &["--data-only", "-n", "idgen"], &data);
    restore(&cluster, "copied", &["--data-only", "-N", "idgen", "--disable-triggers"], &data);
    assert_eq!(ids(&mut dba, "SELECT n::bigint FROM guarded ORDER BY n"), [1, 2]);
    assert_restored(&cluster, "copied", &mut shop);
    // Both triggers are as they were.
    let enabled = "SELECT string_agg(concat(tgname, ' ', tgenabled), ', ' ORDER BY tgname) FROM pg_trigger
                   WHERE tgrelid IN ('idgen.segment'::regclass, 'guarded'::regclass)";
    assert_eq!(value::<String>(&mut dba, enabled), "guard O, segment_row A");
}

/// Without its trigger, a restore keeps the columns of idgen.segment as they are in the dump. If these named the transaction
/// that created the segment on the old server, the transaction with that number here could draw values and roll back.
#[test]
fn transaction_with_the_number_of_the_creator_elsewhere_draws_as_any_other() {
    let [origin, copy] = [(); 2].map(|()| Cluster::builder().conf("autovacuum", "off").start_with_extension());
    let run_up_to = |client: &mut Client, transaction: i64| {
        let numbers = format!("WHILE pg_current_xact_id()::text::bigint < {transaction} LOOP COMMIT; END LOOP");
        execute(client, &format!("DO $$ BEGIN {numbers}; END $$"));
    };
    let mut dba = origin.client();
    // Later than all transactions of the restore.
    let current = "SELECT pg_current_xact_id()::text::bigint";
    let reached: i64 = value(&mut dba, current);
    run_up_to(&mut dba, reached + 1000);
    let created: i64 = value(&mut dba, &format!("{current} FROM segment_create('t', 100, step => 10)"));
    let archive = file(&origin, "archive");
    run(origin.program("pg_dump").args(["-Fc", "-d", "postgres", "-f"]).arg(&archive));
    run(copy.program("pg_restore").args(["-d", "postgres", "--data-only", "--disable-triggers"]).arg(&archive));

    let mut user = copy.client();
    assert!(value::<bool>(&mut user, "SELECT NOT ok FROM idgen.checks WHERE \"check\" = 'triggers'"));
    // Control: max_id can be lowered.
    execute(
        &mut user,
        "BEGIN; SET LOCAL session_replication_role = replica; UPDATE idgen.segment SET max_id = 0; ROLLBACK",
    );
    // A transaction without a number has not created the segment either.
    let without_number = [(); 2].map(|()| {
        let mut client = copy.client();
        execute(&mut client, "BEGIN");
        next(&mut client, "t")
    });
    assert!(without_number[0] < without_number[1], "{without_number:?}");
    run_up_to(&mut user, created - 1);
    execute(&mut user, "BEGIN");
    assert_eq!(value::<i64>(&mut user, current), created);
    let drawn = next(&mut user, "t");
    execute(&mut user, "ROLLBACK");
    assert!(next(&mut user, "t") > drawn);
}

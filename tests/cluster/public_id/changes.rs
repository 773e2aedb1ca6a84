//! Changes by another session: a session that has used a key never uses it after the commit of a change, and never one that
//! is not committed. Changes that meet. Standbys, which issue no ids, notice them too.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{column, execute, expect_error, value, while_waiting};
use postgres::Client;
use postgres::error::SqlState;

use crate::{decoded, text};

/// A server with the prefix `ord` in the short form, which the role `app` may use, and a session of the role.
fn with_prefix() -> (Cluster, Client) {
    let cluster = Cluster::builder()
        .conf("max_prepared_transactions", "2")
        .conf("statement_timeout", "60s")
        .start_with_extension();
    cluster.execute("CREATE ROLE app LOGIN");
    cluster.execute("SELECT public_id_define('ord'), public_id_grant('ord', 'app')");
    let app = cluster.client_as("postgres", "app");
    (cluster, app)
}

#[test]
fn session_notices_rotation_retirement_and_drop_at_once() {
    let (cluster, mut app) = with_prefix();
    let short = text(&mut app, "ord", 7);
    cluster.execute("SELECT public_id_rotate('ord', 'long')");
    let long = text(&mut app, "ord", 7);
    assert_eq!((short.len(), long.len()), (15, 26));
    assert_eq!([decoded(&mut app, "ord", &short), decoded(&mut app, "ord", &long)], [Some(7); 2]);
    cluster.execute("SELECT public_id_rotate('ord')");
    assert_ne!(text(&mut app, "ord", 7), long);
    assert_eq!([decoded(&mut app, "ord", &short), decoded(&mut app, "ord", &long)], [Some(7); 2]);
    cluster.execute("SELECT public_id_retire('ord', 1)");
    assert_eq!([decoded(&mut app, "ord", &short), decoded(&mut app, "ord", &long)], [None, Some(7)]);
    cluster.execute("SELECT public_id_drop('ord')");
    expect_error(&mut app, "SELECT public_id('ord', 7)", SqlState::UNDEFINED_OBJECT.code());
    // Another key under the same name.
    cluster.execute("SELECT public_id_define('ord'), public_id_grant('ord', 'app')");
    assert_ne!(text(&mut app, "ord", 7), short);
}

/// In a running transaction whose statements take no lock, and so would hear of nothing.
#[test]
fn open_transaction_notices_changes() {
    let (cluster, mut app) = with_prefix();
    execute(&mut app, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    let short = text(&mut app, "ord", 7);
    cluster.execute("SELECT public_id_rotate('ord', 'long'), public_id_retire('ord', 1)");
    assert_eq!(text(&mut app, "ord", 7).len(), 26);
    assert_eq!(decoded(&mut app, "ord", &short), None);
    cluster.execute("SELECT public_id_revoke('ord', 'app')");
    expect_error(&mut app, "SELECT public_id('ord', 7)", SqlState::INSUFFICIENT_PRIVILEGE.code());
}

#[test]
fn session_notices_a_grant_to_a_role_and_its_members() {
    let (cluster, mut app) = with_prefix();
    let before = text(&mut app, "ord", 7);
    cluster.execute("SELECT public_id_revoke('ord', 'app')");
    for statement in ["SELECT public_id('ord', 7)", "SELECT public_id_try_decode('ord', 'x')"] {
        expect_error(&mut app, statement, SqlState::INSUFFICIENT_PRIVILEGE.code());
    }
    cluster.execute("CREATE ROLE clerks");
    cluster.execute("SELECT public_id_grant('ord', 'clerks')");
    expect_error(&mut app, "SELECT public_id('ord', 7)", SqlState::INSUFFICIENT_PRIVILEGE.code());
    cluster.execute("GRANT clerks TO app");
    assert_eq!(text(&mut app, "ord", 7), before);
    cluster.execute("REVOKE clerks FROM app");
    expect_error(&mut app, "SELECT public_id('ord', 7)", SqlState::INSUFFICIENT_PRIVILEGE.code());
}

#[test]
fn session_uses_no_key_before_its_commit() {
    let (cluster, mut app) = with_prefix();
    let mut owner = cluster.client();
    for (first, end, is_committed) in [
        ("SELECT", "ROLLBACK", false),
        ("PREPARE TRANSACTION 'p'", "ROLLBACK PREPARED 'p'", false),
        ("PREPARE TRANSACTION 'p'", "COMMIT PREPARED 'p'", true),
        ("SELECT", "COMMIT", true),
    ] {
        let before = text(&mut app, "ord", 7);
        execute(&mut owner, "BEGIN; SELECT public_id_rotate('ord', 'long')");
        assert_ne!(text(&mut owner, "ord", 7), before, "before {end}");
        execute(&mut owner, first);
        assert_eq!(text(&mut app, "ord", 7), before, "before {end}");
        assert_eq!(text(&mut owner, "ord", 7) == before, first != "SELECT", "before {end}");
        execute(&mut owner, end);
        for client in [&mut owner, &mut app] {
            assert_eq!(text(client, "ord", 7) != before, is_committed, "after {end}");
        }
    }
}

/// Runs a statement in another session while a transaction is open, and commits the transaction once the statement waits.
fn meet(cluster: &Cluster, open: &str, waiting: &str) -> Client {
    let (mut first, mut second) = (cluster.client(), cluster.client());
    execute(&mut first, &format!("BEGIN; {open}"));
    while_waiting(cluster, &mut second, |second| execute(second, waiting), |_| execute(&mut first, "COMMIT"));
    first
}

#[test]
fn rotations_that_meet_add_a_key_each() {
    let (cluster, mut app) = with_prefix();
    let rotate = "SELECT public_id_rotate('ord', 'long')";
    let mut owner = meet(&cluster, rotate, rotate);
    let versions: Vec<i32> = column(&mut owner, "SELECT version FROM idgen.public_key ORDER BY version");
    assert_eq!(versions, [1, 2, 3]);
    assert_eq!(text(&mut owner, "ord", 7), text(&mut app, "ord", 7));
}

/// The owner of the database can insert a row with any version, as a restored dump does.
#[test]
fn definition_that_meets_another_short_key_finds_that_the_prefix_exists() {
    let (cluster, [mut dba, mut client]) = Cluster::builder().conf("statement_timeout", "60s").start_with_clients();
    let row = "('new', 5, 'short', sha256('x'), 'postgres')";
    execute(
        &mut dba,
        &format!("BEGIN; INSERT INTO idgen.public_key (prefix, version, form, secret, owner) VALUES {row}"),
    );
    let define = |client: &mut Client| expect_error(client, "SELECT public_id_define('new')", "42710");
    while_waiting(&cluster, &mut client, define, |_| execute(&mut dba, "COMMIT"));
}

/// Every key of a prefix has one owner, and a dropped prefix leaves no key.
#[test]
fn rotation_that_meets_a_change_of_owner_leaves_one_owner() {
    let (cluster, _app) = with_prefix();
    cluster.execute("CREATE ROLE leaver; CREATE ROLE heir");
    let owners = "SELECT DISTINCT owner::text FROM idgen.public_key WHERE prefix = 'ord'";
    for (change, left) in [
        ("REASSIGN OWNED BY leaver TO heir", vec!["heir"]),
        ("SELECT public_id_alter('ord', 'heir')", vec!["heir"]),
        ("DROP OWNED BY leaver", vec![]),
        ("SELECT public_id_drop('ord')", vec![]),
    ] {
        cluster.execute("SELECT public_id_drop(prefix) FROM (SELECT DISTINCT prefix FROM idgen.public_key) AS keys");
        cluster.execute("SELECT public_id_define('ord'), public_id_alter('ord', 'leaver')");
        let mut owner = meet(&cluster, "SELECT public_id_rotate('ord', 'long')", change);
        assert_eq!(column::<String>(&mut owner, owners), left, "{change}");
    }
}

/// Any role may drop and reassign what it owns, even if that is nothing.
#[test]
fn role_that_owns_nothing_blocks_no_change() {
    let (cluster, mut app) = with_prefix();
    cluster.execute("CREATE ROLE other; SELECT public_id_define('old'), public_id_revoke('ord', 'app')");
    cluster.execute("GRANT app TO other; SELECT lease_define('job'), segment_create('t')");
    let mut owner = cluster.client();
    execute(&mut owner, "SET lock_timeout = '1s'");
    for command in ["DROP OWNED BY CURRENT_USER", "REASSIGN OWNED BY app TO app"] {
        execute(&mut app, &format!("BEGIN; {command}"));
        for change in [
            "public_id_define('new')",
            "public_id_rotate('ord', 'long')",
            "public_id_grant('ord', 'other')",
            "public_id_drop('new')",
            "lease_define('job', 2)",
            "segment_alter('t', max_step => 2000)",
        ] {
            execute(&mut owner, &format!("SELECT {change}"));
        }
        // As the first grant of worker ids and ALTER EXTENSION UPDATE do.
        let tables = "idgen.public_key, idgen.segment, idgen.lease_definition";
        execute(&mut owner, &format!("BEGIN; LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE NOWAIT; COMMIT"));
        execute(&mut app, "COMMIT");
    }
}

/// `pg_database_owner` has one member, whom no change of a role replaces.
#[test]
fn session_of_the_former_owner_of_the_database_loses_what_the_owner_has() {
    let cluster = Cluster::builder().start_with_extension();
    cluster.execute("CREATE ROLE boss LOGIN; CREATE ROLE heir");
    cluster.execute("ALTER DATABASE postgres OWNER TO boss");
    cluster.execute("SELECT public_id_define('ord'), public_id_alter('ord', 'pg_database_owner')");
    cluster.execute("SELECT segment_create('ticket'), segment_alter('ticket', owner => 'pg_database_owner')");
    let mut boss = cluster.client_as("postgres", "boss");
    let uses = ["SELECT public_id('ord', 7)", "SELECT segment_next('ticket')"];
    uses.iter().for_each(|sql| execute(&mut boss, sql));
    cluster.execute("ALTER DATABASE postgres OWNER TO heir");
    uses.iter().for_each(|sql| drop(expect_error(&mut boss, sql, SqlState::INSUFFICIENT_PRIVILEGE.code())));
}

#[test]
fn text_that_cannot_be_converted_is_no_public_id() {
    let cluster = Cluster::builder().start_with_extension();
    for (encoding, bytes) in [("EUC_JP", "\\xa9\\xa1"), ("SQL_ASCII", "\\xfe"), ("UTF8", "\\xc3\\xa4")] {
        let database = encoding.to_lowercase();
        let options = format!("ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0");
        cluster.execute(&format!("CREATE DATABASE {database} {options}"));
        let mut client = cluster.client_in(&database);
        execute(&mut client, "CREATE EXTENSION idgen; SELECT public_id_define('ord')");
        let sql = format!("SELECT public_id_try_decode('ord', E'ord_{bytes}') IS NULL");
        assert!(value::<bool>(&mut client, &sql), "{encoding}");
    }
}

/// The owner of the database can write the table, and a superuser can delete the row of a retired key.
#[test]
fn prefix_with_rows_written_by_hand_has_its_owner_and_its_functions() {
    let cluster = Cluster::builder().conf("statement_timeout", "60s").start_with_extension();
    cluster.execute(
        "CREATE ROLE boss LOGIN; CREATE ROLE maker LOGIN; GRANT EXECUTE ON FUNCTION public_id_define TO public",
    );
    cluster.execute("ALTER DATABASE postgres OWNER TO boss");
    let [mut dba, mut boss, mut maker] = ["postgres", "boss", "maker"].map(|role| cluster.client_as("postgres", role));
    execute(&mut maker, "SELECT public_id_define('mk', 'long')");
    let columns = "idgen.public_key (prefix, version, form, secret, owner)";
    execute(&mut boss, &format!("INSERT INTO {columns} VALUES ('mk', 2, 'long', sha256('x'), 'boss')"));
    // Neither one has the prefix until a superuser has removed the row.
    for client in [&mut boss, &mut maker] {
        for sql in ["SELECT public_id('mk', 1)", "SELECT public_id_drop('mk')"] {
            expect_error(client, sql, SqlState::INSUFFICIENT_PRIVILEGE.code());
        }
    }
    execute(&mut dba, "DELETE FROM idgen.public_key WHERE version = 2");
    execute(&mut maker, "SELECT public_id_rotate('mk'), public_id_retire('mk', 1)");
    execute(&mut dba, "DELETE FROM idgen.public_key WHERE retired IS NOT NULL");
    expect_error(&mut boss, "SELECT public_id_define('mk')", SqlState::DUPLICATE_OBJECT.code());
    assert_eq!(value::<i32>(&mut maker, "SELECT public_id_rotate('mk')"), 3);
    execute(&mut maker, "SELECT public_id_drop('mk')");
    assert_eq!(value::<i64>(&mut dba, "SELECT count(*) FROM idgen.public_key"), 0);
}

#[test]
fn standby_without_preload_decodes_and_notices_changes_smoke() {
    let primary = Cluster::builder().preload(false).start_with_extension();
    primary.execute("SELECT public_id_define('ord')");
    let standby = primary.standby();
    let (mut here, mut there) = (primary.client(), standby.client());
    let short = text(&mut here, "ord", 7);
    assert_eq!(text(&mut there, "ord", 7), short);
    assert_eq!(decoded(&mut there, "ord", &short), Some(7));
    for change in ["define('usr')", "rotate('ord', 'long')", "drop('ord')", "grant('ord', 'public')"] {
        let error =
            expect_error(&mut there, &format!("SELECT public_id_{change}"), SqlState::READ_ONLY_SQL_TRANSACTION.code());
        assert!(error.message().contains("during recovery"), "{change}: {}", error.message());
    }

    execute(&mut here, "SELECT public_id_rotate('ord', 'long')");
    standby.wait_until_replayed(&primary);
    let long = text(&mut there, "ord", 7);
    assert_eq!(long, text(&mut here, "ord", 7));
    assert_eq!([decoded(&mut there, "ord", &short), decoded(&mut there, "ord", &long)], [Some(7); 2]);
    execute(&mut here, "SELECT public_id_retire('ord', 1)");
    standby.wait_until_replayed(&primary);
    assert_eq!([decoded(&mut there, "ord", &short), decoded(&mut there, "ord", &long)], [None, Some(7)]);

    standby.promote();
    assert_eq!(text(&mut there, "ord", 7), long);
    execute(&mut there, "SELECT public_id_rotate('ord')");
    assert_eq!(decoded(&mut there, "ord", &long), Some(7));
}

//! Dumps keep every text valid. `operations/dump_options.rs` dumps and restores keys with any options.

use idgen_testkit::Cluster;
use idgen_testkit::dump::{dump, restore, target};
use idgen_testkit::sql::{column, execute, expect_error, in_new_database, value};
use postgres::Client;
use postgres::error::SqlState;

use crate::{decoded, text};

/// A database of the role keeper with keys of the role maker, which the role app may use: one in use, one rotated, and a
/// retired one. And a text of each.
fn with_keys() -> (Cluster, Client, [String; 3]) {
    let cluster = Cluster::builder().start_with_extension();
    cluster.execute("CREATE ROLE keeper LOGIN; CREATE ROLE maker; CREATE ROLE app LOGIN");
    let mut dba = in_new_database(&cluster, "shop");
    execute(
        &mut dba,
        "ALTER DATABASE shop OWNER TO keeper;
         GRANT EXECUTE ON FUNCTION public_id_define TO maker;
         SET ROLE maker;
         SELECT public_id_define('ord'), public_id_define('inv', 'long');
         SELECT public_id_grant('ord', 'app'), public_id_grant('inv', 'public')",
    );
    let retired = text(&mut dba, "inv", 7);
    execute(&mut dba, "SELECT public_id_rotate('inv', 'short'), public_id_retire('inv', 1)");
    let rotated = text(&mut dba, "ord", 7);
    execute(&mut dba, "SELECT public_id_rotate('ord', 'long')");
    let newest = text(&mut dba, "ord", 7);
    execute(&mut dba, "RESET ROLE; REVOKE EXECUTE ON FUNCTION public_id_define FROM maker");
    (cluster, dba, [retired, rotated, newest])
}

/// A restore of the data only, into a database whose keys a session has used.
#[test]
fn session_notices_restored_keys() {
    let (cluster, mut shop, [_, _, newest]) = with_keys();
    let archive = dump(&cluster, "data_only", &["-Fc", "--data-only"]);
    let mut app = cluster.client_as("shop", "app");
    assert_eq!(text(&mut app, "ord", 7), newest);
    execute(&mut shop, "SELECT public_id_drop('ord'), public_id_drop('inv')");
    execute(&mut shop, "SELECT public_id_define('ord'), public_id_grant('ord', 'app')");
    assert_ne!(text(&mut app, "ord", 7), newest);
    execute(&mut shop, "DELETE FROM idgen.public_key");
    restore(&cluster, "shop", &["--data-only"], &archive);
    assert_eq!(text(&mut app, "ord", 7), newest);
}

/// Only the owner of the database may copy secrets out.
#[test]
fn ordinary_owner_of_a_database_reads_secrets() {
    let (cluster, mut shop, _) = with_keys();
    let mut keeper = cluster.client_as("shop", "keeper");
    let mut app = cluster.client_as("shop", "app");
    assert_eq!(value::<i64>(&mut keeper, "SELECT count(secret) FROM idgen.public_key"), 3);
    // The page on public ids says so.
    expect_error(&mut app, "SELECT secret FROM idgen.public_key", SqlState::INSUFFICIENT_PRIVILEGE.code());
    execute(&mut shop, "GRANT pg_monitor TO app");
    expect_error(&mut app, "SELECT secret FROM idgen.public_key", SqlState::INSUFFICIENT_PRIVILEGE.code());
    execute(&mut shop, "GRANT pg_read_all_data TO app");
    assert_eq!(value::<i64>(&mut app, "SELECT count(secret) FROM idgen.public_key"), 3);
}

/// A role that owns keys is dropped. The dump does not give them to a role that has its OID elsewhere.
#[test]
fn keys_of_a_dropped_role_are_restored_as_those_of_the_database_owner() {
    let (cluster, mut shop, [_, rotated, newest]) = with_keys();
    execute(&mut shop, "DROP ROLE maker; DROP ROLE app");
    let archive = dump(&cluster, "dump", &["-Fc"]);
    let mut dba = target(&cluster, "restored");
    restore(&cluster, "restored", &[], &archive);
    let roles = "SELECT DISTINCT concat_ws(' ', prefix, owner, users) FROM idgen.public_key ORDER BY 1";
    assert_eq!(column::<String>(&mut dba, roles), ["inv pg_database_owner {-}", "ord pg_database_owner {}"]);
    let mut keeper = cluster.client_as("restored", "keeper");
    assert_eq!(text(&mut keeper, "ord", 7), newest);
    assert_eq!(decoded(&mut keeper, "ord", &rotated), Some(7));
    execute(&mut keeper, "SELECT public_id_rotate('ord')");
    assert_ne!(text(&mut keeper, "ord", 7), newest);
}

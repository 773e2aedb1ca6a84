//! Upgrades from every release.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{column, execute, value};
use postgres::Client;

mod catalog;
mod in_use;
mod old_sql;
mod pools;

/// The version of the library under test.
fn current(cluster: &Cluster) -> String {
    value(&mut cluster.client(), "SELECT default_version FROM pg_available_extensions WHERE name = 'idgen'")
}

/// The releases before this one, the oldest first.
fn releases(cluster: &Cluster) -> Vec<String> {
    let releases = column(
        &mut cluster.client(),
        &format!(
            "SELECT source FROM pg_extension_update_paths('idgen') WHERE path IS NOT NULL AND target = '{}'
             ORDER BY string_to_array(source, '.')::int[]",
            current(cluster)
        ),
    );
    assert!(releases.len() >= 6 && releases[0] == "0.14.0", "{releases:?}");
    releases
}

/// Those under whose SQL a pool was a lease with a `first_slot`.
fn releases_before_pools(cluster: &Cluster) -> Vec<String> {
    releases(cluster).into_iter().take_while(|release| release != "0.18.0").collect()
}

/// The database that [`install`] creates.
fn database(release: &str) -> String {
    format!("since_{}", release.replace('.', "_"))
}

/// A new database with the SQL of a release, and a connection to it.
fn install(cluster: &Cluster, release: &str) -> (String, Client) {
    let database = database(release);
    cluster.execute(&format!("CREATE DATABASE {database}"));
    let mut client = cluster.client_in(&database);
    execute(&mut client, &format!("CREATE EXTENSION idgen VERSION '{release}'"));
    (database, client)
}

/// The place that the cluster grants from, as a row of `idgen.worker_history` has it.
fn place(cluster: &Cluster) -> String {
    let mut client = cluster.client();
    execute(&mut client, "CREATE EXTENSION idgen; SELECT worker_pool_define('any')");
    value(&mut client, "SELECT split_part(identity, '/', 4) FROM idgen.worker_history")
}

/// Records that a database with the SQL of an earlier version than 0.18.0 has granted worker ids from this place.
fn write_history(client: &mut Client, place: &str) {
    let sql = format!(
        "INSERT INTO idgen.worker_history (system_identifier, timeline, database, place, since, first_token, longest)
         SELECT system_identifier, timeline_id, database.oid, '{place}', '-infinity', 0, '3 hours'
         FROM pg_control_system(), pg_control_checkpoint(), pg_database AS database WHERE datname = current_database()"
    );
    execute(client, &sql);
}

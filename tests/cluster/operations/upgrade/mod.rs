//! Upgrades from every release.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{column, execute, value};
use postgres::Client;

mod catalog;
mod in_use;
mod old_sql;

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

//! Dumps and restores by the role keeper, the ordinary owner of the database.

use std::path::{Path, PathBuf};
use std::process::Command;

use postgres::Client;

use crate::cluster::Cluster;
use crate::programs::run;
use crate::sql::{execute, in_new_database};

/// A file beside the data directory.
pub fn file(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.data_dir().with_file_name(name)
}

/// A program that connects to the database as the keeper.
pub fn as_keeper(cluster: &Cluster, program: &str, database: &str, options: &[&str]) -> Command {
    let mut command = cluster.program(program);
    command.env("PGUSER", "keeper").args(["-d", database]).args(options);
    command
}

/// Dumps the database shop into a new file of this name.
pub fn dump(cluster: &Cluster, name: &str, options: &[&str]) -> PathBuf {
    let file = file(cluster, name);
    // The comment of the extension is that of a superuser, so the keeper could not restore it.
    run(as_keeper(cluster, "pg_dump", "shop", options).args(["--no-comments", "-f"]).arg(&file));
    file
}

/// A new database of the keeper, with the extension that a superuser has created.
pub fn target(cluster: &Cluster, database: &str) -> Client {
    let mut dba = in_new_database(cluster, database);
    execute(&mut dba, &format!("ALTER DATABASE {database} OWNER TO keeper"));
    dba
}

/// Restores a dump of any format, and fails at the first error.
pub fn restore(cluster: &Cluster, database: &str, options: &[&str], from: &Path) {
    let is_archive = from.is_dir() || std::fs::read(from).expect("a dump").starts_with(b"PGDMP");
    match is_archive {
        true => run(as_keeper(cluster, "pg_restore", database, options).arg("--exit-on-error").arg(from)),
        false => run(as_keeper(cluster, "psql", database, options).arg("--set=ON_ERROR_STOP=1").arg("-f").arg(from)),
    };
}

//! The keeper's connection to its coordinator, and access to the connection string.

use std::path::Path;

use idgen_testkit::Stop;
use idgen_testkit::sql::{execute, expect_error, value, while_waiting};

use super::{DRAW, coordinator, require_keeper_password};
use crate::{builder, pooled};

/// libpq's service file, password file and several hosts, of which one is down and one a standby.
#[test]
fn keeper_finds_the_coordinator_by_service_password_file_and_several_hosts_smoke() {
    let coordinator = coordinator(4, "1 min");
    let standby = coordinator.standby();
    require_keeper_password(&coordinator);
    let cluster = builder().start_with_extension();
    let dir = cluster.data_dir();
    let (service, passwords) = (dir.join("services"), dir.join("passwords"));
    let (first, second) = (standby.host(), coordinator.host());
    std::fs::write(
        &service,
        format!("[ids]\nhost=/nowhere,{first},{second}\nport=5432\nuser=keeper\ndbname=postgres\n"),
    )
    .unwrap();
    std::fs::write(&passwords, "*:*:*:keeper:a secret\n").unwrap();
    for file in [&service, &passwords] {
        own_by_server(file, &dir);
    }
    cluster.set_env("PGSERVICEFILE", service.as_os_str());
    cluster.set_conf("idgen.worker_pool", "servers");
    cluster.restart_with("idgen.coordinator", &format!("service=ids passfile={}", passwords.display()));
    let mut client = cluster.client();
    execute(&mut client, DRAW);
    assert_eq!(value::<String>(&mut client, "SELECT coordinator FROM idgen.stat_worker"), format!("{second}:5432"));
    // The other hosts are skipped at once.
    assert_eq!(value::<i64>(&mut client, "SELECT failures FROM idgen.stat_worker"), 0);
    assert_eq!(value::<String>(&mut coordinator.client(), "SELECT role::text FROM idgen.workers"), "keeper");
}

/// Makes a file readable by the server only, as libpq requires of a password file.
fn own_by_server(file: &Path, like: &Path) {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let owner = std::fs::metadata(like).expect("a directory");
    chown(file, Some(owner.uid()), Some(owner.gid())).expect("the owner is set");
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).expect("the mode is set");
}

/// A session that waits for the coordinator's first answer can be cancelled, and the server stopped.
#[test]
fn silent_coordinator_blocks_neither_a_cancel_nor_a_stop_smoke() {
    let directory = tempfile::tempdir().unwrap();
    // Accepts connections and never answers.
    let _silent = std::os::unix::net::UnixListener::bind(directory.path().join(".s.PGSQL.5432")).unwrap();
    open_to_all(directory.path());
    let conninfo = format!("host={} user=postgres", directory.path().display());
    let (cluster, [mut client]) = pooled(&conninfo).start_with_clients();
    let cancel = |pid| cluster.execute(&format!("SELECT pg_cancel_backend({pid})"));
    while_waiting(&cluster, &mut client, |client| expect_error(client, DRAW, "57014"), cancel);
    drop(client);
    cluster.stop(Stop::Fast);
}

fn open_to_all(directory: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    let socket = directory.join(".s.PGSQL.5432");
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o777)).unwrap();
}

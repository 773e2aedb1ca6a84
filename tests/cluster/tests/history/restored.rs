//! Dumps, and an extension that is dropped and made again.

use std::process::Command;

use idgen_cluster_tests::sql::{execute, value};

use crate::{acquire, assert_apart, builder, define, release, renew};

fn run(command: &mut Command) {
    let output = command.output().expect("it runs");
    let [out, error] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{command:?}: {out}{error}");
}

#[test]
fn an_extension_made_again_grants_no_id_time_again() {
    let cluster = builder().start_with_extension();
    define(&cluster);
    let mut client = cluster.client();
    let mut first = acquire(&mut client);
    renew(&mut client, &mut first, "14 s");
    execute(&mut client, "DROP EXTENSION idgen; CREATE EXTENSION idgen");
    define(&cluster);
    let second = acquire(&mut client);
    assert_apart(&[&first, &second]);
    // And once more, before the grants after the first time begin.
    execute(&mut client, "DROP EXTENSION idgen; CREATE EXTENSION idgen");
    define(&cluster);
    let third = acquire(&mut client);
    assert_apart(&[&first, &second, &third]);
}

#[test]
fn a_restored_dump_grants_no_id_time_again() {
    let cluster = builder().start_with_extension();
    define(&cluster);
    let mut client = cluster.client();
    let mut first = acquire(&mut client);
    let file = cluster.data_dir().with_file_name("coordinator.dump");
    run(cluster.program("pg_dump").args(["-Fc", "-d", "postgres", "-f"]).arg(&file));
    // The dump lacks all that comes now.
    renew(&mut client, &mut first, "14 s");
    let second = acquire(&mut client);
    release(&mut client, &first);
    let third = acquire(&mut client);

    cluster.execute("CREATE DATABASE restored");
    run(cluster.program("pg_restore").args(["-d", "restored"]).arg(&file));
    let mut restored = cluster.client_in("restored");
    let there: Vec<_> = (0..4).map(|_| acquire(&mut restored)).collect();
    let mut all = vec![&first, &second, &third];
    all.extend(&there);
    assert_apart(&all);

    execute(&mut client, "DROP EXTENSION idgen CASCADE");
    run(cluster.program("pg_restore").args(["-d", "postgres"]).arg(&file));
    let mut client = cluster.client();
    let again: Vec<_> = (0..4).map(|_| acquire(&mut client)).collect();
    let mut all = vec![&first, &second, &third];
    all.extend(&again);
    assert_apart(&all);
    let interrupted = "SELECT since > '-infinity' AND system_identifier <> 0 FROM idgen.worker_history";
    assert!(value::<bool>(&mut client, interrupted));
}

/// A coordinator that never granted has nothing to wait for, in whatever database.
#[test]
fn the_first_grant_of_a_server_begins_at_once() {
    let cluster = builder().start_with_extension();
    define(&cluster);
    let mut client = cluster.client();
    let first = acquire(&mut client);
    let now_us: i64 = value(&mut client, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint");
    assert!(first.from_us <= now_us);
}

//! Point-in-time recovery from a base backup and an archive, on a server with the right clock.

use idgen_testkit::ids::last;
use idgen_testkit::segment::create;
use idgen_testkit::sql::{PATIENCE, execute, ids, value};
use idgen_testkit::{Cluster, Stop};
use postgres::Client;

/// What clients have got: ids, values of a segment and a fencing token.
struct Got {
    ids: Vec<i64>,
    tickets: Vec<i64>,
    token: i64,
}

fn draw(client: &mut Client) -> Got {
    let lease = value(client, "SELECT token FROM lease_acquire('importer', ttl => '1 hour')");
    execute(client, &format!("SELECT lease_release('importer', {lease})"));
    Got {
        ids: ids(client, "INSERT INTO orders SELECT FROM generate_series(1, 1000) RETURNING id"),
        tickets: ids(client, "SELECT segment_next('ticket') FROM generate_series(1, 100)"),
        token: lease,
    }
}

/// A base backup that recovers from the archive of `primary`.
fn base_backup(primary: &Cluster) -> Cluster {
    let restored = primary.standby();
    restored.stop(Stop::Fast);
    std::fs::rename(restored.data_dir().join("standby.signal"), restored.data_dir().join("recovery.signal"))
        .expect("a standby's data directory");
    let archive = primary.data_dir().with_file_name("archive");
    restored.set_conf("restore_command", &format!("cp {}/%f %p", archive.display()));
    restored.set_conf("recovery_target_action", "promote");
    restored
}

#[test]
fn restored_server_continues_after_lost_ids_and_tokens_and_repeats_lost_values_of_segments() {
    let archiving = Cluster::builder().conf("archive_mode", "on");
    let archiving = archiving.conf("archive_command", "mkdir -p ../archive && cp %p ../archive/%f");
    let (primary, [mut client]) = archiving.start_with_clients();
    create(&mut client, "ticket", ", step => 10, max_step => 10");
    execute(&mut client, "CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_next())");
    let [by_name, by_time] = [base_backup(&primary), base_backup(&primary)];
    let kept = draw(&mut client);
    execute(&mut client, "SELECT pg_create_restore_point('here')");
    by_name.set_conf("recovery_target_name", "here");
    let now: String = value(&mut client, "SELECT clock_timestamp()::text");
    by_time.set_conf("recovery_target_time", &now);
    let lost = draw(&mut client);
    let wal: String = value(&mut client, "SELECT pg_walfile_name(pg_switch_wal())");
    let archived = format!("SELECT coalesce(last_archived_wal >= '{wal}', false) FROM pg_stat_archiver");
    primary.wait_for(PATIENCE, "the WAL to be archived", || value(&mut client, &archived));
    drop(client);
    primary.kill9_postmaster();

    for restored in [by_name, by_time] {
        restored.start_again();
        let mut client = restored.client();
        restored.wait_for(PATIENCE, "the end of recovery", || value(&mut client, "SELECT NOT pg_is_in_recovery()"));
        assert!(value::<String>(&mut client, "SELECT pg_walfile_name(pg_current_wal_lsn())").starts_with("00000002"));
        assert_eq!(ids(&mut client, "SELECT id FROM orders ORDER BY id"), kept.ids, "the rows up to the target");
        let new = draw(&mut client);
        assert!(new.ids[0] > last(&lost.ids), "{} after {}", new.ids[0], last(&lost.ids));
        assert!(new.token > lost.token, "{} after {}", new.token, lost.token);

        assert!(new.tickets[0] > last(&kept.tickets), "{} after {}", new.tickets[0], last(&kept.tickets));
        assert!(lost.tickets.contains(&new.tickets[0]), "{} is none of {:?}", new.tickets[0], lost.tickets);
        execute(&mut client, "SELECT segment_alter('ticket', max_id => 1000)");
        assert!(draw(&mut client).tickets[0] > 1000);
    }
}

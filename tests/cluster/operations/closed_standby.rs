//! A standby with `hot_standby = off` accepts no connection until it is promoted. Then it repeats nothing.

use std::path::PathBuf;

use idgen_testkit::ids::assert_increasing;
use idgen_testkit::lease::{acquire, assert_held};
use idgen_testkit::segment::{create, next};
use idgen_testkit::sql::{PATIENCE, ids, value};
use idgen_testkit::{Cluster, Stop, run};

/// A server that the kit cannot start, because it waits for a connection. It is stopped when dropped.
struct Closed<'standby>(&'standby Cluster);

impl Closed<'_> {
    /// Restarts a standby.
    fn start(standby: &Cluster) -> Closed<'_> {
        standby.stop(Stop::Fast);
        let closed = Closed(standby);
        closed.start_again();
        closed
    }

    fn start_again(&self) {
        self.control(&["start", "-o", "-c hot_standby=off"]);
    }

    fn control(&self, arguments: &[&str]) {
        let log = self.log_file();
        run(self.0.program("pg_ctl").arg("-D").arg(self.0.data_dir()).arg("-l").arg(log).arg("-w").args(arguments));
    }

    /// The kit's own log belongs to the user of the tests.
    fn log_file(&self) -> PathBuf {
        self.0.data_dir().with_file_name("closed.log")
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let _ = self.0.program("pg_ctl").args(["stop", "-m", "immediate", "-D"]).arg(self.0.data_dir()).output();
    }
}

/// Waits until the only standby has replayed what the primary has written so far.
fn wait_until_replayed(primary: &Cluster) {
    let mut client = primary.client();
    let written: String = value(&mut client, "SELECT pg_current_wal_lsn()::text");
    let replayed = format!("SELECT coalesce(bool_and(replay_lsn >= '{written}'), false) FROM pg_stat_replication");
    primary.wait_for(PATIENCE, "the standby to replay", || value(&mut client, &replayed));
}

#[test]
fn standby_without_connections_repeats_nothing_after_its_promotion_smoke() {
    let (primary, [mut client]) = Cluster::builder().conf("idgen.worker_id", "1").fake_clock().start_with_clients();
    create(&mut client, "t", ", step => 20");
    let mut values = vec![next(&mut client, "t")];
    let standby = primary.standby();
    let closed = Closed::start(&standby);
    assert!(standby.try_client().is_err(), "the standby accepts connections");

    // Only WAL tells the standby of ids that are ahead of its clock.
    primary.clock().set_offset_ms(3_600_000);
    let mut seen = ids(&mut client, "SELECT snowflake_next_many(10)");
    values.extend(ids(&mut client, "SELECT segment_next_many('t', 50)"));
    let token = acquire(&mut client, "'job', ttl => '1 day'").token;
    wait_until_replayed(&primary);
    // Ids, again, after a crash of the standby.
    closed.control(&["stop", "-m", "immediate"]);
    seen.extend(ids(&mut client, "SELECT snowflake_next_many(10)"));
    closed.start_again();
    wait_until_replayed(&primary);
    drop(client);
    primary.stop(Stop::Immediate);

    closed.control(&["promote"]);
    standby.wait_until_ready();
    let mut client = standby.client();
    seen.extend(ids(&mut client, "SELECT snowflake_next_many(10)"));
    assert_increasing(&seen);
    values.extend(ids(&mut client, "SELECT segment_next_many('t', 10)"));
    assert_increasing(&values);
    assert_held(&mut client, "job");
    assert!(acquire(&mut client, "'other'").token > token);
    let log = std::fs::read_to_string(closed.log_file()).expect("a log");
    assert!(!["WARNING", "ERROR", "PANIC"].iter().any(|level| log.contains(&format!("{level}:  "))), "{log}");
}

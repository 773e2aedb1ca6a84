//! Replicas promoted after ids ran further ahead of the clock than any commit shows.

use idgen_testkit::ids::last;
use idgen_testkit::sql::{PATIENCE, execute, value};
use idgen_testkit::{Builder, Cluster, Stop, high_water, rounds};
use postgres::Client;

use crate::recovery::{HOUR_MS, SECOND_MS, insert, primary_of, stored};
use crate::{builder, draw_one, time_of};

/// The lead that `take_ahead` creates, beyond every margin.
pub const AHEAD_MS: i64 = 100 * SECOND_MS;

/// Makes ids begin far ahead of the clock, without a commit.
pub fn take_ahead(client: &mut Client) {
    let ahead = format!("snowflake_ceil(clock_timestamp() + interval '{AHEAD_MS} ms')");
    execute(client, &format!("SELECT snowflake_observe({ahead})"));
}

/// The ids of a new primary are above all replicated ones.
fn assert_begins_after(server: &Cluster, replicated: &[i64]) {
    let mut client = server.client();
    let highest = last(replicated);
    let first = draw_one(&mut client, "snowflake");
    let until_ms = time_of(&mut client, highest, "snowflake");
    assert!(first.id > highest, "the first id is {} ms below the last one replicated", until_ms - first.time_ms);
    assert!(insert(&mut client, 10_000)[0] > highest);
}

/// Waits for the replay of all ids, kills the primary and promotes the standby.
fn fail_over(primary: &Cluster, standby: &Cluster) -> Vec<i64> {
    standby.wait_until_replayed(primary);
    primary.kill9_postmaster();
    standby.promote();
    stored(&mut standby.client())
}

/// The standby of a primary that has run `work` is promoted.
fn assert_promotion_repeats_no_id(builder: Builder, work: impl FnOnce(&Cluster)) {
    let primary = primary_of(builder);
    let standby = primary.standby();
    work(&primary);
    let replicated = fail_over(&primary, &standby);
    assert_begins_after(&standby, &replicated);
}

/// Each crash takes ids further ahead.
#[test]
fn promotion_after_crashes_repeats_no_id() {
    for (builder, crashes) in [(builder().conf("idgen.clock_window", "60s"), 1), (builder(), 5)] {
        assert_promotion_repeats_no_id(builder, |primary| {
            for _ in 0..crashes {
                insert(&mut primary.client(), 1);
                primary.kill9_postmaster();
                primary.start_again();
            }
            insert(&mut primary.client(), 1000);
        });
    }
}

#[test]
fn promotion_repeats_no_observed_id() {
    assert_promotion_repeats_no_id(builder(), |primary| {
        let mut client = primary.client();
        insert(&mut client, 1);
        take_ahead(&mut client);
        insert(&mut client, 1000);
    });
}

#[test]
fn promotion_after_a_clock_step_back_repeats_no_id() {
    assert_promotion_repeats_no_id(builder(), |primary| {
        let mut client = primary.client();
        primary.clock().set_offset_ms(HOUR_MS);
        insert(&mut client, 1000);
        primary.clock().set_offset_ms(0);
        // The last commit and the last checkpoint have the right clock.
        insert(&mut client, 1);
        execute(&mut client, "CHECKPOINT");
    });
}

/// The clock of the first primary is an hour ahead, and those of the next two are right. The second promoted server is a copy
/// of the first one, whose ids are past the copied mark.
#[test]
fn two_promotions_in_a_row_repeat_no_id_smoke() {
    let first = primary_of(builder().conf("idgen.clock_window", "100ms"));
    first.clock().set_offset_ms(HOUR_MS);
    insert(&mut first.client(), 1);
    let second = first.standby();
    insert(&mut first.client(), 1);
    let replicated = fail_over(&first, &second);
    assert_begins_after(&second, &replicated);

    let third = second.standby();
    let copied_ms = high_water::mark_ms(&third);
    let mut client = second.client();
    // At the full rate, so that ids keep their lead.
    let ahead = format!(
        "SELECT min(snowflake_time(id)) > to_timestamp({copied_ms} / 1000.0)
                         FROM snowflake_next_many(100000) AS id"
    );
    second.wait_for(PATIENCE, "ids beyond the copied mark", || value(&mut client, &ahead));
    insert(&mut client, 1000);
    let replicated = fail_over(&second, &third);
    assert_begins_after(&third, &replicated);
}

#[derive(Clone, Copy, Debug)]
enum Rejoin {
    Rewound,
    Reinitialised,
}

/// A server with its own worker id rejoins as a standby of its successor and is promoted again. It has lost its own
/// high-water file and has the successor's.
#[test]
fn server_promoted_again_after_rejoining_repeats_no_id() {
    for _ in 0..rounds(1, 5) {
        for way in [Rejoin::Rewound, Rejoin::Reinitialised] {
            let first = primary_of(builder().conf("wal_log_hints", "on"));
            let second = first.standby_builder().conf("idgen.worker_id", "6").start();
            let mut client = first.client();
            take_ahead(&mut client);
            let own = insert(&mut client, 10_000);
            drop(client);
            second.wait_until_replayed(&first);
            first.stop(Stop::Fast);
            second.promote();
            let theirs = insert(&mut second.client(), 1000);
            assert!(theirs[0] > last(&own), "{way:?}: ids increase");
            let again = match way {
                Rejoin::Rewound => {
                    first.rewind_to(&second);
                    first
                }
                Rejoin::Reinitialised => second.standby_builder().conf("idgen.worker_id", "5").start(),
            };
            let mut known = fail_over(&second, &again);
            known.extend(own);
            known.sort_unstable();
            assert_begins_after(&again, &known);
        }
    }
}

/// Without hot standby no worker can update the mark during recovery.
#[test]
fn archive_recovery_without_hot_standby_repeats_no_id() {
    let archiving =
        builder().conf("archive_mode", "on").conf("archive_command", "mkdir -p ../archive && cp %p ../archive/%f");
    let primary = primary_of(archiving);
    let restored = primary.standby();
    restored.stop(Stop::Fast);
    std::fs::rename(restored.data_dir().join("standby.signal"), restored.data_dir().join("recovery.signal"))
        .expect("a standby's data directory");
    let mut client = primary.client();
    take_ahead(&mut client);
    insert(&mut client, 1000);
    let wal: String = value(&mut client, "SELECT pg_walfile_name(pg_switch_wal())");
    let archived = format!("SELECT coalesce(last_archived_wal >= '{wal}', false) FROM pg_stat_archiver");
    primary.wait_for(PATIENCE, "the WAL to be archived", || value(&mut client, &archived));
    let issued = stored(&mut client);
    drop(client);
    primary.kill9_postmaster();

    let archive = primary.data_dir().with_file_name("archive");
    restored.set_conf("restore_command", &format!("cp {}/%f %p", archive.display()));
    restored.set_conf("hot_standby", "off");
    restored.start_again();
    assert_eq!(stored(&mut restored.client()), issued, "all rows are restored");
    assert_begins_after(&restored, &issued);
}

//! Ids that are further ahead of the clock than any commit shows, and what a replica makes of them when it is promoted.

use idgen_testkit::ids::last;
use idgen_testkit::sql::{PATIENCE, execute, value};
use idgen_testkit::{Cluster, Stop, high_water, rounds};
use postgres::Client;

use crate::recovery::{HOUR_MS, SECOND_MS, insert, primary_of, stored};
use crate::{builder, draw_one, time_of};

/// How far `take_ahead` takes ids: beyond every margin.
pub const AHEAD_MS: i64 = 100 * SECOND_MS;

/// Has ids begin far ahead of the clock. No commit shows it.
pub fn take_ahead(client: &mut Client) {
    let ahead = format!("snowflake_ceil(clock_timestamp() + interval '{AHEAD_MS} ms')");
    execute(client, &format!("SELECT snowflake_observe({ahead})"));
}

/// The first id of a new primary comes after all that were replicated, and so do the next.
fn assert_begins_after(server: &Cluster, replicated: &[i64]) {
    let mut client = server.client();
    let highest = last(replicated);
    let first = draw_one(&mut client, "snowflake");
    let until_ms = time_of(&mut client, highest, "snowflake");
    assert!(first.id > highest, "the first id is {} ms below the last one replicated", until_ms - first.time_ms);
    assert!(insert(&mut client, 10_000)[0] > highest);
}

/// Promotes a standby that has all ids of its primary, which then is gone.
fn fail_over(primary: &Cluster, standby: &Cluster) -> Vec<i64> {
    standby.wait_until_replayed(primary);
    primary.kill9_postmaster();
    standby.promote();
    stored(&mut standby.client())
}

#[test]
fn a_crash_with_a_wide_window_then_a_promotion_repeats_no_id() {
    let primary = primary_of(builder().conf("idgen.clock_window", "60s"));
    let standby = primary.standby();
    insert(&mut primary.client(), 1);
    primary.kill9_postmaster();
    primary.start_again();
    insert(&mut primary.client(), 1000);
    let replicated = fail_over(&primary, &standby);
    assert_begins_after(&standby, &replicated);
}

/// Each crash takes ids further ahead.
#[test]
fn crashes_in_a_row_then_a_promotion_repeat_no_id() {
    let primary = primary_of(builder());
    let standby = primary.standby();
    for _ in 0..5 {
        insert(&mut primary.client(), 1);
        primary.kill9_postmaster();
        primary.start_again();
    }
    insert(&mut primary.client(), 1000);
    let replicated = fail_over(&primary, &standby);
    assert_begins_after(&standby, &replicated);
}

#[test]
fn observed_ids_are_not_repeated_after_a_promotion() {
    let primary = primary_of(builder());
    let standby = primary.standby();
    let mut client = primary.client();
    insert(&mut client, 1);
    take_ahead(&mut client);
    insert(&mut client, 1000);
    let replicated = fail_over(&primary, &standby);
    assert_begins_after(&standby, &replicated);
}

#[test]
fn a_primary_whose_clock_stepped_back_leaves_no_id_to_repeat() {
    let primary = primary_of(builder());
    let standby = primary.standby();
    let mut client = primary.client();
    primary.clock().set_offset_ms(HOUR_MS);
    insert(&mut client, 1000);
    primary.clock().set_offset_ms(0);
    // The last commit and the last checkpoint are by the clock that is right.
    insert(&mut client, 1);
    execute(&mut client, "CHECKPOINT");
    let replicated = fail_over(&primary, &standby);
    assert_begins_after(&standby, &replicated);
}

/// The clock of the first primary is an hour ahead, and those of the next two are right. The second promoted server was
/// copied from the first, which has gone on past the mark that was copied.
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
    // At the full rate, so that they keep their lead.
    let ahead = format!(
        "SELECT min(snowflake_time(id)) > to_timestamp({copied_ms} / 1000.0)
                         FROM snowflake_next_many(100000) AS id"
    );
    second.wait_for(PATIENCE, "ids beyond the mark that was copied", || value(&mut client, &ahead));
    insert(&mut client, 1000);
    let replicated = fail_over(&second, &third);
    assert_begins_after(&third, &replicated);
}

#[derive(Clone, Copy, Debug)]
enum Return {
    Rewound,
    Reinitialised,
}

/// A server with a worker id of its own that becomes a standby of the one that took over, and is promoted once more. Its
/// own high-water file is gone: it has that of the other.
#[test]
fn a_server_that_comes_back_repeats_none_of_its_ids() {
    for _ in 0..rounds(1, 5) {
        for way in [Return::Rewound, Return::Reinitialised] {
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
            assert!(theirs[0] > last(&own), "{way:?}: ids keep rising");
            let again = match way {
                Return::Rewound => {
                    first.rewind_to(&second);
                    first
                }
                Return::Reinitialised => second.standby_builder().conf("idgen.worker_id", "5").start(),
            };
            let mut known = fail_over(&second, &again);
            known.extend(own);
            known.sort_unstable();
            assert_begins_after(&again, &known);
        }
    }
}

/// A restored server that takes no connections while it recovers: nothing runs there that could keep its mark.
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
    assert_eq!(stored(&mut restored.client()), issued, "restored to the end");
    assert_begins_after(&restored, &issued);
}

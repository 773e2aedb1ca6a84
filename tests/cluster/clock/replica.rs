//! Replicas promoted after ids ran further ahead of the clock than any commit shows.

use idgen_testkit::ids::last;
use idgen_testkit::sql::{PATIENCE, execute, value};
use idgen_testkit::{Cluster, Stop, high_water, rounds};
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

type Work = fn(&Cluster);

/// What takes the ids of a primary ahead, further than any commit shows, and its `idgen.clock_window`.
const WAYS_AHEAD: [(&str, &str, Work); 4] = [
    ("a crash", "60s", crash),
    ("crashes, each of which takes ids further ahead", "3s", |primary| (0..5).for_each(|_| crash(primary))),
    ("an observed id", "3s", |primary| {
        insert(&mut primary.client(), 1);
        take_ahead(&mut primary.client());
    }),
    ("a step of the clock back", "3s", |primary| {
        primary.clock().set_offset_ms(HOUR_MS);
        insert(&mut primary.client(), 1000);
        primary.clock().set_offset_ms(0);
        // The last commit and the last checkpoint have the right clock.
        insert(&mut primary.client(), 1);
        primary.execute("CHECKPOINT");
    }),
];

fn crash(primary: &Cluster) {
    insert(&mut primary.client(), 1);
    primary.kill9_and_restart();
}

#[test]
fn promotion_repeats_no_id_however_ids_came_ahead() {
    for (way, window, take_ahead) in WAYS_AHEAD {
        // Shown if an assertion fails.
        println!("{way}");
        let primary = primary_of(builder().conf("idgen.clock_window", window));
        let standby = primary.standby();
        take_ahead(&primary);
        insert(&mut primary.client(), 1000);
        let replicated = fail_over(&primary, &standby);
        assert_begins_after(&standby, &replicated);
    }
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

/// A server with its own worker id is rewound to its successor and promoted again. It has lost its own high-water file and
/// has the successor's.
#[test]
fn server_promoted_again_after_a_rewind_repeats_no_id() {
    for _ in 0..rounds(1, 5) {
        let first = primary_of(builder().conf("wal_log_hints", "on"));
        let second = first.standby_builder().conf("idgen.worker_id", "6").start();
        let mut client = first.client();
        take_ahead(&mut client);
        let mut known = insert(&mut client, 10_000);
        drop(client);
        second.wait_until_replayed(&first);
        first.stop(Stop::Fast);
        second.promote();
        let theirs = insert(&mut second.client(), 1000);
        assert!(theirs[0] > last(&known), "ids increase");
        first.rewind_to(&second);
        known.extend(fail_over(&second, &first));
        known.sort_unstable();
        assert_begins_after(&first, &known);
    }
}

use super::effective::{LOWER_WITHIN_MS, SAMPLE_EVERY_MS};
use super::mark::UNKNOWN;
use super::record::{FILE, Record};
use super::start::Evidence;
use super::*;
use crate::layout::Layout;
use proptest::prelude::*;
use sha2::{Digest, Sha256};

mod promotion;
mod walk;

/// 2026-01-01.
const NOW_MS: i64 = 1_767_225_600_000;
const DRIFT_MS: i64 = 1000;
const WINDOW_MS: i64 = 3000;
/// How far ids are ahead of the clock, at most, after one crash.
const AHEAD_MS: i64 = DRIFT_MS + WINDOW_MS + WINDOW_MS / 2;

fn reading(wall_ms: i64, boot_ms: i64) -> Reading {
    Reading { wall_ns: wall_ms * NS_PER_MS, boot_ns: boot_ms * NS_PER_MS }
}

fn evidence(wall_ms: i64) -> Evidence {
    Evidence {
        wall_ms,
        checkpoint_ms: wall_ms - 60_000,
        recovered: false,
        replayed_ms: None,
        prepared_ms: None,
        label_ms: None,
        drift_ms: DRIFT_MS,
        window_ms: WINDOW_MS,
    }
}

#[test]
fn effective_clock_follows_the_wall_clock_but_not_its_steps_back() {
    let clock = EffectiveClock::new(reading(NOW_MS, 500));
    assert_eq!(clock.now_ms(reading(NOW_MS + 7, 507)), NOW_MS + 7);
    assert!(!clock.is_ahead(reading(NOW_MS + 7, 507)));
    // Back by an hour: it continues at the rate of boot time.
    assert_eq!(clock.now_ms(reading(NOW_MS - 3_600_000, 510)), NOW_MS + 10);
    assert_eq!(clock.now_ms(reading(NOW_MS - 3_599_000, 1510)), NOW_MS + 1010);
    // Forward by an hour, sampled, and back: it stays ahead.
    clock.sample(|| Some(reading(NOW_MS + 3_600_000, 2000)));
    assert_eq!(clock.now_ms(reading(NOW_MS + 1505, 2005)), NOW_MS + 3_600_005);
}

#[test]
fn effective_clock_comes_back_as_far_as_ids_do() {
    let clock = EffectiveClock::new(reading(NOW_MS, 0));
    let back = |boot_ms| reading(NOW_MS - 60_000 + boot_ms, boot_ms);
    // A second passes without ids: they have fallen back by a second.
    assert!(clock.is_ahead(back(1000)));
    clock.lower(NOW_MS, back(1000));
    assert_eq!(clock.now_ms(back(1000)), NOW_MS + SAMPLE_EVERY_MS);
    // Ids that are further ahead change nothing: it is only lowered.
    clock.lower(NOW_MS + 5000, back(1000));
    assert_eq!(clock.now_ms(back(1000)), NOW_MS + SAMPLE_EVERY_MS);
    // Not below the wall clock.
    clock.lower(i64::MIN, back(1000));
    assert_eq!(clock.now_ms(back(1000)), NOW_MS - 59_000);
    assert!(!clock.is_ahead(back(1000)));
}

#[test]
fn one_process_lowers_the_clock_and_any_if_that_one_is_late() {
    let clock = EffectiveClock::new(reading(NOW_MS, 0));
    let ahead = |boot_ms| reading(NOW_MS - 60_000 + boot_ms, boot_ms);
    assert!(!clock.claim_lowering(reading(NOW_MS + 100, 100)), "ids are not ahead");
    assert!(clock.claim_lowering(ahead(100)) && clock.claim_lowering(ahead(100)), "the clock was never lowered");
    clock.lower(NOW_MS, ahead(100));
    assert!(!clock.claim_lowering(ahead(100 + SAMPLE_EVERY_MS)));
    let due_ms = 101 + SAMPLE_EVERY_MS;
    assert!(clock.claim_lowering(ahead(due_ms)));
    assert!(!clock.claim_lowering(ahead(due_ms)), "another process does");
    let late_ms = 101 + LOWER_WITHIN_MS;
    assert!(clock.claim_lowering(ahead(late_ms)) && clock.claim_lowering(ahead(late_ms)), "that one is late");
    // Two processes lower it, one of them by older readings: the later time counts.
    clock.lower(NOW_MS, ahead(late_ms));
    clock.lower(NOW_MS, ahead(due_ms));
    assert!(!clock.claim_lowering(ahead(late_ms + SAMPLE_EVERY_MS)));
}

#[test]
fn clock_that_was_raised_by_a_wrong_wall_clock_is_lowered_at_once() {
    let clock = EffectiveClock::new(reading(NOW_MS, 0));
    clock.raise(NOW_MS + 60_000, reading(NOW_MS, 0));
    clock.lower(NOW_MS + 60_000, reading(NOW_MS, 0));
    assert!(!clock.claim_lowering(reading(NOW_MS + 1, 1)));
    clock.sample(|| Some(reading(NOW_MS + 3_600_000, 2)));
    assert!(!clock.was_ahead());
    clock.sample(|| Some(reading(NOW_MS + 3, 3)));
    assert!(clock.was_ahead() && clock.claim_lowering(reading(NOW_MS + 3, 3)));
}

#[test]
fn backward_step_is_returned_once_and_counted() {
    let clock = EffectiveClock::new(reading(NOW_MS, 0));
    let sample = |wall_ms, boot_ms| clock.sample(|| Some(reading(wall_ms, boot_ms)));
    assert_eq!(sample(NOW_MS + 20, 20), None);
    assert_eq!(sample(NOW_MS + 35, 40), Some(ClockStep::Back(5 * NS_PER_MS)));
    assert_eq!(sample(NOW_MS + 55, 60), None, "once");
    assert_eq!(sample(NOW_MS + 3_600_000, 80), None, "forward");
    assert_eq!(sample(NOW_MS + 100, 100), Some(ClockStep::Back(3_599_920 * NS_PER_MS)));
    assert_eq!(clock.steps(), (2, 3_599_920 * NS_PER_MS));
    // Less than a millisecond is noise.
    let noise = Reading { wall_ns: (NOW_MS + 120) * NS_PER_MS - 900_000, boot_ns: 120 * NS_PER_MS };
    assert_eq!(clock.sample(|| Some(noise)), None);
    clock.reset_steps();
    assert_eq!(clock.steps(), (0, 0));
}

#[test]
fn step_forward_by_more_than_a_day_is_returned_once_and_shown_until_taken_back() {
    const DAY_MS: i64 = 86_400_000;
    let clock = EffectiveClock::new(reading(NOW_MS, 0));
    let sample = |ahead_ms, boot_ms| clock.sample(|| Some(reading(NOW_MS + ahead_ms + boot_ms, boot_ms)));
    let forward = |ahead_ms| clock.far_forward(reading(NOW_MS + ahead_ms, 0));
    assert_eq!(sample(DAY_MS, 20), None, "a day");
    assert_eq!(forward(DAY_MS), None);
    // Measured from before the step, not from the start of the clock.
    assert_eq!(sample(3 * DAY_MS, 40), Some(ClockStep::FarForward(2 * DAY_MS * NS_PER_MS)));
    assert_eq!(forward(3 * DAY_MS), Some(ForwardSteps { steps: 1, by_ns: 2 * DAY_MS * NS_PER_MS }));
    assert_eq!(sample(3 * DAY_MS, 60), None, "once");
    assert_eq!(sample(5 * DAY_MS, 80), Some(ClockStep::FarForward(2 * DAY_MS * NS_PER_MS)));
    assert_eq!(forward(5 * DAY_MS), Some(ForwardSteps { steps: 2, by_ns: 4 * DAY_MS * NS_PER_MS }));
    // Partly taken back: still shown.
    assert!(matches!(sample(4 * DAY_MS, 100), Some(ClockStep::Back(_))));
    assert_eq!(forward(4 * DAY_MS), Some(ForwardSteps { steps: 2, by_ns: 3 * DAY_MS * NS_PER_MS }));
    // Taken back: not shown before the next sample, nor after it.
    assert_eq!(forward(2 * DAY_MS), None);
    assert!(matches!(sample(2 * DAY_MS, 120), Some(ClockStep::Back(_))));
    assert_eq!(sample(3 * DAY_MS, 140), None);
    assert_eq!(forward(3 * DAY_MS), None);
    // Acknowledged.
    assert!(matches!(sample(9 * DAY_MS, 160), Some(ClockStep::FarForward(_))));
    assert_eq!(forward(9 * DAY_MS), Some(ForwardSteps { steps: 1, by_ns: 6 * DAY_MS * NS_PER_MS }));
    clock.reset_steps();
    assert_eq!(forward(9 * DAY_MS), None);
}

#[test]
fn sample_is_due_when_the_wall_clock_moves_either_way() {
    let clock = EffectiveClock::new(reading(NOW_MS, 0));
    assert!(!clock.is_stale(NOW_MS));
    assert!(!clock.is_stale(NOW_MS + SAMPLE_EVERY_MS));
    assert!(clock.is_stale(NOW_MS + SAMPLE_EVERY_MS + 1));
    assert!(clock.is_stale(NOW_MS - 1));
    assert!(clock.is_stale(i64::MIN) && clock.is_stale(i64::MAX));
}

#[test]
fn effective_clock_continues_from_a_floor_ahead_of_it() {
    let clock = EffectiveClock::new(reading(NOW_MS, 0));
    clock.raise(NOW_MS + 5000, reading(NOW_MS, 0));
    assert_eq!(clock.now_ms(reading(NOW_MS, 0)), NOW_MS + 5000);
    assert_eq!(clock.now_ms(reading(NOW_MS + 100, 100)), NOW_MS + 5100);
    clock.raise(NOW_MS, reading(NOW_MS + 100, 100));
    assert_eq!(clock.now_ms(reading(NOW_MS + 100, 100)), NOW_MS + 5100, "it is only raised");
}

#[test]
fn unknown_mark_is_before_every_time_and_a_known_one_never_moves_back() {
    let mark = Mark::unknown();
    assert!(!mark.is_known());
    assert!(mark.mark_ms() < 0 && mark.due_ms() < 0);
    let target = Target::past(NOW_MS + DRIFT_MS, WINDOW_MS);
    mark.publish(target);
    assert_eq!((mark.mark_ms(), mark.due_ms()), (NOW_MS + 5500, NOW_MS + 4000));
    mark.publish(Target::past(NOW_MS, 0));
    assert_eq!(mark.mark_ms(), NOW_MS + 5500);
}

/// W1: whichever is published last, the early ceiling is never past the lease end.
#[test]
fn early_ceiling_is_the_due_time_or_the_lease_end_whichever_is_earlier() {
    let mark = Mark::unknown();
    let far = Target { mark_ms: NOW_MS + 5500, due_ms: NOW_MS + 4000 };
    mark.set_lease_end(NOW_MS + 1000);
    assert_eq!((mark.early_ceiling_ms(), mark.is_known()), (UNKNOWN, false), "a lease alone allows no ids");
    mark.publish(far);
    assert_eq!((mark.early_ceiling_ms(), mark.lease_end_ms()), (NOW_MS + 1000, NOW_MS + 1000));
    mark.set_lease_end(NOW_MS + 9000);
    assert_eq!(mark.early_ceiling_ms(), NOW_MS + 4000);
    mark.set_lease_end(i64::MIN);
    assert_eq!(mark.early_ceiling_ms(), i64::MIN, "without a worker id there are no ids");
    mark.publish(Target { mark_ms: NOW_MS + 9000, due_ms: NOW_MS + 9000 });
    assert_eq!(mark.early_ceiling_ms(), i64::MIN);
}

#[test]
fn obstacle_is_the_half_of_the_ceiling_that_was_seen() {
    let mark = Mark::unknown();
    mark.publish(Target { mark_ms: NOW_MS, due_ms: NOW_MS });
    assert_eq!(mark.obstacle(NOW_MS, NOW_MS + 5), Obstacle::Mark { reserve_ms: NOW_MS + 5 });
    mark.set_lease_end(NOW_MS + 3);
    assert_eq!(mark.obstacle(NOW_MS, NOW_MS + 5), Obstacle::Mark { reserve_ms: NOW_MS + 2 }, "up to the lease end");
    // The ceiling moves after it was read.
    mark.publish(Target { mark_ms: NOW_MS + 10, due_ms: NOW_MS + 10 });
    assert_eq!(mark.obstacle(NOW_MS, NOW_MS + 1), Obstacle::Gone);
    let seen_ms = mark.ceiling_ms();
    assert_eq!(mark.obstacle(seen_ms, NOW_MS + 5), Obstacle::LeaseEnd);
    mark.set_lease_end(i64::MAX);
    assert_eq!(mark.obstacle(seen_ms, NOW_MS + 5), Obstacle::Gone);
    assert_eq!(mark.obstacle(mark.ceiling_ms(), NOW_MS + 20), Obstacle::Mark { reserve_ms: NOW_MS + 20 });
}

#[test]
fn mark_moves_at_most_once_a_window() {
    let mut moves = 0;
    let mut target = Target::past(NOW_MS + DRIFT_MS, WINDOW_MS);
    for ms in 0..60_000 {
        // Ids at the full rate are ahead of the clock by the drift.
        if NOW_MS + ms + DRIFT_MS >= target.due_ms {
            target = Target::past(NOW_MS + ms + DRIFT_MS, WINDOW_MS);
            moves += 1;
        }
    }
    assert!(moves <= 60_000 / WINDOW_MS, "{moves}");
}

fn record(turn: u64, mark_ms: i64) -> Record {
    let layout = Layout::parse("snowflake").unwrap().to_string();
    Record { turn, mark_ms, system_identifier: 7_400_000_000_000_000_001, in_recovery: false, layout }
}

/// A file with these records, written in turn.
fn file(records: &[Record]) -> Vec<u8> {
    let mut bytes = vec![0; FILE];
    records.iter().for_each(|record| put(&mut bytes, record));
    bytes
}

fn put(bytes: &mut [u8], record: &Record) {
    for at in record.offsets() {
        bytes[at as usize..][..record::RECORD].copy_from_slice(&record.encode());
    }
}

/// Damages both copies of a record.
fn damage(bytes: &mut [u8], record: &Record) {
    record.offsets().into_iter().for_each(|at| bytes[at as usize] ^= 1);
}

#[test]
fn newest_record_of_the_file_counts() {
    let found = Record::newest(&file(&[record(1, NOW_MS)])).unwrap();
    assert_eq!((found.record, found.other_is_damaged), (record(1, NOW_MS), false));
    let found = Record::newest(&file(&[record(1, NOW_MS), record(2, NOW_MS + 1)])).unwrap();
    assert_eq!((found.record, found.other_is_damaged), (record(2, NOW_MS + 1), false));
    // The turn decides, not the mark: a clean shutdown may write a lower one.
    let found = Record::newest(&file(&[record(4, NOW_MS + 9), record(5, NOW_MS)])).unwrap();
    assert_eq!(found.record, record(5, NOW_MS));
    for none in [vec![], vec![0; FILE], vec![0xff; FILE], file(&[record(1, NOW_MS)])[1..].to_vec()] {
        assert_eq!(Record::newest(&none), None);
    }
}

/// As release 0.2.0 wrote it, without the byte for "in recovery".
#[test]
fn record_of_the_first_format_is_read() {
    let mut body = b"idgenclk".to_vec();
    body.extend(1u32.to_le_bytes());
    body.extend(7u64.to_le_bytes());
    body.extend(NOW_MS.to_le_bytes());
    body.extend(42u64.to_le_bytes());
    body.extend(9u16.to_le_bytes());
    body.extend(b"snowflake");
    body.resize(record::RECORD - 32, 0);
    let checksum = Sha256::digest(&body);
    body.extend(checksum);
    let layout = "snowflake".to_owned();
    let expected = Record { turn: 7, mark_ms: NOW_MS, system_identifier: 42, in_recovery: false, layout };
    assert_eq!(Record::decode(&body), Some(expected));
}

#[test]
fn longest_layout_fits_a_record() {
    let spec = "time:20 datacenter:11 worker:11 tag:10=1023 sequence:11 unit:999ms epoch:2026-12-31T23:59:59.999Z";
    let layout = Layout::parse(spec).unwrap().to_string();
    let record = Record { layout, ..record(1, NOW_MS) };
    assert_eq!(Record::decode(&record.encode()), Some(record));
}

proptest! {
    #[test]
    fn record_reads_back(
        turn in any::<u64>(), mark_ms in any::<i64>(), system_identifier in any::<u64>(), in_recovery in any::<bool>(),
        layout in "[ -~]{0,300}",
    ) {
        let record = Record { turn, mark_ms, system_identifier, in_recovery, layout };
        prop_assert_eq!(Record::decode(&record.encode()), Some(record));
    }

    /// Damage to one copy of the newer record does no harm. Damage to both leaves the older record, and is reported.
    #[test]
    fn damage_to_the_newer_record_leaves_the_older(
        turn in 2u64..100, at in 0..record::RECORD, bit in 0u8..8, cut in any::<bool>(),
    ) {
        let (older, newer) = (record(turn, NOW_MS), record(turn + 1, NOW_MS + 1));
        let mut bytes = file(&[older.clone(), newer.clone()]);
        for (copy, offset) in newer.offsets().into_iter().enumerate() {
            let found = Record::newest(&bytes).unwrap();
            prop_assert_eq!((&found.record, found.other_is_damaged), (&newer, false), "{} copies damaged", copy);
            let bytes = &mut bytes[offset as usize..][..record::RECORD];
            match cut {
                // A torn write: the end has other bytes, surely others, as the checksum may end with any.
                true => bytes[at..].iter_mut().for_each(|byte| *byte = !*byte),
                false => bytes[at] ^= 1u8 << bit,
            }
        }
        let found = Record::newest(&bytes).unwrap();
        prop_assert_eq!(found.record, older);
        prop_assert!(found.other_is_damaged);
    }

    #[test]
    fn arbitrary_bytes_are_no_record(bytes in prop::collection::vec(any::<u8>(), 0..FILE + 9)) {
        prop_assert_eq!(Record::newest(&bytes), None);
    }
}

#[test]
fn floor_is_the_mark_whatever_the_clock_shows() {
    let found = Record::newest(&file(&[record(1, NOW_MS + 5500)])).unwrap();
    assert_eq!(evidence(NOW_MS).floor_ms(Some(&found)), NOW_MS + 5500);
    // However far back the clock is. And a mark in the past does not make ids begin later.
    assert_eq!(evidence(NOW_MS - 3_600_000).floor_ms(Some(&found)), NOW_MS + 5500);
    assert_eq!(evidence(NOW_MS + 3_600_000).floor_ms(Some(&found)), NOW_MS + 5500);
}

#[test]
fn floor_of_a_first_start_is_past_the_clock_and_the_last_checkpoint() {
    assert_eq!(evidence(NOW_MS).floor_ms(None), NOW_MS + 1);
    let behind = Evidence { checkpoint_ms: NOW_MS, ..evidence(NOW_MS - 3_600_000) };
    assert_eq!(behind.floor_ms(None), NOW_MS + 1);
}

#[test]
fn floor_allows_for_a_damaged_record_having_been_newer() {
    let mut bytes = file(&[record(6, NOW_MS - 600_000), record(7, NOW_MS + 5500)]);
    for turn in [7, 6] {
        damage(&mut bytes, &record(turn, 0));
        let found = Record::newest(&bytes).unwrap();
        assert!(evidence(NOW_MS).floor_ms(Some(&found)) >= NOW_MS + 5500);
        damage(&mut bytes, &record(turn, 0));
    }
}

/// After a promotion the clock may be behind the old primary's. So may the mark, which came with the base backup.
#[test]
fn floor_after_recovery_is_past_what_the_old_primary_wrote() {
    let found = Record::newest(&file(&[record(1, NOW_MS - 86_400_000)])).unwrap();
    let behind = Evidence { recovered: true, checkpoint_ms: NOW_MS - 60_000, ..evidence(NOW_MS - 5000) };
    let past_ms = AHEAD_MS + 10_000;
    let replayed = Evidence { replayed_ms: Some(NOW_MS), ..behind };
    assert_eq!(replayed.floor_ms(Some(&found)), NOW_MS + past_ms);
    let prepared = Evidence { prepared_ms: Some(NOW_MS - 1), ..behind };
    assert_eq!(prepared.floor_ms(Some(&found)), NOW_MS - 1 + past_ms);
    assert_eq!(behind.floor_ms(Some(&found)), NOW_MS - 60_000 + past_ms);
    assert_eq!(replayed.floor_ms(None), NOW_MS + past_ms);
    // Without recovery these times are this server's own, and the mark covers them.
    assert_eq!(Evidence { recovered: false, ..replayed }.floor_ms(Some(&found)), NOW_MS - 86_400_000);
}

/// A standby's file is never far behind what it has replayed, and is not written for each commit.
#[test]
fn mark_follows_what_is_replayed() {
    let at = |replayed_ms| Evidence { recovered: true, replayed_ms, ..evidence(NOW_MS) };
    let past_ms = AHEAD_MS + 10_000;
    assert_eq!(at(None).followed_ms(None), None, "nothing was replayed");
    assert_eq!(at(Some(NOW_MS)).followed_ms(None), Some(NOW_MS + past_ms));
    let mark_ms = Some(NOW_MS + past_ms);
    assert_eq!(at(Some(NOW_MS + 5000)).followed_ms(mark_ms), None);
    assert_eq!(at(Some(NOW_MS + 5001)).followed_ms(mark_ms), Some(NOW_MS + 5001 + past_ms));
    assert_eq!(at(Some(NOW_MS - 1)).followed_ms(mark_ms), None, "it never moves back");
}

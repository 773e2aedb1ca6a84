use super::mark::UNKNOWN;
use super::record::{FILE, RECORD, Record};
use super::start::Evidence;
use super::*;
use crate::layout::Layout;
use proptest::prelude::*;
use sha2::{Digest, Sha256};

mod label;
mod labelling;
mod moves;
mod port;
mod promotion;
mod start;
mod walk;

/// 2026-01-01.
const NOW_MS: i64 = 1_767_225_600_000;
const DRIFT_MS: i64 = 1000;
const WINDOW_MS: i64 = 3000;
/// How far ids are ahead of the clock, at most, after one crash.
const AHEAD_MS: i64 = DRIFT_MS + WINDOW_MS + WINDOW_MS / 2;

/// The life of the data, and one that follows other WAL.
const OWN: &str = "0000000000000001";
const REPLAYED: &str = "0000000000000002r";

fn reading(wall_ms: i64, boot_ms: i64) -> Reading {
    Reading { wall_us: wall_ms * US_PER_MS, boot_us: boot_ms * US_PER_MS }
}

fn evidence(wall_ms: i64) -> Evidence<'static> {
    Evidence {
        wall_ms,
        life: OWN,
        is_promoted: false,
        label_ms: None,
        checkpoint_ms: wall_ms - 60_000,
        replayed_ms: None,
        prepared_ms: None,
        drift_ms: DRIFT_MS,
        window_ms: WINDOW_MS,
    }
}

#[test]
fn clocks_of_linux_end_in_2262() {
    assert_eq!(crate::layout::time_text(LATEST_MS), "2262-04-11T23:47:16.854Z");
}

#[test]
fn backward_step_is_returned_once_and_counted() {
    let clock = ClockSteps::new(reading(NOW_MS, 0));
    let sample = |wall_ms, boot_ms| clock.sample(|| Some(reading(wall_ms, boot_ms)));
    assert_eq!(sample(NOW_MS + 20, 20), None);
    assert_eq!(sample(NOW_MS + 35, 40), Some(ClockStep::Back(5 * US_PER_MS)));
    assert_eq!(sample(NOW_MS + 55, 60), None, "once");
    assert_eq!(sample(NOW_MS + 3_600_000, 80), None, "forward");
    assert_eq!(sample(NOW_MS + 100, 100), Some(ClockStep::Back(3_599_920 * US_PER_MS)));
    assert_eq!(clock.backward(), (2, 3_599_920 * US_PER_MS));
    // Less than a millisecond is noise.
    let noise = Reading { wall_us: (NOW_MS + 120) * US_PER_MS - 900, boot_us: 120 * US_PER_MS };
    assert_eq!(clock.sample(|| Some(noise)), None);
    clock.reset();
    assert_eq!(clock.backward(), (0, 0));
}

#[test]
fn step_forward_by_more_than_a_day_is_returned_once_and_shown_until_taken_back() {
    const DAY_MS: i64 = 86_400_000;
    let clock = ClockSteps::new(reading(NOW_MS, 0));
    let sample = |ahead_ms, boot_ms| clock.sample(|| Some(reading(NOW_MS + ahead_ms + boot_ms, boot_ms)));
    let forward = |ahead_ms| clock.far_forward(reading(NOW_MS + ahead_ms, 0));
    assert_eq!(sample(DAY_MS, 20), None, "a day");
    assert_eq!(forward(DAY_MS), None);
    // Measured from before the step, not from the start of the clock.
    assert_eq!(sample(3 * DAY_MS, 40), Some(ClockStep::FarForward(2 * DAY_MS * US_PER_MS)));
    assert_eq!(forward(3 * DAY_MS), Some((1, 2 * DAY_MS * US_PER_MS)));
    assert_eq!(sample(3 * DAY_MS, 60), None, "once");
    assert_eq!(sample(5 * DAY_MS, 80), Some(ClockStep::FarForward(2 * DAY_MS * US_PER_MS)));
    assert_eq!(forward(5 * DAY_MS), Some((2, 4 * DAY_MS * US_PER_MS)));
    // Partly taken back: still shown.
    assert!(matches!(sample(4 * DAY_MS, 100), Some(ClockStep::Back(_))));
    assert_eq!(forward(4 * DAY_MS), Some((2, 3 * DAY_MS * US_PER_MS)));
    // Taken back: not shown before the next sample, nor after it.
    assert_eq!(forward(2 * DAY_MS), None);
    assert!(matches!(sample(2 * DAY_MS, 120), Some(ClockStep::Back(_))));
    assert_eq!(sample(3 * DAY_MS, 140), None);
    assert_eq!(forward(3 * DAY_MS), None);
    // Acknowledged.
    assert!(matches!(sample(9 * DAY_MS, 160), Some(ClockStep::FarForward(_))));
    assert_eq!(forward(9 * DAY_MS), Some((1, 6 * DAY_MS * US_PER_MS)));
    clock.reset();
    assert_eq!(forward(9 * DAY_MS), None);
}

#[test]
fn sample_is_due_when_the_wall_clock_moves_either_way() {
    let clock = ClockSteps::new(reading(NOW_MS, 0));
    assert!(!clock.is_stale(NOW_MS));
    assert!(!clock.is_stale(NOW_MS + 10));
    assert!(clock.is_stale(NOW_MS + 11));
    assert!(clock.is_stale(NOW_MS - 1));
    assert!(clock.is_stale(i64::MIN) && clock.is_stale(i64::MAX));
}

#[test]
fn unknown_mark_is_before_every_time_and_a_known_one_never_moves_back() {
    let mark = Mark::unknown();
    assert!(mark.known_ms().is_none());
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
    assert_eq!((mark.early_ceiling_ms(), mark.known_ms().is_some()), (UNKNOWN, false), "a lease alone allows no ids");
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

/// A record that allows one label past its mark.
fn record(turn: u64, mark_ms: i64) -> Record {
    let layout = Layout::parse("snowflake").unwrap().to_string();
    let system_identifier = 7_400_000_000_000_000_001;
    Record { turn, mark_ms, system_identifier, life: Some(OWN.to_owned()), latest_label_ms: mark_ms + AHEAD_MS, layout }
}

/// A file with these records, written in turn.
fn file(records: &[Record]) -> Vec<u8> {
    let mut bytes = vec![0; FILE];
    records.iter().for_each(|record| put(&mut bytes, record));
    bytes
}

fn put(bytes: &mut [u8], record: &Record) {
    for at in record.offsets() {
        bytes[at as usize..][..RECORD].copy_from_slice(&record.encode());
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

/// As releases 0.14.0 and 0.19.0 wrote it: without the latest label, and with a byte for "in recovery".
#[test]
fn records_of_earlier_formats_are_read() {
    for (version, in_recovery) in [(2u32, 0), (2, 1), (3, 0), (3, 1)] {
        let mut body = b"idgenclk".to_vec();
        body.extend(version.to_le_bytes());
        body.extend(7u64.to_le_bytes());
        body.extend(NOW_MS.to_le_bytes());
        body.extend(42u64.to_le_bytes());
        body.push(in_recovery);
        body.extend((version == 3).then_some(NOW_MS.to_le_bytes()).into_iter().flatten());
        body.extend(9u16.to_le_bytes());
        body.extend(b"snowflake");
        body.resize(RECORD - 32, 0);
        let checksum = Sha256::digest(&body);
        body.extend(checksum);
        let record = Record {
            turn: 7,
            mark_ms: NOW_MS,
            system_identifier: 42,
            life: (in_recovery == 1).then(String::new),
            latest_label_ms: if version == 2 { i64::MAX } else { NOW_MS },
            layout: "snowflake".to_owned(),
        };
        let continues = [OWN, REPLAYED, ""].map(|life| record.continues_in(life));
        assert_eq!(continues, [in_recovery == 0, false, false], "version {version}");
        assert_eq!(Record::decode(&body), Some(record), "version {version}");
    }
}

#[test]
fn longest_layout_fits_a_record() {
    let spec = "time:20 datacenter:11 worker:11 tag:10=1023 sequence:11 unit:999ms epoch:2026-12-31T23:59:59.999Z";
    let layout = Layout::parse(spec).unwrap().to_string();
    let record = Record { layout, ..record(1, NOW_MS) };
    assert_eq!(Record::decode(&record.encode()), Some(record));
}

#[test]
fn texts_that_are_too_long_are_cut_at_the_end_of_the_record() {
    let long = Record { life: Some("r".repeat(40)), layout: "l".repeat(RECORD), ..record(1, NOW_MS) };
    let cut = Record { life: Some("r".repeat(32)), layout: "l".repeat(401), ..long.clone() };
    assert_eq!(Record::decode(&long.encode()), Some(cut));
}

/// As files of earlier releases have them.
#[test]
fn each_copy_of_a_record_has_a_block_of_its_own() {
    assert_eq!([1, 2, 3].map(|turn| record(turn, 0).offsets()), [[0, 4096], [8192, 12288], [0, 4096]]);
    assert_eq!(FILE, 12288 + 512);
}

proptest! {
    #[test]
    fn record_reads_back(
        turn in any::<u64>(), mark_ms in any::<i64>(), system_identifier in any::<u64>(), life in "[0-9a-f]{16}r?",
        latest_label_ms in any::<i64>(), layout in "[ -~]{0,300}",
    ) {
        let record = Record { turn, mark_ms, system_identifier, life: Some(life), latest_label_ms, layout };
        prop_assert_eq!(Record::decode(&record.encode()), Some(record));
    }

    /// Damage to one copy of the newer record does no harm. Damage to both leaves the older record, and is reported.
    #[test]
    fn damage_to_the_newer_record_leaves_the_older(
        turn in 2u64..100, at in 0..RECORD, bit in 0u8..8, cut in any::<bool>(),
    ) {
        let (older, newer) = (record(turn, NOW_MS), record(turn + 1, NOW_MS + 1));
        let mut bytes = file(&[older.clone(), newer.clone()]);
        for (copy, offset) in newer.offsets().into_iter().enumerate() {
            let found = Record::newest(&bytes).unwrap();
            prop_assert_eq!((&found.record, found.other_is_damaged), (&newer, false), "{} copies damaged", copy);
            let bytes = &mut bytes[offset as usize..][..RECORD];
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

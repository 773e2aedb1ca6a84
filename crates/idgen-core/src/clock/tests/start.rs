//! The floor of a server that starts, by what its file and its data tell.

use super::*;
use crate::clock::record::Found;

fn found(records: &[Record]) -> Found {
    Record::newest(&file(records)).unwrap()
}

#[test]
fn floor_is_the_mark_whatever_the_clock_shows() {
    let found = found(&[record(1, NOW_MS + 5500)]);
    for wall_ms in [NOW_MS, NOW_MS - 3_600_000, NOW_MS + 3_600_000] {
        assert_eq!(evidence(wall_ms).floor_ms(Some(&found)), NOW_MS + 5500);
    }
}

#[test]
fn file_that_allows_the_label_is_not_older_than_the_data() {
    let found = found(&[record(1, NOW_MS + 5500)]);
    let labelled = Evidence { label_ms: Some(found.record.latest_label_ms), ..evidence(NOW_MS) };
    assert_eq!(labelled.floor_ms(Some(&found)), NOW_MS + 5500);
}

/// The clock may be wrong until the first id is issued, which is not before it anyway.
#[test]
fn floor_of_a_first_start_is_past_the_last_checkpoint_whatever_the_clock_shows() {
    for wall_ms in [NOW_MS - 3_600_000, NOW_MS + 3_600_000] {
        assert_eq!(Evidence { checkpoint_ms: NOW_MS, ..evidence(wall_ms) }.floor_ms(None), NOW_MS + 1);
    }
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

#[test]
fn floor_is_past_the_label_if_a_record_is_lost() {
    let mut bytes = file(&[record(6, NOW_MS - 600_000), record(7, NOW_MS + 100_000)]);
    damage(&mut bytes, &record(7, 0));
    let found = Record::newest(&bytes).unwrap();
    let labelled = Evidence { label_ms: Some(NOW_MS + 100_000), ..evidence(NOW_MS) };
    assert!(labelled.floor_ms(Some(&found)) >= NOW_MS + 100_000);
}

/// The server was ahead of its clock after a crash, so the newer record moved the mark on from the older one's.
#[test]
fn floor_allows_for_one_more_move_in_a_lost_record() {
    for window_ms in [100, 3000, 60_000] {
        let older_ms = Target::past(NOW_MS + DRIFT_MS, window_ms).mark_ms;
        let newer_ms = Target::past(older_ms, window_ms).mark_ms;
        let mut bytes = file(&[record(1, older_ms), record(2, newer_ms)]);
        damage(&mut bytes, &record(2, 0));
        let found = Record::newest(&bytes).unwrap();
        let floor_ms = Evidence { window_ms, ..evidence(NOW_MS) }.floor_ms(Some(&found));
        assert!(floor_ms >= newer_ms, "window {window_ms} ms: {} ms below", newer_ms - floor_ms);
    }
}

#[test]
fn floor_of_replayed_data_is_past_the_label_and_the_next_one_that_may_be_lost() {
    let replayed = Evidence { life: REPLAYED, label_ms: Some(NOW_MS + 100_000), ..evidence(NOW_MS) };
    assert_eq!(replayed.floor_ms(None), NOW_MS + 100_000 + AHEAD_MS);
    // A mark further ahead is not lowered.
    let later = found(&[record(1, NOW_MS + 900_000)]);
    assert_eq!(replayed.floor_ms(Some(&later)), NOW_MS + 900_000);
    // An earlier release has noted a recovery in the file.
    let noted = found(&[Record { life: Some(String::new()), latest_label_ms: i64::MAX, ..record(1, NOW_MS) }]);
    assert_eq!(Evidence { life: OWN, ..replayed }.floor_ms(Some(&noted)), NOW_MS + 100_000 + AHEAD_MS);
    // A server whose file is its own and newer than the data relies on it.
    let own = found(&[record(1, NOW_MS + 99_000)]);
    assert_eq!(Evidence { life: OWN, ..replayed }.floor_ms(Some(&own)), NOW_MS + 99_000);
}

/// The file was restored from an older copy, or its directory removed: the data is the same server's.
#[test]
fn label_that_the_file_does_not_allow_wins() {
    let labelled = Evidence { label_ms: Some(NOW_MS + 100_000), ..evidence(NOW_MS) };
    let older = found(&[record(1, NOW_MS)]);
    assert_eq!(labelled.floor_ms(Some(&older)), NOW_MS + 100_000 + AHEAD_MS);
    assert_eq!(labelled.floor_ms(None), NOW_MS + 100_000 + AHEAD_MS);
    // An older release has not written down what it allows.
    let unknown = found(&[Record { latest_label_ms: i64::MAX, ..record(1, NOW_MS) }]);
    assert_eq!(labelled.floor_ms(Some(&unknown)), NOW_MS);
}

/// S3: a clock that was a year ahead while no id was issued leaves nothing behind, neither here nor on a standby.
#[test]
fn times_of_commits_count_only_without_a_label() {
    let year_ms = 365 * 86_400_000;
    let replayed = Evidence {
        life: REPLAYED,
        checkpoint_ms: NOW_MS + year_ms,
        replayed_ms: Some(NOW_MS + year_ms),
        prepared_ms: Some(NOW_MS + year_ms),
        ..evidence(NOW_MS)
    };
    let mark = found(&[record(1, NOW_MS - 86_400_000)]);
    for file in [None, Some(&mark)] {
        let labelled = Evidence { label_ms: Some(NOW_MS), ..replayed };
        assert_eq!(labelled.floor_ms(file), NOW_MS + AHEAD_MS);
        assert_eq!(replayed.floor_ms(file), NOW_MS + year_ms + AHEAD_MS + 10_000);
    }
    // Without a number nothing shows whose data they are.
    let unknown = Evidence { life: "", ..replayed };
    for file in [None, Some(&mark)] {
        assert_eq!(unknown.floor_ms(file), NOW_MS + year_ms + AHEAD_MS + 10_000);
    }
    // Without recovery these times are this server's own, and the mark covers them.
    assert_eq!(Evidence { life: OWN, ..replayed }.floor_ms(Some(&mark)), NOW_MS - 86_400_000);
}

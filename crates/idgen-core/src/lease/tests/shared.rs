use super::*;

fn shared(index: i32, ends_us: i64) -> Term {
    held(FIRST_SHARED + index, ends_us)
}

#[test]
fn slot_waits_for_the_latest_shared_term() {
    let readers = [shared(0, NOW.now_us + 3), shared(1, NOW.now_us + 5), shared(7, NOW.now_us - 1)];
    assert_eq!(decide(&readers, &LOCK, NOW), Decision::Wait { until_us: Some(NOW.now_us + 5) });
    // A slot that is free does not matter, nor how many there are.
    let beside = [free(0, 1), shared(0, NOW.now_us + 3)];
    for slots in [1, 2] {
        let definition = LeaseDefinition { slots, ..LOCK };
        assert_eq!(decide(&beside, &definition, NOW), Decision::Wait { until_us: Some(NOW.now_us + 3) });
    }
    let bound = Term { session: Session::Lives, ..shared(1, 0) };
    assert_eq!(decide(&[readers[0], bound], &LOCK, NOW), Decision::Wait { until_us: None });
    assert_eq!(decide(&[bound, readers[0]], &LOCK, NOW), Decision::Wait { until_us: None });
}

#[test]
fn slot_is_granted_once_all_shared_terms_are_over() {
    let over = [shared(0, NOW.now_us), Term { depth: 0, ..shared(1, NOW.now_us) }];
    assert_eq!(decide(&over, &LOCK, NOW), Decision::Make { slot: 0 });
    assert_eq!(decide(&[over[0], over[1], free(0, 1)], &LOCK, NOW), take(&[0], true));
    // An expired or revoked one after the lock delay, a released one at once.
    let delayed = LeaseDefinition { lock_delay_us: 5, ..LOCK };
    assert_eq!(decide(&over, &delayed, NOW), Decision::Wait { until_us: Some(NOW.now_us + 5) });
    let revoked = Term { revoked: true, ..over[1] };
    assert_eq!(decide(&[revoked], &delayed, NOW), Decision::Wait { until_us: Some(NOW.now_us + 5) });
    assert_eq!(decide(&over[1..], &delayed, NOW), Decision::Make { slot: 0 });
}

/// Their holders may have fenced, even if they have released.
#[test]
fn all_shared_terms_end_before_a_slot_is_granted() {
    let readers = [Term { depth: 0, ..shared(2, 1) }, shared(1, NOW.now_us), shared(0, 2)];
    let numbers = [FIRST_SHARED, FIRST_SHARED + 1, FIRST_SHARED + 2];
    for slots in [1, 5, MAX_SLOTS] {
        let definition = LeaseDefinition { slots, ..LOCK };
        assert_eq!(ends_before(&readers, &definition, 0, NOW), numbers);
    }
    // They take no room of slots, whose expired terms end too if there is none.
    let two = LeaseDefinition { slots: 2, ..LOCK };
    let beside = [readers[1], held(0, NOW.now_us - 1), free(1, 1)];
    assert_eq!(ends_before(&beside, &two, 1, NOW), [FIRST_SHARED + 1]);
    assert_eq!(ends_before(&beside, &LOCK, 1, NOW), [0, FIRST_SHARED + 1]);
}

#[test]
fn shared_term_begins_once_all_slots_are_free() {
    let begins_after = |terms: &[Term], ends: &[i32]| {
        assert_eq!(decide_shared(terms, &LOCK, NOW), Decision::Share);
        assert_eq!(ends_before(terms, &LOCK, FIRST_SHARED, NOW), ends);
    };
    begins_after(&[], &[]);
    begins_after(&[free(0, 1)], &[0]);
    begins_after(&[held(0, NOW.now_us), free(3, 1)], &[0, 3]);
    let until = |until_us| Decision::Wait { until_us };
    let two = [held(0, NOW.now_us + 1), held(3, NOW.now_us + 2), free(4, 1)];
    assert_eq!(decide_shared(&two, &LOCK, NOW), until(Some(NOW.now_us + 2)));
    assert_eq!(decide_shared(&[Term { session: Session::Lives, ..two[0] }, two[1]], &LOCK, NOW), until(None));
    let delayed = LeaseDefinition { lock_delay_us: 5, ..LOCK };
    assert_eq!(decide_shared(&[held(0, NOW.now_us)], &delayed, NOW), until(Some(NOW.now_us + 5)));
    assert_eq!(decide_shared(&[free(0, NOW.now_us)], &delayed, NOW), Decision::Share);
}

#[test]
fn only_terms_above_the_slots_are_shared() {
    assert!(shared(0, 0).is_shared() && held(i32::MAX, 0).is_shared());
    assert!(!held(0, 0).is_shared() && !held(MAX_SLOTS - 1, 0).is_shared());
}

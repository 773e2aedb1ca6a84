//! The order of effects. What they lead to over crashes and races is a matter of the simulator.

use super::*;
use std::cell::{Cell, RefCell};

/// A row that others can change while the caller waits for its lock.
struct Row {
    held: Cell<HeldRow>,
    now_us: Cell<i64>,
    /// How long a wait for the lock takes.
    wait_us: i64,
    is_fenced: bool,
    has_locked: bool,
    slot: Option<i32>,
    log: RefCell<Vec<&'static str>>,
}

impl Row {
    fn of(token: i64, depth: i32) -> Self {
        let held = HeldRow { token, depth, ttl_us: 100 };
        let (held, now_us, log) = (Cell::new(held), Cell::new(1000), RefCell::default());
        Self { held, now_us, wait_us: 0, is_fenced: false, has_locked: false, slot: Some(7), log }
    }

    fn did(&self, effect: &'static str) {
        self.log.borrow_mut().push(effect);
    }
}

impl TermRow for Row {
    type Found = Change;

    fn now_us(&self) -> i64 {
        self.now_us.get()
    }

    fn update(&self, change: impl Fn(&HeldRow) -> Option<Change>) -> Option<Change> {
        self.now_us.set(self.now_us.get() + self.wait_us);
        self.did("update");
        change(&self.held.get())
    }

    fn delete_or_update(
        &self,
        is_over: impl Fn(&HeldRow) -> bool,
        change: impl Fn(&HeldRow) -> Option<Change>,
    ) -> Option<Change> {
        let is_deleted = !self.is_fenced && is_over(&self.held.get());
        is_deleted.then_some(Change::Release { depth: 0 }).or_else(|| self.update(change))
    }

    fn survive_failover(&self) {
        self.did("survive failover");
    }

    fn slot(&self) -> Option<i32> {
        self.slot
    }

    fn has_locked(&self) -> bool {
        self.has_locked
    }

    fn yield_to_take_over(&self, slot: i32) {
        assert_eq!(slot, 7);
        self.did("yield");
    }

    fn share(&self, is_wanted: impl Fn(&HeldRow) -> bool) -> Option<i32> {
        self.did("share");
        is_wanted(&self.held.get()).then_some(7)
    }
}

#[test]
fn renewal_counts_from_when_the_row_is_locked_and_is_durable() {
    let row = Row { wait_us: 500, ..Row::of(1, 1) };
    assert_eq!(extend(&row, 1, None, 0), Some(Change::Extend { depth: 1, ttl_us: 100, ends_us: 1600 }));
    assert_eq!(extend(&row, 1, Some(20), 0), Some(Change::Extend { depth: 1, ttl_us: 20, ends_us: 2020 }));
    assert_eq!(*row.log.borrow(), ["update", "survive failover", "update", "survive failover"]);
}

#[test]
fn stale_token_changes_nothing_and_requires_nothing() {
    for row in [Row::of(2, 1), Row::of(1, 0)] {
        assert_eq!(extend(&row, 1, None, 0), None);
        assert_eq!(release(&row, 1), None);
        assert_eq!(fence(&row, 1), None);
        assert!(!row.log.borrow().contains(&"survive failover"));
    }
    assert_eq!(revoke(&Row::of(1, 0)), None);
}

/// Under another clock, its ttl alone decides how long it lasts.
#[test]
fn term_that_is_acquired_once_more_for_less_keeps_its_ttl_and_its_end() {
    let row = Row::of(1, 1);
    assert_eq!(extend(&row, 1, Some(20), 1), Some(Change::Extend { depth: 2, ttl_us: 100, ends_us: 1100 }));
    assert_eq!(extend(&row, 1, Some(200), 1), Some(Change::Extend { depth: 2, ttl_us: 200, ends_us: 1200 }));
}

#[test]
fn release_deletes_the_row_of_the_last_depth_unless_it_is_fenced() {
    let freed = Change::Free { since_us: 1000, revoked: false };
    assert_eq!(release(&Row::of(1, 1), 1), Some(Change::Release { depth: 0 }));
    assert_eq!(release(&Row { is_fenced: true, ..Row::of(1, 1) }, 1), Some(freed));
    assert_eq!(release(&Row::of(1, 3), 1), Some(Change::Release { depth: 2 }));
}

#[test]
fn fence_yields_to_a_take_over_unless_that_waits_for_its_transaction() {
    let row = Row::of(1, 1);
    assert_eq!(fence(&row, 1), Some(7));
    assert_eq!(*row.log.borrow(), ["yield", "share"]);
    let row = Row { has_locked: true, ..Row::of(1, 1) };
    assert_eq!(fence(&row, 1), Some(7));
    assert_eq!(*row.log.borrow(), ["share"]);
    // The row is gone.
    let row = Row { slot: None, ..Row::of(1, 1) };
    assert_eq!((fence(&row, 1), row.log.take()), (None, vec![]));
}

#[test]
fn revocation_counts_from_when_the_row_is_locked_and_is_durable() {
    let row = Row { wait_us: 500, ..Row::of(1, 2) };
    assert_eq!(revoke(&row), Some(Change::Free { since_us: 1500, revoked: true }));
    assert_eq!(*row.log.borrow(), ["update", "survive failover"]);
}

#[derive(Default)]
struct Tokens {
    has_raised: bool,
    log: Vec<String>,
}

impl TokenSequence for Tokens {
    fn has_raised(&self) -> bool {
        self.has_raised
    }

    fn locked<T>(&mut self, is_exclusive: bool, work: impl FnOnce(&mut Self) -> T) -> T {
        self.log.push(format!("lock {is_exclusive}"));
        let result = work(self);
        self.log.push(format!("unlock {is_exclusive}"));
        result
    }

    fn raise(&mut self) {
        self.has_raised = true;
        self.log.push("raise".to_owned());
    }

    fn next(&mut self) -> i64 {
        self.log.push("next".to_owned());
        7
    }
}

#[test]
fn process_raises_the_sequence_once_with_all_others_kept_out() {
    let mut tokens = Tokens::default();
    assert_eq!((draw(&mut tokens), draw(&mut tokens)), (7, 7));
    let draws = ["lock false", "next", "unlock false"];
    let expected = [&["lock true", "raise", "unlock true"][..], &draws, &draws].concat();
    assert_eq!(tokens.log, expected);
}

/// Rows, some of which others have locked.
struct Granting {
    locked: Vec<i32>,
    log: Vec<String>,
}

impl Granting {
    fn change(&mut self, what: &str, slot: i32) -> Option<()> {
        self.log.push(format!("{what} {slot}"));
        (!self.locked.contains(&slot)).then_some(())
    }
}

impl GrantRows for Granting {
    type Term = i32;

    fn refuse_older_snapshot(&mut self, slot: i32, ends: &[i32]) {
        self.log.push(format!("snapshot {slot} {ends:?}"));
    }

    fn undo_unless_begun<T>(&mut self, work: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let result = work(self);
        if result.is_none() {
            self.log.push("undo".to_owned());
        }
        result
    }

    fn free(&mut self, slot: i32) -> Option<()> {
        self.change("free", slot)
    }

    fn delete(&mut self, slot: i32) -> Option<()> {
        self.change("delete", slot)
    }

    fn take(&mut self, slot: i32) -> Option<i32> {
        self.change("take", slot).map(|()| slot)
    }

    fn insert(&mut self, slot: i32) -> Option<i32> {
        self.change("insert", slot).map(|()| slot)
    }

    fn announce_shared_grant(&mut self) {
        self.log.push("announce".to_owned());
    }

    fn shared_number(&mut self) -> i32 {
        FIRST_SHARED + 5
    }

    fn is_locked(&mut self, slot: i32) -> bool {
        self.locked.contains(&slot)
    }
}

type Tried = Option<Result<Granted<i32>, Obstacle>>;

fn attempt(terms: &[Term], definition: &LeaseDefinition, locked: &[i32], modes: (bool, bool)) -> (Tried, Vec<String>) {
    let mut rows = Granting { locked: locked.to_vec(), log: Vec::new() };
    let tried = grant(&mut rows, &lease(terms, definition, NOW), modes.0, modes.1);
    (tried, rows.log)
}

#[test]
fn first_slot_that_is_not_locked_is_taken_and_the_next_acquirer_is_admitted() {
    let two = LeaseDefinition { slots: 2, ..LOCK };
    let terms = [free(0, 5), free(1, 6)];
    let (tried, log) = attempt(&terms, &two, &[0], (false, false));
    assert_eq!(tried, Some(Ok(Granted { term: 1, admits_next: true })));
    assert_eq!(log, ["snapshot 0 []", "take 0", "snapshot 1 []", "take 1"]);
    let (tried, _) = attempt(&terms, &two, &[0, 1], (false, false));
    assert_eq!(tried, Some(Err(Obstacle::Locked { slots: vec![0], has_other_terms: false })));
    let (tried, _) = attempt(&[free(0, 5), held(1, i64::MAX)], &two, &[0], (false, false));
    assert_eq!(tried, Some(Err(Obstacle::Locked { slots: vec![0], has_other_terms: true })));
}

#[test]
fn new_row_waits_for_shared_terms_that_are_not_committed_and_admits_nobody() {
    assert_eq!(attempt(&[], &LOCK, &[], (false, false)).0, None);
    assert_eq!(attempt(&[held(0, i64::MAX)], &LOCK, &[], (false, false)).0, None);
    let (tried, log) = attempt(&[], &LOCK, &[], (false, true));
    assert_eq!(tried, Some(Ok(Granted { term: 0, admits_next: false })));
    assert_eq!(log, ["snapshot 0 []", "insert 0"]);
    // Another transaction has inserted it.
    assert_eq!(attempt(&[], &LOCK, &[0], (false, true)).0, Some(Err(Obstacle::Changed)));
    let until_us = Some(NOW.now_us + 1);
    let (tried, _) = attempt(&[held(0, NOW.now_us + 1)], &LOCK, &[], (false, true));
    assert_eq!(tried, Some(Err(Obstacle::NoSlot { until_us })));
}

#[test]
fn terms_that_must_end_do_so_before_the_new_one_or_all_is_undone() {
    let number = FIRST_SHARED + 5;
    let (tried, log) = attempt(&[held(0, 5)], &LOCK, &[], (true, false));
    assert_eq!(tried, Some(Ok(Granted { term: number, admits_next: true })));
    assert_eq!(log, [&*format!("snapshot {FIRST_SHARED} [0]"), "delete 0", "announce", &*format!("insert {number}")]);
    let (tried, log) = attempt(&[held(0, 5)], &LOCK, &[0], (true, false));
    assert_eq!(tried, Some(Err(Obstacle::Locked { slots: vec![0], has_other_terms: false })));
    assert_eq!(log[1..], ["delete 0", "undo"]);
    let (tried, _) = attempt(&[held(0, i64::MAX)], &LOCK, &[], (true, false));
    assert_eq!(tried, Some(Err(Obstacle::NoSlot { until_us: Some(i64::MAX) })), "whatever is not committed");
    // A slot of an earlier definition.
    let (tried, log) = attempt(&[free(0, 5), held(1, 5)], &LOCK, &[], (false, false));
    assert_eq!(tried, Some(Ok(Granted { term: 0, admits_next: false })));
    assert_eq!(log, ["snapshot 0 [1]", "free 1", "take 0"]);
    let (tried, _) = attempt(&[free(0, 5), held(1, 5)], &LOCK, &[1], (false, false));
    assert_eq!(tried, Some(Err(Obstacle::Locked { slots: vec![1], has_other_terms: false })));
    // A new row beside it. Of several slots, another one may become free sooner.
    let two = LeaseDefinition { slots: 2, ..LOCK };
    for (terms, definition, has_other_terms) in
        [(vec![held(5, 5)], &LOCK, false), (vec![held(5, 5), held(0, i64::MAX)], &two, true)]
    {
        let (tried, _) = attempt(&terms, definition, &[5], (false, true));
        assert_eq!(tried, Some(Err(Obstacle::Locked { slots: vec![5], has_other_terms })));
    }
}

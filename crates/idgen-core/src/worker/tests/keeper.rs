//! The keeper of a server, with a coordinator in memory.

use super::database::{Database, POOL};
use super::own::{Killed, Link, Own};
use crate::coordinator::{CoordinatorId, Place};
use crate::worker::by_hand::WorkerSetting;
use crate::worker::keeper::Keeper;
use crate::worker::lease::ServerLease;
use crate::worker::memory::{LastWorkerId, Memory, MemoryFile, RememberedLease, remember_pool};
use crate::worker::server::{ConfiguredPool, Interrupt};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

const TTL_US: i64 = 30_000_000;
const NEVER: usize = usize::MAX;

fn own() -> Own {
    let link = Link {
        database: Rc::new(RefCell::new(Database { now_us: 1_000_000_000, ..Database::new(2, TTL_US) })),
        until_lost: Rc::new(Cell::new(NEVER)),
        is_copied: Rc::default(),
        told: Rc::default(),
        certain: Rc::default(),
    };
    Own {
        link,
        until_killed: NEVER,
        memory: MemoryFile::Missing,
        shared: ServerLease::default(),
        setting: WorkerSetting { worker_id: 0, is_undecided: true, is_in_use: false, has_issued: false },
        issuing: None,
        used: HashMap::new(),
        failures: 0,
    }
}

fn pool() -> ConfiguredPool {
    ConfiguredPool { name: POOL.to_owned(), coordinator: c"".to_owned() }
}

/// A server that starts, with its file.
fn start(own: &mut Own) -> Keeper {
    (own.shared, own.issuing, own.until_killed) = (ServerLease::default(), None, NEVER);
    Keeper::new(ServerLease::default(), None)
}

/// Turns with a third of a ttl between them. The server starts again when it is killed.
fn run(own: &mut Own, keeper: &mut Keeper, turns: usize) {
    for _ in 0..turns {
        let turn = catch_unwind(AssertUnwindSafe(|| {
            keeper.follow(own, Some(pool()));
            keeper.turn(own);
        }));
        if let Err(cause) = turn {
            assert!(cause.is::<Killed>(), "a check has failed");
            *keeper = start(own);
        }
        own.draw();
        own.link.database.borrow_mut().now_us += TTL_US / 3;
        own.draw();
    }
}

#[test]
fn lease_is_used_only_when_remembered_and_confirmed_and_at_no_time_of_another_whatever_is_lost_or_killed() {
    for until_lost in 0..12 {
        for until_killed in (0..16).chain([NEVER]) {
            let mut own = own();
            let mut keeper = start(&mut own);
            own.link.until_lost.set(until_lost);
            own.until_killed = until_killed;
            run(&mut own, &mut keeper, 8);
            let (.., end_ms) = own.issuing.expect("a lease");
            assert!(end_ms * 1000 > own.link.database.borrow().now_us, "{until_lost} {until_killed}");
        }
    }
}

#[test]
fn end_that_only_another_process_with_the_token_was_told_is_not_used() {
    let mut own = own();
    own.link.is_copied.set(true);
    let mut keeper = start(&mut own);
    // `Own` compares each end.
    run(&mut own, &mut keeper, 4);
    assert_ne!(own.issuing, None);
}

#[test]
fn refusal_that_leaves_the_lease_as_it_is_loses_it_only_after_its_end() {
    let mut own = own();
    let mut keeper = start(&mut own);
    run(&mut own, &mut keeper, 1);
    let token = |own: &Own| own.issuing.map(|(_, token, ..)| token);
    let (first, place) = (token(&own), own.link.database.borrow().identity.place.clone());
    for (turns, is_same) in [(1, true), (4, false)] {
        // A copy of the coordinator, which refuses everything.
        own.link.database.borrow_mut().identity.place = Own::here();
        run(&mut own, &mut keeper, turns);
        own.link.database.borrow_mut().identity.place = place.clone();
        run(&mut own, &mut keeper, 1);
        assert_eq!(token(&own) == first, is_same);
    }
}

#[test]
fn server_that_stops_gives_back_all_times_that_it_has_not_used() {
    let mut own = own();
    let mut keeper = start(&mut own);
    run(&mut own, &mut keeper, 3);
    let last_ms = own.used.keys().map(|(_, time_ms)| *time_ms).max().expect("ids");
    keeper.give_back(&mut own, Interrupt::Never);
    assert_eq!(own.issuing, None);
    let (row, rectangle, _) = own.link.database.borrow_mut().row(0).clone();
    assert_eq!((row.token, rectangle.not_after_us), (None, (last_ms + 1) * 1000));
}

#[test]
fn server_that_starts_again_ends_its_last_lease_unless_its_directory_is_a_copy() {
    for is_copy in [false, true] {
        let mut own = own();
        let mut keeper = start(&mut own);
        run(&mut own, &mut keeper, 1);
        if let (true, MemoryFile::Valid(memory)) = (is_copy, &mut own.memory) {
            memory.place = Place::new("another", "6-7", "two");
        }
        keeper = start(&mut own);
        run(&mut own, &mut keeper, 1);
        assert_eq!(own.link.database.borrow_mut().row(0).0.token.is_some(), is_copy);
        // All its id times count as used, so another one is granted until they are over.
        assert_eq!(own.issuing.map(|(worker_id, ..)| worker_id), Some(1));
    }
}

#[test]
fn server_that_leaves_its_pool_gives_its_lease_back_and_forgets_it() {
    let mut own = own();
    let mut keeper = start(&mut own);
    run(&mut own, &mut keeper, 1);
    own.setting.is_undecided = false;
    keeper.follow(&mut own, None);
    assert!(own.setting.is_in_use, "the one that is set");
    assert_eq!(own.link.database.borrow_mut().row(0).0.token, None);
    assert_eq!(own.shared, ServerLease::default());
    // With a pool again it asks for the one that it has.
    own.setting.worker_id = 1;
    run(&mut own, &mut keeper, 1);
    assert_eq!(own.issuing.map(|(worker_id, ..)| worker_id), Some(1));
}

/// Otherwise a start in this place would not count it, or one in the former place would.
#[test]
fn worker_id_by_hand_is_remembered_in_the_place_of_now_but_not_over_a_lease() {
    let (here, there) = (Own::here(), Place::new("another", "6-7", "two"));
    let by_hand = LastWorkerId::ByHand(5);
    let coordinator = CoordinatorId { system_identifier: 1, database: 3 };
    let leased = LastWorkerId::Leased(RememberedLease { pool: POOL.to_owned(), coordinator, token: 7, worker_id: 2 });
    let file = |place: &Place, worker: &LastWorkerId| {
        MemoryFile::Valid(Memory { place: place.clone(), worker: worker.clone() })
    };
    for (before, is_written) in [
        (MemoryFile::Missing, true),
        (file(&here, &LastWorkerId::Unknown), true),
        (file(&here, &LastWorkerId::ByHand(6)), true),
        (file(&there, &by_hand), true),
        (file(&here, &by_hand), false),
        (file(&there, &leased), false),
        (MemoryFile::Unreadable("a reason".to_owned()), false),
    ] {
        let setting = WorkerSetting { worker_id: 5, is_undecided: false, is_in_use: true, has_issued: true };
        let mut own = Own { memory: before.clone(), setting, ..own() };
        remember_pool(&mut own).expect("it can be written");
        assert_eq!(own.until_killed != NEVER, is_written, "{before:?}");
        assert_eq!(own.memory, if is_written { file(&here, &by_hand) } else { before });
    }
}

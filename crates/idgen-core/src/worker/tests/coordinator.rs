//! The procedures of a coordinator on rows in memory.

use super::database::{Database, Locked, POOL};
use crate::coordinator::{Place, life_number};
use crate::history::Identity;
use crate::worker::Refusal;
use crate::worker::granting::{Grant, Request, acquire};
use crate::worker::holding::{Lock, Renewal, confirm, release, renew};
use crate::worker::recording::{Label, begin, begin_another, for_grant, note_lost_grants};
use crate::worker::search::{Search, WorkerRow};

const TTL_US: i64 = 100;

fn request(reached_us: i64) -> Request<'static> {
    Request { owner: None, ttl_us: None, ttl_limits_us: 1..=TTL_US, reached_us: Some(reached_us), prefer: None }
}

fn acquired(database: &mut Database) -> Grant<'static> {
    let reached_us = database.now_us;
    acquire(database, POOL, &request(reached_us)).expect("a worker id is free").0
}

fn renewed(database: &mut Database, grant: &Grant) -> Result<Renewal, Refusal> {
    renew(database, POOL, grant.token, grant.rectangle.not_after_us, Some(database.now_us))
}

#[test]
fn grant_that_nobody_confirms_waits_for_the_standbys() {
    for reached_us in [None, Some(1000)] {
        let mut database = Database::new(1, TTL_US);
        acquire(&mut database, POOL, &Request { reached_us, ..request(0) }).expect("a worker id is free");
        assert_eq!(database.survives_failover, reached_us.is_none());
    }
}

#[test]
fn search_takes_the_preferred_then_the_owned_then_what_ended_first_and_what_can_be_renewed_last() {
    let row = |worker_id, token, owner: Option<&str>, not_after_us, epoch| WorkerRow {
        worker_id,
        token,
        owner: owner.map(str::to_owned),
        not_after_us,
        epoch,
    };
    let rows = [
        row(0, Some(1), None, Some(2000), 1),
        row(1, Some(2), Some("a"), Some(500), 1),
        row(2, None, Some("a"), Some(800), 1),
        row(3, Some(3), None, Some(400), 1),
        row(4, None, None, Some(900), 1),
        row(5, None, None, Some(5000), 1),
        row(6, Some(4), None, Some(1100), 0),
        row(9, None, None, None, 0),
    ];
    let search = Search {
        pool: POOL,
        range: 0..=6,
        now_us: 1000,
        earliest_start_us: 1200,
        prefer: Some(4),
        owner: Some("a"),
        epoch: 1,
    };
    let pick = |search: &Search, rows: &[WorkerRow]| search.pick(rows.iter()).map(|row| row.worker_id);
    let without = |gone: &[i32]| rows.iter().filter(|row| !gone.contains(&row.worker_id)).cloned().collect::<Vec<_>>();
    assert_eq!(pick(&search, &rows), Some(4), "preferred");
    assert_eq!(pick(&Search { prefer: Some(0), ..search.clone() }, &rows), Some(2), "of the owner, the last one");
    let search = Search { prefer: None, owner: None, ..search };
    assert_eq!(pick(&search, &rows), Some(2));
    assert_eq!(pick(&search, &without(&[2, 4])), Some(3), "expired, the one that ended first");
    assert_eq!(pick(&search, &without(&[1, 2, 3, 4])), Some(6), "of an earlier epoch, so nobody renews it");
    assert_eq!(pick(&search, &without(&[1, 2, 3, 4, 6])), Some(5), "ahead of the clock");
    assert_eq!(pick(&search, &without(&[1, 2, 3, 4, 5, 6])), None, "held, and outside of the range");
    let renewable = row(6, Some(4), None, Some(1100), 1);
    assert_eq!(pick(&search, &[renewable]), None, "held, although the next rectangle begins after it");
    assert_eq!(pick(&Search { range: 0..=9, ..search }, &rows), Some(9), "one that was never granted");
}

#[test]
fn request_is_refused_for_its_ttl_or_its_time_or_when_all_worker_ids_are_held() {
    let mut database = Database::new(1, TTL_US);
    let mut refused = |pool, request: Request| acquire(&mut database, pool, &request).expect_err("a refusal");
    assert_eq!(refused("another", request(1000)), Refusal::UnknownPool);
    let longer = Request { ttl_us: Some(TTL_US + 1), ..request(1000) };
    assert_eq!(refused(POOL, longer.clone()), Refusal::TtlOutOfRange);
    let longer = Request { ttl_limits_us: 1..=1000, ..longer };
    assert_eq!(refused(POOL, longer), Refusal::TtlBeyondThePools { ttl_us: TTL_US });
    assert_eq!(refused(POOL, request(1151)), Refusal::TooFarAhead { excess_us: 151, max_lead_us: 150 });
    // A pool with a ttl outside of the limits goes on.
    let unlimited = Request { ttl_limits_us: 1..=1, ..request(1000) };
    assert!(acquire(&mut database, POOL, &unlimited).is_ok());
    assert_eq!(acquire(&mut database, POOL, &request(1000)), Err(Refusal::Exhausted { range: 0..=0 }));
}

#[test]
fn caller_hears_how_long_to_wait_for_its_rectangle() {
    let mut database = Database::new(1, TTL_US);
    let first = acquired(&mut database);
    release(&mut database, POOL, first.token, None, None).expect("it is held");
    let (next, wait_us) = acquire(&mut database, POOL, &request(1020)).expect("it is free");
    assert_eq!((next.rectangle.not_before_us, wait_us), (1100, 80));
}

#[test]
fn interruption_ends_all_tokens_and_the_first_renewal_that_notices_it_keeps_its_end() {
    let mut primary = Database::new(2, TTL_US);
    let (one, other) = (acquired(&mut primary), acquired(&mut primary));
    let mut standby = primary.promoted(2, 1010);
    assert_eq!(
        confirm(&mut standby, POOL, one.token),
        Err(Refusal::Stale { token: one.token }),
        "before it is noticed"
    );
    assert_eq!(renewed(&mut standby, &one), Ok(Renewal::Ended { has_lost_grants: false }));
    for grant in [one, other] {
        assert_eq!(renewed(&mut standby, &grant), Err(Refusal::Stale { token: grant.token }));
        assert_eq!(confirm(&mut standby, POOL, grant.token), Err(Refusal::Stale { token: grant.token }));
    }
    // The longest rectangle that may be forgotten.
    assert_eq!(acquired(&mut standby).rectangle.not_before_us, 1010 + TTL_US * 5 / 2);
}

#[test]
fn holder_that_knows_a_later_end_shows_that_the_database_was_set_back() {
    let mut database = Database::new(1, TTL_US);
    let grant = acquired(&mut database);
    let set_back = |started_us| Database { started_us, now_us: 1050, ..database.clone() };
    let later_us = grant.rectangle.not_after_us + 40;
    let renew_later = |database: &mut Database| renew(database, POOL, grant.token, later_us, None);
    assert_eq!(renew_later(&mut set_back(1040)), Ok(Renewal::Ended { has_lost_grants: true }));
    // It has every renewal since its start, so another process has the token.
    let (worker_id, not_after_us) = (grant.worker_id, grant.rectangle.not_after_us);
    let refusal = Refusal::RenewedByAnother { worker_id, last_us: later_us, not_after_us };
    assert_eq!(renew_later(&mut set_back(500)), Err(refusal.clone()));
    // The clock was ahead at the start and is right again: all terms look older than the start, also those of this holder.
    assert_eq!(renew_later(&mut set_back(1051)), Err(refusal));
}

/// Of several holders that show it, one ends the history: the tokens of the next one are not ended too.
#[test]
fn database_that_was_set_back_ends_the_history_that_the_holder_was_read_with() {
    let mut database = Database { started_us: 1040, now_us: 1050, ..Database::new(1, TTL_US) };
    let read = database.history.clone();
    for (known, acquired_us, is_noted, epoch) in
        [(&read, 1040, false, 0), (&None, 1039, false, 0), (&read, 1039, true, 1), (&read, 1039, false, 1)]
    {
        assert_eq!(note_lost_grants(&mut database, known.as_ref(), acquired_us), is_noted, "{epoch}");
        assert_eq!(database.history.as_ref().map(|history| history.epoch), Some(epoch));
    }
    database.history = None;
    assert!(note_lost_grants(&mut database, None, 1039), "of an earlier release");
}

/// Others wait for the history with rows locked: a wait for a row under its lock would be a deadlock.
#[test]
fn renewal_locks_its_row_before_the_history_and_only_then() {
    let mut database = Database::new(1, TTL_US);
    let mut grant = acquired(&mut database);
    let row = Locked::WorkerId;
    for (ttl_us, locks) in
        [(TTL_US, vec![row(Lock::Tables)]), (2 * TTL_US, vec![row(Lock::Tables), row(Lock::Row), Locked::History])]
    {
        (database.pool.ttl_us, database.locked) = (ttl_us, Vec::new());
        let Ok(Renewal::Until(end_us)) = renewed(&mut database, &grant) else { panic!("it is held") };
        grant.rectangle.not_after_us = end_us;
        assert_eq!(database.locked, locks);
    }
    database.locked.clear();
    confirm(&mut database, POOL, grant.token).expect("it is held");
    release(&mut database, POOL, grant.token, None, None).expect("it is held");
    assert_eq!(database.locked, [row(Lock::Nothing), row(Lock::Row)]);
}

#[test]
fn copy_of_a_coordinator_changes_nothing_before_it_begins_another_history() {
    let mut origin = Database::new(1, TTL_US);
    let grant = acquired(&mut origin);
    let place = Place::new("8-9", "6-7", "one");
    let mut copy = Database { identity: Identity { place, ..origin.identity.clone() }, ..origin };
    assert_eq!(acquire(&mut copy, POOL, &request(1000)), Err(Refusal::Copied));
    assert_eq!(renewed(&mut copy, &grant), Err(Refusal::Copied));
    assert_eq!(confirm(&mut copy, POOL, grant.token), Err(Refusal::Copied));
    assert_eq!(begin_another(&mut copy, None), 1000 + TTL_US * 5 / 2);
    assert_eq!(renewed(&mut copy, &grant), Err(Refusal::Stale { token: grant.token }));
    assert_eq!(acquired(&mut copy).rectangle.not_before_us, 1000 + TTL_US * 5 / 2);
    // A stated time counts instead of the later one in the label.
    assert_eq!(begin_another(&mut copy, Some(200)), 200 + TTL_US * 5 / 2);
    assert_eq!(copy.label.map(|label| label.until_us), Some(200 + TTL_US * 5 / 2));
}

#[test]
fn longer_rectangles_are_recorded_before_one_is_granted_and_outlive_the_history_in_the_label() {
    let mut database = Database::new(1, TTL_US);
    acquired(&mut database);
    assert_eq!(for_grant(&mut database, 2 * TTL_US).map(|history| history.longest_us), Ok(TTL_US * 5));
    assert_eq!(for_grant(&mut database, TTL_US).map(|history| history.longest_us), Ok(TTL_US * 5));
    let dropped = Database { rows: Vec::new(), history: None, ..database };
    let history = for_grant(&mut { dropped }, TTL_US).expect("no copy");
    assert_eq!((history.since_us, history.longest_us), (Some(1000), TTL_US * 5));
}

#[test]
fn history_without_a_row_is_complete_only_for_a_new_database_of_the_first_server() {
    let since_us = |mut database: Database| {
        begin(&mut database);
        database.history.expect("it has begun").since_us
    };
    let (used, labelled) = (Database { history: None, started_us: 400, ..Database::new(1, TTL_US) }, 1090);
    let new = Database { rows: Vec::new(), ..used.clone() };
    let promoted = Identity { timeline: 2, ..new.identity.clone() };
    let restored = Identity { place: Place::new("4-5", "6-7", &life_number(1, true)), ..new.identity.clone() };
    for (identity, expected) in [(new.identity.clone(), None), (promoted, Some(400)), (restored, Some(400))] {
        let of = |database: &Database| Database { identity: identity.clone(), ..database.clone() };
        assert_eq!(since_us(of(&new)), expected, "{identity:?}");
        assert_eq!(since_us(of(&used)), Some(1000), "a dump or an older release");
        for (until_us, expected) in [(i64::MIN, 1000), (labelled, labelled)] {
            let label = Some(Label { until_us, longest_us: 0 });
            assert_eq!(since_us(Database { label, ..of(&new) }), Some(expected));
        }
    }
}

/// Only the label is left of the history that a failover has interrupted.
#[test]
fn grant_that_was_lost_before_the_extension_was_dropped_is_not_repeated() {
    let created_again = |database: &Database| {
        let mut created = Database { history: None, ..database.clone() };
        begin(&mut created);
        created.rows = Database::new(1, TTL_US).rows;
        created
    };
    let mut first = Database::new(1, TTL_US);
    acquired(&mut first);
    let mut promoted = first.promoted(2, 1000);
    acquired(&mut promoted);
    let created = created_again(&promoted);
    let lost = acquired(&mut created.clone());
    let next = acquired(&mut created_again(&created.promoted(3, 1000)));
    assert!(next.rectangle.not_before_us >= lost.rectangle.not_after_us, "{next:?} after {lost:?}");
}

#[test]
fn release_of_a_process_that_knows_another_end_is_refused() {
    let mut database = Database::new(1, TTL_US);
    let grant = acquired(&mut database);
    let end_us = grant.rectangle.not_after_us;
    let other = release(&mut database, POOL, grant.token, Some(1010), Some(end_us - 1));
    assert!(matches!(other, Err(Refusal::RenewedByAnother { .. })), "{other:?}");
    assert_eq!(release(&mut database, POOL, grant.token, Some(1010), Some(end_us)), Ok(()));
    assert_eq!(acquired(&mut database).rectangle.not_before_us, 1011);
}

//! What the row of a tag allows, at a server and at a coordinator.

use super::port::{Coordinator, row};
use crate::segment::fleet::Reply;
use crate::segment::fleet::rows::{Refused, Server, leave, own_allocation, request, resume};
use crate::segment::tag::{Link, Origin, TagDefinition, TagRow};
use crate::segment::{NoValues, ValueRun};

#[test]
fn row_that_was_attached_again_takes_no_values_of_its_former_number() {
    let mut tag = row(1);
    tag.attach(1, 2_000_000);
    let origin = Origin { source: "7/5/1/1".to_owned(), stride: 1, residue: 0 };
    let before = tag.basis();
    assert!(!tag.receive(2, 50, &origin, 10));
    assert_eq!(tag.basis(), before);
    assert!(tag.receive(1, 50, &origin, 10));
    assert_eq!(tag.definition.max_id, 50);
}

/// The row was altered while the values were on their way.
#[test]
fn step_of_received_values_is_within_the_limits_of_now() {
    let mut tag = row(1);
    tag.attach(1, 2_000_000);
    let origin = Origin { source: "7/5/1/1".to_owned(), stride: 1, residue: 0 };
    for (least, most, count, step) in [(1, 1, 1000, 1), (20, 50, 10, 20), (20, 50, 30, 30)] {
        (tag.definition.min_step, tag.definition.max_step) = (least, most);
        assert!(tag.receive(1, 50, &origin, count));
        assert_eq!(tag.definition.step, step);
    }
}

/// They depend on the row, but for what an allocation itself moves.
#[test]
fn ring_keeps_its_values_as_long_as_its_row_allows_them() {
    let attached = || {
        let mut row = row(1);
        row.attach(1, 2_000_000);
        row
    };
    let sourced =
        |source: &str| TagRow { link: Link { source: Some(source.to_owned()), ..attached().link }, ..attached() };
    let raised = |max_id| TagRow { definition: TagDefinition { max_id, ..row(1).definition }, ..row(1) };
    let changed = |change: fn(&mut TagDefinition)| {
        let mut row = row(1);
        change(&mut row.definition);
        row
    };
    for (before, after, by_allocation, by_others) in [
        (row(1), row(1), false, false),
        (row(1), changed(|new| (new.step, new.min_step, new.max_step, new.target_us) = (7, 7, 7, 7)), false, false),
        (row(1), raised(50), false, true),
        (raised(50), row(1), false, true),
        (row(1), changed(|new| new.stride = 2), true, true),
        (row(1), changed(|new| new.residue = 1), true, true),
        (row(1), changed(|new| new.upper_bound = 99), true, true),
        (row(1), attached(), true, true),
        (attached(), sourced("a"), false, false),
        (sourced("a"), sourced("a"), false, false),
        (sourced("a"), sourced("b"), true, true),
        (sourced("a"), attached(), true, true),
    ] {
        let is_another = |is_allocation| before.basis().is_another_version(&after.basis(), is_allocation);
        assert_eq!((is_another(true), is_another(false)), (by_allocation, by_others), "{before:?} {after:?}");
    }
}

#[test]
fn tag_in_one_line_stays_so_when_it_is_attached_again() {
    let mut row = row(1);
    row.attach(1, 2_000_000);
    (row.definition.step, row.definition.min_step, row.definition.max_step) = (1, 1, 1);
    row.detach();
    row.attach(1, 2_000_000);
    assert!(row.is_in_order());
}

#[test]
fn coordinator_refuses_what_its_tag_cannot_give() {
    let mut coordinator = Coordinator::new();
    coordinator.tag.definition.upper_bound = 10;
    let server = |received| Server { number: 1, received };
    assert_eq!(resume(&mut coordinator, "t", 11), Err(Refused::AboveUpperBound { max_id: 11, upper_bound: 10 }));
    let exhausted = Refused::Exhausted { upper_bound: 10 };
    assert_eq!(request(&mut coordinator, "t", server(11), 0).unwrap_err(), exhausted);
    assert_eq!(request(&mut coordinator, "t", server(10), 1).unwrap_err(), exhausted);
    assert_eq!(leave(&mut coordinator, "t", server(11)), Err(exhausted));
    assert!(request(&mut coordinator, "t", server(10), 0).is_ok());
    coordinator.tag.attach(5, 2_000_000);
    assert_eq!(request(&mut coordinator, "t", server(10), 0).unwrap_err(), Refused::Chained);
    assert_eq!(resume(&mut coordinator, "t", 10), Err(Refused::Chained));
    coordinator.tag.detach();
    assert_eq!(request(&mut coordinator, "t", server(0), 1).unwrap_err(), Refused::Detached);
    assert_eq!(leave(&mut coordinator, "t", server(i64::MAX)), Err(Refused::Detached));
}

/// As by a snapshot of its disk.
#[test]
fn coordinator_that_was_set_back_waits_for_all_servers() {
    let mut coordinator = Coordinator::new();
    let [one, other] = [1, 2].map(|number| move |received| Server { number, received });
    for server in [one(0), other(0), one(50)] {
        request(&mut coordinator, "t", server, 0).unwrap();
    }
    let mut ask = |server| request(&mut coordinator, "t", server, 5).unwrap().1;
    assert_eq!(ask(one(80)), Reply::Waits { unreported: vec![2] });
    assert_eq!(ask(other(90)), Reply::Granted(ValueRun { first: 91, count: 5, stride: 1 }));
}

#[test]
fn own_draws_of_a_coordinator_record_the_history_that_no_server_can_object_to() {
    let mut coordinator = Coordinator::new();
    let server = Server { number: 1, received: 20 };
    request(&mut coordinator, "t", server, 0).unwrap();
    leave(&mut coordinator, "t", server).unwrap();
    coordinator.identity.timeline += 1;
    let row = coordinator.tag.clone();
    assert_eq!(own_allocation(&mut coordinator, &row).map(|allocation| allocation.max_id), Ok(20));
    assert_eq!(coordinator.tag.link.history, Some(coordinator.identity.to_string()));
    // It waits for those that are attached.
    request(&mut coordinator, "t", server, 0).unwrap();
    coordinator.identity.timeline += 1;
    let row = coordinator.tag.clone();
    let missing = NoValues::Unreported { tag: "t".to_owned(), servers: "[1]".to_owned() };
    assert_eq!(own_allocation(&mut coordinator, &row), Err(missing));
}

//! The procedures of refills and of attached servers, with a crash before each of their effects.

use super::port::{Coordinator, Faults, Process, row};
use crate::segment::refill::refill;
use crate::segment::supply::requests::{Answer, Failure};
use crate::segment::supply::stock::Need;
use crate::segment::supply::supplier::{Due, Next, Supplier};
use crate::segment::tag::TagRow;
use crate::segment::{NoValues, ValueRun};
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

fn fleet() -> Rc<RefCell<Coordinator>> {
    Rc::new(RefCell::new(Coordinator::new()))
}

fn disjoint(ranges: &[ValueRun]) -> bool {
    ranges
        .iter()
        .enumerate()
        .all(|(index, one)| ranges[..index].iter().all(|other| one.last() < other.first || other.last() < one.first))
}

/// G1 and G2.
#[test]
fn refill_commits_before_it_installs_and_a_crash_leaves_a_gap_at_most() {
    let mut process = Process::new(&fleet(), row(1));
    let tenant = process.ring(1).tenant;
    assert!(process.survives(|port| refill(port, &tenant, 1).unwrap()));
    assert_eq!(process.calls, ["lock", "write", "commit", "install"]);
    for crash_at in 0..4 {
        process.faults.crash_at = Some(crash_at);
        assert!(!process.survives(|port| refill(port, &tenant, 1).unwrap()));
        assert!(process.survives(|port| refill(port, &tenant, 1).unwrap()));
    }
    process.faults.is_cancelled = true;
    process.survives(|port| assert!(refill(port, &tenant, 1).is_err()));
    assert!(process.survives(|port| refill(port, &tenant, 1).unwrap()));
    assert!(disjoint(&process.installed), "{:?}", process.installed);
    // Two ranges are skipped: by the crash after the commit, and by the cancel.
    let values: u64 = process.installed.iter().map(|range| range.count).sum();
    assert_eq!(process.row.definition.max_id as u64, values + 20);
}

#[test]
fn refill_takes_nothing_from_a_row_that_is_attached_or_older_than_the_ring() {
    for change in [|row: &mut TagRow| row.attach(1, 2_000_000), |row: &mut TagRow| row.version = 0] {
        let mut process = Process::new(&fleet(), row(1));
        let tenant = process.ring(1).tenant;
        change(&mut process.row);
        assert!(process.survives(|port| refill(port, &tenant, 1).unwrap()));
        assert_eq!((process.row.definition.max_id, process.installed.len()), (0, 0));
        assert!(process.table.tenants[0].is_none(), "sessions attach again");
    }
}

/// An attached server, and the memory of its supply worker.
struct Attached {
    process: Process,
    supplier: Supplier,
}

impl Attached {
    fn new(coordinator: &Rc<RefCell<Coordinator>>, number: i64) -> Self {
        let mut tag = row(number);
        tag.attach(number, 2_000_000);
        let mut attached = Self { process: Process::new(coordinator, tag), supplier: Supplier::default() };
        attached.start();
        // So that the standby knows it.
        assert_eq!(attached.serve(Need::LowWater, Faults::default()), Some(Ok(())));
        attached
    }

    fn start(&mut self) {
        self.supplier = Supplier::default();
        self.supplier.update(vec![self.process.row.clone()], 0, 0);
    }

    /// Makes a request. `None` if the process has ended, and is started again.
    fn serve(&mut self, need: Need, faults: Faults) -> Option<Answer<()>> {
        let Self { process, supplier } = self;
        let (ring, creation) = (process.ring(1), process.row.key.creation);
        supplier.observe(&ring, 0);
        process.faults = faults;
        let mut outcome = None;
        let is_alive = process.survives(|port| {
            let due = Due { creation, need, at_us: 0, ring: Some(ring) };
            let answer = match need {
                Need::Report | Need::Leave => supplier.tell(port, &due),
                _ => supplier.fetch(port, creation, &ring),
            };
            supplier.conclude(port, &due, &answer);
            outcome = Some(answer);
        });
        if !is_alive {
            self.start();
        }
        outcome.filter(|_| is_alive)
    }
}

#[test]
fn values_are_confirmed_and_recorded_before_they_are_installed() {
    let mut attached = Attached::new(&fleet(), 1);
    attached.serve(Need::Demand, Faults::default());
    let fetch = ["lock", "commit", "open", "ask", "confirm", "await lock", "write", "commit", "install"];
    assert_eq!(attached.process.calls, fetch);
    attached.serve(Need::Demand, Faults { standby_is_away: true, ..Faults::default() });
    // The next one confirms first, and loses no other values.
    let before = attached.process.coordinator.borrow().tag.definition.max_id;
    attached.serve(Need::Demand, Faults { standby_is_away: true, ..Faults::default() });
    assert_eq!(attached.process.calls[2..], ["open", "confirm"]);
    assert_eq!(attached.process.coordinator.borrow().tag.definition.max_id, before);
    attached.serve(Need::Demand, Faults::default());
    assert_eq!(attached.process.calls[2..5], ["open", "confirm", "ask"]);
}

/// They may be lost with the next failover.
#[test]
fn values_whose_wait_for_the_standby_is_cancelled_are_not_installed() {
    let mut attached = Attached::new(&fleet(), 1);
    let before = attached.process.installed.clone();
    let outcome = attached.serve(Need::Demand, Faults { is_cancelled: true, ..Faults::default() });
    assert!(matches!(outcome, Some(Err(Failure::Tag(NoValues::Skipped(_))))), "{outcome:?}");
    assert_eq!(attached.process.installed, before);
}

#[test]
fn ring_takes_no_values_of_another_version_of_its_row() {
    let mut process = Process::new(&fleet(), row(1));
    let tenant = process.ring(1).tenant;
    process.row.version += 1;
    assert!(process.survives(|port| refill(port, &tenant, 1).unwrap()));
    assert!(process.row.definition.max_id > 0, "they are skipped");
    assert!(process.installed.is_empty());
}

#[test]
fn change_of_the_coordinators_tag_is_recorded_by_a_report() {
    let mut attached = Attached::new(&fleet(), 1);
    attached.start();
    let before = attached.process.row.basis();
    attached.process.coordinator.borrow_mut().tag.version += 1;
    assert_eq!(attached.serve(Need::Report, Faults::default()), Some(Ok(())));
    assert_eq!(attached.process.calls, ["open", "ask", "await lock", "write", "commit"]);
    assert!(before.is_another_version(&attached.process.row.basis(), true), "the stock is discarded");
    assert!(!attached.supplier.is_current(&[], 0, 0), "the row that was read is an old one");
    attached.start();
    attached.serve(Need::Report, Faults::default());
    assert_eq!(attached.process.calls, ["open", "ask"]);
}

/// Another worker may have raised it since the rows were read, or a role.
#[test]
fn values_are_asked_for_above_what_the_row_has_now() {
    let mut attached = Attached::new(&fleet(), 1);
    attached.process.row.definition.max_id = 500;
    assert_eq!(attached.serve(Need::Demand, Faults::default()), Some(Ok(())));
    assert_eq!(attached.process.coordinator.borrow().reports[0].max_id, 500);
    assert!(attached.process.row.definition.max_id > 500);
    // Not under the number of a row that is gone: the one of now counts.
    attached.process.row.link.server = Some(8);
    assert_eq!(attached.serve(Need::Demand, Faults::default()), Some(Ok(())));
    let numbers: Vec<i64> = attached.process.coordinator.borrow().reports.iter().map(|report| report.server).collect();
    assert_eq!(numbers, [1, 8]);
}

#[test]
fn report_is_that_of_rows_that_were_just_read() {
    let mut supplier = Attached::new(&fleet(), 1).supplier;
    let due = |need, at_us| Due { creation: 1, need, at_us, ring: None };
    let next = |supplier: &mut Supplier, need, now_us| supplier.next(&[due(need, 0)], now_us);
    for need in [Need::Report, Need::Leave] {
        assert!(matches!(next(&mut supplier, need, 999_999), Next::Serve(_)), "{need:?}");
        assert!(matches!(next(&mut supplier, need, 1_000_000), Next::Read), "{need:?}");
        assert!(!supplier.is_current(&[], 0, 0), "they have to be read");
        supplier.update(Vec::new(), 0, 0);
    }
    assert!(matches!(next(&mut supplier, Need::Demand, 1_000_000), Next::Serve(_)), "a fetch reads its row");
    assert!(matches!(supplier.next(&[due(Need::Demand, 5)], 4), Next::Sleep));
}

#[test]
fn detached_server_leaves_and_receives_nothing_before_its_coordinator_knows() {
    let mut attached = Attached::new(&fleet(), 1);
    attached.process.row.detach();
    attached.process.row.attach(9, 5_000_000);
    assert_eq!(attached.process.row.link.server, Some(1), "the coordinator knows it by this number");
    assert_eq!(attached.serve(Need::Demand, Faults::default()), Some(Err(Failure::Gone)));
    assert_eq!(attached.process.calls, ["lock", "commit"], "nothing is asked for");
    assert!(!attached.supplier.is_current(&[], 0, 0), "the rows that were read are old ones");
    attached.start();
    assert_eq!(attached.serve(Need::Leave, Faults::default()), Some(Ok(())));
    assert_eq!(
        attached.process.calls,
        ["open", "leave", "confirm", "forget", "commit"],
        "the row remembers it until then"
    );
    assert!(attached.process.coordinator.borrow().reports.is_empty());
    assert!(!attached.supplier.is_current(&[], 0, 0), "it is listed no more, unless it was attached again");
    attached.start();
    assert_eq!(attached.serve(Need::Demand, Faults::default()), Some(Ok(())));
}

fn faults() -> impl Strategy<Value = Faults> {
    let crash_at = prop::option::weighted(0.2, 0..10u32);
    let flag = || prop::bool::weighted(0.1);
    (crash_at, flag(), flag(), prop::bool::ANY, flag(), flag()).prop_map(
        |(crash_at, loses_answer, standby_is_away, standby_lags, fails_over, is_cancelled)| Faults {
            crash_at,
            loses_answer,
            standby_is_away,
            standby_lags,
            fails_over,
            is_cancelled,
        },
    )
}

proptest! {
    /// G4, by the procedures of both sides.
    #[test]
    fn servers_of_a_fleet_install_no_value_twice(
        requests in prop::collection::vec((0..3usize, prop::bool::weighted(0.2), faults()), 1..80),
    ) {
        let coordinator = fleet();
        let mut servers = [1, 2, 3].map(|number| Attached::new(&coordinator, number));
        for (server, is_report, faults) in requests {
            servers[server].serve(if is_report { Need::Report } else { Need::Demand }, faults);
            let installed: Vec<ValueRun> =
                servers.iter().flat_map(|server| server.process.installed.iter().copied()).collect();
            prop_assert!(disjoint(&installed), "{:?}", installed);
        }
        // Once all have reported, each is served.
        for need in [Need::Report, Need::Demand, Need::Demand] {
            servers.iter_mut().for_each(|server| {
                server.start();
                let outcome = server.serve(need, Faults::default());
                assert_eq!(outcome, Some(Ok(())));
            });
        }
    }
}

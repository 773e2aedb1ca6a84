//! A crash at every step: each point of the source is reached by a workload, the server dies right there, and the promises
//! are checked on the server that goes on.
//!
//! The points are `crash_point!("...")` in `src/`. To add one, write it between the two steps, and a row in [`POINTS`]. Those of
//! PostgreSQL are named in `src/pg/mod.rs`, and in [`OF_POSTGRESQL`].

mod ids;
mod lease;
mod power;
mod segment;
mod victim;
mod worker;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use idgen_testkit::rounds;
use victim::{DEATHS, Victim};

/// A workload that reaches points, and the checks after it.
trait Scene: Sync {
    fn victim(&self) -> &Victim;

    /// Before the point is armed.
    fn prepare(&self) {}

    /// Runs until the victim has died, or until this is false.
    fn work(&self, goes_on: &AtomicBool);

    /// Another session begins while the process is stopped, and sees what has become visible too early.
    fn look(&self) {}

    fn check(&self);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    Ids(ids::Course),
    Segment(segment::Role),
    Lease,
    Worker(worker::Role),
}
use Course::{Ids, Lease, Segment, Worker};
use ids::Course::{Draw, First, Loss, Promotion, Start, Stop};
use segment::Role::{Alone, Coordinator, Server};
use worker::Role::{Keeper, Pool};

/// Every point of the source, with the workloads that reach it.
const POINTS: &[(&str, &[Course])] = &[
    ("new mark: before the blocks", &[Ids(First)]),
    ("new mark: before its name", &[Ids(First)]),
    ("new mark: before the sync of the directory", &[Ids(First)]),
    ("new mark: before the name of the directory", &[Ids(First)]),
    ("new mark: before the sync of the names", &[Ids(First)]),
    ("mark: before a copy", &[Ids(First), Ids(Draw), Ids(Stop)]),
    ("mark: after a copy", &[Ids(First), Ids(Draw), Ids(Stop)]),
    ("mark: before the sync", &[Ids(First), Ids(Draw), Ids(Stop)]),
    ("mark: synced", &[Ids(First), Ids(Draw), Ids(Stop)]),
    ("label: before the commit", &[Ids(First), Ids(Draw)]),
    ("label: committed", &[Ids(First), Ids(Draw)]),
    ("start: the place is written", &[Ids(Start)]),
    ("start: the loss of WAL is noted", &[Ids(Loss)]),
    ("stop: before the exact mark", &[Ids(Stop)]),
    ("stop: before the place's checkpoint", &[Ids(Stop)]),
    ("file: before the write", &[Ids(Start), Ids(Stop), Ids(Loss), Worker(Keeper)]),
    ("file: before the sync", &[Ids(Start), Ids(Stop), Ids(Loss), Worker(Keeper)]),
    ("file: before the name", &[Ids(Start), Ids(Stop), Ids(Loss), Worker(Keeper)]),
    ("file: before the sync of the directory", &[Ids(Start), Ids(Stop), Ids(Loss), Worker(Keeper)]),
    ("segment: row locked", &[Segment(Alone), Segment(Server)]),
    ("segment: max_id raised", &[Segment(Alone)]),
    ("segment: committed", &[Segment(Alone), Segment(Server)]),
    ("segment: installed", &[Segment(Alone), Segment(Server)]),
    ("fleet: before the request", &[Segment(Server)]),
    ("fleet: grant written", &[Segment(Coordinator)]),
    ("fleet: answered", &[Segment(Server)]),
    ("fleet: confirmed", &[Segment(Server)]),
    ("fleet: values recorded", &[Segment(Server)]),
    ("row: found free", &[Lease]),
    ("lease: grant written", &[Lease]),
    ("lease: renewal written", &[Lease]),
    ("lease: fenced", &[Lease]),
    ("lease: release written", &[Lease]),
    (
        "durable transaction: before the commit",
        &[Lease, Segment(Alone), Segment(Server), Segment(Coordinator), Worker(Pool)],
    ),
    ("durable transaction: ended", &[Lease, Segment(Alone), Segment(Server), Segment(Coordinator), Worker(Pool)]),
    ("pool: grant written", &[Worker(Pool)]),
    ("pool: renewal written", &[Worker(Pool)]),
    ("pool: release written", &[Worker(Pool)]),
    ("keeper: granted", &[Worker(Keeper)]),
    ("keeper: confirmed", &[Worker(Keeper)]),
    ("keeper: remembered", &[Worker(Keeper)]),
    ("keeper: published", &[Worker(Keeper)]),
    ("keeper: renewed", &[Worker(Keeper)]),
    ("keeper: extended", &[Worker(Keeper)]),
    ("keeper: before the release", &[Worker(Keeper)]),
    ("keeper: released", &[Worker(Keeper)]),
];

/// PostgreSQL's own points, with the workloads that reach them. It has them from version 18 on, if it is built with them.
const OF_POSTGRESQL: &[(&str, &[Course])] = &[
    ("heap_update-before-pin", &[Lease, Segment(Alone), Segment(Server), Segment(Coordinator), Worker(Pool)]),
    ("multixact-create-from-members", &[Lease]),
    ("transaction-end-process-inval", &[Ids(First), Ids(Draw)]),
    ("checkpoint-before-old-wal-removal", &[Ids(Stop)]),
    ("promotion-after-wal-segment-cleanup", &[Ids(Promotion)]),
];

/// Acts out one kind of workload: every point by every death in a soak, by one of them otherwise.
fn act_all(is_wanted: fn(Course) -> bool) {
    let others = if cfg!(feature = "injection-points") { OF_POSTGRESQL } else { &[] };
    let rows =
        POINTS.iter().chain(others).flat_map(|(point, courses)| courses.iter().map(move |course| (*point, *course)));
    let only = std::env::var("IDGEN_CRASH_POINT").ok();
    for (index, (point, course)) in rows.enumerate() {
        if !is_wanted(course) || only.as_ref().is_some_and(|only| !point.contains(only.as_str())) {
            continue;
        }
        for turn in 0..rounds(1, DEATHS.len()).min(DEATHS.len()) {
            let death = DEATHS[(index + turn) % DEATHS.len()];
            println!("{point}, {course:?}, {death:?}");
            match course {
                Ids(course) => act(point, &ids::Drawing::new(course, death)),
                Segment(role) => act(point, &segment::Drawing::new(role, death)),
                Lease => act(point, &lease::Holding::new(death)),
                Worker(role) => act(point, &worker::Leasing::new(role, death)),
            }
        }
    }
}

/// Ends the work, also if the test fails: it would wait for that.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

fn act(point: &str, scene: &impl Scene) {
    scene.prepare();
    scene.victim().arm(point);
    let goes_on = AtomicBool::new(true);
    let is_reached = std::thread::scope(|scope| {
        let _ending = Ending(&goes_on);
        scope.spawn(|| scene.work(&goes_on));
        let stopped = scene.victim().wait_until_stopped();
        let is_reached = stopped.is_some();
        if let Some(process) = stopped {
            scene.look();
            scene.victim().die(process);
        }
        is_reached
    });
    assert!(is_reached, "no process reaches \"{point}\": is idgen built with the feature crash-points?");
    scene.check();
}

#[test]
fn ids_are_unique_after_a_crash_at_each_step_of_the_mark_and_its_label() {
    act_all(|course| matches!(course, Ids(First | Draw)));
}

#[test]
fn ids_are_unique_after_a_crash_at_each_step_of_a_start_and_a_stop() {
    act_all(|course| matches!(course, Ids(Start | Promotion | Stop | Loss)));
}

#[test]
fn values_are_unique_after_a_crash_at_each_step_of_a_refill() {
    act_all(|course| matches!(course, Segment(_)));
}

#[test]
fn leases_are_exclusive_after_a_crash_at_each_step() {
    act_all(|course| course == Lease);
}

#[test]
fn rectangles_are_apart_after_a_crash_at_each_step() {
    act_all(|course| matches!(course, Worker(_)));
}

#[test]
fn every_point_of_the_source_is_listed() {
    let mut found = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src"), &mut found);
    let listed = POINTS.iter().map(|(point, _)| (*point).to_owned());
    assert_eq!(BTreeSet::from_iter(found.clone()), BTreeSet::from_iter(listed));
    assert_eq!(found.len(), POINTS.len(), "a point occurs twice");
}

/// The names of the points of all files in a directory.
fn collect(directory: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).expect("a directory of the source").map(Result::unwrap) {
        if entry.path().is_dir() {
            collect(&entry.path(), found);
            continue;
        }
        let source = std::fs::read_to_string(entry.path()).expect("a file of the source");
        let names = source.split("crash_point!(\"").skip(1);
        found.extend(names.map(|rest| rest.split('"').next().unwrap_or_default().to_owned()));
    }
}

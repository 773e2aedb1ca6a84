//! `simulate SECONDS [SEED [COUNT]]`: searches for histories that break a promise, on all processors, and ends with one line.
//! If it finds one, it prints the seed and the shortened story, and exits with 1. It tries at most so many seeds.

use idgen_sim::world::choices::Choices;
use idgen_sim::world::fleet::scene::Fleet;
use idgen_sim::world::ids::Ids;
use idgen_sim::world::leases::Leases;
use idgen_sim::world::run::{GOALS, Outcome, Scene, run};
use idgen_sim::world::shorten::shorten;
use idgen_sim::world::workers::Workers;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The scenes, which seeds take in turn.
const SCENES: [Playing; 4] = [
    Playing::of::<Ids>("ids"),
    Playing::of::<Fleet>("fleets"),
    Playing::of::<Workers>("worker ids"),
    Playing::of::<Leases>("leases"),
];

struct Playing {
    name: &'static str,
    run: fn(Choices, u32, bool) -> Outcome,
    shorten: fn(Vec<u32>, u32, Duration) -> Outcome,
}

impl Playing {
    const fn of<S: Scene>(name: &'static str) -> Self {
        Self { name, run: run::<S>, shorten: shorten::<S> }
    }

    fn by(seed: u64) -> &'static Self {
        &SCENES[(seed % SCENES.len() as u64) as usize]
    }
}

/// The steps of a run, before the faults end.
const STEPS: u32 = 3000;
/// How long a story is shortened.
const SHORTENING: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Found {
    steps: u64,
    goals: BTreeMap<&'static str, u64>,
    hole: Option<(u64, Outcome)>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>().expect("a number"));
    let seconds = arguments.next().expect("the seconds to search");
    let from_clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let first_seed = arguments.next().unwrap_or_else(from_clock);
    let count = arguments.next().unwrap_or(u64::MAX);
    let until = Instant::now() + Duration::from_secs(seconds);
    let (found, seeds) = (Mutex::new(Found::default()), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| search(&found, &seeds, (first_seed, count), until));
        }
    });
    report(found.into_inner().expect("no search has panicked"), seeds.into_inner())
}

/// Tries one seed after another. The first is tried in any case.
fn search(found: &Mutex<Found>, seeds: &AtomicU64, (first_seed, count): (u64, u64), until: Instant) {
    loop {
        // Of several threads, each takes another one.
        let next = |tried: u64| (tried < count).then_some(tried + 1);
        let Ok(tried) = seeds.fetch_update(Relaxed, Relaxed, next) else { return };
        let seed = first_seed.wrapping_add(tried);
        let outcome = (Playing::by(seed).run)(Choices::seeded(seed), STEPS, false);
        let mut found = found.lock().expect("no search has panicked");
        found.steps += outcome.steps;
        for (goal, count) in &outcome.goals {
            *found.goals.entry(goal).or_default() += count;
        }
        if outcome.broken.is_some() {
            found.hole.get_or_insert((seed, outcome));
        }
        if found.hole.is_some() || Instant::now() >= until {
            return;
        }
    }
}

fn report(found: Found, seeds: u64) -> ExitCode {
    let Found { steps, goals, hole } = found;
    let missed: Vec<_> = GOALS.iter().filter(|goal| !goals.contains_key(*goal)).collect();
    if let Some((seed, outcome)) = &hole {
        let playing = Playing::by(*seed);
        let shortened = (playing.shorten)(outcome.choices.clone(), STEPS, SHORTENING);
        println!("seed {seed}, a story of {}, shortened:\n{}\n", playing.name, shortened.story.join("\n"));
    } else if !missed.is_empty() {
        println!("not reached: {missed:?}");
    }
    let reached = GOALS.len() - missed.len();
    let holes = usize::from(hole.is_some());
    println!("simulate: {steps} steps, {seeds} seeds, {reached} of {} goals reached, {holes} holes found", GOALS.len());
    if hole.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

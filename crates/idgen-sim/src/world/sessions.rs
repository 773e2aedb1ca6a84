//! Sessions that draw ids, and write some of them into rows.

use super::clock::{Clock, Refusal};
use super::effects::Canceled;
use super::memory::LAYOUTS;
use super::process::Process;
use super::rows::{Key, Row};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// The transactions of one session.
const TRANSACTIONS: u32 = 20;

pub fn draw(process: &Process) {
    let world = process.world;
    for _ in 0..1 + world.below(TRANSACTIONS) {
        let clock = Clock::new(process);
        let running = &clock.memory.transactions;
        running.set(running.get() + 1);
        let observed_ms = Cell::new(None);
        let outcome = catch_unwind(AssertUnwindSafe(|| transaction(process, &clock, &observed_ms)));
        clock.end_of_transaction();
        running.set(running.get() - 1);
        match outcome {
            Ok(Ok(())) => world.reach("a transaction has drawn"),
            Ok(Err(Refusal::File)) => world.reach("a draw fails because of the file"),
            Ok(Err(Refusal::Standby | Refusal::Outside)) => return,
            Err(reason) if reason.is::<Canceled>() => {
                process.tell(|| "a statement is canceled".to_owned());
                world.observed_ms.borrow_mut().retain(|time_ms| Some(*time_ms) != observed_ms.get());
            }
            Err(reason) => resume_unwind(reason),
        }
        process.sleep(Duration::from_micros(world.one_of(&[0, 100, 1000, 100_000, 3_000_000])));
    }
}

/// True if an id was issued, or may not be by this clock.
pub fn draw_once(process: &Process) -> bool {
    let clock = Clock::new(process);
    matches!(clock.draw(0, 1), Ok(_) | Err(Refusal::Outside))
}

fn transaction(process: &Process, clock: &Clock, observed_ms: &Cell<Option<i64>>) -> Result<(), Refusal> {
    let world = process.world;
    if world.once_in(40) {
        let ahead_ms = world.one_of(&[10, 3000, 100_000]);
        let floor_ms = process.server(|server| server.promised.reached_ms).max(super::server::BEGIN_MS) + ahead_ms;
        process.tell(|| format!("observes {floor_ms}"));
        observed_ms.set(Some(floor_ms));
        world.observed_ms.borrow_mut().push(floor_ms);
        return clock.observe(floor_ms);
    }
    let layout = world.below(LAYOUTS.len() as u32) as usize;
    let mut latest = None;
    for _ in 0..1 + world.below(3) {
        let want = world.one_of(&[1, 1, 100, 5000, 200_000]);
        let (space, run) = clock.draw(layout, want)?;
        latest = Some(space.id(run.first + run.count - 1));
    }
    process.step();
    if let Some(id) = latest.filter(|_| world.below(4) > 0) {
        // The rows of ids that replicas were not told of are not promised to them.
        if !clock.memory.high_water.label.reach.is_passed() {
            let known = process.server(|server| match server.directory.rows().get(&Key::Ids(layout)) {
                Some(Row::Ids(known)) => *known,
                _ => 0,
            });
            process.commit(vec![(Key::Ids(layout), Row::Ids(id.max(known)))], world.below(2) == 0);
            process.tell(|| format!("commits id {id}"));
        }
    }
    Ok(())
}

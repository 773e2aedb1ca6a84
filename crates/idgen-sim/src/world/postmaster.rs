//! What the postmaster of a server that makes ids does as it starts and stops.

use super::clock::Clock;
use super::disk::Signal;
use super::judge::Promised;
use super::place;
use super::process::Process;
use super::server::{Floor, Phase};
use idgen_core::clock::moves;

/// What the postmaster does before it lets sessions in.
pub fn start_up(process: &Process) {
    if !place::begin(process) {
        process.tell(|| "cannot start".to_owned());
        return process.change(|server| server.stop(Floor::Unknown));
    }
    process.step();
    let number = process.server(|server| place::life(&server.directory)).unwrap_or_default().number;
    process.tell(|| format!("its data have the life {number}"));
    process.memory().life.replace(number);
    match process.server(|server| server.directory.signal) {
        Some(Signal::Standby) => process.change(|server| server.follow()),
        Some(Signal::Archive) => recover_to_point(process),
        Some(Signal::Backup) => {
            process.change(|server| server.follow());
            process.step();
            process.change(|server| server.begin_to_write());
        }
        None => process.change(|server| server.begin_to_write()),
    }
    process.change(|server| match server.phase {
        Phase::Running => server.expect_ids(),
        Phase::Stopped | Phase::Starting | Phase::Recovering => {}
    });
}

fn recover_to_point(process: &Process) {
    process.change(|server| server.follow());
    while !process.server(|server| server.archive.0.is_empty()) {
        process.step();
        process.change(|server| {
            let entry = server.archive.0.remove(0);
            server.replayed_ms = Some(entry.wall_ms);
            server.directory.wal.entries.push(entry);
            server.directory.flush();
            server.promised = Promised::by_rows(&server.directory.wal.entries);
        });
    }
    process.step();
    match process.server(|server| server.archive.1) {
        true => process.change(|server| server.promote()),
        false => process.change(|server| server.stop(Floor::Unknown)),
    }
}

/// What the postmaster does after the checkpoint of a clean stop, when no other process is left.
pub fn shut_down(process: &Process) {
    let clock = Clock::new(process);
    if clock.memory.high_water.mark.known_ms().is_some() {
        let exact_ms = clock.memory.table.borrow().unused_from_ms();
        let written = moves::write(&clock, &mut clock.memory.written.borrow_mut(), exact_ms);
        process.world.reach("a clean stop");
        let floor = if written.is_ok() { Floor::Exact } else { Floor::Mark };
        return process.change(|server| server.stop(floor));
    }
    process.change(|server| server.stop(Floor::Mark));
}

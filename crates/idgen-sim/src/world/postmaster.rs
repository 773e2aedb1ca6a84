//! What the postmaster of a server that makes ids does as it starts and stops.

use super::clock::Clock;
use super::disk::{ControlState, Signal};
use super::judge::Promised;
use super::process::Process;
use super::server::Floor;
use idgen_core::clock::moves;
use idgen_core::life;
use std::sync::atomic::Ordering::Relaxed;

/// What the postmaster does before it lets sessions in.
pub fn start_up(process: &Process) {
    let clock = Clock::new(process);
    let (signal, state) = process.server(|server| (server.directory.signal, server.directory.control.state));
    let exists = |name: &str| match name {
        "standby.signal" => signal == Some(Signal::Standby),
        "recovery.signal" => signal == Some(Signal::Archive),
        _ => signal == Some(Signal::Backup),
    };
    if life::starts_from_other_wal(exists, state == ControlState::InRecovery) {
        clock.memory.high_water.is_replayed.store(true, Relaxed);
        // A start does not fail for it.
        let _ = moves::note_recovery(&clock, &mut clock.memory.written.borrow_mut());
    }
    process.step();
    match signal {
        Some(Signal::Standby) => process.change(|server| server.follow()),
        Some(Signal::Archive) => recover_to_point(process),
        Some(Signal::Backup) => {
            process.change(|server| server.follow());
            process.step();
            process.change(|server| server.begin_to_write());
        }
        None => process.change(|server| server.begin_to_write()),
    }
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
    let now_us = process.world.now_us.get();
    match process.server(|server| server.archive.1) {
        true => process.change(|server| server.promote(now_us)),
        false => process.change(|server| server.stop(Floor::Unknown)),
    }
}

/// What the postmaster does after the checkpoint of a clean stop, when no other process is left.
pub fn shut_down(process: &Process) {
    let clock = Clock::new(process);
    if clock.memory.high_water.mark.is_known() {
        let exact_ms = clock.memory.table.borrow().unused_from_ms();
        let written = moves::write(&clock, &mut clock.memory.written.borrow_mut(), exact_ms);
        let floor = if written.is_ok() { Floor::Exact } else { Floor::Mark };
        return process.change(|server| server.stop(floor));
    }
    process.change(|server| server.stop(Floor::Mark));
}

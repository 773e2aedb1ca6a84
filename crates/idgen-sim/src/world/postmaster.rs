//! What the postmaster of a server that makes ids does as it starts and stops.

use super::clock::Clock;
use super::disk::{ControlState, Signal};
use super::judge::Promised;
use super::process::Process;
use super::server::{Floor, Phase};
use idgen_core::clock::moves;
use idgen_core::coordinator::life_number;
use idgen_core::life;

const PLACE_FILE: &str = "idgen_place";

/// What the postmaster does before it lets sessions in.
pub fn start_up(process: &Process) {
    let (signal, state) = process.server(|server| (server.directory.signal, server.directory.control.state));
    if !begin_life(process, signal, state) {
        process.tell(|| "cannot start".to_owned());
        return process.change(|server| server.stop(Floor::Unknown));
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
    let longest_move_ms = process.world.settings.longest_move_ms.get();
    process.change(|server| match server.phase {
        Phase::Running => server.expect_ids(longest_move_ms),
        Phase::Stopped | Phase::Starting | Phase::Recovering => {}
    });
}

/// Draws a number for the life of the data before other WAL is followed, as src/place.rs does. False if the earlier number
/// could stay: the start fails.
fn begin_life(process: &Process, signal: Option<Signal>, state: ControlState) -> bool {
    let exists = |name: &str| match name {
        "standby.signal" => signal == Some(Signal::Standby),
        "recovery.signal" => signal == Some(Signal::Archive),
        _ => signal == Some(Signal::Backup),
    };
    let follows_other_wal = life::starts_from_other_wal(exists, state == ControlState::InRecovery);
    process.step();
    if follows_other_wal || process.directory(|directory| directory.file(PLACE_FILE).content.is_none()) {
        let number = life_number(process.world.identity(), follows_other_wal);
        let content = process.try_io().ok().map(|()| number.into_bytes());
        let is_durable = content.is_some() || process.try_io().is_ok();
        process.directory(|directory| directory.file(PLACE_FILE).content = content);
        if !is_durable {
            return false;
        }
        process.directory(|directory| directory.file(PLACE_FILE).sync_name());
    }
    process.step();
    let number = process.directory(|directory| directory.file(PLACE_FILE).content.clone()).unwrap_or_default();
    let number = String::from_utf8(number).expect("a number");
    process.tell(|| format!("its data have the life {number}"));
    process.memory().life.replace(number);
    true
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
    if clock.memory.high_water.mark.is_known() {
        let exact_ms = clock.memory.table.borrow().unused_from_ms();
        let written = moves::write(&clock, &mut clock.memory.written.borrow_mut(), exact_ms);
        process.world.reach("a clean stop");
        let floor = if written.is_ok() { Floor::Exact } else { Floor::Mark };
        return process.change(|server| server.stop(floor));
    }
    process.change(|server| server.stop(Floor::Mark));
}

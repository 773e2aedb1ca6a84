//! The file `idgen_place` of a simulated server: what a start makes of it, and the place that it names.

use crate::world::disk::{ControlState, Directory, Signal};
use crate::world::process::Process;
use idgen_core::coordinator::{Place, life_number};
use idgen_core::history::Identity;
use idgen_core::life::{Life, Start, Wal, starts_from_other_wal};

pub const FILE: &str = "idgen_place";
pub const SYSTEM: u64 = 1;
pub const DATABASE: u32 = 5;

fn life(directory: &Directory) -> Option<Life> {
    let content = directory.files.get(FILE)?.content.as_ref()?;
    Some(Life::parse(std::str::from_utf8(content).expect("it was written as a whole")))
}

pub fn place(directory: &Directory) -> Place {
    let number = life(directory).map_or_else(String::new, |life| life.number);
    Place::new(&directory.identity.to_string(), &directory.control.identity.to_string(), &number)
}

pub fn identity(directory: &Directory) -> Identity {
    let timeline = directory.control.timeline;
    Identity { system_identifier: SYSTEM, timeline, database: DATABASE, place: place(directory) }
}

/// In the postmaster, before recovery begins.
pub fn begin(process: &Process) {
    process.step();
    let (recorded, signal, state) =
        process.server(|server| (life(&server.directory), server.directory.signal, server.directory.control.state));
    let exists = |name: &str| match name {
        "standby.signal" => signal == Some(Signal::Standby),
        "recovery.signal" => signal == Some(Signal::Archive),
        _ => signal == Some(Signal::Backup),
    };
    let start = Start {
        follows_other_wal: starts_from_other_wal(exists, state == ControlState::InRecovery),
        system: SYSTEM,
        is_shut_down: state == ControlState::ShutDown,
        checkpoint: 0,
        is_first: false,
        boot: "",
    };
    let wal = recorded.clone().unwrap_or_default().wal_at(&start);
    let number = match &recorded {
        Some(life) if wal == Wal::Continued => life.number.clone(),
        _ => life_number(process.world.identity(), wal != Wal::Continued),
    };
    let next = Life { number, system: Some(SYSTEM), checkpoint: Some(0), unsynced_boot: None };
    if recorded.as_ref() != Some(&next) {
        replace_file(process, FILE, next.to_string().into_bytes());
    }
}

/// Replaces a file as a whole, durably.
pub fn replace_file(process: &Process, name: &'static str, content: Vec<u8>) {
    process.step();
    process.directory(|directory| directory.file(name).content = Some(content));
    process.step();
    process.directory(|directory| directory.file(name).sync_name());
}

//! The file `idgen_place` of a simulated server: what a start makes of it, and what it names.

use super::disk::{ControlState, Directory, Signal};
use super::process::Process;
use idgen_core::coordinator::Place;
use idgen_core::history::Identity;
use idgen_core::life::{Life, Replay, Start};

const FILE: &str = "idgen_place";
pub const SYSTEM: u64 = 1;
pub const DATABASE: u32 = 5;

/// The content of the file; `None` without one.
pub fn life(directory: &Directory) -> Option<Life> {
    let content = directory.files.get(FILE)?.content.as_ref()?;
    Some(Life::parse(std::str::from_utf8(content).expect("it was written as a whole")))
}

/// What grants from this server, which has written the file as it started.
pub fn identity(directory: &Directory) -> Identity {
    let (life, inode) = (life(directory).expect("a file"), directory.identity.to_string());
    Identity {
        system_identifier: SYSTEM,
        timeline: directory.control.timeline,
        database: DATABASE,
        place: Place::new(&inode, &directory.control.identity.to_string(), &life.number),
        is_copy: life.is_copied_to(&inode),
    }
}

/// In the postmaster, before recovery, which removes the evidence. False if the start fails, for want of the file.
pub fn begin(process: &Process) -> bool {
    process.step();
    let recorded = process.server(|server| life(&server.directory));
    let next = process.server(|server| {
        let (signal, control) = (server.directory.signal, &server.directory.control);
        let exists = |name: &str| match name {
            "standby.signal" => signal == Some(Signal::Standby),
            "recovery.signal" => signal == Some(Signal::Archive),
            _ => signal == Some(Signal::Backup),
        };
        let start = Start {
            replay: Replay::at_start(exists, control.state == ControlState::InRecovery),
            directory: &server.directory.identity.to_string(),
            system: SYSTEM,
            is_shut_down: control.state == ControlState::ShutDown,
            checkpoint: control.position(),
            is_first: control.is_reset,
            boot: "",
            syncs_files: true,
        };
        Life::at_start(recorded.as_ref(), &start, || process.world.identity()).0
    });
    let is_written = recorded.as_ref() == Some(&next) || process.try_io().is_ok();
    if is_written {
        replace_file(process, FILE, next.to_string().into_bytes());
    }
    is_written || recorded.is_some_and(|recorded| recorded.can_stay_for(&next))
}

/// In the postmaster, after the checkpoint of a clean stop.
pub fn end(process: &Process) {
    if let Some(life) = process.server(|server| life(&server.directory)) {
        let checkpoint = process.server(|server| server.directory.control.position());
        replace_file(process, FILE, Life { checkpoint: Some(checkpoint), ..life }.to_string().into_bytes());
    }
}

/// Replaces a file as a whole, durably.
pub fn replace_file(process: &Process, name: &'static str, content: Vec<u8>) {
    process.step();
    process.directory(|directory| directory.file(name).content = Some(content));
    process.step();
    process.directory(|directory| directory.file(name).sync_name());
}

//! Recovery: whether this server replays WAL, and what the control file says.

use pgrx::prelude::*;

pub fn is_in_progress() -> bool {
    // SAFETY: reads a flag.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// True if the server's files ask for archive or standby recovery. Known before recovery begins.
pub fn is_requested() -> bool {
    ["standby.signal", "recovery.signal"].into_iter().any(|name| std::fs::exists(name).unwrap_or(false))
}

/// True after the checkpoint of a clean shutdown.
pub fn is_shut_down() -> bool {
    control_file(|control| control.state == pg_sys::DBState::DB_SHUTDOWNED)
}

/// Milliseconds since 1970 of the last checkpoint.
pub fn checkpoint_ms() -> i64 {
    control_file(|control| control.checkPointCopy.time * 1000)
}

pub fn system_identifier() -> u64 {
    // SAFETY: reads the control file's copy in shared memory.
    unsafe { pg_sys::GetSystemIdentifier() }
}

/// The timeline that this server writes. After recovery has ended.
pub fn timeline() -> u32 {
    // SAFETY: reads shared memory.
    unsafe { pg_sys::GetWALInsertionTimeLine() }
}

fn control_file<R>(read: impl FnOnce(&pg_sys::ControlFileData) -> R) -> R {
    let mut is_crc_ok = false;
    // SAFETY: the directory's name is set when the server starts; the result is a copy in this process's memory.
    unsafe {
        let control = pg_sys::get_controlfile(pg_sys::DataDir, &mut is_crc_ok);
        let result = read(&*control);
        pg_sys::pfree(control.cast());
        result
    }
}

//! Recovery: whether this server replays WAL, when it began to write, and what the control file says.

use super::spi::{Query, value};
use super::system_clock;
use pgrx::prelude::*;
use std::fs::{File, read_to_string};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

pub fn is_in_progress() -> bool {
    // SAFETY: reads a flag.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// True if this start begins with data that another server's WAL has made, or will make, newer than the files that
/// PostgreSQL does not log: a standby, a backup, a recovery from an archive, also one that ended without a promotion. For the
/// postmaster before recovery begins, which renames the files and overwrites the state in the control file.
pub fn starts_from_other_wal() -> bool {
    use pg_sys::DBState::{DB_IN_ARCHIVE_RECOVERY, DB_SHUTDOWNED_IN_RECOVERY};
    let files = ["standby.signal", "recovery.signal", "backup_label"];
    files.into_iter().any(|name| std::fs::exists(name).unwrap_or(false))
        || control_file(|control| matches!(control.state, DB_IN_ARCHIVE_RECOVERY | DB_SHUTDOWNED_IN_RECOVERY))
}

/// True after the checkpoint of a clean shutdown.
pub fn is_shut_down() -> bool {
    control_file(|control| control.state == pg_sys::DBState::DB_SHUTDOWNED)
}

/// Milliseconds since 1970 of the last checkpoint.
pub fn checkpoint_ms() -> i64 {
    control_file(|control| control.checkPointCopy.time * 1000)
}

/// The position in WAL of the last checkpoint.
pub fn checkpoint_position() -> u64 {
    control_file(|control| control.checkPoint)
}

/// True if the last checkpoint names no record before it: only `initdb` and `pg_resetwal` write one like that.
pub fn is_checkpoint_first() -> bool {
    let (position, size, timeline) = control_file(|control| {
        (control.checkPoint, u64::from(control.xlog_seg_size), control.checkPointCopy.ThisTimeLineID)
    });
    // As PostgreSQL names its files: by 4 GB, and by the segment in these.
    let (segment, in_4_gb) = (position / size, (1 << 32) / size);
    let path = format!("pg_wal/{timeline:08X}{:08X}{:08X}", segment / in_4_gb, segment % in_4_gb);
    // In the record, the position of the one before follows the length and the transaction: 4 bytes each.
    let mut before = [0; 8];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut before, position % size + 8));
    read.is_ok() && before == [0; 8]
}

/// True if the server syncs its files.
pub fn syncs_files() -> bool {
    // SAFETY: a setting of this process.
    unsafe { pg_sys::enableFsync }
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

/// When this server began to write, by CLOCK_BOOTTIME. PostgreSQL starts the WAL writer then: after a start, a promotion
/// or a crash. `None` while there is no WAL writer: the server has not begun yet.
pub fn began_to_write_us() -> Option<i64> {
    static BEGAN_US: OnceLock<i64> = OnceLock::new();
    static WAL_WRITER: Query = Query::of_statistics(
        "SELECT pid FROM pg_catalog.pg_stat_get_activity(NULL) \
         WHERE backend_type OPERATOR(pg_catalog.=) 'walwriter'",
    );
    if let Some(began_us) = BEGAN_US.get() {
        return Some(*began_us);
    }
    let pid: i32 = WAL_WRITER.read_latest(&[], |row| value(row, 1)).pop()?;
    Some(*BEGAN_US.get_or_init(|| started_us(pid).unwrap_or_else(system_clock::boot_us)))
}

/// When a process started, rounded up to the kernel's tick.
fn started_us(pid: i32) -> Option<i64> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in parentheses, may contain any character. The 22nd field is the 20th after it.
    let ticks: i64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    // SAFETY: asks for a constant of the system.
    let ticks_a_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some((ticks + 1) * 1_000_000 / ticks_a_second)
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

//! Recovery and replication: whether this server replays WAL, when it began to write, what the control file says, waiting
//! for synchronous standbys without a commit; and the data directory, which is the working directory of every
//! process of a server.

use super::latch::{self, WaitEvent};
use super::spi::{Query, value};
use super::{session, system_clock};
use pgrx::prelude::*;
use std::ffi::CStr;
use std::fs::{File, OpenOptions, read_to_string};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

pub fn is_in_progress() -> bool {
    // SAFETY: reads a flag.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// True if the last recovery has not ended with a promotion, by the control file.
pub fn ended_in_recovery() -> bool {
    use pg_sys::DBState::{DB_IN_ARCHIVE_RECOVERY, DB_SHUTDOWNED_IN_RECOVERY};
    control_file(|control| matches!(control.state, DB_IN_ARCHIVE_RECOVERY | DB_SHUTDOWNED_IN_RECOVERY))
}

/// True after the checkpoint of a clean shutdown.
pub fn is_shut_down() -> bool {
    control_file(|control| control.state == pg_sys::DBState::DB_SHUTDOWNED)
}

/// Milliseconds since 1970 of the last checkpoint.
pub fn checkpoint_ms() -> i64 {
    control_file(|control| control.checkPointCopy.time * 1000)
}

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

/// Waits until the synchronous standbys have flushed all WAL that this server has flushed. Returns at once if there are
/// no synchronous standbys. Can be canceled. Not in recovery.
///
/// A commit that is canceled while it waits for a standby succeeds, with a warning that the caller may never see. This
/// wait fails instead.
pub fn wait_for_flushed(event: &WaitEvent) {
    // SAFETY: the caller is not in recovery; null: the timeline is not wanted.
    let until = unsafe { pg_sys::GetFlushRecPtr(std::ptr::null_mut()) };
    while has_synchronous_standbys() && flushed_by_standbys() < until {
        latch::wait(Some(READ_EVERY), event);
        // A session reloads its settings between statements only. Like the wait of a commit, this wait ends when no
        // standby is synchronous any more.
        if session::is_reload_pending() {
            session::reload_configuration();
        }
    }
}

/// About the time that a standby takes to answer. PostgreSQL wakes only processes in its queue of commits.
const READ_EVERY: Duration = Duration::from_millis(2);

fn has_synchronous_standbys() -> bool {
    // SAFETY: settings of this process; the text is null or a C string.
    unsafe {
        let names = pg_sys::SyncRepStandbyNames;
        pg_sys::max_wal_senders > 0 && !names.is_null() && *names != 0
    }
}

/// `SyncRepLock` is a macro of PostgreSQL's headers: an index among its own LWLocks, the same in versions 15 to 19. In each
/// version the index is also the lock's tranche, which tells the name.
fn sync_rep_lock() -> *mut pg_sys::LWLock {
    const INDEX: u16 = 32;
    // SAFETY: PostgreSQL's array of its own LWLocks is longer in every version. A name is a C string that is never freed.
    let (lock, name) = unsafe {
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(INDEX.into())).lock;
        (lock, CStr::from_ptr(pg_sys::GetLWLockIdentifier(pg_sys::PG_WAIT_LWLOCK, INDEX)))
    };
    assert_eq!(name, c"SyncRep", "this version of PostgreSQL has another lock there");
    lock
}

fn flushed_by_standbys() -> pg_sys::XLogRecPtr {
    let lock = sync_rep_lock();
    // SAFETY: shared memory that exists as long as the server; the lock guards it.
    unsafe {
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_SHARED);
        let flushed = (*pg_sys::WalSndCtl).lsn[pg_sys::SYNC_REP_WAIT_FLUSH as usize];
        pg_sys::LWLockRelease(lock);
        flushed
    }
}

/// Inode and birth time of a file. A copy has others. On a file system without birth times only the inode remains.
pub fn identity_of(path: &str) -> io::Result<String> {
    let metadata = std::fs::metadata(path)?;
    let born = metadata.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Ok(format!("{}-{}", metadata.ino(), born.map_or(0, |born| born.as_nanos())))
}

/// Writes a small file durably, all of it or nothing.
pub fn replace_file(path: &str, content: &[u8]) -> io::Result<()> {
    let unfinished = format!("{path}.tmp");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(directory_mode() & 0o666).open(&unfinished)?;
    crate::pg::crash_point!("file: before the write");
    file.write_all(content)?;
    crate::pg::crash_point!("file: before the sync");
    file.sync_all()?;
    crate::pg::crash_point!("file: before the name");
    std::fs::rename(unfinished, path)?;
    crate::pg::crash_point!("file: before the sync of the directory");
    sync_directory(".")
}

/// The permissions of the data directory, which those of its files follow.
pub fn directory_mode() -> u32 {
    // SAFETY: set when the server starts, and never again.
    unsafe { pg_sys::data_directory_mode as u32 }
}

/// Makes names in a directory durable.
pub fn sync_directory(path: &str) -> io::Result<()> {
    match File::open(path)?.sync_all() {
        // A file system that cannot sync directories. PostgreSQL ignores that, too.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EBADF | libc::EINVAL)) => Ok(()),
        outcome => outcome,
    }
}

/// True if the server is stopping, not only this process. The postmaster writes its state into line 8 of its own file.
/// May be called in a signal handler: it allocates nothing.
pub fn is_server_stopping() -> bool {
    // The lines before are numbers, and two paths.
    let mut content = [0u8; 4096];
    // SAFETY: a C string, and a buffer of the length that is passed.
    let length = unsafe {
        let file = libc::open(c"postmaster.pid".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return false;
        }
        let length = libc::read(file, content.as_mut_ptr().cast(), content.len());
        libc::close(file);
        length
    };
    let content = &content[..length.max(0) as usize];
    content.split(|byte| *byte == b'\n').nth(7).is_some_and(|line| line.trim_ascii() == b"stopping")
}

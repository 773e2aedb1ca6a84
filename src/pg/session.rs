//! Facts about this process, its session and its server; and variables of this process that work replaces for a while.

use super::datum;
use super::ereport::errors;
use pgrx::PgList;
use pgrx::prelude::*;

pub fn database() -> u32 {
    // SAFETY: set when the process connects, and never again.
    unsafe { pg_sys::MyDatabaseId }.to_u32()
}

/// True in `postgres --single`.
pub fn is_single_user() -> bool {
    // SAFETY: a variable of this process, set when it starts. No other process that runs SQL lacks a postmaster.
    unsafe { !pg_sys::IsUnderPostmaster }
}

#[inline]
pub fn process_id() -> i32 {
    // SAFETY: a variable of this process, set when it starts.
    unsafe { pg_sys::MyProcPid }
}

pub fn is_parallel_worker() -> bool {
    // SAFETY: a variable of this process, set when it starts.
    unsafe { pg_sys::ParallelWorkerNumber >= 0 }
}

/// Members of pg_read_all_stats see what the statistics of others say.
pub fn reads_all_statistics() -> bool {
    // SAFETY: in a transaction; looks into the system's caches.
    unsafe { pg_sys::has_privs_of_role(pg_sys::GetUserId(), pg_sys::Oid::from_u32(pg_sys::ROLE_PG_READ_ALL_STATS)) }
}

/// A statement of the client: when it was sent or, for one that fetches, when the cursor was declared and how many rows it had
/// returned before. Zeros without a client.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Statement {
    time: i64,
    position: u64,
}

/// The running one. Reads memory only.
#[inline]
pub fn statement() -> Statement {
    active_portal()
        .map_or_else(Statement::default, |portal| Statement { time: portal.creation_time, position: portal.portalPos })
}

#[inline]
fn active_portal() -> Option<&'static pg_sys::PortalData> {
    // SAFETY: null, or the portal that runs this code, which PostgreSQL resets before it frees the portal.
    unsafe { (&raw const pg_sys::ActivePortal).read().as_ref() }
}

/// The statement of the running portal, or the first one that rules have made of it.
pub fn running_statement() -> Option<&'static pg_sys::PlannedStmt> {
    // SAFETY: the list of a portal that runs has planned statements, which live as long as the portal.
    unsafe { PgList::<pg_sys::PlannedStmt>::from_pg(active_portal()?.stmts).get_ptr(0)?.as_ref() }
}

/// The index of this process in PostgreSQL's array of processes; in a worker of a parallel query, that of its leader.
pub fn leader_index() -> usize {
    // SAFETY: the array of all processes is fixed since the start, and the process is in it. A leader outlives its workers.
    unsafe {
        let leader = (*pg_sys::MyProc).lockGroupLeader;
        let process = if leader.is_null() { pg_sys::MyProc } else { leader };
        process.offset_from((*pg_sys::ProcGlobal).allProcs) as usize
    }
}

/// The process with this index, as [`leader_index`] counts them; 0 if there is none.
pub fn process_at(index: usize) -> i32 {
    // SAFETY: the array is fixed since the start. Another process may be changing this field, which is a word.
    unsafe { (&raw const (*(*pg_sys::ProcGlobal).allProcs.add(index)).pid).read_volatile() }
}

/// Applies a changed configuration file. PostgreSQL's processes do it between statements; a long wait inside of a statement
/// may do it as well.
pub fn reload_configuration() {
    // SAFETY: as autovacuum does it inside of a transaction. Values from a file belong to no transaction.
    unsafe {
        pg_sys::ConfigReloadPending = 0;
        pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
    }
}

pub fn is_reload_pending() -> bool {
    // SAFETY: a flag of this process.
    unsafe { pg_sys::ConfigReloadPending != 0 }
}

/// A variable of this process that has another value while this lives. Restored when this is dropped, also after an error.
pub struct Replaced<T: Copy> {
    variable: *mut T,
    before: T,
}

impl<T: Copy> Replaced<T> {
    /// # Safety
    /// A variable that lives as long as the process, and a value that it may have.
    #[inline]
    pub unsafe fn new(variable: *mut T, value: T) -> Self {
        // SAFETY: by the above. The process has one thread.
        Self { variable, before: unsafe { variable.replace(value) } }
    }
}

impl<T: Copy> Drop for Replaced<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as in `new`.
        unsafe { *self.variable = self.before };
    }
}

/// Random bits that cannot be guessed.
pub fn random_i64() -> i64 {
    i64::from_ne_bytes(random_bytes())
}

/// Random in [0, 1).
pub fn random_fraction() -> f64 {
    (random_i64() as u64 >> 11) as f64 / (1u64 << 53) as f64
}

pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill(&mut bytes);
    bytes
}

pub fn random_words<const N: usize>() -> [u64; N] {
    let mut words = [[0; 8]; N];
    fill(words.as_flattened_mut());
    words.map(u64::from_ne_bytes)
}

errors! {
    fn no_random_numbers() {
        ERRCODE_IO_ERROR: "could not generate random numbers";
    }
}

fn fill(bytes: &mut [u8]) {
    // SAFETY: the buffer has the length that is passed.
    if !unsafe { pg_sys::pg_strong_random(bytes.as_mut_ptr().cast(), bytes.len()) } {
        no_random_numbers().raise();
    }
}

/// When the postmaster started, in microseconds since 1970. Tells this start of the server from earlier ones, and from
/// other servers.
pub fn server_start_us() -> i64 {
    // SAFETY: set when the postmaster starts, and inherited.
    datum::since_1970_us(unsafe { pg_sys::PgStartTime })
}

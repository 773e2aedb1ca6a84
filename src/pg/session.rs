//! Facts about this process, its session and its server.

use super::encoding;
use super::ereport::Report;
use pgrx::prelude::*;
use std::ffi::CStr;

unsafe extern "C-unwind" {
    /// Linked without pgrx's guard, which costs more than the function: it returns a variable and cannot fail.
    #[link_name = "GetUserId"]
    safe fn get_user_id() -> pg_sys::Oid;
}

/// The current user.
#[inline]
pub fn user() -> pg_sys::Oid {
    get_user_id()
}

/// The name of the current user; empty if the role was dropped.
pub fn user_name() -> String {
    // SAFETY: null or a C string, copied at once.
    unsafe {
        let name = pg_sys::GetUserNameFromId(user(), true);
        if name.is_null() { String::new() } else { encoding::name(CStr::from_ptr(name)) }
    }
}

/// The database of this process.
pub fn database() -> u32 {
    // SAFETY: set when the process connects, and never again.
    unsafe { pg_sys::MyDatabaseId }.to_u32()
}

/// True if a database with this OID exists.
pub fn database_exists(database: u32) -> bool {
    let id = pg_sys::SysCacheIdentifier::DATABASEOID as i32;
    let none = pg_sys::Datum::null();
    // SAFETY: the cache of databases has one key, the OID.
    unsafe { pg_sys::SearchSysCacheExists(id, pg_sys::Oid::from(database).into(), none, none, none) }
}

pub fn is_parallel_worker() -> bool {
    // SAFETY: a variable of this process, set when it starts.
    unsafe { pg_sys::ParallelWorkerNumber >= 0 }
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

/// Random bits that cannot be guessed.
pub fn random_i64() -> i64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer has the length that is passed.
    if !unsafe { pg_sys::pg_strong_random(bytes.as_mut_ptr().cast(), bytes.len()) } {
        Report::new(PgSqlErrorCode::ERRCODE_IO_ERROR, "could not generate random numbers").raise();
    }
    i64::from_ne_bytes(bytes)
}

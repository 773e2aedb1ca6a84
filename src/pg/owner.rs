//! Tables of an extension, and queries with the rights of their owner. Users have no rights to them: the functions decide
//! what a caller may do before a query runs.

use super::ereport::Report;
use pgrx::PgRelation;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A table of an extension, in the schema of the extension's name.
pub struct ExtensionTable {
    extension: &'static CStr,
    name: &'static CStr,
    /// The OID of the table that was found to be the extension's; 0 until one was.
    verified: AtomicU32,
}

impl ExtensionTable {
    pub const fn new(extension: &'static CStr, name: &'static CStr) -> Self {
        Self { extension, name, verified: AtomicU32::new(0) }
    }

    /// The OID of the table that has the name now, if it is the extension's. After DROP EXTENSION, any role that may
    /// create schemas can create another table of that name.
    pub fn find(&self) -> Option<pg_sys::Oid> {
        // SAFETY: C strings; looks into the system's caches.
        let table = unsafe {
            let schema = pg_sys::get_namespace_oid(self.extension.as_ptr(), true);
            if schema == pg_sys::InvalidOid {
                return None;
            }
            pg_sys::get_relname_relid(self.name.as_ptr(), schema)
        };
        (table != pg_sys::InvalidOid && self.is_of_extension(table)).then_some(table)
    }

    /// Reads `pg_depend`, which has no cache: once for each table and process. A query on a table of another owner that
    /// got the same OID would run with no more than that owner's rights.
    fn is_of_extension(&self, table: pg_sys::Oid) -> bool {
        if self.verified.load(Relaxed) == table.to_u32() {
            return true;
        }
        // SAFETY: a C string; reads catalogs.
        let is_member = unsafe {
            let extension = pg_sys::get_extension_oid(self.extension.as_ptr(), true);
            extension != pg_sys::InvalidOid
                && pg_sys::getExtensionOfObject(pg_sys::RelationRelationId, table) == extension
        };
        if is_member {
            self.verified.store(table.to_u32(), Relaxed);
        }
        is_member
    }

    /// Locks the table until the end of the transaction. The lock keeps DROP EXTENSION out, so the names in a query mean
    /// the extension's tables.
    pub fn lock(&self, mode: u32) -> pg_sys::Oid {
        loop {
            let table = self.find().unwrap_or_else(|| self.raise_missing());
            // SAFETY: in a transaction. It waits for a lock as a query does.
            unsafe { pg_sys::LockRelationOid(table, mode as pg_sys::LOCKMODE) };
            if self.find() == Some(table) {
                return table;
            }
            // SAFETY: locked above. The table was dropped during the wait.
            unsafe { pg_sys::UnlockRelationOid(table, mode as pg_sys::LOCKMODE) };
        }
    }

    fn raise_missing(&self) -> ! {
        let (extension, table) = (self.extension.to_string_lossy(), self.name.to_string_lossy());
        Report::new(
            PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE,
            format!("table \"{extension}.{table}\" of extension {extension} does not exist"),
        )
        .hint(format!(
            "The extension was dropped, or is of an older version: run CREATE EXTENSION {extension} or ALTER EXTENSION {extension} UPDATE."
        ))
        .raise()
    }
}

/// Runs with the rights of the table's owner, as PostgreSQL's referential integrity does, with the table locked in this mode.
/// Queries must qualify every name, those of operators and types too: the user's search path applies, and before it the
/// temporary schema.
pub fn as_owner_of<R>(table: &ExtensionTable, mode: u32, work: impl FnOnce() -> R) -> R {
    let table = table.lock(mode);
    // SAFETY: the table is there, because it is locked.
    let owner = unsafe { (*PgRelation::open(table).rd_rel).relowner };
    as_role(owner, work)
}

/// Runs with the rights of a role. If `work` raises, the end of the (sub)transaction restores the user.
pub fn as_role<R>(role: pg_sys::Oid, work: impl FnOnce() -> R) -> R {
    let mut user = pg_sys::InvalidOid;
    let mut context = 0;
    let flags = pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_NOFORCE_RLS;
    // SAFETY: both point to locals.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        pg_sys::SetUserIdAndSecContext(role, context | flags as i32);
    }
    let result = work();
    // SAFETY: restores what was read above.
    unsafe { pg_sys::SetUserIdAndSecContext(user, context) };
    result
}

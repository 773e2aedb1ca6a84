//! Rights to idgen's own tables. Users have none: what a caller may do is decided before its query runs.

use crate::error;
use pgrx::PgRelation;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A table of the extension, in schema `idgen`.
pub struct Table {
    name: &'static CStr,
    /// The number of the table that was found to be the extension's; 0 until one was.
    verified: AtomicU32,
}

impl Table {
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, verified: AtomicU32::new(0) }
    }

    /// The number of the table that has the name now, if it is the extension's. Another one can have the name once the
    /// extension was dropped: any role that may create schemas can make it.
    pub fn find(&self) -> Option<pg_sys::Oid> {
        // SAFETY: C strings; looks into the system's caches.
        let table = unsafe {
            let schema = pg_sys::get_namespace_oid(c"idgen".as_ptr(), true);
            if schema == pg_sys::InvalidOid {
                return None;
            }
            pg_sys::get_relname_relid(self.name.as_ptr(), schema)
        };
        (table != pg_sys::InvalidOid && self.is_of_extension(table)).then_some(table)
    }

    /// Reads `pg_depend`, which no cache has: once for each table and process. A number that was reused for somebody else's
    /// table would still run with no more than that owner's rights.
    fn is_of_extension(&self, table: pg_sys::Oid) -> bool {
        if self.verified.load(Relaxed) == table.to_u32() {
            return true;
        }
        // SAFETY: a C string; reads catalogs.
        let is_member = unsafe {
            let extension = pg_sys::get_extension_oid(c"idgen".as_ptr(), true);
            extension != pg_sys::InvalidOid
                && pg_sys::getExtensionOfObject(pg_sys::RelationRelationId, table) == extension
        };
        if is_member {
            self.verified.store(table.to_u32(), Relaxed);
        }
        is_member
    }

    /// Locks the table to the end of the transaction. While it is locked nobody can drop it, nor any other table of the
    /// extension, so the names in a query mean what they meant here.
    pub fn lock(&self, mode: u32) -> pg_sys::Oid {
        loop {
            let table = self.find().unwrap_or_else(|| error::no_table(self.name).raise());
            // SAFETY: in a transaction. It waits for a lock as a query would.
            unsafe { pg_sys::LockRelationOid(table, mode as pg_sys::LOCKMODE) };
            if self.find() == Some(table) {
                return table;
            }
            // SAFETY: locked above. The table was dropped while this process waited.
            unsafe { pg_sys::UnlockRelationOid(table, mode as pg_sys::LOCKMODE) };
        }
    }
}

/// Runs with the rights of the table's owner, as PostgreSQL's referential integrity does, with the table locked in the mode.
/// Every name in the queries must be qualified, also of an operator or a type, because the user's search path applies, and
/// before it the temporary schema.
pub fn as_owner_of<R>(table: &Table, mode: u32, work: impl FnOnce() -> R) -> R {
    let table = table.lock(mode);
    // SAFETY: the table is there, because it is locked.
    let owner = unsafe { (*PgRelation::open(table).rd_rel).relowner };
    as_role(owner, work)
}

/// Runs with the rights of a role. If `work` raises, the end of the (sub)transaction brings the user back.
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
    // SAFETY: what was read above.
    unsafe { pg_sys::SetUserIdAndSecContext(user, context) };
    result
}

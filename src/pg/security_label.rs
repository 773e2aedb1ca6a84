//! Security labels on a database that does not exist: rows of the shared catalog pg_shseclabel. They outlive every
//! database, no dump contains them, and a replica needs no code to follow them.

use pgrx::prelude::*;
use std::ffi::{CStr, CString};

/// pg_shseclabel, which pgrx does not name.
const CATALOG: pg_sys::Oid = pg_sys::Oid::from_u32(3592);

/// A database with an OID that no database has.
const OBJECT: pg_sys::ObjectAddress =
    pg_sys::ObjectAddress { classId: pg_sys::DatabaseRelationId, objectId: pg_sys::InvalidOid, objectSubId: 0 };

/// The provider's label; `None` if it has none. In a transaction.
pub fn read(provider: &CStr) -> Option<String> {
    // SAFETY: the object is a constant; the result is null or a C string in this transaction's memory, copied at once.
    unsafe {
        let text = pg_sys::GetSecurityLabel(&OBJECT, provider.as_ptr());
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    }
}

/// Writes the provider's label; `None` removes it. Later reads of the same transaction see it.
pub fn write(provider: &CStr, text: Option<&str>) {
    let text = text.map(|text| CString::new(text).expect("a label has no NUL"));
    let text = text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    // SAFETY: the object is a constant, and the texts are C strings; null removes the label. Writing here needs no
    // registered provider.
    unsafe {
        pg_sys::SetSecurityLabel(&OBJECT, provider.as_ptr(), text);
        pg_sys::CommandCounterIncrement();
    }
}

/// Locks the catalog against other writers that lock it, until the end of the transaction.
pub fn lock_catalog() {
    // SAFETY: a lock that the end of the transaction releases. The mode conflicts with itself.
    unsafe { pg_sys::LockRelationOid(CATALOG, pg_sys::ShareUpdateExclusiveLock as pg_sys::LOCKMODE) };
}

/// Locks one part of the object, which nothing but the provider of that part locks, until the end of the transaction.
pub fn lock_part(part: u16) {
    // SAFETY: a lock that the end of the transaction releases.
    unsafe {
        let mode = pg_sys::ExclusiveLock as pg_sys::LOCKMODE;
        pg_sys::LockSharedObject(OBJECT.classId, OBJECT.objectId, part, mode);
    }
}

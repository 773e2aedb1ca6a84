//! Caches of this process, among them one by text, and PostgreSQL's cache invalidations, by which it hears that a table of
//! the extension, or a role, has changed.
//!
//! A change of a row sends none by itself: a trigger of the table calls [`announce`] with each change. PostgreSQL delivers
//! it when the change commits, also by COMMIT PREPARED and on standbys, and to the process itself when it is rolled back.

use super::spi::ExtensionTable;
use super::xact::{self, Durability};
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::collections::HashMap;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Counts changes after which something that was read from the table may be invalid.
pub struct TableChanges {
    table: &'static ExtensionTable,
    /// The OID of the table; 0 until it is known.
    oid: AtomicU32,
    count: AtomicU64,
    registered: Once,
}

impl TableChanges {
    pub const fn of(table: &'static ExtensionTable) -> Self {
        Self { table, oid: AtomicU32::new(0), count: AtomicU64::new(0), registered: Once::new() }
    }

    #[inline]
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Counts changes from now on. Call it before each read of the table: a change during the read then makes the result
    /// invalid.
    pub fn follow(&'static self) -> u64 {
        let this = pg_sys::Datum::from(std::ptr::from_ref(self));
        // SAFETY: the callbacks have the signatures of theirs, and live as long as the library, which is never unloaded.
        self.registered.call_once(|| unsafe {
            pg_sys::CacheRegisterRelcacheCallback(Some(table_changed), this);
            use pg_sys::SysCacheIdentifier::{AUTHMEMROLEMEM, AUTHOID, DATABASEOID};
            // The owner of the database is a member of pg_database_owner.
            for cache in [AUTHMEMROLEMEM, AUTHOID, DATABASEOID] {
                pg_sys::CacheRegisterSyscacheCallback(cache as _, Some(roles_changed), this);
            }
        });
        self.oid.store(self.table.find().map_or(0, pg_sys::Oid::to_u32), Relaxed);
        self.count()
    }

    /// Makes everything that was read before invalid.
    pub fn forget(&self) {
        self.count.fetch_add(1, Relaxed);
    }
}

/// Counts changes after which a relation or a schema may have another name, or be another one.
pub fn changes_of_names() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    static REGISTERED: Once = Once::new();
    #[pg_guard]
    unsafe extern "C-unwind" fn names_changed(_none: pg_sys::Datum, _cache: i32, _hash: u32) {
        COUNT.fetch_add(1, Relaxed);
    }
    // SAFETY: the callback has the signature of its kind, and lives as long as the library.
    REGISTERED.call_once(|| unsafe {
        use pg_sys::SysCacheIdentifier::{NAMESPACENAME, RELNAMENSP};
        for cache in [NAMESPACENAME, RELNAMENSP] {
            pg_sys::CacheRegisterSyscacheCallback(cache as _, Some(names_changed), pg_sys::Datum::null());
        }
    });
    COUNT.load(Relaxed)
}

/// Receives what other processes have announced. A statement in a running transaction may take no lock, and then PostgreSQL
/// does not accept invalidations.
pub fn accept() {
    // SAFETY: in a transaction; the callbacks only store atomics.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}

/// Tells all processes that a row of this table has changed, when the transaction commits; this one, after the next write.
/// They use the change at once, so a crash must not undo it, whoever has written the row.
pub fn announce(table: pg_sys::Oid) {
    xact::require_durability(Durability::Crash);
    // SAFETY: the table exists: the caller is its trigger, or has found it.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(table) };
}

#[pg_guard]
unsafe extern "C-unwind" fn table_changed(changes: pg_sys::Datum, table: pg_sys::Oid) {
    // SAFETY: registered by `follow`, with a pointer to a static.
    let changes = unsafe { &*changes.cast_mut_ptr::<TableChanges>() };
    // Without an OID, any table may have changed.
    if table == pg_sys::InvalidOid || table.to_u32() == changes.oid.load(Relaxed) {
        changes.forget();
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn roles_changed(changes: pg_sys::Datum, _cache: i32, _hash: u32) {
    // SAFETY: as in `table_changed`.
    unsafe { &*changes.cast_mut_ptr::<TableChanges>() }.forget();
}

/// Has at most `MAX` texts, more than a session uses: some megabytes. A session that exceeds it forgets them all.
pub struct TextCache<T, const MAX: usize = 16_384>(Mutex<Option<HashMap<String, T>>>);

impl<T, const MAX: usize> TextCache<T, MAX> {
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    pub fn read<R>(&self, text: &str, read: impl FnOnce(&T) -> R) -> Option<R> {
        self.0.lock().as_ref()?.get(text).map(read)
    }

    pub fn insert(&self, text: &str, value: T) {
        let mut map = self.0.lock();
        let map = map.get_or_insert_default();
        if map.len() >= MAX {
            map.clear();
        }
        map.insert(text.to_owned(), value);
    }
}

//! Where a tag's values come from, as this process remembers it.
//!
//! A draw looks at no row. That a row, a grant or a role has changed, this process learns from PostgreSQL's own cache
//! invalidations: the trigger of `idgen.segment` sends one for the table with each change, and PostgreSQL delivers it
//! when the change commits, also by COMMIT PREPARED. What was remembered before is looked up again then.

use super::errors;
use super::slot::{SEGMENTS, Segments, ring, slot, slots};
use super::{private, row};
use crate::args;
use crate::pg::call_site::CallSite;
use crate::pg::{session, system_clock};
use crate::{error, shmem};
use idgen_core::segment::table::{Key, Place};
use idgen_core::segment::{Handle, Ring};
use parking_lot::Mutex;
use pgrx::prelude::*;
use row::Row;
use std::collections::HashMap;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// A tag that this process draws from. Good for one user, until something changes.
#[derive(Clone, Copy)]
pub struct Attached {
    source: Source,
    creation: i64,
    user: pg_sys::Oid,
    changes: u64,
}

#[derive(Clone, Copy)]
pub enum Source {
    /// The ring in shared memory.
    Shared { ring: &'static Ring, handle: Handle, index: usize },
    /// The row itself: it was made in the transaction that runs, and nobody else sees it.
    Private,
}

/// How often something has changed on which an `Attached` rests.
static CHANGES: AtomicU64 = AtomicU64::new(0);
/// The number of the table whose changes count; 0 until it is known.
static TABLE: AtomicU32 = AtomicU32::new(0);
/// What this process has attached to, by tag.
static KNOWN: Mutex<Option<HashMap<String, Attached>>> = Mutex::new(None);
/// More tags than a session draws from. One that does starts over, and looks up again.
const MOST: usize = 256;

impl Attached {
    #[inline]
    pub fn source(&self) -> &Source {
        &self.source
    }

    pub fn creation(&self) -> i64 {
        self.creation
    }

    /// Does it still hold, and for this user?
    #[inline]
    pub fn is_good(&self) -> bool {
        self.changes == CHANGES.load(Relaxed) && self.user == session::user()
    }
}

/// What a call draws from: the tag that its argument says.
pub fn of_call(site: &CallSite) -> Attached {
    let tag = args::required(site.text(), "tag");
    // A statement in a transaction that goes on may take no lock, and then PostgreSQL does not look for what has changed.
    // SAFETY: in a transaction; what it calls only takes notes.
    unsafe { pg_sys::AcceptInvalidationMessages() };
    let known = KNOWN.lock().as_ref().and_then(|map| map.get(&*tag).copied());
    known.filter(Attached::is_good).unwrap_or_else(|| look_up(&tag))
}

/// Looks at the row, whatever is remembered, and remembers what it says.
pub fn look_up(tag: &str) -> Attached {
    error::refuse_on_standby();
    shmem::require();
    listen();
    TABLE.store(row::SEGMENT.find().map_or(0, pg_sys::Oid::to_u32), Relaxed);
    // Before the row is looked at: what changes during the look is looked at again.
    let changes = CHANGES.load(Relaxed);
    let row = row::find(tag).unwrap_or_else(|| errors::unknown(tag).raise());
    if !row.may_draw {
        errors::may_not_draw(tag, &session::user_name()).raise();
    }
    let source = if row.made_here {
        if session::is_parallel_worker() {
            errors::in_parallel_worker(tag).raise();
        }
        private::adopt(row.key.creation, row.allocation);
        Source::Private
    } else if row.changed_here {
        errors::changed_here(tag).raise()
    } else {
        let Place { index, handle, .. } = place(&row);
        Source::Shared { ring: ring(index), handle, index }
    };
    let attached = Attached { source, creation: row.key.creation, user: session::user(), changes };
    remember(tag, attached);
    attached
}

fn remember(tag: &str, attached: Attached) {
    let mut map = KNOWN.lock();
    let map = map.get_or_insert_default();
    if map.len() >= MOST {
        map.clear();
    }
    map.insert(tag.to_owned(), attached);
}

/// The ring of a row, which is made if there is none.
fn place(row: &Row) -> Place {
    let is_new = |segments: &mut Segments| segments.table.find(row.key).is_none() && segments.table.is_full();
    // Before the lock: this looks at catalogs and other rows.
    let gone = if SEGMENTS.exclusive(is_new) { gone() } else { Vec::new() };
    attach(row.key, row.version, row.allocation.stride, &gone)
}

/// Finds or makes the ring of a row in a certain state.
pub fn attach(key: Key, version: i64, stride: i64, gone: &[Key]) -> Place {
    SEGMENTS.exclusive(|segments| {
        let place = segments.table.attach(key, version, stride, now_us(), gone);
        if place.new {
            begin(segments, place.index);
        }
        place
    })
}

/// A tenancy begins in a ring: nothing is wanted, known or counted of it yet.
pub fn begin(segments: &mut Segments, index: usize) {
    slot(index).begin(ring(index).position());
    segments.errors[index].clear();
}

/// Tags in the table whose row or database is no more.
fn gone() -> Vec<Key> {
    let mut keys = Vec::with_capacity(slots().len());
    SEGMENTS.exclusive(|segments| keys.extend(segments.table.tenants.iter().flatten().map(|tenant| tenant.key)));
    let here = row::creations();
    let is_here = |key: &Key| match key.database == session::database() {
        true => here.contains(&key.creation),
        false => database_exists(key.database),
    };
    keys.retain(|key| !is_here(key));
    keys
}

fn database_exists(database: u32) -> bool {
    let id = pg_sys::SysCacheIdentifier::DATABASEOID as i32;
    let none = pg_sys::Datum::null();
    // SAFETY: the cache of databases has one key, the number.
    unsafe { pg_sys::SearchSysCacheExists(id, pg_sys::Oid::from(database).into(), none, none, none) }
}

/// Microseconds on a clock that never steps.
pub fn now_us() -> i64 {
    system_clock::boot_us()
}

/// Makes PostgreSQL tell this process of changes.
fn listen() {
    static LISTENING: Once = Once::new();
    // SAFETY: the callbacks have the signatures asked for, and live as long as the library, which is never unloaded.
    LISTENING.call_once(|| unsafe {
        pg_sys::CacheRegisterRelcacheCallback(Some(table_changed), pg_sys::Datum::null());
        for cache in [pg_sys::SysCacheIdentifier::AUTHMEMROLEMEM, pg_sys::SysCacheIdentifier::AUTHOID] {
            pg_sys::CacheRegisterSyscacheCallback(cache as i32, Some(roles_changed), pg_sys::Datum::null());
        }
        private::end_with_transaction();
    });
}

#[pg_guard]
unsafe extern "C-unwind" fn table_changed(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    // Without a number: any table may have changed.
    if relation == pg_sys::InvalidOid || relation.to_u32() == TABLE.load(Relaxed) {
        CHANGES.fetch_add(1, Relaxed);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn roles_changed(_arg: pg_sys::Datum, _cache: i32, _hash: u32) {
    CHANGES.fetch_add(1, Relaxed);
}

/// A transaction ends: what was private is so no longer.
pub fn forget() {
    CHANGES.fetch_add(1, Relaxed);
}

//! Where a tag's values come from, as this process remembers it.
//!
//! A draw looks at no row. That a row, a grant or a role has changed, this process learns from PostgreSQL's own cache
//! invalidations: the trigger of `idgen.segment` sends one for the table with each change, and PostgreSQL delivers it
//! when the change commits, also by COMMIT PREPARED. What was remembered before is looked up again then.

use super::{private, row};
use crate::call_site::CallSite;
use crate::shmem::{Segments, Shared};
use crate::{encoding, error, shmem, snowflake};
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
    Shared { shared: &'static Shared, ring: &'static Ring, handle: Handle, index: usize },
    /// The row itself: it was made in the transaction that runs, and nobody else sees it.
    Private,
}

unsafe extern "C-unwind" {
    /// PostgreSQL's own. Linked without pgrx's guard, which costs more than the function: it returns a variable and
    /// cannot fail.
    #[link_name = "GetUserId"]
    safe fn current_user() -> pg_sys::Oid;
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
        self.changes == CHANGES.load(Relaxed) && self.user == current_user()
    }
}

/// What a call draws from: the tag that its argument says.
pub fn of_call(site: &CallSite) -> Attached {
    let tag = site.text().unwrap_or_else(|| error::null_argument("tag").raise());
    // A statement in a transaction that goes on may take no lock, and then PostgreSQL does not look for what has changed.
    // SAFETY: in a transaction; what it calls only takes notes.
    unsafe { pg_sys::AcceptInvalidationMessages() };
    let known = KNOWN.lock().as_ref().and_then(|map| map.get(&*tag).copied());
    known.filter(Attached::is_good).unwrap_or_else(|| look_up(&tag))
}

/// Looks at the row, whatever is remembered, and remembers what it says.
pub fn look_up(tag: &str) -> Attached {
    snowflake::space::refuse_on_standby();
    let shared = shmem::shared().unwrap_or_else(|| error::not_preloaded().raise());
    listen();
    TABLE.store(row::SEGMENT.find().map_or(0, pg_sys::Oid::to_u32), Relaxed);
    // Before the row is looked at: what changes during the look is looked at again.
    let changes = CHANGES.load(Relaxed);
    let row = row::find(tag).unwrap_or_else(|| error::segment::unknown(tag).raise());
    if !row.may_draw {
        error::segment::may_not_draw(tag, &user_name()).raise();
    }
    let source = if row.made_here {
        // SAFETY: reads a variable of this process.
        if unsafe { pg_sys::ParallelWorkerNumber } >= 0 {
            error::segment::in_parallel_worker(tag).raise();
        }
        private::adopt(row.key.creation, row.allocation);
        Source::Private
    } else if row.changed_here {
        error::segment::changed_here(tag).raise()
    } else {
        let Place { index, handle, .. } = place(shared, &row);
        Source::Shared { shared, ring: &shared.rings[index], handle, index }
    };
    let attached = Attached { source, creation: row.key.creation, user: current_user(), changes };
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
fn place(shared: &'static Shared, row: &Row) -> Place {
    let is_new = |segments: &mut Segments| segments.table.find(row.key).is_none() && segments.table.is_full();
    // Before the lock: this looks at catalogs and other rows.
    let gone = if shared.with_segments(is_new) { gone(shared) } else { Vec::new() };
    attach(shared, row.key, row.version, row.allocation.stride, &gone)
}

/// Finds or makes the ring of a row in a certain state.
pub fn attach(shared: &Shared, key: Key, version: i64, stride: i64, gone: &[Key]) -> Place {
    shared.with_segments(|segments| {
        let place = segments.table.attach(key, version, stride, now_us(), gone);
        if place.new {
            begin(shared, segments, place.index);
        }
        place
    })
}

/// A tenancy begins in a ring: nothing is wanted, known or counted of it yet.
pub fn begin(shared: &Shared, segments: &mut Segments, index: usize) {
    shared.slots[index].begin(shared.rings[index].position());
    segments.errors[index].clear();
}

/// Tags in the table whose row or database is no more.
fn gone(shared: &Shared) -> Vec<Key> {
    let mut keys = Vec::with_capacity(shared.rings.len());
    shared.with_segments(|segments| keys.extend(segments.table.tenants.iter().flatten().map(|tenant| tenant.key)));
    let here = row::creations();
    let is_here = |key: &Key| match key.database == row::database() {
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
    crate::clock::boot_us()
}

fn user_name() -> String {
    // SAFETY: the name of the current user, copied at once.
    unsafe {
        let name = pg_sys::GetUserNameFromId(current_user(), true);
        if name.is_null() { String::new() } else { encoding::name(std::ffi::CStr::from_ptr(name)) }
    }
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

//! The source of a tag's values, as this process remembers it.
//!
//! A draw reads no row. PostgreSQL's cache invalidations tell this process that a row, a grant or a role has changed:
//! the trigger of `idgen.segment` sends one for the table with each change. PostgreSQL delivers it when the change
//! commits, also by COMMIT PREPARED. The first draw of the next statement then reads the row again.

use super::state::{RingRow, SEGMENTS, attach_ring, ring, ring_states};
use super::store::{self, TagRow};
use super::{demand, errors, uncommitted};
use crate::args;
use crate::pg::call_site::CallSite;
use crate::pg::invalidation::{self, TableChanges};
use crate::pg::session;
use crate::pg::spi;
use crate::text_cache::TextCache;
use crate::{error, shmem};
use idgen_core::segment::{Draw, Ring, RingHandle, TagKey};
use idgen_core::tenancy::Attachment;
use pgrx::prelude::*;

/// A tag that this process draws from: valid for one user, until something changes.
#[derive(Clone, Copy)]
pub struct AttachedSegment {
    pub source: ValueSource,
    pub creation: i64,
    pub version: i64,
    /// The most values that a set draws at once.
    pub max_step: u64,
    user: pg_sys::Oid,
    changes: u64,
    /// The last statement that has accepted invalidations.
    statement: i64,
}

/// A ring in shared memory.
#[derive(Clone, Copy)]
pub struct SharedRing {
    pub ring: &'static Ring,
    pub handle: RingHandle,
    pub index: usize,
}

#[derive(Clone, Copy)]
pub enum ValueSource {
    Shared(SharedRing),
    /// The same, in turns: see `idgen_core::segment::turns`.
    InOrder(SharedRing),
    /// The row itself: the running transaction created it, and no other session sees it.
    Uncommitted,
}

/// Counts changes after which an `AttachedSegment` may be invalid.
static CHANGES: TableChanges = TableChanges::of(&store::SEGMENT);
/// Attached segments by their tag.
static KNOWN: TextCache<AttachedSegment> = TextCache::new();

impl AttachedSegment {
    /// Hears of what was committed before the statement was sent. PL/pgSQL keeps a call over the statements of a
    /// transaction, and PostgreSQL accepts invalidations only where a statement takes a lock.
    pub fn follow_statement(&mut self) {
        let statement = session::statement_time();
        if self.statement != statement {
            invalidation::accept();
            self.statement = statement;
        }
    }

    /// True if this process has heard of no change since, and for the current user.
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.changes == CHANGES.count() && self.user == spi::user()
    }

    /// The next value; `None` if this process must attach again or wait. The hot path: no lock, no allocation, no
    /// logging, and no foreign call but that for the user.
    #[inline]
    pub fn try_draw_one(&self) -> Option<i64> {
        if self.statement == session::statement_time()
            && self.is_valid()
            && let ValueSource::Shared(SharedRing { ring, handle, index }) = self.source
            && let Ok(Draw::Drawn { run, request }) = ring.draw(handle, 1)
        {
            if request {
                demand::prefetch(index);
            }
            return Some(run.first);
        }
        None
    }
}

/// Attaches to the tag that is the first argument of the call.
pub fn of_call(site: &CallSite) -> AttachedSegment {
    let tag = args::required(site.text(), "tag");
    invalidation::accept();
    let known = KNOWN.read(&tag, |attached| AttachedSegment { statement: session::statement_time(), ..*attached });
    known.filter(AttachedSegment::is_valid).unwrap_or_else(|| look_up(&tag))
}

/// Reads the row of a tag, and remembers the result. Raises 42704 if there is no such tag, 42501 if the user may not
/// draw from it, 55000 without preload or if this transaction changed it, 25006 on a standby.
pub fn look_up(tag: &str) -> AttachedSegment {
    error::refuse_on_standby("generate ids");
    shmem::require();
    let changes = CHANGES.follow();
    let row = store::find(tag).unwrap_or_else(|| errors::unknown(tag).raise());
    if !row.may_draw {
        errors::may_not_draw(tag, &spi::user_name()).raise();
    }
    // The coordinator's values are fetched for committed rows only, and only those wait for reports of servers.
    let source = if row.created_here && !row.link.is_attached() && row.link.history.is_none() {
        if session::is_parallel_worker() {
            errors::in_parallel_worker(tag).raise();
        }
        uncommitted::adopt(row.key.creation, row.definition.allocation());
        ValueSource::Uncommitted
    } else if row.created_here || row.changed_here {
        errors::changed_here(tag).raise()
    } else {
        let Attachment { index, handle, .. } = attach_row(&row);
        let shared = SharedRing { ring: ring(index), handle, index };
        match row.link.is_in_order(&row.definition) {
            true => ValueSource::InOrder(shared),
            false => ValueSource::Shared(shared),
        }
    };
    let (creation, version, max_step) = (row.key.creation, row.version, row.definition.max_step as u64);
    let (user, statement) = (spi::user(), session::statement_time());
    let attached = AttachedSegment { source, creation, version, max_step, user, changes, statement };
    KNOWN.insert(tag, attached);
    attached
}

fn attach_row(row: &TagRow) -> Attachment<RingHandle> {
    let needs_ring = SEGMENTS.exclusive(|segments| segments.table.find(row.key).is_none() && segments.table.is_full());
    // Outside of the lock: this reads catalogs and other rows.
    let gone = if needs_ring { gone() } else { Vec::new() };
    let TagRow { key, version, .. } = *row;
    attach_ring(RingRow { key, version, stride: row.definition.stride, is_attached: row.link.is_attached() }, &gone)
}

/// Tags in the table whose row or database no longer exists.
fn gone() -> Vec<TagKey> {
    // Allocated before the lock is acquired.
    let mut keys = Vec::with_capacity(ring_states().len());
    SEGMENTS.exclusive(|segments| keys.extend(segments.table.tenants.iter().flatten().map(|tenant| tenant.key)));
    let here = store::creations();
    keys.retain(|key| match key.database == session::database() {
        true => !here.contains(&key.creation),
        false => !session::database_exists(key.database),
    });
    keys
}

/// Makes every `AttachedSegment` invalid.
pub fn forget() {
    CHANGES.forget();
}

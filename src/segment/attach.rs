//! The source of a tag's values, as this process remembers it.
//!
//! A draw reads no row. PostgreSQL's cache invalidations tell this process that a row, a grant or a role has changed:
//! the trigger of `idgen.segment` sends one for the table with each change. PostgreSQL delivers it when the change
//! commits, also by COMMIT PREPARED. The first draw of the next statement then reads the row again.

use super::state::{RingRow, SEGMENTS, attach_ring, ring};
use super::{demand, errors, store, uncommitted};
use crate::args;
use crate::error;
use crate::pg::function::CallSite;
use crate::pg::invalidation::{self, TableChanges, TextCache};
use crate::pg::{session, spi};
use crate::shmem;
use idgen_core::segment::{Draw, Ring, RingHandle, RingTenant};
use idgen_core::tenancy::Attachment;
use pgrx::prelude::*;

/// A tag that this process draws from: valid for one user, until something changes.
#[derive(Clone, Copy)]
pub struct AttachedSegment {
    pub source: ValueSource,
    pub row: RingRow,
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
/// As many as there are tags that lose no value for want of a ring: some 250 bytes each.
const MAX_KNOWN: usize = 131_072;

/// Attached segments by their tag.
static KNOWN: TextCache<AttachedSegment, MAX_KNOWN> = TextCache::new();

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
    let (is_attached, stride) = (row.link.is_attached(), row.definition.stride);
    let ring_row = RingRow { key: row.key, version: row.version, stride, is_attached };
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
        let shared = attach(ring_row);
        match row.link.is_in_order(&row.definition) {
            true => ValueSource::InOrder(shared),
            false => ValueSource::Shared(shared),
        }
    };
    let (user, statement) = (spi::user(), session::statement_time());
    let max_step = row.definition.max_step as u64;
    let attached = AttachedSegment { source, row: ring_row, max_step, user, changes, statement };
    KNOWN.insert(tag, attached);
    attached
}

/// The same from a ring again, after its ring was given to another tag. Reads no row, so `None` if that may have changed.
pub fn attach_again(tag: &str, attached: &AttachedSegment) -> Option<AttachedSegment> {
    invalidation::accept();
    let attach_if_same = || {
        let shared = attach(attached.row);
        // A commit ends the ring before it sends its invalidation.
        let has_row = |tenant: RingTenant| tenant.handle == shared.handle && tenant.version == attached.row.version;
        SEGMENTS.exclusive(|segments| segments.table.tenants[shared.index].is_some_and(has_row)).then_some(shared)
    };
    let source = match attached.source {
        _ if !attached.is_valid() => None,
        ValueSource::Shared(_) => attach_if_same().map(ValueSource::Shared),
        ValueSource::InOrder(_) => attach_if_same().map(ValueSource::InOrder),
        ValueSource::Uncommitted => None,
    }?;
    let attached = AttachedSegment { source, ..*attached };
    KNOWN.insert(tag, attached);
    Some(attached)
}

fn attach(row: RingRow) -> SharedRing {
    let Attachment { index, handle, .. } = attach_ring(row);
    SharedRing { ring: ring(index), handle, index }
}

/// Makes every `AttachedSegment` invalid.
pub fn forget() {
    CHANGES.forget();
}

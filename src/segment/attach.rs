//! The source of a tag's values, as this process remembers it.
//!
//! A draw reads no row. PostgreSQL's cache invalidations tell this process that a row, a grant or a role has changed:
//! the trigger of `idgen.segment` sends one for the table with each change. PostgreSQL delivers it when the change
//! commits, also by COMMIT PREPARED. The first draw of the next statement then reads the row again.
//!
//! A tag that the running transaction created has no ring, because no other session sees it: this process counts its
//! values, and raises `max_id` of the row once, just before the commit. Rolling back to a savepoint does not return
//! values: a client may have seen them. The values of a tag in one line are not drawn from a ring either: this process joins
//! turns, see `idgen_core::segment::turns`.

use super::state::{RINGS, RingRow, SEGMENTS, SharedRing, attach_ring, in_tenancy};
use super::store::{self, FoundTag};
use super::{errors, workers};
use crate::args;
use crate::error;
use crate::pg::function::CallSite;
use crate::pg::invalidation::{self, TableChanges, TextCache};
use crate::pg::session::{self, Statement};
use crate::pg::{spi, xact};
use idgen_core::segment::tag::Allocation;
use idgen_core::segment::turns::Ticket;
use idgen_core::segment::{Draw, RingTenant, ValueRun};
use idgen_core::tenancy::Ended;
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::sync::Once;

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
    statement: Statement,
}

#[derive(Clone, Copy)]
pub enum ValueSource {
    /// A ring, or turns of it: see `idgen_core::segment::turns`.
    Ring { shared: SharedRing, in_turns: bool },
    /// The row itself: the running transaction created it, and no other session sees it.
    Uncommitted,
}

/// Counts changes after which an `AttachedSegment` may be invalid.
static CHANGES: TableChanges = TableChanges::of(&store::SEGMENT);
/// As many as there are tags that lose no value for want of a ring: some 250 bytes each.
const MAX_KNOWN: usize = 131_072;

static KNOWN: TextCache<AttachedSegment, MAX_KNOWN> = TextCache::new();

impl AttachedSegment {
    /// Hears of what was committed before the statement was sent. PL/pgSQL keeps a call over the statements of a
    /// transaction, and PostgreSQL accepts invalidations only where a statement takes a lock.
    pub fn follow_statement(&mut self) {
        let statement = session::statement();
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
        if self.statement == session::statement()
            && self.is_valid()
            && let ValueSource::Ring { shared: SharedRing { ring, handle, index }, in_turns: false } = self.source
            && let Ok(Draw::Drawn { run, request }) = ring.draw(handle, 1)
        {
            if request {
                workers::prefetch(index);
            }
            return Some(run.first);
        }
        None
    }
}

pub fn of_call(site: &CallSite) -> AttachedSegment {
    let tag = args::required(site.text(), "tag");
    invalidation::accept();
    let known = KNOWN.read(&tag, |attached| AttachedSegment { statement: session::statement(), ..*attached });
    known.filter(AttachedSegment::is_valid).unwrap_or_else(|| look_up(&tag))
}

/// Reads the row of a tag, and remembers the result. Raises 42704 if there is no such tag, 22023 if none can exist, 42501 if the
/// user may not draw from it, 55000 without preload or if this transaction changed it, 25006 on a standby.
pub fn look_up(tag: &str) -> AttachedSegment {
    error::refuse_on_standby("generate ids");
    RINGS.require();
    let changes = CHANGES.follow();
    let FoundTag { row, changed_here, may_draw, .. } = store::find(tag).unwrap_or_else(|| errors::missing(tag).raise());
    if !may_draw {
        errors::may_not_draw(tag, &spi::role_name(spi::user())).raise();
    }
    let (is_attached, stride) = (row.link.is_attached(), row.definition.stride);
    let ring_row = RingRow { key: row.key, version: row.version, stride, is_attached };
    // The coordinator's values are fetched for committed rows only, and only those wait for reports of servers.
    let source = if row.created_here && !is_attached && row.link.history.is_none() {
        if session::is_parallel_worker() {
            errors::in_parallel_worker(tag).raise();
        }
        adopt(row.key.creation, row.definition.allocation());
        ValueSource::Uncommitted
    } else if row.created_here || changed_here {
        errors::changed_here(tag).raise()
    } else {
        ValueSource::Ring { shared: attach_ring(ring_row), in_turns: row.is_in_order() }
    };
    let (user, statement) = (spi::user(), session::statement());
    let max_step = row.definition.max_step as u64;
    let attached = AttachedSegment { source, row: ring_row, max_step, user, changes, statement };
    KNOWN.insert(tag, attached);
    attached
}

/// The same from a ring again, after its ring was given to another tag. Reads no row, so `None` if that may have changed.
pub fn attach_again(tag: &str, attached: &AttachedSegment) -> Option<AttachedSegment> {
    invalidation::accept();
    let ValueSource::Ring { in_turns, .. } = attached.source else { return None };
    let shared = attached.is_valid().then(|| attach_ring(attached.row))?;
    // A commit ends the ring before it sends its invalidation.
    let has_row = |tenant: RingTenant| tenant.handle == shared.handle && tenant.version == attached.row.version;
    if !SEGMENTS.exclusive(|segments| segments.table.tenants[shared.index].is_some_and(has_row)) {
        return None;
    }
    let attached = AttachedSegment { source: ValueSource::Ring { shared, in_turns }, ..*attached };
    KNOWN.insert(tag, attached);
    Some(attached)
}

struct Uncommitted {
    creation: i64,
    /// That of the row, with `max_id` as drawn here.
    allocation: Allocation,
    drawn: bool,
}

static TAGS: Mutex<Vec<Uncommitted>> = Mutex::new(Vec::new());

/// Takes over the row's state. Values that were drawn here stay drawn.
fn adopt(creation: i64, row: Allocation) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| xact::on_xact_event(at_xact_event));
    let mut tags = TAGS.lock();
    match tags.iter_mut().find(|tag| tag.creation == creation) {
        Some(tag) => tag.allocation = Allocation { max_id: row.max_id.max(tag.allocation.max_id), ..row },
        None => tags.push(Uncommitted { creation, allocation: row, drawn: false }),
    }
}

/// The next values: `want` of them, or, unless `is_block`, as many as there are. `None` if there are none.
pub fn draw_uncommitted(creation: i64, want: u64, is_block: bool) -> Option<ValueRun> {
    let mut tags = TAGS.lock();
    let tag = tags.iter_mut().find(|tag| tag.creation == creation)?;
    let run = tag.allocation.next(want).filter(|run| run.count == want || !is_block)?;
    tag.allocation.max_id = run.last();
    tag.drawn = true;
    Some(run)
}

/// The greatest value that the transaction has drawn from a tag that it created. It stays drawn if a savepoint undoes that.
pub fn drawn_uncommitted(creation: i64) -> Option<i64> {
    let tags = TAGS.lock();
    tags.iter().find(|tag| tag.creation == creation && tag.drawn).map(|tag| tag.allocation.max_id)
}

fn at_xact_event(event: pg_sys::XactEvent::Type) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT | pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE => settle(),
        pg_sys::XactEvent::XACT_EVENT_ABORT => {
            let tags = std::mem::take(&mut *TAGS.lock());
            if !tags.is_empty() {
                CHANGES.forget();
            }
        }
        _ => {}
    }
}

fn settle() {
    // The mutex is not held while a query runs.
    let tags = std::mem::take(&mut *TAGS.lock());
    if tags.is_empty() {
        return;
    }
    // The transaction may have dropped the extension.
    if store::SEGMENT.find().is_some() {
        // A tag whose creation was rolled back to a savepoint has no row: this changes nothing then.
        let drawn = tags.iter().filter(|tag| tag.drawn);
        xact::write_before_commit(|| {
            drawn.for_each(|tag| store::raise(tag.creation, tag.allocation.max_id, None, None));
        });
    }
    CHANGES.forget();
}

/// The ring that this process waits for, and its part of a turn.
static JOINED: Mutex<Option<(usize, Ticket)>> = Mutex::new(None);

/// Draws from the turn that this process has joined, if that is over: so many values if `is_block`, otherwise at least one.
pub fn draw_turn(SharedRing { handle, index, .. }: SharedRing, is_block: bool) -> Result<Draw, Ended> {
    let mut joined = JOINED.lock();
    let draw = in_tenancy(index, handle, |segments| {
        let Some((_, ticket)) = *joined else { return Draw::Dry };
        let claim = segments.turns[index].claim(ticket, is_block);
        joined.take_if(|_| claim.is_some());
        claim.unwrap_or(Draw::Dry)
    });
    draw.ok_or(Ended)
}

/// Joins the next turn, unless this process has joined one. True if it has done so now.
pub fn join(SharedRing { handle, index, .. }: SharedRing, want: u64) -> bool {
    static REGISTERED: Once = Once::new();
    // A process that is terminated drops nothing.
    REGISTERED.call_once(|| xact::before_exit(|_| _ = withdraw()));
    let mut joined = JOINED.lock();
    if joined.is_some() {
        return false;
    }
    *joined = in_tenancy(index, handle, |segments| (index, segments.turns[index].join(want)));
    joined.is_some()
}

/// Ends what this process has joined without values. True if it had joined a turn.
pub fn withdraw() -> bool {
    let Some((index, ticket)) = JOINED.lock().take() else { return false };
    SEGMENTS.exclusive(|segments| segments.turns[index].withdraw(ticket));
    true
}

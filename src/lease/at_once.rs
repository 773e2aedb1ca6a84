//! Grants by one statement each, for the usual cases: slot 0 of a lease that has no other, and a shared term beside others.
//! They read no other rows, and need no subtransaction. [`super::attempt`] decides all other cases.

use super::attempt::{AcquireRequest, Outcome, begun};
use super::locks::Queue;
use super::stats::COUNTERS;
use super::store::{self, LEASE};
use super::terms::{HeldTerm, NewHolder, begin, has_raised_tokens, insert_text, update_text};
use super::{definitions, errors, sweep};
use crate::pg::spi::Query;
use crate::pg::{session, system_clock, xact};
use idgen_core::lease::{FIRST_SHARED, LeaseDefinition};
use pgrx::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Attempts a grant by one statement. `None` if the statement is not enough. An observer of an expired term is told of its
/// owner, which the statement replaces. And it would raise the tokens of the process before it knows that it grants one.
pub fn attempt_at_once(request: &AcquireRequest, queue: &Queue) -> Option<Outcome> {
    if request.shares_snapshot || !has_raised_tokens() {
        return None;
    }
    let AtOnce { granted, lock_delay_us, is_visible } = xact::releasing_locks_on_none(|| {
        let known = definitions::of(request.name);
        let definition = known.definition.unwrap_or_else(store::undefined);
        if definition.slots > 1 || known.notify {
            return None;
        }
        COUNTERS.add(1, |counters| &counters.probes);
        grant_at_once(request, &definition, known.definition.is_some(), queue)
    })?;
    // Only here: the locks of the work have another owner, which cannot release this one.
    if is_visible {
        queue.leave();
    }
    Some(begun(request, granted, lock_delay_us))
}

/// A grant by one statement.
struct AtOnce {
    granted: HeldTerm,
    lock_delay_us: i64,
    /// Other acquirers see the grant before it is committed: by the lock on its row, or by that of a shared grant. Otherwise
    /// this one must stay at the head of the queue until its transaction ends, as in `Attempt::insert`.
    is_visible: bool,
}

fn grant_at_once(
    request: &AcquireRequest,
    definition: &LeaseDefinition,
    is_defined: bool,
    queue: &Queue,
) -> Option<AtOnce> {
    let AcquireRequest { name, holder, .. } = *request;
    let ttl_us = request.ttl_us.unwrap_or(definition.ttl_us);
    let lock_delay_us = definition.lock_delay_us;
    let count_grant = || COUNTERS.add(1, |counters| &counters.grants);
    if request.shared {
        queue.announce_shared_grant();
        let granted = insert_shared(name, holder, ttl_us)?;
        count_grant();
        sweep::sweep_if_due();
        return Some(AtOnce { granted, lock_delay_us, is_visible: true });
    }
    let take = || {
        let (granted, is_take_over) = take(name, holder, ttl_us, lock_delay_us)?;
        COUNTERS.add(1, |counters| if is_take_over { &counters.take_overs } else { &counters.grants });
        Some(AtOnce { granted, lock_delay_us, is_visible: true })
    };
    let insert = || {
        let granted = insert_first(name, holder, ttl_us)?;
        count_grant();
        if !is_defined {
            sweep::sweep_if_due();
        }
        Some(AtOnce { granted, lock_delay_us, is_visible: false })
    };
    // The slot of a defined lease has a row from its first grant on, that of another one only while it is held.
    if is_defined { take().or_else(insert) } else { insert().or_else(take) }
}

static TAKE: Query = Query::new(&LEASE, || {
    // CASE locks the row only if all other conditions hold. The planner could test conditions in another order.
    update_text(
        "slot OPERATOR(pg_catalog.=) 0 \
         AND CASE WHEN name OPERATOR(pg_catalog.=) $1 AND slot OPERATOR(pg_catalog.=) 0 \
                   AND clock OPERATOR(pg_catalog.=) $7 AND session IS NULL \
                   AND (ends_us OPERATOR(pg_catalog.<=) $10 OR (depth OPERATOR(pg_catalog.=) 0 AND NOT revoked)) \
                   AND NOT EXISTS (SELECT FROM idgen.lease AS other \
                                   WHERE other.name OPERATOR(pg_catalog.=) $1 AND other.slot OPERATOR(pg_catalog.>) 0) \
             THEN idgen.lease_lock_row(ctid, depth OPERATOR(pg_catalog.>) 0 OR revoked) ELSE false END",
    )
});

/// Begins a term in slot 0, if that is free or its term is over, and tells whether its last holder had not released it.
/// `None` also for a term of another clock or of a session, and beside other rows, such as those of shared terms.
fn take(name: &str, holder: NewHolder, ttl_us: i64, lock_delay_us: i64) -> Option<(HeldTerm, bool)> {
    TAKES.store(true, Relaxed);
    let _taking = Taking;
    // A term that ended by then, or was revoked by then, is past its lock delay.
    let ended_by_us = system_clock::boot_us().saturating_sub(lock_delay_us);
    let granted = begin(&TAKE, name, holder, ttl_us, ended_by_us.into())?;
    Some((granted, IS_TAKE_OVER.load(Relaxed)))
}

static INSERT_FIRST: Query = Query::new(&LEASE, || insert_text("true"));

/// Inserts slot 0 with a term, if the lease has no row at all.
fn insert_first(name: &str, holder: NewHolder, ttl_us: i64) -> Option<HeldTerm> {
    begin(&INSERT_FIRST, name, holder, ttl_us, 0.into())
}

static INSERT_SHARED: Query =
    Query::new(&LEASE, || insert_text(&format!("other.slot OPERATOR(pg_catalog.<) {FIRST_SHARED}")));

/// Inserts a shared term, if no slot has a row: its holder, or the last one, may still write.
///
/// Transactions that begin shared terms at the same time do not see each other's rows. So each term has a random number;
/// one that is taken is drawn again. All users can read it in `idgen.leases`, so it must not tell the token.
pub fn insert_shared(name: &str, holder: NewHolder, ttl_us: i64) -> Option<HeldTerm> {
    let number = FIRST_SHARED + (session::random_i64() as u32 % (i32::MAX - FIRST_SHARED) as u32) as i32;
    begin(&INSERT_SHARED, name, holder, ttl_us, number.into())
}

/// True while [`take`] runs: [`lease_lock_row`] trusts the version that it gets.
static TAKES: AtomicBool = AtomicBool::new(false);
/// What the query of [`take`] has found: it cannot return what it replaces.
static IS_TAKE_OVER: AtomicBool = AtomicBool::new(false);

/// Ends it, also after an error.
struct Taking;

impl Drop for Taking {
    fn drop(&mut self) {
        TAKES.store(false, Relaxed);
    }
}

/// Locks this version of a row against fences and all writers. False if another transaction has locked or replaced it.
///
/// FOR UPDATE SKIP LOCKED would follow a row that was replaced, lock its new version, and then find that the version does
/// not qualify. A caller that goes on to wait would keep that lock, and the holder could neither renew nor release.
#[pg_extern(sql = false)]
fn lease_lock_row(version: pg_sys::ItemPointerData, is_take_over: bool) -> bool {
    if !TAKES.load(Relaxed) {
        errors::lock_row_usage().raise();
    }
    IS_TAKE_OVER.store(is_take_over, Relaxed);
    let table = LEASE.lock(pg_sys::RowShareLock);
    // SAFETY: the table is locked, and is a heap. The version is one that a scan of it has found: only that query calls this
    // function. The tuple is a local, and not read after its buffer is released.
    unsafe {
        let relation = pg_sys::table_open(table, pg_sys::NoLock as i32);
        let mut tuple = pg_sys::HeapTupleData { t_self: version, t_tableOid: table, ..Default::default() };
        let (mut buffer, mut failure) = (0, pg_sys::TM_FailureData::default());
        let (mode, policy) = (pg_sys::LockTupleMode::LockTupleExclusive, pg_sys::LockWaitPolicy::LockWaitSkip);
        let command = pg_sys::GetCurrentCommandId(true);
        let result =
            pg_sys::heap_lock_tuple(relation, &mut tuple, command, mode, policy, false, &mut buffer, &mut failure);
        pg_sys::ReleaseBuffer(buffer);
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
        result == pg_sys::TM_Result::TM_Ok
    }
}

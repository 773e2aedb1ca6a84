//! lease_acquire and lease_try_acquire: wait in the queue of the lease, then at its head for a slot, and begin a term.

use super::queue::{self, Precedence, Queue};
use super::stats::COUNTERS;
use super::store::{self, Granted, LeaseState, NewHolder, versions};
use super::{errors, holder, pending};
use crate::args;
use crate::pg::advisory_lock::{AdvisoryLock, Limit, Mode, Scope, acquire_for_transaction};
use crate::pg::datum::{Composite, Text, form_row, form_rows, text_arg};
use crate::pg::{system_clock, xact};
use crate::settings;
use idgen_core::lease::{Availability, Choice, Now, Term, choose, has_holders_outside, to_end_before};
use pgrx::datum::Interval;
use pgrx::fcinfo::{pg_getarg, pg_getarg_datum};
use pgrx::prelude::*;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Acquires a lease, or with a token acquires its term once more. Waits for a slot, up to `lock_timeout`. NULL as `ttl`
/// is the ttl of the definition. Raises 55000 for a token without a term, 42501 for the token of another role, 0A000 if a
/// term cannot be bound later, and 40001 if the transaction's snapshot is too old.
#[pg_extern(sql = "CREATE FUNCTION lease_acquire(name text, ttl interval DEFAULT NULL, owner text DEFAULT NULL, \
           data jsonb DEFAULT NULL, token bigint DEFAULT NULL, bind_session boolean DEFAULT false, \
           OUT name text, OUT slot int, OUT token bigint, OUT owner text, OUT acquired_at timestamptz, \
           OUT expires_at timestamptz, OUT depth int) \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lease_acquire(fcinfo: pg_sys::FunctionCallInfo) -> Composite {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared; the columns are the OUT parameters.
    unsafe {
        let row = acquire_by_args(fcinfo, 1, Limit::by_lock_timeout());
        form_row(fcinfo, row.expect("without an answer it is an error"))
    }
}

/// Acquires a lease if a slot becomes free within the timeout; otherwise returns no row. Raises what `lease_acquire`
/// raises, but no 55P03.
#[pg_extern(
    sql = "CREATE FUNCTION lease_try_acquire(name text, timeout interval DEFAULT '0', ttl interval DEFAULT NULL, \
           owner text DEFAULT NULL, data jsonb DEFAULT NULL, token bigint DEFAULT NULL, \
           bind_session boolean DEFAULT false, \
           OUT name text, OUT slot int, OUT token bigint, OUT owner text, OUT acquired_at timestamptz, \
           OUT expires_at timestamptz, OUT depth int) RETURNS SETOF record ROWS 1 \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
fn lease_try_acquire(fcinfo: pg_sys::FunctionCallInfo) -> SetOfIterator<'static, Composite> {
    // SAFETY: as above.
    unsafe {
        let timeout = args::timeout(pg_getarg::<Interval>(fcinfo, 1));
        form_rows(fcinfo, acquire_by_args(fcinfo, 2, Limit::answer(timeout)))
    }
}

/// Returns the columns of the result.
///
/// # Safety
/// `fcinfo` is that of the running call. Its first argument is a text; from `first` on they are ttl, owner, data, token and
/// bind_session.
unsafe fn acquire_by_args(
    fcinfo: pg_sys::FunctionCallInfo,
    first: usize,
    limit: Limit,
) -> Option<[Option<pg_sys::Datum>; 7]> {
    // SAFETY: by the above.
    let (name, ttl, owner, data, token, bind_session) = unsafe {
        (
            text_arg(fcinfo, 0),
            pg_getarg::<Interval>(fcinfo, first),
            text_arg(fcinfo, first + 1),
            pg_getarg_datum(fcinfo, first + 2),
            pg_getarg::<i64>(fcinfo, first + 3),
            pg_getarg::<bool>(fcinfo, first + 4),
        )
    };
    let name = args::name(name.as_deref(), "name");
    let ttl_us = checked_ttl_us(ttl);
    let bind_session = args::required(bind_session, "bind_session");
    xact::require_read_write(c"lease_acquire()");
    let granted = match token {
        Some(token) => holder::deepen(name, token, ttl_us, bind_session),
        None => {
            let request = AcquireRequest {
                name,
                ttl_us,
                holder: NewHolder { owner: owner.as_deref(), data, bind_session },
                only_if_free: false,
                preference: None,
                has_one_snapshot: xact::has_one_snapshot(),
            };
            acquire(&request, limit)?
        }
    };
    if xact::is_in_block() {
        errors::not_held_before_commit(name).warn();
    }
    let expires_at = granted.expires_at();
    let Granted { slot, token, owner, acquired_at, depth, .. } = granted;
    Some([
        Text::from(name).into_datum(),
        slot.into_datum(),
        token.into_datum(),
        owner.map(Text::from).into_datum(),
        acquired_at.into_datum(),
        expires_at.into_datum(),
        depth.into_datum(),
    ])
}

/// Acquires a slot. If the limit passes, `None` or an error, as the limit says.
pub fn acquire(request: &AcquireRequest, limit: Limit) -> Option<Granted> {
    let queue = Queue::of(request.name);
    let began = Instant::now();
    if !queue.enter(limit) {
        return None;
    }
    let granted = wait_at_head(request, limit, &queue);
    COUNTERS.add(began.elapsed().as_micros() as u64, |counters| &counters.wait_us);
    if granted.is_some() {
        return granted;
    }
    queue.leave();
    let is_over = limit.left() == Some(Duration::ZERO);
    if request.only_if_free && !is_over { None } else { limit.time_out() }
}

/// Attempts a grant whenever a slot may have become free. `None` if the request is refused or the limit has passed.
fn wait_at_head(request: &AcquireRequest, limit: Limit, queue: &Queue) -> Option<Granted> {
    let mut precedence = None;
    let granted = loop {
        let broadcasts = queue.broadcasts();
        let until_us = match attempt(request, limit, queue) {
            Outcome::Granted(granted) => break Some(granted),
            Outcome::Refused => break None,
            Outcome::Retry => Some(0),
            Outcome::Wait { until_us } => {
                precedence.take().into_iter().for_each(Precedence::release);
                until_us
            }
            Outcome::RowsLocked { slots, has_other_terms } => {
                let precedence = precedence.get_or_insert_with(Precedence::new);
                let refuse = || refuse_older_snapshot(request, || false);
                precedence.wait_for_rows(request.name, &slots, has_other_terms, limit, refuse).then_some(0)
            }
        };
        let left = limit.left();
        if left == Some(Duration::ZERO) {
            break None;
        }
        let until = until_us.map(|until_us| until_us.saturating_sub(system_clock::boot_us()).max(0) as u64);
        if until != Some(0) {
            let time = until.map_or(Duration::MAX, Duration::from_micros).min(left.unwrap_or(Duration::MAX));
            queue.sleep(broadcasts, time);
        }
        check_for_interrupts!();
    };
    precedence.into_iter().for_each(Precedence::release);
    granted
}

pub struct AcquireRequest<'a> {
    pub name: &'a str,
    /// `None` for the ttl of the definition.
    pub ttl_us: Option<i64>,
    pub holder: NewHolder<'a>,
    /// True to be refused at once if no slot is free.
    pub only_if_free: bool,
    pub preference: Option<&'a dyn SlotPreference>,
    /// The request is part of a transaction block that has one snapshot for all its statements.
    pub has_one_snapshot: bool,
}

/// The slots that a caller prefers, and what it knows about their holders. Asked at the head of the queue, before each
/// choice.
pub trait SlotPreference {
    /// The first of these slots that is free is granted, even if it was never granted before.
    fn first(&self) -> Vec<i32>;
    /// These slots are granted only if no other is free, in this order.
    fn last(&self) -> Vec<i32>;
    /// Slots whose holders are known to have ended. Their terms are over if another clock has written them; a term by
    /// this clock keeps its end. Asked only if there is a term of another clock.
    fn ended(&self) -> HashSet<i32>;
}

/// A ttl in microseconds, within the limits that are set. `None` for the ttl of the definition.
pub fn checked_ttl_us(ttl: Option<Interval>) -> Option<i64> {
    ttl.map(|ttl| {
        let limits = settings::lease_ttl_limits_us();
        let given = i64::try_from(ttl.as_micros()).ok().filter(|given| limits.contains(given));
        given.unwrap_or_else(|| errors::ttl_out_of_range(limits).raise())
    })
}

/// The outcome of an attempt.
enum Outcome {
    /// The term begins when the transaction commits.
    Granted(Granted),
    /// No slot is free and the request does not wait, or its limit has passed.
    Refused,
    /// Rows have changed: attempt again.
    Retry,
    /// No slot becomes free before this time unless something changes. `None` if the time is not known.
    Wait { until_us: Option<i64> },
    /// A slot is free, but other transactions have locked these rows: its own, and those of terms that the grant would
    /// end.
    RowsLocked {
        slots: Vec<i32>,
        /// The end of a term in another slot can make a slot free sooner.
        has_other_terms: bool,
    },
}

/// Attempts a grant at the head of the queue. Waits for a transaction that changes the definition.
fn attempt(request: &AcquireRequest, limit: Limit, queue: &Queue) -> Outcome {
    // A grant holds the lock until the transaction ends, so that none follows a definition that has been replaced.
    let definition = definition_lock_for_grant(request.name);
    if !queue.is_bypassed() && !acquire_for_transaction(&definition, limit) {
        return Outcome::Refused;
    }
    let outcome = attempt_by_definition(request, queue);
    if !queue.is_bypassed() && !matches!(outcome, Outcome::Granted(_)) {
        definition.release(Scope::Transaction);
    }
    outcome
}

/// A transaction with more terms acquires one lock for the definitions of all further leases. A lock for each would fill
/// the lock table.
const MANY_TERMS: usize = 64;

fn definition_lock_for_grant(name: &str) -> AdvisoryLock {
    let all = queue::all_definitions_lock(Mode::Shared);
    if all.is_held() || pending::term_count() >= MANY_TERMS { all } else { queue::definition_lock(name, Mode::Shared) }
}

fn attempt_by_definition(request: &AcquireRequest, queue: &Queue) -> Outcome {
    COUNTERS.add(1, |counters| &counters.probes);
    // Hold no table lock while sleeping: a queued ALTER TABLE would block renewals.
    let (lease, ended, preferred) = xact::rolled_back(|| {
        let (lease, ended) = read(request);
        (lease, ended, request.preference.map_or_else(Vec::new, SlotPreference::first))
    });
    let now = lease.now();
    let attempt = Attempt { request, ttl_us: request.ttl_us.unwrap_or(lease.definition.ttl_us), lease, ended, now };
    let lease = &attempt.lease;
    let (mut slots, all) = match choose(&lease.terms, &lease.definition, &preferred, now) {
        Choice::Take { slots, all } => (slots, all),
        Choice::Make { slot } => return attempt.insert(slot),
        Choice::Wait { .. } if request.only_if_free => return Outcome::Refused,
        Choice::Wait { until_us } => return Outcome::Wait { until_us },
    };
    let last = request.preference.map_or_else(Vec::new, |preference| xact::rolled_back(|| preference.last()));
    let last: HashMap<i32, usize> = last.into_iter().filter(|slot| !preferred.contains(slot)).zip(0..).collect();
    slots.sort_by_key(|slot| last.get(slot));
    let take = |slot: &i32| {
        let taken = xact::in_subtransaction(|| attempt.take(*slot));
        taken.unwrap_or_else(|cause| cause.rethrow())
    };
    if let Some(granted) = slots.iter().find_map(take) {
        // The next acquirer need not wait for the commit: it finds the row locked. But it would not count this grant
        // where fewer slots may be granted than are free.
        if !has_holders_outside(&lease.terms, &lease.definition, now) {
            queue.leave();
        }
        return attempt.granted(granted);
    }
    let mut rows = attempt.to_end_before(slots[0]);
    rows.push(slots[0]);
    attempt.rows_locked(rows, !all)
}

/// The lease as it is now, and slots whose holders are known to have ended.
fn read(request: &AcquireRequest) -> (LeaseState, HashSet<i32>) {
    let mut lease = LeaseState::read_to_acquire(request.name);
    let is_of_another = |term: &Term| !term.by_this_clock;
    let preference = request.preference.filter(|_| lease.terms.iter().any(is_of_another));
    let ended = preference.map_or_else(HashSet::new, SlotPreference::ended);
    lease.terms.iter_mut().for_each(|term| *term = corrected(*term, &ended));
    (lease, ended)
}

fn corrected(term: Term, ended: &HashSet<i32>) -> Term {
    if ended.contains(&term.slot) { term.of_ended_holder() } else { term }
}

/// An attempt, and the lease as it was when the attempt began.
struct Attempt<'a> {
    request: &'a AcquireRequest<'a>,
    lease: LeaseState,
    ended: HashSet<i32>,
    now: Now,
    ttl_us: i64,
}

impl Attempt<'_> {
    /// Inserts the row of a slot that has none. Stays at the head of the queue until the transaction ends: until then, other
    /// sessions do not see the row and would insert it.
    fn insert(&self, slot: i32) -> Outcome {
        let (request, ends) = (self.request, self.to_end_before(slot));
        refuse_older_snapshot(request, || ends.is_empty() && !versions::has_changed_since_snapshot(request.name, slot));
        let insert = || store::insert(request.name, slot, request.holder, self.ttl_us);
        let granted = if ends.is_empty() {
            insert()
        } else {
            let inserted = xact::in_subtransaction(|| self.end_terms(&ends).and_then(|()| insert()));
            inserted.unwrap_or_else(|cause| cause.rethrow())
        };
        match granted {
            Some(granted) => {
                COUNTERS.add(1, |counters| &counters.grants);
                self.granted(granted)
            }
            None if ends.is_empty() => Outcome::Retry,
            None => self.rows_locked(ends, true),
        }
    }

    /// Begins a term in a slot that has a row. `None` if the row is locked, or the slot is no longer free. The caller
    /// then rolls back the ends of other terms.
    fn take(&self, slot: i32) -> Option<Granted> {
        let (request, ends) = (self.request, self.to_end_before(slot));
        self.end_terms(&ends)?;
        let term = store::lock(request.name, slot).filter(|term| self.is_free(term))?;
        let is_take_over = term.depth > 0 || term.revoked;
        let is_unchanged = || store::in_snapshot(request.name, slot) == Some((term.token, term.depth, term.ends_us));
        refuse_older_snapshot(request, || ends.is_empty() && !is_take_over && is_unchanged());
        let granted = store::take(request.name, slot, request.holder, self.ttl_us)?;
        COUNTERS.add(1, |counters| if is_take_over { &counters.take_overs } else { &counters.grants });
        Some(granted)
    }

    fn to_end_before(&self, slot: i32) -> Vec<i32> {
        to_end_before(&self.lease.terms, &self.lease.definition, slot, self.now)
    }

    /// Ends expired terms, which their holders could renew otherwise. `None` if one of the rows is locked, or its term
    /// was renewed.
    fn end_terms(&self, ends: &[i32]) -> Option<()> {
        ends.iter().try_for_each(|slot| {
            store::lock(self.request.name, *slot).filter(|term| self.is_free(term))?;
            store::end(self.request.name, *slot);
            Some(())
        })
    }

    fn is_free(&self, term: &Term) -> bool {
        let term = corrected(*term, &self.ended);
        matches!(term.availability(self.lease.definition.lock_delay_us, self.now), Availability::Since(_))
    }

    /// Records what the end of the transaction has to do for the new term.
    fn granted(&self, granted: Granted) -> Outcome {
        pending::require_durability();
        pending::locked(granted.token);
        pending::wake_at_end(self.request.name);
        if let Some(key) = granted.session_key {
            pending::bind(self.request.name, granted.token, key, self.lease.definition.lock_delay_us);
        }
        Outcome::Granted(granted)
    }

    /// Of these rows, those that are still locked. A row that is not locked any more had its term renewed, or was
    /// released.
    fn rows_locked(&self, mut slots: Vec<i32>, has_other_terms: bool) -> Outcome {
        slots.retain(|slot| xact::rolled_back(|| store::lock(self.request.name, *slot).is_none()));
        if slots.is_empty() { Outcome::Retry } else { Outcome::RowsLocked { slots, has_other_terms } }
    }
}

/// Raises 40001 if the transaction's one snapshot may be older than the last holder's writes. A holder that did not release
/// the slot may have written at any time.
fn refuse_older_snapshot(request: &AcquireRequest, shows_all: impl FnOnce() -> bool) {
    if request.has_one_snapshot && !shows_all() {
        errors::snapshot_too_old(request.name).raise();
    }
}

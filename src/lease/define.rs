//! lease_define, lease_alter, lease_drop and lease_revoke: what only the definer of a lease, or a superuser, may do.

use super::locks::{self, Precedence};
use super::rows::{self, lock_slot};
use super::{definitions, errors, pending, stats, terms};
use crate::args;
use crate::pg::advisory_lock::{Limit, Mode, Scope, acquire_for_transaction};
use crate::pg::datum::Text;
use crate::pg::row::Wait;
use crate::pg::{spi, xact};
use crate::settings;
use idgen_core::lease::{Lease, LeaseLock, MAX_SLOTS, Term};
use pgrx::datum::Interval;
use pgrx::prelude::*;

/// Defines a lease, or replaces its definition: how many slots it has, the ttl of terms, how long a slot stays
/// unavailable after its holder vanished or was revoked, and whether NOTIFY tells of its terms. Running terms keep their
/// end. Waits for transactions that have acquired the lease. Raises 42501 if the caller may not act as the definer, or as
/// the role of a holder of an undefined lease; and, unless forced, 55006 for slots that exclude a holder.
#[pg_extern(sql = false)]
fn lease_define(
    name: Option<Text>,
    slots: Option<i32>,
    ttl: Option<Interval>,
    lock_delay: Option<Interval>,
    notify: Option<bool>,
    force: Option<bool>,
) {
    let force = args::required(force, "force");
    let name = args::stored_name(name.as_deref(), "name");
    let slots = args::required(slots, "slots");
    let ttl = args::required(ttl, "ttl");
    let lock_delay = args::required(lock_delay, "lock_delay");
    let notify = args::required(notify, "notify");
    check_slots(slots);
    check_times(Some(ttl), Some(lock_delay));
    xact::require_read_write(c"lease_define()");
    // Before the wait, so that no caller waits in vain.
    if let Some(definer) = definitions::of(name).definer {
        require_membership(name, definer);
    }
    // So that the slots of transactions that have acquired the lease count. Not in the queue, whose head may wait for hours.
    lock_definition(name);
    let lease = definitions::read(name);
    refuse_foreign_holder(name, &lease);
    require_holders_inside(name, &lease, slots, force);
    if !definitions::define(name, slots, ttl, lock_delay, notify) {
        errors::not_definer(name).raise();
    }
    // There may be more slots now.
    pending::wake_at_end(name);
}

/// Changes the definition of a lease; NULL keeps a setting. Raises 42704 if the lease is not defined, else as
/// `lease_define`.
#[pg_extern(sql = false)]
fn lease_alter_definition(
    name: Option<Text>,
    slots: Option<i32>,
    ttl: Option<Interval>,
    lock_delay: Option<Interval>,
    notify: Option<bool>,
    force: Option<bool>,
) {
    let name = args::name(name.as_deref(), "name");
    let force = args::required(force, "force");
    slots.into_iter().for_each(check_slots);
    check_times(ttl, lock_delay);
    xact::require_read_write(c"lease_alter()");
    // Before the wait, as in `lease_define`, and after it, when the lease may be another.
    require_defined(name);
    lock_definition(name);
    let lease = require_defined(name);
    require_holders_inside(name, &lease, slots.unwrap_or(lease.definition.slots), force);
    definitions::alter(name, slots, ttl, lock_delay, notify);
    pending::wake_at_end(name);
}

/// A lease that is defined, and by a role that the caller may act as.
fn require_defined(name: &str) -> Lease {
    let definer = definitions::of(name).definer.unwrap_or_else(|| errors::undefined(name).raise());
    require_membership(name, definer);
    definitions::read(name)
}

fn check_slots(slots: i32) {
    if !(1..=MAX_SLOTS).contains(&slots) {
        errors::slots_out_of_range(slots).raise();
    }
}

fn check_times(ttl: Option<Interval>, lock_delay: Option<Interval>) {
    ttl.map(|ttl| args::ttl_us(ttl, settings::lease_ttl_limits_us()));
    let longest = settings::lease_ttl_limits_us().end().to_owned();
    if lock_delay.is_some_and(|delay| !(0..=i128::from(longest)).contains(&delay.as_micros())) {
        errors::lock_delay_out_of_range(longest).raise();
    }
}

/// Raises 55006 if a slot that only the old definition has is held; says so if the caller insists. Such a holder keeps its
/// term, and may extend it, and no later definition excludes it once more. Nor can one exclude shared terms, which are
/// outside of every definition.
fn require_holders_inside(name: &str, lease: &Lease, slots: i32, force: bool) {
    let (old, now) = (lease.definition, lease.now);
    let is_excluded = |term: &&Term| old.has(term.slot) && term.slot >= slots && term.is_held(now);
    let mut excluded: Vec<i32> = lease.terms.iter().filter(is_excluded).map(|term| term.slot).collect();
    if excluded.is_empty() {
        return;
    }
    excluded.sort_unstable();
    let report = errors::excludes_holders(name, old.slots, slots, &excluded);
    if force { report.notice() } else { report.hint(errors::hint_to_keep_or_force(name)).raise() }
}

/// Drops a lease: its definition and its slots. Waits in the queue, and for transactions that have fenced. Raises 42501
/// if the caller may not act as the definer, 55006 if the lease is held, and 42704 if it does not exist.
#[pg_extern(sql = false)]
fn lease_drop(name: Option<Text>) {
    drop_lease(args::name(name.as_deref(), "name"));
}

/// Drops all leases that these roles have defined. False if there are none.
pub fn drop_owned(owners: &[pg_sys::Oid]) -> bool {
    let names = definitions::owned(owners);
    names.iter().for_each(|name| drop_lease(name));
    !names.is_empty()
}

fn drop_lease(name: &str) {
    xact::require_read_write(c"lease_drop()");
    // Before the wait, so that no caller waits in vain, and again after it.
    require_unheld(name);
    if !locks::bypasses_queue(name, false) {
        // Until the transaction ends: before that, acquirers would see the rows that are dropped here.
        acquire_for_transaction(&locks::lock(name, LeaseLock::Queue, Mode::Exclusive), Limit::by_lock_timeout());
    }
    // A change of the definition holds this lock, but is not in the queue.
    lock_definition(name);
    let terms = lock_slots(name);
    require_unheld(name);
    for term in &terms {
        // Locked by this transaction.
        terms::remove(name, term.slot, Wait::Block, |_| true);
    }
    if !definitions::drop(name) && terms.is_empty() {
        errors::unknown(name).raise();
    }
    terms.iter().for_each(|term| pending::released(term.token));
}

/// Locks all rows of a lease until the transaction ends, and returns them. Waits for transactions that have fenced;
/// later fences wait for this transaction.
fn lock_slots(name: &str) -> Vec<Term> {
    let terms = definitions::read(name).terms;
    for term in &terms {
        let mut precedence = Precedence::default();
        let limit = Limit::by_lock_timeout();
        if term.depth > 0 {
            precedence.move_to(name, &[term.slot], limit);
        }
        lock_slot(name, term.slot);
        precedence.move_to(name, &[], limit);
    }
    terms
}

/// Waits for transactions that have acquired the lease, and keeps other transactions from it until this one ends.
fn lock_definition(name: &str) {
    // First without the lock: a transaction that is waited for may acquire another slot.
    rows::wait_for_grants(name);
    locks::lock(name, LeaseLock::Definition, Mode::Exclusive).acquire(Scope::Transaction);
    // For those that have begun before the lock was granted. It keeps others out, so that this wait ends.
    rows::wait_for_grants(name);
}

/// The definer of a lease may revoke and drop it. So only members of a role that holds an undefined lease may define it.
fn refuse_foreign_holder(name: &str, lease: &Lease) {
    if definitions::of(name).definer.is_some() {
        return;
    }
    let now = lease.now;
    let is_held = |slot| lease.terms.iter().any(|term| term.slot == slot && term.is_held(now));
    let foreign = definitions::foreign_holders(name).into_iter().find(|(slot, _)| is_held(*slot));
    if let Some((slot, role)) = foreign {
        errors::held_by_another_role(name, slot, &role).raise();
    }
}

fn require_unheld(name: &str) {
    require_definer(name);
    let Lease { terms, now, .. } = definitions::read(name);
    if let Some(held) = terms.iter().find(|term| term.is_held(now)) {
        errors::in_use(name, held.slot).raise();
    }
}

/// Ends the term in a slot, whose lock delay begins. False if the slot has no term; warns if an open transaction has
/// acquired it. Raises 42501 if the caller may not act as the definer; of an undefined lease, unless it is a superuser.
#[pg_extern(sql = false)]
fn lease_revoke(name: Option<Text>, slot: Option<i32>) -> bool {
    let name = args::name(name.as_deref(), "name");
    let slot = args::required(slot, "slot");
    xact::require_read_write(c"lease_revoke()");
    require_definer(name);
    let revoked = terms::revoke(name, slot);
    if let Some(term) = &revoked {
        pending::released(term.token);
        stats::notify_event(name, slot, "revoked", term.owner.as_deref());
        pending::wake_at_end(name);
    } else if let Some((slot, process)) = rows::slot_and_process(name, slot) {
        errors::acquired_in_open_transaction(name, slot, process).warn();
    }
    revoked.is_some()
}

/// Raises 42501 unless the caller may act as the definer; of an undefined lease, unless it is a superuser.
fn require_definer(name: &str) {
    match definitions::of(name).definer {
        Some(definer) => require_membership(name, definer),
        // SAFETY: reads the system caches.
        None if unsafe { pg_sys::superuser() } => {}
        None => errors::not_definer(name).raise(),
    }
}

fn require_membership(name: &str, definer: pg_sys::Oid) {
    // SAFETY: as above.
    if !unsafe { pg_sys::has_privs_of_role(spi::user(), definer) } {
        errors::not_definer(name).raise();
    }
}

//! lease_define, lease_drop and lease_revoke: what only the definer of a lease, or a superuser, may do.

use super::queue::{Precedence, Queue, definition_lock};
use super::store::definitions::{self, NewColumns};
use super::store::{self, LeaseState, unfinished};
use super::{acquire, errors, notify, pending};
use crate::args;
use crate::pg::advisory_lock::{Limit, Mode, Scope};
use crate::pg::datum::Text;
use crate::pg::{spi, xact};
use crate::settings;
use idgen_core::lease::{MAX_SLOTS, Term};
use pgrx::datum::Interval;
use pgrx::prelude::*;

/// Defines a lease, or changes its definition: how many slots it has, the ttl of terms, how long a slot stays
/// unavailable after its holder vanished or was revoked, its first slot, and whether NOTIFY tells of its terms. Running
/// terms keep their end. Waits for transactions that have acquired the lease. Raises 42501 if the caller may not act as the definer, or as the role of a
/// holder of an undefined lease.
#[pg_extern(sql = "CREATE FUNCTION lease_define(name text, slots int DEFAULT 1, ttl interval DEFAULT '30 seconds', \
           lock_delay interval DEFAULT '0', first_slot int DEFAULT 0, notify boolean DEFAULT false) RETURNS void \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lease_define_watched(
    name: Option<Text>,
    slots: Option<i32>,
    ttl: Option<Interval>,
    lock_delay: Option<Interval>,
    first_slot: Option<i32>,
    notify: Option<bool>,
) {
    let first_slot = args::required(first_slot, "first_slot");
    let notify = args::required(notify, "notify");
    define(name, slots, ttl, lock_delay, NewColumns::Notify { first_slot, notify });
}

/// `columns` are those that the SQL of the caller has.
pub fn define(
    name: Option<Text>,
    slots: Option<i32>,
    ttl: Option<Interval>,
    lock_delay: Option<Interval>,
    columns: NewColumns,
) {
    let name = args::stored_name(name.as_deref(), "name");
    let slots = args::required(slots, "slots");
    let ttl = args::required(ttl, "ttl");
    let lock_delay = args::required(lock_delay, "lock_delay");
    if !(1..=MAX_SLOTS).contains(&slots) {
        errors::slots_out_of_range(slots).raise();
    }
    if let Some(first_slot) = columns.first_slot().filter(|first_slot| !(0..=MAX_SLOTS - slots).contains(first_slot)) {
        errors::first_slot_out_of_range(first_slot, slots).raise();
    }
    acquire::checked_ttl_us(Some(ttl));
    let longest = settings::lease_ttl_limits_us().end().to_owned();
    if !(0..=i128::from(longest)).contains(&lock_delay.as_micros()) {
        errors::lock_delay_out_of_range(longest).raise();
    }
    xact::require_read_write(c"lease_define()");
    // Before the wait, so that no caller waits in vain.
    if let Some(definer) = LeaseState::read(name).definer {
        require_membership(name, definer);
    }
    // So that the slots of transactions that have acquired the lease count. Not in the queue, whose head may wait for hours.
    lock_definition(name);
    refuse_foreign_holder(name);
    if !definitions::define(name, slots, ttl, lock_delay, columns) {
        errors::not_definer(name).raise();
    }
    // There may be more slots now.
    pending::wake_at_end(name);
}

/// Drops a lease: its definition and its slots. Waits in the queue, and for transactions that have fenced. Raises 42501
/// if the caller may not act as the definer, 55006 if the lease is held, and 42704 if it does not exist.
#[pg_extern(sql = "CREATE FUNCTION lease_drop(name text) RETURNS void \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
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
    require_unheld(name, &LeaseState::read(name));
    // Until the transaction ends: before that, acquirers would see the rows that are dropped here.
    Queue::of(name).enter(Limit::by_lock_timeout());
    // A move from another pool holds this lock, but is not in the queue.
    lock_definition(name);
    let terms = lock_slots(name);
    let lease = LeaseState { terms, ..LeaseState::read(name) };
    require_unheld(name, &lease);
    lease.terms.iter().for_each(|term| notify::expired(name, term.slot));
    if !definitions::drop_all(name) {
        errors::unknown(name).raise();
    }
    lease.terms.iter().for_each(|term| pending::released(term.token));
}

/// Locks all rows of a lease until the transaction ends, and returns them. Waits for transactions that have fenced;
/// later fences wait for this transaction.
pub fn lock_slots(name: &str) -> Vec<Term> {
    for term in LeaseState::read(name).terms.iter().filter(|term| term.depth > 0) {
        let mut precedence = Precedence::new();
        precedence.acquire(name, term.slot, Limit::by_lock_timeout());
        store::lock_slot_waiting(name, term.slot);
        precedence.release();
    }
    store::lock_all(name)
}

/// Waits for transactions that have acquired the lease, and keeps other transactions from it until this one ends.
pub fn lock_definition(name: &str) {
    // First without the lock: a transaction that is waited for may acquire another slot.
    unfinished::wait(name);
    definition_lock(name, Mode::Exclusive).acquire(Scope::Transaction);
    // For those that have begun before the lock was granted. It keeps others out, so that this wait ends.
    unfinished::wait(name);
}

/// The definer of a lease may revoke and drop it. So only members of a role that holds an undefined lease may define it.
fn refuse_foreign_holder(name: &str) {
    let lease = LeaseState::read(name);
    if lease.definer.is_some() {
        return;
    }
    let now = lease.now();
    let is_held = |slot| lease.terms.iter().any(|term| term.slot == slot && term.is_held(now));
    let foreign = definitions::foreign_holders(name).into_iter().find(|(slot, _)| is_held(*slot));
    if let Some((slot, role)) = foreign {
        errors::held_by_another_role(name, slot, &role).raise();
    }
}

fn require_unheld(name: &str, lease: &LeaseState) {
    require_definer(name, lease);
    let now = lease.now();
    if let Some(held) = lease.terms.iter().find(|term| term.is_held(now)) {
        errors::in_use(name, held.slot).raise();
    }
}

/// Ends the term in a slot, whose lock delay begins. False if the slot has no term. Raises 42501 if the caller may not act
/// as the definer; of an undefined lease, unless it is a superuser.
#[pg_extern(sql = "CREATE FUNCTION lease_revoke(name text, slot int DEFAULT 0) RETURNS boolean \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lease_revoke(name: Option<Text>, slot: Option<i32>) -> bool {
    let name = args::name(name.as_deref(), "name");
    let slot = args::required(slot, "slot");
    xact::require_read_write(c"lease_revoke()");
    require_definer(name, &LeaseState::read(name));
    let revoked = store::revoke(name, slot);
    if let Some(token) = revoked {
        pending::released(token);
        notify::revoked(name, slot);
        // A crash must not restore the term.
        pending::require_durability();
        pending::wake_at_end(name);
    }
    revoked.is_some()
}

/// Raises 42501 unless the caller may act as the definer; of an undefined lease, unless it is a superuser.
pub fn require_definer(name: &str, lease: &LeaseState) {
    match lease.definer {
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

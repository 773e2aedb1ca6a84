//! Laying down what holds for a name, and what only its definer or a DBA may do: dropping it, and taking it from a holder.

use super::errors;
use super::precedence::Precedence;
use super::row::{self, Lease};
use super::turnstile::Turnstile;
use super::{machine, names, pending, term};
use crate::args;
use crate::lock::manager::{Lock, Mode, Scope, Space};
use crate::lock::{checked_name, wait::Limit};
use crate::pg::encoding::Text;
use crate::settings;
use idgen_core::lease::{MAX_SLOTS, Term};
use idgen_core::lock::NameHash;
use pgrx::datum::Interval;
use pgrx::prelude::*;

/// Defines how many may hold a name at once, for how long, how long a slot rests whose holder has vanished, and the first
/// slot. For a name that is defined, it changes that; terms that run keep their end.
#[pg_extern(sql = "CREATE FUNCTION lease_define(name text, slots int DEFAULT 1, ttl interval DEFAULT '30 seconds', \
           lock_delay interval DEFAULT '0', first_slot int DEFAULT 0) RETURNS void \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lease_define_range(
    name: Option<Text>,
    slots: Option<i32>,
    ttl: Option<Interval>,
    lock_delay: Option<Interval>,
    first_slot: Option<i32>,
) {
    let first_slot = args::required(first_slot, "first_slot");
    define(name, slots, ttl, lock_delay, Some(first_slot));
}

/// `first_slot` is `None` where the SQL is that of 0.7, whose slots begin at 0.
pub fn define(
    name: Option<Text>,
    slots: Option<i32>,
    ttl: Option<Interval>,
    lock_delay: Option<Interval>,
    first_slot: Option<i32>,
) {
    let name = checked_name(name.as_deref());
    let slots = args::required(slots, "slots");
    let ttl = args::required(ttl, "ttl");
    let lock_delay = args::required(lock_delay, "lock_delay");
    if !(1..=MAX_SLOTS).contains(&slots) {
        errors::slots_out_of_range(slots).raise();
    }
    if let Some(first_slot) = first_slot.filter(|first_slot| !(0..=MAX_SLOTS - slots).contains(first_slot)) {
        errors::first_slot_out_of_range(first_slot, slots).raise();
    }
    super::ttl_us(Some(ttl));
    let longest = settings::lease_ttl_limits_us().end().to_owned();
    if !(0..=i128::from(longest)).contains(&lock_delay.as_micros()) {
        errors::lock_delay_out_of_range(longest).raise();
    }
    term::refuse_where_nothing_can_be_written(c"lease_define()");
    // Before the wait, so that nobody waits in vain.
    if let Some(definer) = row::look(name).definer {
        require_membership(name, definer);
    }
    // Waits for transactions that have acquired the name, so that their slots count. Not through the turnstile, whose head
    // may wait for hours.
    lock_for_change(name);
    refuse_foreign_holder(name);
    if !names::define(name, slots, ttl, lock_delay, first_slot) {
        errors::not_definer(name).raise();
    }
    // There may be more slots now.
    pending::wake_at_end(name);
}

/// Forgets a name, unless somebody holds it. Waits for its turn, and for transactions that have fenced.
#[pg_extern(sql = "CREATE FUNCTION lease_drop(name text) RETURNS void \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lease_drop(name: Option<Text>) {
    drop_name(checked_name(name.as_deref()));
}

/// Gives all definitions of these roles to another one.
pub fn reassign(owners: &[pg_sys::Oid], heir: pg_sys::Oid) {
    names::reassign(owners, heir);
}

/// Drops all that these roles have defined, whose privileges the current user has.
pub fn drop_owned(owners: &[pg_sys::Oid]) {
    names::owned(owners).iter().for_each(|name| drop_name(name));
}

fn drop_name(name: &str) {
    term::refuse_where_nothing_can_be_written(c"lease_drop()");
    // Before the wait, so that nobody waits in vain, and after it, when it may be another's, or held.
    require_unheld(name, &row::look(name));
    // To the end of the transaction: until then acquirers see the rows that are dropped here.
    Turnstile::of(name).enter(Limit::by_lock_timeout());
    // A move from another pool holds this lock, but not the turn.
    lock_for_change(name);
    let terms = lock_rows(name);
    let lease = Lease { terms, ..row::look(name) };
    require_unheld(name, &lease);
    if !names::drop_all(name) {
        errors::unknown(name).raise();
    }
    lease.terms.iter().for_each(|term| pending::released(term.token));
}

/// Locks all rows of a name until the transaction ends, and returns them. Waits for transactions that have fenced, and later
/// fences wait for this one.
pub fn lock_rows(name: &str) -> Vec<Term> {
    for term in row::look(name).terms.iter().filter(|term| term.depth > 0) {
        let mut precedence = Precedence::new();
        precedence.take(name, term.slot, Limit::by_lock_timeout());
        row::lock_waiting(name, term.slot);
        precedence.end();
    }
    row::lock_all(name)
}

/// The lock of a name's definition. Each transaction that has acquired the name holds it shared until it ends.
pub fn lock(name: &str, mode: Mode) -> Lock {
    Lock::new(Space::LeaseDefinition, NameHash::of(name).key, mode)
}

/// Waits for transactions that have acquired the name, and keeps others from it until this one ends.
pub fn lock_for_change(name: &str) {
    lock_of_all(Mode::Intent).take(Scope::Transaction);
    lock(name, Mode::Exclusive).take(Scope::Transaction);
}

/// The lock of all definitions: a transaction that has acquired many names holds it shared, instead of one lock for each
/// further name. Transactions that define names hold it in intent, and do not wait for each other.
pub fn lock_of_all(mode: Mode) -> Lock {
    Lock::new(Space::LeaseDefinitions, 0, mode)
}

/// The definer of a name may revoke and drop it. So a name that is not defined, and that another role relies on, can be
/// defined by members of that role only.
fn refuse_foreign_holder(name: &str) {
    let lease = row::look(name);
    if lease.definer.is_some() {
        return;
    }
    let now = machine::now(lease.needs_the_beginning());
    let is_held = |slot| lease.terms.iter().any(|term| term.slot == slot && term.is_held(now));
    let foreign = names::foreign_holders(name).into_iter().find(|(slot, _)| is_held(*slot));
    if let Some((slot, role)) = foreign {
        errors::held_by_another_role(name, slot, &role).raise();
    }
}

fn require_unheld(name: &str, lease: &Lease) {
    require_definer(name, lease);
    let now = machine::now(lease.needs_the_beginning());
    if let Some(held) = lease.terms.iter().find(|term| term.is_held(now)) {
        errors::in_use(name, held.slot).raise();
    }
}

/// Takes a slot from its holder; it rests for the lock delay. False if nobody holds it.
#[pg_extern(sql = "CREATE FUNCTION lease_revoke(name text, slot int DEFAULT 0) RETURNS boolean \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lease_revoke(name: Option<Text>, slot: Option<i32>) -> bool {
    let name = checked_name(name.as_deref());
    let slot = args::required(slot, "slot");
    term::refuse_where_nothing_can_be_written(c"lease_revoke()");
    require_definer(name, &row::look(name));
    let revoked = row::revoke(name, slot);
    if let Some(token) = revoked {
        pending::released(token);
        // What the holder was promised ends here, and that must not be undone by a crash.
        pending::require_durability();
        pending::wake_at_end(name);
    }
    revoked.is_some()
}

pub fn require_definer(name: &str, lease: &Lease) {
    match lease.definer {
        Some(definer) => require_membership(name, definer),
        // SAFETY: looks into the system's caches.
        None if unsafe { pg_sys::superuser() } => {}
        None => errors::not_definer(name).raise(),
    }
}

fn require_membership(name: &str, definer: pg_sys::Oid) {
    // SAFETY: as above.
    if !unsafe { pg_sys::has_privs_of_role(pg_sys::GetUserId(), definer) } {
        errors::not_definer(name).raise();
    }
}

//! lease_define, lease_alter, lease_drop and lease_revoke: what only the definer of a lease, or a superuser, may do.

use super::locks::{self, Precedence};
use super::rows::{self, LEASE, lock_slot};
use super::terms::{self, By, OneRow, acts_as};
use super::{definitions, errors, pending, status};
use crate::args;
use crate::pg::advisory_lock::{Limit, Mode, Scope, acquire_for_transaction};
use crate::pg::datum::Text;
use crate::pg::spi::{Query, text, user, value};
use crate::pg::xact;
use crate::settings;
use idgen_core::lease::{self, Lease, LeaseLock, MAX_SLOTS, Term};
use pgrx::datum::Interval;
use pgrx::prelude::*;

/// Keeps the definer, and changes nothing if the caller may not act as it.
static DEFINE: Query = LEASE.query(
    "INSERT INTO idgen.lease_definition AS defined (name, slots, ttl, lock_delay, owner, notify) \
     VALUES ($1, $2, $3, $4, $5::pg_catalog.regrole, $6) \
     ON CONFLICT (name) DO UPDATE \
     SET slots = excluded.slots, ttl = excluded.ttl, lock_delay = excluded.lock_delay, notify = excluded.notify \
     WHERE pg_catalog.pg_has_role($5, defined.owner::pg_catalog.oid, 'USAGE') RETURNING slots",
);

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
    check(Some(slots), Some(ttl), Some(lock_delay));
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
    let row = [name.into(), slots.into(), ttl.into(), lock_delay.into(), user().into(), notify.into()];
    if DEFINE.write_latest(&row, |_| ()).is_empty() {
        errors::not_definer(name).raise();
    }
    // There may be more slots now.
    pending::wake_at_end(name);
}

static ALTER: Query = LEASE.query(
    "UPDATE idgen.lease_definition SET slots = COALESCE($2, slots), ttl = COALESCE($3, ttl), \
     lock_delay = COALESCE($4, lock_delay), notify = COALESCE($5, notify) \
     WHERE name OPERATOR(pg_catalog.=) $1",
);

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
    check(slots, ttl, lock_delay);
    xact::require_read_write(c"lease_alter()");
    // Before the wait, as in `lease_define`, and after it, when the lease may be another.
    require_defined(name);
    lock_definition(name);
    let lease = require_defined(name);
    require_holders_inside(name, &lease, slots.unwrap_or(lease.definition.slots), force);
    ALTER.write_latest(&[name.into(), slots.into(), ttl.into(), lock_delay.into(), notify.into()], |_| ());
    pending::wake_at_end(name);
}

/// A lease that is defined, and by a role that the caller may act as.
fn require_defined(name: &str) -> Lease {
    let definer = definitions::of(name).definer.unwrap_or_else(|| errors::undefined(name).raise());
    require_membership(name, definer);
    definitions::read(name)
}

fn check(slots: Option<i32>, ttl: Option<Interval>, lock_delay: Option<Interval>) {
    if let Some(slots) = slots.filter(|slots| !(1..=MAX_SLOTS).contains(slots)) {
        errors::slots_out_of_range(slots).raise();
    }
    ttl.map(|ttl| args::ttl_us(ttl, settings::lease_ttl_limits_us()));
    let longest = settings::lease_ttl_limits_us().end().to_owned();
    if lock_delay.is_some_and(|delay| !(0..=i128::from(longest)).contains(&delay.as_micros())) {
        errors::lock_delay_out_of_range(longest).raise();
    }
}

/// Raises 55006 for holders that [`Lease::excluded_by`] names; says so if the caller insists. Such a holder keeps its term, and
/// may extend it.
fn require_holders_inside(name: &str, lease: &Lease, slots: i32, force: bool) {
    let excluded = lease.excluded_by(slots);
    if excluded.is_empty() {
        return;
    }
    let report = errors::excludes_holders(name, lease.definition.slots, slots, &excluded);
    if force { report.notice() } else { report.hint(errors::hint_to_keep_or_force(name)).raise() }
}

static DROP: Query =
    LEASE.query("DELETE FROM idgen.lease_definition WHERE name OPERATOR(pg_catalog.=) $1 RETURNING slots");

/// Drops a lease: its definition and its slots. Waits in the queue, and for transactions that have fenced. Raises 42501
/// if the caller may not act as the definer, 55006 if the lease is held, and 42704 if it does not exist.
#[pg_extern(sql = false)]
fn lease_drop(name: Option<Text>) {
    drop_lease(args::name(name.as_deref(), "name"));
}

static OWNED: Query = LEASE.query(
    "SELECT name FROM idgen.lease_definition WHERE owner::pg_catalog.oid OPERATOR(pg_catalog.=) ANY ($1) ORDER BY name",
);

/// Drops all leases that these roles have defined. False if there are none.
pub fn drop_owned(owners: &[pg_sys::Oid]) -> bool {
    let names = OWNED.read_latest(&[owners.to_vec().into()], |row| text(row, 1));
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
        terms::remove(name, term.slot, |_| true);
    }
    if DROP.write_latest(&[name.into()], |_| ()).is_empty() && terms.is_empty() {
        errors::unknown(name).raise();
    }
    terms.iter().for_each(|term| pending::record(|effects| effects.release(term.token)));
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

/// Slots with terms, even expired ones, of roles that the caller may not act as, and these roles.
static FOREIGN_HOLDERS: Query = LEASE.query("SELECT slot, role::pg_catalog.text FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 \
     AND depth OPERATOR(pg_catalog.>) 0 AND NOT pg_catalog.pg_has_role($2, role::pg_catalog.oid, 'USAGE') ORDER BY slot");

/// The definer of a lease may revoke and drop it. So only members of a role that holds an undefined lease may define it.
fn refuse_foreign_holder(name: &str, lease: &Lease) {
    if definitions::of(name).definer.is_some() {
        return;
    }
    let now = lease.now;
    let is_held = |slot| lease.terms.iter().any(|term| term.slot == slot && term.is_held(now));
    let foreign =
        FOREIGN_HOLDERS.read_latest(&[name.into(), user().into()], |row| (value::<i32>(row, 1), text(row, 2)));
    if let Some((slot, role)) = foreign.into_iter().find(|(slot, _)| is_held(*slot)) {
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
    let revoked = lease::revoke(&OneRow { name, by: By::Slot(slot) });
    if let Some(term) = &revoked {
        pending::record(|effects| effects.release(term.token));
        status::notify_event(name, slot, "revoked", term.owner.as_deref());
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
    if !acts_as(definer) {
        errors::not_definer(name).raise();
    }
}

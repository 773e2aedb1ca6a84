//! Laying down what holds for a name, and what only its definer or a DBA may do: dropping it, and taking it from a holder.

use super::row::{self, Lease};
use super::turnstile::Turnstile;
use super::{machine, names, term, transaction};
use crate::lock::{checked_name, wait::Limit};
use crate::{error, settings};
use idgen_core::lease::MAX_SLOTS;
use pgrx::datum::Interval;
use pgrx::prelude::*;

/// Lays down how many may hold a name at once, for how long, and how long a slot rests whose holder has vanished. Again
/// for a name that is defined, it changes that; terms that run keep their end.
#[pg_extern(sql = "CREATE FUNCTION lease_define(name text, slots int DEFAULT 1, ttl interval DEFAULT '30 seconds', \
           lock_delay interval DEFAULT '0') RETURNS void \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lease_define(name: Option<&str>, slots: Option<i32>, ttl: Option<Interval>, lock_delay: Option<Interval>) {
    let name = checked_name(name);
    let slots = slots.unwrap_or_else(|| error::null_argument("slots").raise());
    let ttl = ttl.unwrap_or_else(|| error::null_argument("ttl").raise());
    let lock_delay = lock_delay.unwrap_or_else(|| error::null_argument("lock_delay").raise());
    if !(1..=MAX_SLOTS).contains(&slots) {
        error::lease::slots_out_of_range(slots).raise();
    }
    super::ttl_us(Some(ttl));
    let longest = settings::lease_ttl_limits_us().end().to_owned();
    if !(0..=i128::from(longest)).contains(&lock_delay.as_micros()) {
        error::lease::lock_delay_out_of_range(longest).raise();
    }
    term::refuse_where_nothing_can_be_written(c"lease_define()");
    // Before the wait, so that nobody waits in vain.
    if let Some(definer) = row::look(name).definer {
        require_membership(name, definer);
    }
    // A slot that is being taken counts, once it is. Not through the turnstile: its head waits for as long as it takes.
    row::lock_all_against_changes(name);
    if !names::define(name, slots, ttl, lock_delay) {
        error::lease::not_definer(name).raise();
    }
    // There may be more slots now.
    transaction::wake_at_end(name);
}

/// Forgets a name, unless somebody holds it. Waits for its turn, and for transactions that have fenced.
#[pg_extern(sql = "CREATE FUNCTION lease_drop(name text) RETURNS void \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lease_drop(name: Option<&str>) {
    let name = checked_name(name);
    term::refuse_where_nothing_can_be_written(c"lease_drop()");
    // Before the wait, so that nobody waits in vain, and after it, when it may be another's, or held.
    require_unheld(name, &row::look(name));
    // To the end of the transaction: until then acquirers see the rows that are dropped here.
    Turnstile::of(name).enter(Limit::by_lock_timeout());
    let terms = row::lock_all(name);
    let lease = Lease { terms, ..row::look(name) };
    require_unheld(name, &lease);
    if !names::drop_all(name) {
        error::lease::unknown(name).raise();
    }
    lease.terms.iter().for_each(|term| transaction::released(term.token));
}

fn require_unheld(name: &str, lease: &Lease) {
    require_definer(name, lease);
    let now = machine::now(lease.needs_the_beginning());
    if let Some(held) = lease.terms.iter().find(|term| term.is_held(now)) {
        error::lease::in_use(name, held.slot).raise();
    }
}

/// Takes a slot from its holder; it rests for the lock delay. False if nobody holds it.
#[pg_extern(sql = "CREATE FUNCTION lease_revoke(name text, slot int DEFAULT 0) RETURNS boolean \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lease_revoke(name: Option<&str>, slot: Option<i32>) -> bool {
    let name = checked_name(name);
    let slot = slot.unwrap_or_else(|| error::null_argument("slot").raise());
    term::refuse_where_nothing_can_be_written(c"lease_revoke()");
    require_definer(name, &row::look(name));
    let revoked = row::revoke(name, slot);
    if let Some(token) = revoked {
        transaction::released(token);
        // What the holder was promised ends here, and that must not be undone by a crash.
        transaction::is_to_be_durable();
        transaction::wake_at_end(name);
    }
    revoked.is_some()
}

fn require_definer(name: &str, lease: &Lease) {
    match lease.definer {
        Some(definer) => require_membership(name, definer),
        // SAFETY: looks into the system's caches.
        None if unsafe { pg_sys::superuser() } => {}
        None => error::lease::not_definer(name).raise(),
    }
}

fn require_membership(name: &str, definer: pg_sys::Oid) {
    // SAFETY: as above.
    if !unsafe { pg_sys::has_privs_of_role(pg_sys::GetUserId(), definer) } {
        error::lease::not_definer(name).raise();
    }
}

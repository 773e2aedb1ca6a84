//! Fencing tokens: one sequence, whose numbers rise over everything that can happen to the server.
//!
//! A sequence survives a crash. After a failover to a standby that lacks the last of it, or in a restored database, it may
//! be behind; so each process raises it to the microseconds since 1970 before the first token it draws. No server draws a
//! million tokens a second, so wherever clocks move forward, that is past every token that was ever drawn.

use super::row::LEASE;
use crate::lock::manager::{Lock, Mode, Scope, Space};
use crate::pg::spi::{Query, value};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static RAISE: Query = Query::new(&LEASE, || {
    "SELECT pg_catalog.setval('idgen.lease_token'::pg_catalog.regclass, GREATEST(last_value, \
     (pg_catalog.extract('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint)) \
     FROM idgen.lease_token"
        .to_owned()
});

static IS_RAISED: AtomicBool = AtomicBool::new(false);

/// Does what draws tokens. A process that raises the sequence is alone with it: otherwise, stopped between reading and
/// setting, it could set the sequence back below what others have drawn meanwhile.
pub fn draw<R>(work: impl FnOnce() -> R) -> R {
    if !IS_RAISED.load(Relaxed) {
        with_lock(Mode::Exclusive, || RAISE.write_latest(&[], |_| ()));
        IS_RAISED.store(true, Relaxed);
    }
    with_lock(Mode::Shared, work)
}

static NEXT: Query =
    Query::new(&LEASE, || "SELECT pg_catalog.nextval('idgen.lease_token'::pg_catalog.regclass)".to_owned());

/// A token that nobody gets: all that are drawn later are greater.
pub fn next() -> i64 {
    draw(|| NEXT.write_latest(&[], |row| value(row, 1)).pop().expect("a sequence has a next value"))
}

/// The transaction's lock: an error lets go of it.
fn with_lock<R>(mode: Mode, work: impl FnOnce() -> R) -> R {
    let lock = Lock::new(Space::LeaseTokens, 0, mode);
    lock.take(Scope::Transaction);
    let result = work();
    lock.release(Scope::Transaction);
    result
}

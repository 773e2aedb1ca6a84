//! What the view `idgen.locks` joins with `pg_locks`: names, and what the holders have noted.

use super::holds::BACKENDS;
use super::{errors, registry};
use crate::pg::advisory_lock::{Mode, Scope};
use crate::pg::datum::{Composite, Text, form_rows};
use crate::pg::timestamp;
use pgrx::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

/// The registered names of this database's locks. Without preload no rows, with a warning.
#[pg_extern(sql = false)]
fn lock_get_names(fcinfo: pg_sys::FunctionCallInfo) -> SetOfIterator<'static, Composite> {
    let names = registry::registered();
    if names.is_none() {
        errors::names_unknown().warn();
    }
    let rows = names.into_iter().flatten().map(|(key, name)| [key.into_datum(), Text::from(name).into_datum()]);
    // SAFETY: the call's own fcinfo; the types are those of the OUT parameters.
    unsafe { form_rows(fcinfo, rows) }
}

/// What the processes of this database hold and wait for. A wait has a scope, but no depth.
#[pg_extern(sql = false)]
fn lock_get_holds(fcinfo: pg_sys::FunctionCallInfo) -> SetOfIterator<'static, Composite> {
    let mut rows = Vec::new();
    for backend in BACKENDS.get().into_iter().flat_map(|backends| backends.iter()) {
        let Some(pid) = backend.pid_here() else {
            continue;
        };
        let row = |key: i64, mode| [pid.into_datum(), key.into_datum(), (mode == Mode::Shared).into_datum()];
        for hold in backend.holds() {
            let [pid, key, shared] = row(hold.key(), hold.mode());
            let depth = |scope| (hold.depth(scope).load(Relaxed) as i32).into_datum();
            let since = timestamp::from_ms(hold.since_ms()).into_datum();
            rows.push([pid, key, shared, depth(Scope::Session), depth(Scope::Transaction), since, None]);
        }
        if let Some((key, mode, scope)) = backend.wait() {
            let [pid, key, shared] = row(key, mode);
            let scope = if scope == Scope::Transaction { "transaction" } else { "session" };
            rows.push([pid, key, shared, None, None, None, scope.into_datum()]);
        }
    }
    // SAFETY: the call's own fcinfo; the types are those of the OUT parameters.
    unsafe { form_rows(fcinfo, rows) }
}

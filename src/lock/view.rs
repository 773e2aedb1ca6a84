//! What the view `idgen.locks` joins with `pg_locks`: names, and what the holders have noted.

use super::holds::BACKENDS;
use super::{errors, registry};
use crate::pg::advisory_lock::{Mode, Scope};
use crate::pg::encoding::Text;
use crate::pg::timestamp;
use pgrx::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

extension_sql_file!("views.sql", name = "lock_views", requires = [lock_get_names, lock_get_holds]);

/// The registered names of this database's locks. Without preload no rows, with a warning.
#[pg_extern(sql = "CREATE FUNCTION idgen.lock_get_names(OUT key bigint, OUT name text) RETURNS SETOF record \
           VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lock_get_names() -> TableIterator<'static, (name!(key, i64), name!(name, Text<'static>))> {
    let names = registry::registered();
    if names.is_none() {
        errors::names_unknown().warn();
    }
    TableIterator::new(names.into_iter().flatten().map(|(key, name)| (key, name.into())))
}

/// What the processes of this database hold and wait for. A wait has a scope, but no depth.
#[pg_extern(
    sql = "CREATE FUNCTION idgen.lock_get_holds(OUT pid int, OUT key bigint, OUT shared boolean, OUT session_depth int, \
           OUT transaction_depth int, OUT acquired_at timestamptz, OUT waits_for text) RETURNS SETOF record \
           VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
#[allow(clippy::type_complexity, reason = "the columns of a function")]
fn lock_get_holds() -> TableIterator<
    'static,
    (
        name!(pid, i32),
        name!(key, i64),
        name!(shared, bool),
        name!(session_depth, Option<i32>),
        name!(transaction_depth, Option<i32>),
        name!(acquired_at, Option<TimestampWithTimeZone>),
        name!(waits_for, Option<String>),
    ),
> {
    let mut rows = Vec::new();
    for backend in BACKENDS.get().into_iter().flat_map(|backends| backends.iter()) {
        let Some(pid) = backend.pid_here() else {
            continue;
        };
        for hold in backend.holds() {
            let depth = |scope| Some(hold.depth(scope).load(Relaxed) as i32);
            let since = timestamp::from_ms(hold.since_ms());
            let (session, transaction) = (depth(Scope::Session), depth(Scope::Transaction));
            rows.push((pid, hold.key(), hold.mode() == Mode::Shared, session, transaction, since, None));
        }
        if let Some((key, mode, scope)) = backend.wait() {
            let scope = if scope == Scope::Transaction { "transaction" } else { "session" };
            rows.push((pid, key, mode == Mode::Shared, None, None, None, Some(scope.to_owned())));
        }
    }
    TableIterator::new(rows)
}

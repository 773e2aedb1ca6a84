//! Leases: the SQL functions of holders.

use crate::args;
use crate::lock::{checked_name, wait::Limit};
use crate::pg::call_site::text_arg;
use crate::pg::composite::{self, Composite};
use crate::pg::encoding::Text;
use crate::pg::process_utility;
use crate::{settings, shmem};
use pgrx::datum::{Array, Interval};
use pgrx::fcinfo::{pg_getarg, pg_getarg_datum};
use pgrx::prelude::*;
use preference::AnySlot;
use row::{Granted, Wish};

pub mod acquire;
pub mod define;
pub mod errors;
pub mod guard;
mod machine;
pub mod names;
pub mod own;
pub mod pending;
mod precedence;
pub mod preference;
pub mod row;
mod session;
pub mod stats;
pub mod term;
pub mod tokens;
pub mod turnstile;
mod versions;
pub mod view;

/// Acquires a lease; waits as long as `lock_timeout` lets it. NULL as a name or for bind_session is 22004; what it refuses
/// is 22023, a token that stands for nothing any more 55000, the time 55P03, a standby 25006.
#[pg_extern(sql = "CREATE FUNCTION lease_acquire(name text, ttl interval DEFAULT NULL, owner text DEFAULT NULL, \
           data jsonb DEFAULT NULL, token bigint DEFAULT NULL, bind_session boolean DEFAULT false, \
           OUT name text, OUT slot int, OUT token bigint, OUT owner text, OUT acquired_at timestamptz, \
           OUT expires_at timestamptz, OUT depth int) \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lease_acquire(fcinfo: pg_sys::FunctionCallInfo) -> Composite {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    let granted = unsafe { acquired(fcinfo, 1, Limit::by_lock_timeout()) };
    let (name, granted) = granted.expect("without an answer it is an error");
    let expires_at = term::expires_at(granted.session_key, granted.ends_us);
    let Granted { slot, token, owner, acquired_at, depth, .. } = granted;
    let columns = [
        Text::from(name).into_datum(),
        slot.into_datum(),
        token.into_datum(),
        owner.map(Text::from).into_datum(),
        acquired_at.into_datum(),
        expires_at.into_datum(),
        depth.into_datum(),
    ];
    // SAFETY: the call's own fcinfo; the types are those of the OUT parameters.
    unsafe { composite::form(fcinfo, columns) }
}

/// Acquires a lease if it is to be had in time; else no row. Errors as `lease_acquire`, but for the time.
#[pg_extern(
    sql = "CREATE FUNCTION lease_try_acquire(name text, timeout interval DEFAULT '0', ttl interval DEFAULT NULL, \
           owner text DEFAULT NULL, data jsonb DEFAULT NULL, token bigint DEFAULT NULL, \
           bind_session boolean DEFAULT false, \
           OUT name text, OUT slot int, OUT token bigint, OUT owner text, OUT acquired_at timestamptz, \
           OUT expires_at timestamptz, OUT depth int) RETURNS SETOF record ROWS 1 \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
#[allow(clippy::type_complexity, reason = "the columns of a row")]
fn lease_try_acquire(
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<
    'static,
    (
        name!(name, Text<'static>),
        name!(slot, i32),
        name!(token, i64),
        name!(owner, Option<Text<'static>>),
        name!(acquired_at, TimestampWithTimeZone),
        name!(expires_at, Option<TimestampWithTimeZone>),
        name!(depth, i32),
    ),
> {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    let granted = unsafe {
        let timeout = args::timeout(pg_getarg::<Interval>(fcinfo, 1));
        acquired(fcinfo, 2, Limit::answer(timeout))
    };
    TableIterator::new(granted.map(|(name, granted)| {
        let expires_at = term::expires_at(granted.session_key, granted.ends_us);
        let Granted { slot, token, owner, acquired_at, depth, .. } = granted;
        (name.into(), slot, token, owner.map(Text::from), acquired_at, expires_at, depth)
    }))
}

/// # Safety
/// `fcinfo` is that of the running call; its first argument is a text, and from `first` on there are those of a wish.
unsafe fn acquired(fcinfo: pg_sys::FunctionCallInfo, first: usize, limit: Limit) -> Option<(String, Granted)> {
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
    let wish = Wish {
        name: checked_name(name.as_deref()),
        ttl_us: ttl_us(ttl),
        owner: owner.as_deref(),
        data,
        bind_session: args::required(bind_session, "bind_session"),
        only_if_free: false,
        preference: &AnySlot,
        has_one_snapshot: pending::has_one_snapshot(),
    };
    term::refuse_where_nothing_can_be_written(c"lease_acquire()");
    let granted = match token {
        Some(token) => Some(term::deepen(&wish, token)),
        None => acquire::slot(&wish, limit),
    }?;
    term::warn_in_block(wish.name);
    Some((wish.name.to_owned(), granted))
}

/// Makes a lease last from now on; returns when it ends then, and NULL for one that ends with its session.
#[pg_extern(
    sql = "CREATE FUNCTION lease_renew(name text, token bigint, ttl interval DEFAULT NULL) RETURNS timestamptz \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
fn lease_renew(name: Option<Text>, token: Option<i64>, ttl: Option<Interval>) -> Option<TimestampWithTimeZone> {
    let (name, token) = (checked_name(name.as_deref()), required_token(token));
    let ttl_us = ttl_us(ttl);
    term::refuse_where_nothing_can_be_written(c"lease_renew()");
    let renewed = term::renew(name, token, ttl_us);
    term::expires_at(renewed.session_key, renewed.ends_us)
}

/// Renews those of several leases that are still held, and returns them.
#[pg_extern(sql = "CREATE FUNCTION lease_renew_many(names text[], tokens bigint[], ttl interval DEFAULT NULL, \
           OUT name text, OUT token bigint, OUT expires_at timestamptz) RETURNS SETOF record \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lease_renew_many(
    names: Option<Array<Text>>,
    tokens: Option<Array<i64>>,
    ttl: Option<Interval>,
) -> TableIterator<
    'static,
    (name!(name, Text<'static>), name!(token, i64), name!(expires_at, Option<TimestampWithTimeZone>)),
> {
    let names = args::required(names, "names");
    let tokens = args::required(tokens, "tokens");
    if names.len() != tokens.len() {
        errors::lengths_differ(names.len(), tokens.len()).raise();
    }
    let names: Vec<Option<Text>> = names.iter().collect();
    let names: Vec<&str> = names.iter().map(|name| checked_name(name.as_deref())).collect();
    let tokens: Vec<i64> = tokens.iter().map(required_token).collect();
    let ttl_us = ttl_us(ttl);
    term::refuse_where_nothing_can_be_written(c"lease_renew_many()");
    let renewed = term::renew_many(names, tokens, ttl_us).into_iter();
    TableIterator::new(renewed.map(|(name, token, expires_at)| (name.into(), token, expires_at)))
}

/// Lets go of a lease once. True if it is free now, false if it is still held, acquired more often than released.
#[pg_extern(sql = "CREATE FUNCTION lease_release(name text, token bigint) RETURNS boolean \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lease_release(name: Option<Text>, token: Option<i64>) -> bool {
    let (name, token) = (checked_name(name.as_deref()), required_token(token));
    term::refuse_where_nothing_can_be_written(c"lease_release()");
    term::release(name, token)
}

/// Has the transaction commit only under this token: nobody can take the lease over before it has ended.
#[pg_extern(sql = "CREATE FUNCTION lease_fence(name text, token bigint) RETURNS void \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lease_fence(name: Option<Text>, token: Option<i64>) {
    let (name, token) = (checked_name(name.as_deref()), required_token(token));
    term::refuse_where_nothing_can_be_written(c"lease_fence()");
    term::fence(name, token);
}

pub fn required_token(token: Option<i64>) -> i64 {
    args::required(token, "token")
}

/// Within the limits that are set; `None` is what is laid down for the name.
pub fn ttl_us(ttl: Option<Interval>) -> Option<i64> {
    ttl.map(|ttl| {
        let limits = settings::lease_ttl_limits_us();
        let given = i64::try_from(ttl.as_micros()).ok().filter(|given| limits.contains(given));
        given.unwrap_or_else(|| errors::ttl_out_of_range(limits).raise())
    })
}

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&session::ENDS, &stats::COUNTERS, &turnstile::CONDITIONS]);
    process_utility::follow_owners_of(process_utility::OwnedRows {
        exist: || row::LEASE.find().is_some(),
        reassign: define::reassign,
        drop: define::drop_owned,
    });
}

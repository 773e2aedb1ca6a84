//! Several leases in one call and one commit. Each call works in the order of keys, so that calls with the same names in
//! different orders do not wait for each other.

use super::errors;
use super::holder::{self, columns};
use super::terms::Wanted;
use crate::args::{self, name_hash};
use crate::pg::advisory_lock::Limit;
use crate::pg::datum::{Composite, Text};
use crate::pg::xact;
use crate::settings;
use pgrx::datum::{Array, Interval};
use pgrx::fcinfo::pg_getarg;
use pgrx::prelude::*;
use std::ffi::CStr;

/// Acquires a term of each of several leases, or none. Waits as `lease_acquire` does, up to `lock_timeout` for all of them, and
/// raises what that raises; 22023 also for a name that is given twice. Returns the terms in the order of the names.
#[pg_extern(sql = false)]
fn lease_acquire_many(fcinfo: pg_sys::FunctionCallInfo) -> SetOfIterator<'static, Composite<7>> {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    unsafe { acquire(fcinfo, 1, c"lease_acquire_many()", Limit::by_lock_timeout()) }
}

/// Acquires a term of each of several leases if all become free within the timeout; otherwise returns no row. Raises what
/// `lease_acquire_many` raises, but no 55P03.
#[pg_extern(sql = false)]
fn lease_try_acquire_many(fcinfo: pg_sys::FunctionCallInfo) -> SetOfIterator<'static, Composite<7>> {
    // SAFETY: as above.
    unsafe {
        let timeout = args::timeout(pg_getarg::<Interval>(fcinfo, 1));
        acquire(fcinfo, 2, c"lease_try_acquire_many()", Limit::answer(timeout))
    }
}

/// # Safety
/// `fcinfo` is that of the running call. Its first argument is an array of texts; from `first` on they are ttl, owner, data,
/// bind_session and shared.
unsafe fn acquire(
    fcinfo: pg_sys::FunctionCallInfo,
    first: usize,
    function: &CStr,
    limit: Limit,
) -> SetOfIterator<'static, Composite<7>> {
    // SAFETY: by the above.
    let (names, wanted) = unsafe { (pg_getarg::<Array<Text>>(fcinfo, 0), Wanted::by_args(fcinfo, first, first + 3)) };
    let names = checked(args::required(names, "names"));
    let mut ordered: Vec<(usize, &str)> = names.iter().map(String::as_str).enumerate().collect();
    ordered.sort_by_cached_key(|(_, name)| name_hash(name));
    let ordered_names: Vec<&str> = ordered.iter().map(|(_, name)| *name).collect();
    if let Some(twice) = ordered_names.windows(2).find(|two| two[0] == two[1]) {
        errors::named_twice(twice[0]).raise();
    }
    if ordered.is_empty() {
        return SetOfIterator::new(Vec::new());
    }
    let granted = wanted.acquire(&ordered_names, function, limit).unwrap_or_default();
    let rows = ordered.into_iter().zip(granted).map(|((asked, name), term)| (asked, columns(name, term)));
    in_order_asked(rows.collect())
}

fn in_order_asked<const N: usize>(mut rows: Vec<(usize, Composite<N>)>) -> SetOfIterator<'static, Composite<N>> {
    rows.sort_by_key(|(asked, _)| *asked);
    SetOfIterator::new(rows.into_iter().map(|(_, row)| row).collect::<Vec<_>>())
}

/// Renews those of several terms that are still held, and returns them. Leaves out other tokens. Raises 22004 for NULL and
/// 22023 for arrays of different lengths, as the next two.
#[pg_extern(sql = false)]
fn lease_renew_many(
    names: Option<Array<Text>>,
    tokens: Option<Array<i64>>,
    ttl: Option<Interval>,
) -> SetOfIterator<'static, Composite<3>> {
    let ttl_us = ttl.map(|ttl| args::ttl_us(ttl, settings::lease_ttl_limits_us()));
    let renew = |(name, token): (&str, i64)| {
        let renewed = holder::renew(name, token, ttl_us)?;
        Some(Composite([Text::from(name.to_owned()).into(), token.into(), renewed.expires_at().into()]))
    };
    for_each(names, tokens, c"lease_renew_many()", renew)
}

/// Releases those of several terms that are still held once, and returns them, with whether the slot is free now. Leaves out
/// other tokens.
#[pg_extern(sql = false)]
fn lease_release_many(names: Option<Array<Text>>, tokens: Option<Array<i64>>) -> SetOfIterator<'static, Composite<3>> {
    let release = |(name, token): (&str, i64)| {
        let is_free = holder::release(name, token)?;
        Some(Composite([Text::from(name.to_owned()).into(), token.into(), is_free.into()]))
    };
    for_each(names, tokens, c"lease_release_many()", release)
}

/// Fences by several leases, as `lease_fence` does by one. Raises what that raises for any of them.
#[pg_extern(sql = false)]
fn lease_fence_many(names: Option<Array<Text>>, tokens: Option<Array<i64>>) {
    let fence = |(name, token): (&str, i64)| {
        holder::fence(name, token);
        None::<Composite<0>>
    };
    for_each(names, tokens, c"lease_fence_many()", fence);
}

/// Works on each of several terms once, in the order of keys, and returns the results in the order of the arguments.
fn for_each<const N: usize>(
    names: Option<Array<Text>>,
    tokens: Option<Array<i64>>,
    function: &CStr,
    mut work: impl FnMut((&str, i64)) -> Option<Composite<N>>,
) -> SetOfIterator<'static, Composite<N>> {
    let names = args::required(names, "names");
    let tokens = args::required(tokens, "tokens");
    if names.len() != tokens.len() {
        errors::lengths_differ(names.len(), tokens.len()).raise();
    }
    let names = checked(names);
    let tokens = tokens.iter().map(|token| args::required(token, "token"));
    let mut terms: Vec<(usize, (&str, i64))> = names.iter().map(String::as_str).zip(tokens).enumerate().collect();
    xact::require_read_write(function);
    terms.sort_by_cached_key(|(_, (name, token))| (name_hash(name), *token));
    terms.dedup_by_key(|(_, term)| *term);
    in_order_asked(terms.into_iter().filter_map(|(asked, term)| Some((asked, work(term)?))).collect())
}

fn checked(names: Array<Text>) -> Vec<String> {
    names.iter().map(|name| args::name(name.as_deref(), "name").to_owned()).collect()
}

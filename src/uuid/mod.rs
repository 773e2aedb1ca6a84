//! UUIDs of version 7. `uuidv7_next` makes them from ids of a layout of their own, so they share generators, clock and mark
//! with snowflake ids. The functions of a time, and of the time in a UUID, work without preload and on a standby.

use crate::args;
use crate::pg::datum::{self, Uuid};
use crate::pg::ereport::errors;
use crate::pg::function::{self, CallSite};
use crate::pg::session;
use crate::snowflake::{self, AttachedGenerator, IdSet};
use idgen_core::uuid::{self, LAYOUT, RandomWords};
use pgrx::prelude::*;

/// The next UUID. Raises what `snowflake_next()` raises, and 58030 if there are no random bits.
#[pg_extern(sql = false)]
fn uuidv7_next(fcinfo: pg_sys::FunctionCallInfo) -> Uuid {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    unsafe { CallSite::new(fcinfo, None) }.with(generator, |attached| next_uuid(attached, false))
}

/// The next UUID; with `node`, its first random bits are the worker id of this server. Raises 22004 for NULL, and what
/// `uuidv7_next()` raises.
#[pg_extern(sql = false)]
fn uuidv7_next_of_node(fcinfo: pg_sys::FunctionCallInfo) -> Uuid {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with one argument as declared. No argument selects the generator.
    let (with_node, site) = unsafe { (node_arg(fcinfo, 0), CallSite::new(fcinfo, None)) };
    site.with(generator, |attached| next_uuid(attached, with_node))
}

/// `count` increasing UUIDs. Raises 22004 for NULL, 22023 for a negative count, and what `uuidv7_next()` raises.
#[pg_extern(sql = false)]
fn uuidv7_next_many(fcinfo: pg_sys::FunctionCallInfo) -> Option<Uuid> {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the argument declared.
    unsafe { next_row(fcinfo, || false) }
}

/// `count` increasing UUIDs, as of `uuidv7_next(node)`.
#[pg_extern(sql = false)]
fn uuidv7_next_many_of_node(fcinfo: pg_sys::FunctionCallInfo) -> Option<Uuid> {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    unsafe { next_row(fcinfo, || node_arg(fcinfo, 1)) }
}

fn generator(_: &CallSite) -> AttachedGenerator {
    snowflake::attach_by_text(LAYOUT)
}

/// The argument `node`. Raises 22004 for NULL.
///
/// # Safety
/// `fcinfo` is that of a running call whose argument `index` is a boolean.
unsafe fn node_arg(fcinfo: pg_sys::FunctionCallInfo, index: usize) -> bool {
    // SAFETY: by the above.
    args::required(unsafe { pgrx::fcinfo::pg_getarg::<bool>(fcinfo, index) }, "node")
}

/// The hot path: no lock, no allocation but that of the result, and no foreign call but the clock.
#[inline]
fn next_uuid(attached: &mut AttachedGenerator, with_node: bool) -> Uuid {
    // First: a failure of the random source takes no id.
    let random = random();
    let id = snowflake::next_id(attached);
    of_id(id, random, attached, with_node)
}

/// A set that is being returned.
struct UuidSet {
    ids: IdSet,
    with_node: bool,
}

/// # Safety
/// `fcinfo` is that of a running call whose first argument is a count.
unsafe fn next_row(fcinfo: pg_sys::FunctionCallInfo, with_node: impl FnOnce() -> bool) -> Option<Uuid> {
    let begin = || {
        // SAFETY: by the above.
        let count = args::count(unsafe { pgrx::fcinfo::pg_getarg::<i32>(fcinfo, 0) });
        let with_node = with_node();
        UuidSet { ids: IdSet::new(snowflake::attach_by_text(LAYOUT), count), with_node }
    };
    let next = |set: &mut UuidSet| {
        let id = set.ids.next()?;
        Some(of_id(id, random(), &set.ids.attached, set.with_node))
    };
    // SAFETY: the functions return sets, and keep nothing else. A set needs no drop.
    unsafe { function::next_row(fcinfo, begin, next) }
}

/// The UUID of an id that was just issued: the generator is attached under the worker id of that time.
#[inline]
fn of_id(id: i64, random: u64, attached: &AttachedGenerator, with_node: bool) -> Uuid {
    let bits = if with_node { uuid::with_worker(attached.node.worker, random) } else { random };
    Uuid(uuid::of_id(id, bits))
}

/// Random bits for one UUID, from PostgreSQL's strong source: 2 kB at a time, because a call of it costs more than a UUID.
#[inline]
fn random() -> u64 {
    static WORDS: RandomWords<256> = RandomWords::new();
    WORDS.next(session::process_id(), session::random_words)
}

/// The greatest UUID at or below which no transaction of this server can commit a row with a UUID of `uuidv7_next` any
/// more. Use it in a later statement than the one that returns it. The nil UUID if none is settled. Raises what
/// `snowflake_settled()` raises.
#[pg_extern(sql = false)]
fn uuidv7_settled() -> Uuid {
    match snowflake::settled(LAYOUT, "uuidv7_settled()") {
        -1 => Uuid(0),
        id => Uuid(uuid::of_id(id, u64::MAX)),
    }
}

/// The least UUID of version 7 in the millisecond that contains the time. Clamped to the times that a UUID can have.
#[pg_extern(sql = false)]
fn uuidv7_floor(ts: TimestampWithTimeZone) -> Uuid {
    Uuid(uuid::floor(datum::to_ms(ts)))
}

/// The greatest UUID of version 7 in the millisecond that contains the time. Clamped to the times that a UUID can have.
#[pg_extern(sql = false)]
fn uuidv7_ceil(ts: TimestampWithTimeZone) -> Uuid {
    Uuid(uuid::ceil(datum::to_ms(ts)))
}

/// The time in a UUID of version 7, by any generator. Raises 22023 for another version.
#[pg_extern(sql = false)]
fn uuidv7_time(id: Uuid) -> TimestampWithTimeZone {
    let time_ms = uuid::time_ms(id.0).unwrap_or_else(|| not_version_7(&id).raise());
    datum::from_ms_or_infinity(time_ms)
}

errors! {
    fn not_version_7(uuid: &Uuid) {
        ERRCODE_INVALID_PARAMETER_VALUE: "\"{uuid}\" is not a UUID of version 7";
        detail: "{}", version_text(uuid);
    }
}

fn version_text(uuid: &Uuid) -> String {
    match uuid::version(uuid.0) {
        Some(version) => format!("Its version is {version}."),
        None => "It does not have the variant of RFC 9562, which defines the versions.".to_owned(),
    }
}

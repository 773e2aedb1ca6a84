//! Every setting, the reason for its default, and its typed accessor.
//!
//! An ordinary role cannot change what uniqueness rests on.

use crate::pg::ereport::Report;
use idgen_core::layout::{Layout, Node};
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
use pgrx::prelude::*;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ops::RangeInclusive;
use std::time::Duration;

/// The layout most of the world already uses.
static LAYOUT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c"snowflake"));
/// Undecided: acts as 0, which is right for one server, and `idgen.status()` asks for a decision.
static WORKER_ID: GucSetting<i32> = GucSetting::<i32>::new(-1);
static DATACENTER_ID: GucSetting<i32> = GucSetting::<i32>::new(0);
/// Where set, the number is leased instead.
static WORKER_POOL: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static COORDINATOR: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
/// Long enough for a burst of four million ids at the default layout's rate, short enough to sort by.
static MAX_DRIFT: GucSetting<i32> = GucSetting::<i32>::new(1000);
/// One fsync in three seconds is nothing to any disk, and three seconds ahead after a crash nothing to any user.
static CLOCK_WINDOW: GucSetting<i32> = GucSetting::<i32>::new(3000);
/// Far more layouts than a schema has, in some 100 kB.
static MAX_GENERATORS: GucSetting<i32> = GucSetting::<i32>::new(256);

/// Early enough that a range is there before the last one is used up, late enough that a crash loses little.
static SEGMENT_LOW_WATER: GucSetting<i32> = GucSetting::<i32>::new(50);
/// A refill takes milliseconds; one that takes seconds is stuck, and its waiters had better say so.
static SEGMENT_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(5000);
/// More tags than most schemas have tables, in half a megabyte.
static MAX_SEGMENTS: GucSetting<i32> = GucSetting::<i32>::new(1024);

/// More locks than are held at a time, in a megabyte and a half.
static MAX_LOCK_NAMES: GucSetting<i32> = GucSetting::<i32>::new(4096);

/// Long enough to renew at a third of it without haste, short enough to wait for after a crash.
static LEASE_TTL: GucSetting<i32> = GucSetting::<i32>::new(30_000);
/// Below it a renewal could not come in time on a busy machine.
static LEASE_MIN_TTL: GucSetting<i32> = GucSetting::<i32>::new(100);
/// A holder that vanished blocks others for no longer.
static LEASE_MAX_TTL: GucSetting<i32> = GucSetting::<i32>::new(86_400_000);

/// A server that was started again after a crash has ids ahead of its clock by some seconds, and clocks differ by less than
/// this where anybody looks after them.
static WORKER_MAX_LEAD: GucSetting<i32> = GucSetting::<i32>::new(60_000);

/// The widest drift that can be set: ids more than a minute ahead of the clock are of no use as times.
const MAX_DRIFT_LIMIT_MS: i32 = 60_000;

/// The widest window: after a crash ids begin up to that, and half of it, ahead of the clock.
const CLOCK_WINDOW_LIMIT_MS: i32 = 60_000;

/// Defines the settings. What shared memory depends on is fixed when the server starts. A library that was not
/// preloaded comes too late for that, and has no shared memory: it reads the same settings from the server's files.
pub fn define(preloading: bool) {
    let configured: Vec<_> = NAMES.iter().map(|(name, flags)| (*name, *flags, value_of(name))).collect();
    let at_start = || {
        if preloading { GucContext::Postmaster } else { GucContext::Sighup }
    };
    // SAFETY: the check hook has the signature and keeps the contract that PostgreSQL states for string settings.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(
            c"idgen.layout",
            c"Layout of ids where none is named.",
            c"A preset (snowflake, twitter, sonyflake, instagram, pgedge, seconds, js53) or a spec such as \
              \"time:41 worker:10 sequence:12 unit:1ms epoch:2020-01-01\".",
            &LAYOUT,
            at_start(),
            GucFlags::default(),
            Some(check_layout),
            None,
            None,
        );
    }
    GucRegistry::define_int_guc(
        c"idgen.worker_id",
        c"This server's number, in every layout that has a worker field.",
        c"Must differ between all servers whose ids meet. -1 is undecided and acts as 0.",
        &WORKER_ID,
        -1,
        i32::MAX,
        at_start(),
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"idgen.datacenter_id",
        c"This server's datacenter number, in every layout that has a datacenter field.",
        c"The pair of datacenter and worker must differ between all servers whose ids meet.",
        &DATACENTER_ID,
        0,
        i32::MAX,
        at_start(),
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"idgen.max_drift",
        c"How far a burst of ids may run ahead of the clock.",
        c"A full tick borrows from the next ones, up to this; then generation waits for the clock.",
        &MAX_DRIFT,
        0,
        MAX_DRIFT_LIMIT_MS,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"idgen.clock_window",
        c"How far ahead the high-water mark is written.",
        c"The mark is written once in this time at the most. After a crash ids begin up to the drift and one and a half of it ahead.",
        &CLOCK_WINDOW,
        100,
        CLOCK_WINDOW_LIMIT_MS,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"idgen.max_generators",
        c"How many combinations of layout and worker number can generate at once.",
        c"Beyond this, the one that has been still for longest makes room.",
        &MAX_GENERATORS,
        // One is kept for idgen.layout, and another layout must have a place too.
        2,
        65_536,
        at_start(),
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"idgen.segment_low_water",
        c"How much of a segment's last range is left when the next one is fetched, in percent.",
        c"0 fetches only when nothing is left, and somebody waits each time.",
        &SEGMENT_LOW_WATER,
        0,
        100,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"idgen.segment_timeout",
        c"How long to wait for a segment's next range when nothing is left.",
        c"After this it is an error that says what keeps the refill worker.",
        &SEGMENT_TIMEOUT,
        0,
        3_600_000,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"idgen.max_segments",
        c"How many tags, over all databases, can have values in shared memory at once.",
        c"Beyond this, the tag that was refilled longest ago makes room and loses what is left of its range.",
        &MAX_SEGMENTS,
        1,
        65_536,
        at_start(),
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"idgen.max_lock_names",
        c"How many names of locks can be shown at once.",
        c"Beyond this, names of locks that nobody holds are forgotten, and then locks are shown by their keys.",
        &MAX_LOCK_NAMES,
        1,
        1_048_576,
        at_start(),
        GucFlags::default(),
    );
    define_lease_settings();
    define_pool_settings();
    if preloading {
        for (name, flags, text) in configured {
            refuse_unless_taken(name, flags, text);
        }
        // SAFETY: a C string literal. Only when preloaded, for this removes every setting of the prefix that is not
        // defined by now, and those fixed at the start cannot be defined later.
        unsafe { pg_sys::MarkGUCPrefixReserved(c"idgen".as_ptr()) };
    }
}

fn define_lease_settings() {
    let define = |name, short, long, setting| {
        // A millisecond to 24 days, as long as PostgreSQL can wait.
        GucRegistry::define_int_guc(name, short, long, setting, 1, i32::MAX, GucContext::Sighup, GucFlags::UNIT_MS);
    };
    define(
        c"idgen.lease_ttl",
        c"How long a lease lasts whose name is not defined, unless its holder says so.",
        c"From its acquisition or its last renewal on.",
        &LEASE_TTL,
    );
    define(
        c"idgen.lease_min_ttl",
        c"The shortest time a lease can be made to last.",
        c"A shorter one would end before its holder can renew it.",
        &LEASE_MIN_TTL,
    );
    define(
        c"idgen.lease_max_ttl",
        c"The longest time a lease can be made to last.",
        c"For so long a holder that has vanished can keep others out.",
        &LEASE_MAX_TTL,
    );
}

fn define_pool_settings() {
    GucRegistry::define_string_guc(
        c"idgen.worker_pool",
        c"Pool of worker ids from which this server leases its number.",
        c"Empty: the number is idgen.worker_id. The pool is a lease that is defined in the coordinator database.",
        &WORKER_POOL,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"idgen.coordinator",
        c"Connection string of the database that has the pool of worker ids.",
        c"As libpq takes it; several hosts for one that is replicated. It may be this server itself.",
        &COORDINATOR,
        GucContext::Sighup,
        // It can hold a password.
        GucFlags::SUPERUSER_ONLY,
    );
    GucRegistry::define_int_guc(
        c"idgen.worker_max_lead",
        c"How far holders of worker ids may be ahead of this coordinator's clock.",
        c"Their id times end at most that much, or a ttl, beyond a ttl from now. Grants after a failover begin after as long.",
        &WORKER_MAX_LEAD,
        0,
        86_400_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
}

/// Every setting, with the flags by which PostgreSQL reads its number; `None` for a text.
const NAMES: [(&CStr, Option<GucFlags>); 16] = [
    (c"idgen.layout", None),
    (c"idgen.worker_id", Some(GucFlags::empty())),
    (c"idgen.datacenter_id", Some(GucFlags::empty())),
    (c"idgen.worker_pool", None),
    (c"idgen.coordinator", None),
    (c"idgen.worker_max_lead", Some(GucFlags::UNIT_MS)),
    (c"idgen.max_drift", Some(GucFlags::UNIT_MS)),
    (c"idgen.clock_window", Some(GucFlags::UNIT_MS)),
    (c"idgen.max_generators", Some(GucFlags::empty())),
    (c"idgen.segment_low_water", Some(GucFlags::empty())),
    (c"idgen.segment_timeout", Some(GucFlags::UNIT_MS)),
    (c"idgen.max_segments", Some(GucFlags::empty())),
    (c"idgen.max_lock_names", Some(GucFlags::empty())),
    (c"idgen.lease_ttl", Some(GucFlags::UNIT_MS)),
    (c"idgen.lease_min_ttl", Some(GucFlags::UNIT_MS)),
    (c"idgen.lease_max_ttl", Some(GucFlags::UNIT_MS)),
];

/// What a setting is now, as text; before it is defined, what the configuration says.
fn value_of(name: &CStr) -> Option<CString> {
    // SAFETY: the name is a C string; the result is null or a C string that is copied at once.
    unsafe {
        let value = pg_sys::GetConfigOption(name.as_ptr(), true, false);
        (!value.is_null()).then(|| CStr::from_ptr(value).to_owned())
    }
}

/// Where the configuration has a wrong value for a library's setting, PostgreSQL takes the default instead and warns. A
/// worker id that is quietly 0 makes duplicates, so the server does not start, as with PostgreSQL's own settings.
fn refuse_unless_taken(name: &CStr, number: Option<GucFlags>, configured: Option<CString>) {
    let (Some(text), Some(taken)) = (configured, value_of(name)) else {
        return;
    };
    let is_taken = match number {
        None => text == taken,
        Some(flags) => {
            let mut parsed = 0;
            // SAFETY: a C string, a local for the result, and no wish for a hint.
            let is_number =
                unsafe { pg_sys::parse_int(text.as_ptr(), &mut parsed, flags.bits(), std::ptr::null_mut()) };
            is_number && taken.to_string_lossy() == parsed.to_string()
        }
    };
    if !is_taken {
        let (name, text) = (name.to_string_lossy(), text.to_string_lossy());
        Report::new(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("invalid value for parameter \"{name}\": \"{text}\""),
        )
        .detail("Uniqueness depends on this setting, so the server does not start with its default instead.")
        .hint("Set a valid value, or remove the line.")
        .raise();
    }
}

/// The text of `idgen.layout`.
pub fn layout() -> String {
    let text = LAYOUT.get().unwrap_or_default();
    text.into_string().unwrap_or_default()
}

/// `idgen.layout` in the canonical form, the same for two spellings of one layout.
pub fn canonical_layout() -> String {
    let text = layout();
    // The check hook refuses what does not parse.
    Layout::parse(&text).map_or(text, |layout| layout.to_string())
}

/// What `idgen.worker_id` and `idgen.datacenter_id` say, with an undecided worker as 0.
pub fn node() -> Node {
    // Neither is negative here: a setting's lower bound holds always.
    Node { datacenter: DATACENTER_ID.get() as u32, worker: WORKER_ID.get().max(0) as u32 }
}

/// Is the worker's number still the default?
pub fn worker_undecided() -> bool {
    WORKER_ID.get() < 0
}

/// The pool that this server's number is leased from, and the connection string of its coordinator.
#[derive(PartialEq)]
pub struct Pool {
    pub name: String,
    pub coordinator: CString,
}

/// `None` where the number is a setting.
pub fn worker_pool() -> Option<Pool> {
    has_worker_pool().then(|| Pool { name: pool_name(), coordinator: COORDINATOR.get().unwrap_or_default() })
}

/// The text of `idgen.worker_pool`.
pub fn pool_name() -> String {
    WORKER_POOL.get().unwrap_or_default().to_string_lossy().into_owned()
}

/// Is there one? Looks at the text in place, for it is asked again and again.
pub fn has_worker_pool() -> bool {
    // SAFETY: PostgreSQL's variable of this process: null or a C string, and nothing changes it meanwhile.
    unsafe {
        let text = *WORKER_POOL.as_ptr();
        !text.is_null() && *text != 0
    }
}

/// How far beyond now and its ttl the lease of a worker id may reach, in microseconds. At least a ttl: a server that has crashed
/// can go on with the worker id that it had, right after its rectangle.
pub fn worker_max_lead_us(ttl_us: i64) -> i64 {
    ttl_us.max(i64::from(WORKER_MAX_LEAD.get()) * 1000)
}

#[inline]
pub fn max_drift_ms() -> i64 {
    i64::from(MAX_DRIFT.get())
}

pub fn clock_window_ms() -> i64 {
    i64::from(CLOCK_WINDOW.get())
}

pub fn max_generators() -> usize {
    MAX_GENERATORS.get() as usize
}

/// The part of a range of so many values that is left when the next one is to be fetched.
pub fn segment_low_water(count: u64) -> u64 {
    count.saturating_mul(SEGMENT_LOW_WATER.get() as u64) / 100
}

pub fn segment_timeout() -> Duration {
    Duration::from_millis(SEGMENT_TIMEOUT.get() as u64)
}

pub fn max_segments() -> usize {
    MAX_SEGMENTS.get() as usize
}

pub fn max_lock_names() -> usize {
    MAX_LOCK_NAMES.get() as usize
}

/// Refuses a text that is no layout when it is set, not when it is first used.
#[pg_guard]
unsafe extern "C-unwind" fn check_layout(
    new: *mut *mut c_char,
    _extra: *mut *mut c_void,
    _source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: PostgreSQL passes a pointer to the proposed value, a C string or null.
    let text = unsafe { (!(*new).is_null()).then(|| CStr::from_ptr(*new)) };
    let parsed = Layout::parse(&text.unwrap_or_default().to_string_lossy());
    if let Err(error) = &parsed {
        let detail = CString::new(error.to_string()).unwrap_or_default();
        // SAFETY: the variable holds a string of PostgreSQL's memory, which pstrdup makes.
        unsafe { pg_sys::GUC_check_errdetail_string = pg_sys::pstrdup(detail.as_ptr()) };
    }
    parsed.is_ok()
}

/// How long a lease lasts whose name is not defined, in microseconds.
pub fn lease_ttl_us() -> i64 {
    i64::from(LEASE_TTL.get()) * 1000
}

/// What a lease's ttl can be, in microseconds.
pub fn lease_ttl_limits_us() -> RangeInclusive<i64> {
    i64::from(LEASE_MIN_TTL.get()) * 1000..=i64::from(LEASE_MAX_TTL.get()) * 1000
}

//! Every setting: the reason for its default, its definition, and its typed accessor.
//!
//! Roles without privileges cannot change a setting that uniqueness depends on.

use crate::pg::ereport::errors;
use idgen_core::layout::{Layout, Node};
use idgen_core::worker::server::ConfiguredPool;
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
use pgrx::prelude::*;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::time::Duration;

use TakesEffect::{AtOnce, Reload, Restart};

type TextSetting = GucSetting<Option<CString>>;
type IntSetting = GucSetting<i32>;

/// The best-known layout.
static LAYOUT: TextSetting = TextSetting::new(Some(c"snowflake"));
/// Undecided: acts as 0, which is right for a single server, and `idgen.status()` asks for a decision.
static WORKER_ID: IntSetting = IntSetting::new(-1);
static DATACENTER_ID: IntSetting = IntSetting::new(0);
static WORKER_POOL: TextSetting = TextSetting::new(Some(c""));
static COORDINATOR: TextSetting = TextSetting::new(Some(c""));
/// After a crash a server's ids are some seconds ahead of its clock, and synchronized clocks differ by less than this.
static WORKER_MAX_LEAD: IntSetting = IntSetting::new(60_000);
/// Long enough for a burst of four million ids at the default layout's rate, short enough to sort by. At
/// most a minute: the time of an id further ahead is of no use.
static MAX_DRIFT: IntSetting = IntSetting::new(1000);
/// One fsync in three seconds costs little, and after a crash ids are only seconds ahead of the clock.
static CLOCK_WINDOW: IntSetting = IntSetting::new(3000);
/// More layouts than a schema has, in about 100 kB.
static MAX_GENERATORS: IntSetting = IntSetting::new(256);
/// Early enough to fetch a range before the last one is used up, late enough that a crash loses little.
static SEGMENT_LOW_WATER: IntSetting = IntSetting::new(50);
/// A refill takes milliseconds. One that takes seconds is stuck, and its waiters should report it.
static SEGMENT_TIMEOUT: IntSetting = IntSetting::new(5000);
/// More tags than most schemas have tables, in half a megabyte.
static MAX_SEGMENTS: IntSetting = IntSetting::new(1024);
/// More locks than are held at a time, in 1.5 MB.
static MAX_LOCK_NAMES: IntSetting = IntSetting::new(4096);
/// Long enough to renew at a third of it, short enough to wait for after a crash.
static LEASE_TTL: IntSetting = IntSetting::new(30_000);
/// On a busy machine, the renewal of a shorter lease would come too late.
static LEASE_MIN_TTL: IntSetting = IntSetting::new(100);
/// A day: the longest time that a vanished holder blocks others.
static LEASE_MAX_TTL: IntSetting = IntSetting::new(86_400_000);

const NO_UNIT: GucFlags = GucFlags::empty();
const MS: GucFlags = GucFlags::UNIT_MS;

#[derive(Clone, Copy)]
enum TakesEffect {
    /// When the server starts: shared memory or uniqueness depends on it.
    Restart,
    Reload,
    AtOnce,
}

enum Value {
    Text(&'static TextSetting, pg_sys::GucStringCheckHook, pg_sys::GucStringAssignHook),
    /// With its least and greatest value. The flag is its unit.
    Int(&'static IntSetting, i32, i32, GucFlags),
}

struct Setting {
    name: &'static CStr,
    takes_effect: TakesEffect,
    value: Value,
    /// `short_desc` in `pg_settings`.
    short: &'static CStr,
    /// `extra_desc` in `pg_settings`.
    long: &'static CStr,
}

static SETTINGS: [Setting; 16] = [
    text(c"idgen.layout", Restart, &LAYOUT, Some(check_layout), None).described(
        c"Sets the default layout of snowflake ids.",
        c"A preset (snowflake, twitter, sonyflake, instagram, discord, tsid, pgedge, seconds, js53) or a spec such as \
          \"time:41 worker:10 sequence:12 unit:1ms epoch:2020-01-01\".",
    ),
    int(c"idgen.worker_id", Restart, &WORKER_ID, -1, i32::MAX, NO_UNIT).described(
        c"Sets the worker id of this server.",
        c"Servers whose ids meet must differ in it, unless they differ in idgen.datacenter_id. -1 means \
          undecided and acts as 0.",
    ),
    int(c"idgen.datacenter_id", Restart, &DATACENTER_ID, -1, i32::MAX, NO_UNIT).described(
        c"Sets the datacenter id of this server.",
        c"The pair of datacenter id and worker id must differ between all servers whose ids meet. With -1, the \
          worker id numbers these pairs.",
    ),
    text(c"idgen.worker_pool", Reload, &WORKER_POOL, None, Some(assign_worker_pool)).described(
        c"Sets the pool from which this server leases its worker id.",
        c"If empty, the worker id is idgen.worker_id. The pool is defined in the coordinator database.",
    ),
    text(c"idgen.coordinator", Reload, &COORDINATOR, None, None).described(
        c"Sets the connection string of the database that has the worker pool.",
        c"A libpq connection string. It can list the hosts of a replicated server, or name this server itself.",
    ),
    int(c"idgen.worker_max_lead", Reload, &WORKER_MAX_LEAD, 0, 86_400_000, MS).described(
        c"Sets how far holders of worker ids may be ahead of this coordinator's clock.",
        c"Their id times end at most this long, or one ttl if that is longer, after now plus the ttl. After a \
          failover, grants begin this late.",
    ),
    int(c"idgen.max_drift", Reload, &MAX_DRIFT, 0, 60_000, MS).described(
        c"Sets how far a burst of ids may run ahead of the clock.",
        c"A full tick borrows from later ticks up to this lead. Then generation waits for the clock.",
    ),
    int(c"idgen.clock_window", Reload, &CLOCK_WINDOW, 100, 60_000, MS).described(
        c"Sets how far ahead the high-water mark is written.",
        c"The mark is written at most once in this time. After a crash, ids begin ahead of the clock by up to \
          idgen.max_drift plus 1.5 times this value.",
    ),
    // At least 2: one for idgen.layout, and one for another layout.
    int(c"idgen.max_generators", Restart, &MAX_GENERATORS, 2, 65_536, NO_UNIT).described(
        c"Sets the maximum number of pairs of layout and worker id that generate ids at once.",
        c"Beyond this, the pair that has been idle longest is evicted.",
    ),
    int(c"idgen.segment_low_water", Reload, &SEGMENT_LOW_WATER, 0, 100, NO_UNIT).described(
        c"Sets the percentage of a segment's last range that is left when the next range is fetched.",
        c"With 0, the next range is fetched only when no value is left, and a session waits each time.",
    ),
    int(c"idgen.segment_timeout", AtOnce, &SEGMENT_TIMEOUT, 0, 3_600_000, MS).described(
        c"Sets the maximum time to wait for a segment's next range when no value is left.",
        c"After this time the call fails, with an error that names the cause.",
    ),
    int(c"idgen.max_segments", Restart, &MAX_SEGMENTS, 1, 65_536, NO_UNIT).described(
        c"Sets the maximum number of tags, over all databases, with values in shared memory.",
        c"Beyond this, a tag that has not drawn for a while gives its place to another one, and keeps the values that it has left.",
    ),
    int(c"idgen.max_lock_names", Restart, &MAX_LOCK_NAMES, 1, 1_048_576, NO_UNIT).described(
        c"Sets the maximum number of lock names that can be shown at once.",
        c"Beyond this, names of locks that are not held are evicted. If all are held, further locks are shown \
          by their keys.",
    ),
    int(c"idgen.lease_ttl", Reload, &LEASE_TTL, 1, i32::MAX, MS).described(
        c"Sets the default time to live of leases whose name is not defined.",
        c"It counts from the acquisition or the last renewal.",
    ),
    int(c"idgen.lease_min_ttl", Reload, &LEASE_MIN_TTL, 1, i32::MAX, MS).described(
        c"Sets the minimum time to live of a lease.",
        c"A shorter lease would end before its holder can renew it.",
    ),
    int(c"idgen.lease_max_ttl", Reload, &LEASE_MAX_TTL, 1, i32::MAX, MS).described(
        c"Sets the maximum time to live of a lease.",
        c"A holder that has vanished can block others for this long.",
    ),
];

const fn text(
    name: &'static CStr,
    takes_effect: TakesEffect,
    setting: &'static TextSetting,
    check: pg_sys::GucStringCheckHook,
    assign: pg_sys::GucStringAssignHook,
) -> Setting {
    Setting { name, takes_effect, value: Value::Text(setting, check, assign), short: c"", long: c"" }
}

const fn int(
    name: &'static CStr,
    takes_effect: TakesEffect,
    setting: &'static IntSetting,
    least: i32,
    greatest: i32,
    unit: GucFlags,
) -> Setting {
    Setting { name, takes_effect, value: Value::Int(setting, least, greatest, unit), short: c"", long: c"" }
}

/// Defines the settings. A library that was not preloaded can no longer define settings that are fixed at the start. It
/// reads their values from the configuration files instead.
pub fn define(preloading: bool) {
    for setting in &SETTINGS {
        let configured = setting.current();
        setting.define(preloading);
        if preloading {
            setting.refuse_unless_accepted(configured);
        }
    }
    if preloading {
        // SAFETY: a C string literal. Only when preloaded: this removes every setting of the prefix that is not defined
        // yet, and those fixed at the start cannot be defined later.
        unsafe { pg_sys::MarkGUCPrefixReserved(c"idgen".as_ptr()) };
    }
}

impl Setting {
    const fn described(self, short: &'static CStr, long: &'static CStr) -> Self {
        Self { short, long, ..self }
    }

    fn define(&self, preloading: bool) {
        let Self { name, short, long, .. } = *self;
        let context = match self.takes_effect {
            Restart if preloading => GucContext::Postmaster,
            Restart | Reload => GucContext::Sighup,
            AtOnce => GucContext::Userset,
        };
        match self.value {
            Value::Int(setting, least, greatest, unit) => {
                GucRegistry::define_int_guc(name, short, long, setting, least, greatest, context, unit);
            }
            Value::Text(setting, check, assign) => {
                // A connection string can hold a password.
                let is_secret = name == c"idgen.coordinator";
                let flags = if is_secret { GucFlags::SUPERUSER_ONLY } else { GucFlags::empty() };
                // SAFETY: the hooks have the signature and the contract that PostgreSQL states for string settings.
                unsafe {
                    GucRegistry::define_string_guc_with_hooks(
                        name, short, long, setting, context, flags, check, assign, None,
                    );
                }
            }
        }
    }

    /// The value as text. Before the setting is defined, the text in the configuration.
    fn current(&self) -> Option<CString> {
        // SAFETY: the name is a C string; the result is null or a C string that is copied at once.
        unsafe {
            let value = pg_sys::GetConfigOption(self.name.as_ptr(), true, false);
            (!value.is_null()).then(|| CStr::from_ptr(value).to_owned())
        }
    }

    /// Stops the start of a server whose configuration has an invalid value. PostgreSQL would only warn and use the
    /// default, and a default worker id makes duplicate ids.
    fn refuse_unless_accepted(&self, configured: Option<CString>) {
        let (Some(text), Some(accepted)) = (configured, self.current()) else {
            return;
        };
        let is_accepted = match self.value {
            Value::Text(..) => text == accepted,
            Value::Int(_, _, _, unit) => {
                let mut parsed = 0;
                // SAFETY: a C string, a local for the result, and null: no hint is needed.
                let is_int =
                    unsafe { pg_sys::parse_int(text.as_ptr(), &mut parsed, unit.bits(), std::ptr::null_mut()) };
                is_int && accepted.to_string_lossy() == parsed.to_string()
            }
        };
        if !is_accepted {
            let (name, text) = (self.name.to_string_lossy(), text.to_string_lossy());
            invalid_value(&name, &text).raise();
        }
    }
}

errors! {
    fn invalid_value(name: &str, value: &str) {
        ERRCODE_INVALID_PARAMETER_VALUE: "invalid value for parameter \"{name}\": \"{value}\"";
        detail: "The server does not start with the default in place of a value that was meant to be another.";
        hint: "Set {name} to a valid value, or remove it from the configuration.";
    }
}

/// Rejects an invalid layout when it is set, not when it is first used.
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
        let detail = CString::new(error.as_str()).unwrap_or_default();
        // SAFETY: the variable holds a string in PostgreSQL's memory, which pstrdup allocates.
        unsafe { pg_sys::GUC_check_errdetail_string = pg_sys::pstrdup(detail.as_ptr()) };
    }
    parsed.is_ok()
}

static ON_WORKER_POOL: OnceLock<fn(bool)> = OnceLock::new();

/// Registers a function that the postmaster calls when it has read whether a pool is configured. It reads a changed file
/// before it tells its processes, and also when none of them would apply it: on a standby, and during a long statement.
pub fn on_worker_pool(follow: fn(bool)) {
    let _ = ON_WORKER_POOL.set(follow);
}

#[pg_guard]
unsafe extern "C-unwind" fn assign_worker_pool(new: *const c_char, _extra: *mut c_void) {
    // SAFETY: a variable of this process; and PostgreSQL passes null or a C string.
    let (is_postmaster, is_set) = unsafe { (!pg_sys::IsUnderPostmaster, !new.is_null() && *new != 0) };
    if let Some(follow) = ON_WORKER_POOL.get().filter(|_| is_postmaster) {
        follow(is_set);
    }
}

pub fn layout() -> String {
    LAYOUT.get().unwrap_or_default().into_string().unwrap_or_default()
}

/// `idgen.layout` in canonical form: equal for two spellings of one layout.
pub fn canonical_layout() -> String {
    let text = layout();
    // The check hook rejects a text that does not parse.
    Layout::parse(&text).map_or(text, |layout| layout.to_string())
}

/// `idgen.worker_id` and `idgen.datacenter_id`. An undecided worker id is 0. Without a datacenter id, worker ids number
/// pairs.
pub fn node() -> Node {
    Node { datacenter: DATACENTER_ID.get().try_into().ok(), worker: WORKER_ID.get().max(0) as u32 }
}

/// True if `idgen.worker_id` still has its default.
pub fn worker_undecided() -> bool {
    WORKER_ID.get() < 0
}

/// `None` if the worker id is a setting.
pub fn worker_pool() -> Option<ConfiguredPool> {
    has_worker_pool().then(|| ConfiguredPool { name: pool_name(), coordinator: coordinator() })
}

/// The text of `idgen.coordinator`, a connection string; empty if it is not set.
pub fn coordinator() -> CString {
    COORDINATOR.get().unwrap_or_default()
}

pub fn pool_name() -> String {
    WORKER_POOL.get().unwrap_or_default().to_string_lossy().into_owned()
}

/// True if a pool is configured. Called often, so it reads the setting without copying it.
pub fn has_worker_pool() -> bool {
    // SAFETY: PostgreSQL's variable of this process: null or a C string. Nothing changes it during this call.
    unsafe {
        let text = *WORKER_POOL.as_ptr();
        !text.is_null() && *text != 0
    }
}

/// The lease of a worker id may reach this far beyond now plus its ttl, in microseconds. At least one ttl: after a crash a
/// server can continue with the same worker id right after its rectangle.
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

/// The next range is fetched when this many values of a range of `count` are left.
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

/// The default ttl of a lease whose name is not defined, in microseconds.
pub fn lease_ttl_us() -> i64 {
    i64::from(LEASE_TTL.get()) * 1000
}

pub fn lease_ttl_limits_us() -> RangeInclusive<i64> {
    i64::from(LEASE_MIN_TTL.get()) * 1000..=i64::from(LEASE_MAX_TTL.get()) * 1000
}

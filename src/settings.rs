//! Every setting, the reason for its default, and its typed accessor.
//!
//! An ordinary role cannot change any of them: uniqueness rests on them.

use idgen_core::layout::{Layout, Node};
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
use pgrx::prelude::*;
use std::ffi::{CStr, CString, c_char, c_void};

/// The layout most of the world already uses.
static LAYOUT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c"snowflake"));
/// Undecided: acts as 0, which is right for one server, and `idgen.status()` asks for a decision.
static WORKER_ID: GucSetting<i32> = GucSetting::<i32>::new(-1);
static DATACENTER_ID: GucSetting<i32> = GucSetting::<i32>::new(0);
/// Long enough for a burst of four million ids at the default layout's rate, short enough to sort by.
static MAX_DRIFT: GucSetting<i32> = GucSetting::<i32>::new(1000);
/// Far more layouts than a schema has, in 72 kB.
static MAX_GENERATORS: GucSetting<i32> = GucSetting::<i32>::new(256);

/// The widest drift that can be set: ids more than a minute ahead of the clock are of no use as times.
const MAX_DRIFT_LIMIT_MS: i32 = 60_000;

/// Defines the settings. What shared memory depends on is fixed when the server starts. A library that was not
/// preloaded comes too late for that, and has no shared memory: it reads the same settings from the server's files.
pub fn define(preloading: bool) {
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
        c"idgen.max_generators",
        c"How many combinations of layout and worker number can generate at once.",
        c"Beyond this, one that is behind the clock makes room.",
        &MAX_GENERATORS,
        // One is kept for idgen.layout, and another layout must have a place too.
        2,
        65_536,
        at_start(),
        GucFlags::default(),
    );
    if preloading {
        // SAFETY: a C string literal. Only when preloaded, for this removes every setting of the prefix that is not
        // defined by now, and those fixed at the start cannot be defined later.
        unsafe { pg_sys::MarkGUCPrefixReserved(c"idgen".as_ptr()) };
    }
}

/// The text of `idgen.layout`.
pub fn layout() -> String {
    let text = LAYOUT.get().unwrap_or_default();
    text.into_string().unwrap_or_default()
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

#[inline]
pub fn max_drift_ms() -> i64 {
    i64::from(MAX_DRIFT.get())
}

pub fn max_generators() -> usize {
    MAX_GENERATORS.get() as usize
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

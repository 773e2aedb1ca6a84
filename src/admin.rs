//! `idgen.checks`, `idgen.status()` and `idgen.reset_stats()`, which cover all capabilities.

use crate::clock;
use crate::error::{Check, listed};
use crate::lease;
use crate::pg::datum::{self, Composite, Text};
use crate::pg::ereport::for_message;
use crate::pg::spi::{self, ExtensionTable};
use crate::place;
use crate::segment;
use crate::settings;
use crate::shmem;
use crate::snowflake;
use crate::worker::{self, SERVER_LEASE, current_node};
use idgen_core::layout::time_text;
use pgrx::JsonB;
use pgrx::prelude::*;
use serde_json::{Value, json};

/// Sets the counters of all views to zero. Without preload it does nothing.
#[pg_extern(sql = false)]
fn reset_stats() {
    snowflake::status::reset();
    clock::reset();
    segment::status::reset();
    lease::status::reset();
    worker::reset_counters();
    shmem::set_reset_time();
}

/// Versions, settings, the worker id, and checks. Without preload the check "preloaded" fails and the worker is null.
#[pg_extern(sql = false)]
fn status() -> JsonB {
    let configured = settings::node();
    JsonB(json!({
        "version": { "library": LIBRARY, "sql": sql_version() },
        "settings": {
            "layout": settings::layout(),
            "worker_id": (!settings::worker_undecided()).then_some(configured.worker),
            "datacenter_id": configured.datacenter,
            "worker_pool": for_message(settings::pool_name()),
            "max_drift_ms": settings::max_drift_ms(),
            "clock_window_ms": settings::clock_window_ms(),
            "max_generators": settings::max_generators(),
            "segment_low_water": settings::segment_low_water(100),
            "segment_timeout_ms": settings::segment_timeout().as_millis() as u64,
            "max_segments": settings::max_segments(),
            "max_lock_names": settings::max_lock_names(),
        },
        "worker": worker(),
        "checks": checks().into_iter().map(entry).collect::<Vec<_>>(),
    }))
}

/// The state of the worker id, as in `idgen.stat_worker`; null without preload.
fn worker() -> Value {
    if !shmem::is_preloaded() {
        return Value::Null;
    }
    let shared = SERVER_LEASE.shared(|shared| *shared);
    let lease = &shared.lease;
    json!({
        "state": worker::status(lease).name(),
        "worker_id": current_node().map(|node| node.worker),
        "not_before": lease.rectangle().map(|rectangle| time_text(rectangle.first_ms())),
        "not_after": lease.rectangle().map(|rectangle| time_text(rectangle.end_ms())),
        "coordinator": shared.coordinator.text().map(for_message),
        "failing_since": lease.failing_since_ms.map(time_text),
        "last_error": shared.last_error.text().map(for_message),
    })
}

fn entry(check: Check) -> Value {
    let Check { name, severity, message, since_ms, affects, action } = check;
    json!({
        "check": name,
        "ok": severity.is_none(),
        "severity": severity,
        "since": since_ms.map(time_text),
        "affects": affects.map(for_message),
        "message": for_message(message),
        "action": action.map(for_message),
    })
}

/// The rows of the view `idgen.checks`.
#[pg_extern(sql = false)]
fn stat_get_checks() -> SetOfIterator<'static, Composite<7>> {
    SetOfIterator::new(checks().into_iter().map(|check| {
        Composite([
            check.name.into(),
            check.severity.is_none().into(),
            check.severity.into(),
            check.since_ms.and_then(datum::from_ms).into(),
            check.affects.map(Text::from).into(),
            Text::from(check.message).into(),
            check.action.map(Text::from).into(),
        ])
    }))
}

/// The checks of a room, and the tables that they read.
type Room = (fn() -> Vec<Check>, &'static [&'static ExtensionTable]);

/// In the order in which a reader looks for a cause.
static ROOMS: [Room; 5] = [
    (worker::checks, &worker::TABLES),
    (clock::checks, &[]),
    (snowflake::checks, &[]),
    (segment::checks, &segment::TABLES),
    (lease::checks, &[]),
];

/// Those of all rooms, but for rooms whose tables are locked: an operator who asks what is wrong must not wait for the cause.
fn checks() -> Vec<Check> {
    let (mut locked, mut of_rooms) = (Vec::new(), Vec::new());
    for (checks, tables) in &ROOMS {
        let names: Vec<String> =
            tables.iter().filter(|table| !table.lets_read()).map(|table| table.full_name()).collect();
        if names.is_empty() {
            of_rooms.extend(checks());
        }
        locked.extend(names);
    }
    let own = [preloaded(), versions(), triggers(), wal(), tables(&locked)];
    own.into_iter().chain(of_rooms).collect()
}

fn tables(locked: &[String]) -> Check {
    const NAME: &str = "tables";
    let Some(name) = locked.first() else {
        return Check::ok(NAME, "no lock keeps readers out of the tables of idgen");
    };
    Check::error(
        NAME,
        format!("a transaction has locked the table {name}, so what needs it waits, and so do checks that are not shown"),
        format!(
            "End the transaction: SELECT pid, virtualtransaction FROM pg_locks WHERE relation = '{name}'::regclass AND granted. \
             Without a pid it is a prepared one: see pg_prepared_xacts."
        ),
    )
    .affects(listed(locked))
}

const LIBRARY: &str = env!("CARGO_PKG_VERSION");

fn sql_version() -> String {
    let query = "SELECT extversion FROM pg_catalog.pg_extension WHERE extname OPERATOR(pg_catalog.=) 'idgen'";
    spi::read_one(query).unwrap_or_default()
}

fn preloaded() -> Check {
    const NAME: &str = "preloaded";
    match shmem::is_preloaded() {
        true => Check::ok(NAME, "idgen is preloaded"),
        false => Check::error(
            NAME,
            "idgen is not preloaded, so draws fail, and so do grants of worker ids and of segment values",
            "Set shared_preload_libraries = 'idgen' and restart the server.",
        ),
    }
}

fn versions() -> Check {
    const NAME: &str = "versions";
    let sql = sql_version();
    if LIBRARY == sql {
        return Check::ok(NAME, "the library and the SQL objects have the same version");
    }
    Check::warning(
        NAME,
        format!("the library has version {LIBRARY} and the SQL objects have version {sql}"),
        "Run ALTER EXTENSION idgen UPDATE, and restart the server if the library was replaced.",
    )
}

/// The statements that enable the triggers of the extension always; NULL if they are. Users can have triggers of their own on
/// its tables, with functions of other schemas.
const TO_ENABLE_TRIGGERS: &str = "\
    SELECT pg_catalog.string_agg(pg_catalog.format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', t.tgrelid::pg_catalog.regclass, \
                                                   t.tgname), '; ' ORDER BY t.tgname) \
    FROM pg_catalog.pg_trigger AS t \
    JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) t.tgrelid \
    JOIN pg_catalog.pg_proc AS p ON p.oid OPERATOR(pg_catalog.=) t.tgfoid \
                                AND p.pronamespace OPERATOR(pg_catalog.=) c.relnamespace \
    JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace \
    WHERE n.nspname OPERATOR(pg_catalog.=) 'idgen' AND t.tgenabled OPERATOR(pg_catalog.<>) 'A'";

/// Fails if a restore has disabled triggers of the extension: it enables them again for ordinary sessions only.
fn triggers() -> Check {
    const NAME: &str = "triggers";
    match spi::read_one::<String>(TO_ENABLE_TRIGGERS) {
        None => Check::ok(NAME, "the triggers of the tables of idgen are enabled always"),
        Some(statements) => Check::error(
            NAME,
            "triggers of the tables of idgen are not enabled always, as after a restore with --disable-triggers, so logical replication can lower the max_id of a segment, and sessions do not notice what it writes",
            format!("Run {statements}"),
        ),
    }
}

/// Fails after a loss of WAL, until the operator has dealt with it.
fn wal() -> Check {
    const NAME: &str = "wal";
    match place::is_wal_lost() {
        false => Check::ok(NAME, "no WAL of this server is known to be lost"),
        true => Check::error(
            NAME,
            "WAL of this server was reset or lost, so segments may hand out values again and holders of leases may be forgotten",
            place::wal_lost_hint(),
        ),
    }
}

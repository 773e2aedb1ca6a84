//! `idgen.status()` and `idgen.reset_stats()`: the whole extension in one look.

use crate::pg::encoding::for_message;
use crate::pg::{recovery, spi, system_clock};
use crate::snowflake::{default_layout, node};
use crate::worker::state::LEASE;
use crate::worker::stats::{Standing, standing};
use crate::{clock, lease, segment, settings, shmem, snowflake, worker};
use idgen_core::layout::{Node, time_text};
use pgrx::JsonB;
use pgrx::prelude::*;
use serde_json::{Value, json};

/// Sets the counters of the views to zero.
#[pg_extern(sql = "CREATE FUNCTION idgen.reset_stats() RETURNS void VOLATILE PARALLEL UNSAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn reset_stats() {
    snowflake::stats::reset();
    clock::stats::reset();
    segment::stats::reset();
    lease::stats::reset();
    worker::state::reset();
}

/// Works without preload, and then says so.
#[pg_extern(sql = "CREATE FUNCTION idgen.status() RETURNS jsonb VOLATILE PARALLEL UNSAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn status() -> JsonB {
    let library = env!("CARGO_PKG_VERSION");
    let sql = sql_version();
    let configured = settings::node();
    JsonB(json!({
        "version": { "library": library, "sql": sql },
        "settings": {
            "layout": settings::layout(),
            "worker_id": if settings::worker_undecided() { -1 } else { i64::from(configured.worker) },
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
        "checks": [
            check_preloaded(),
            check_versions(library, &sql),
            check_worker(),
            check_layouts(),
            check_default_layout(),
            check_clock(),
            check_mark(),
        ],
    }))
}

/// What `idgen.stat_worker` says of how it stands; null without preload.
fn worker() -> Value {
    if !shmem::is_preloaded() {
        return Value::Null;
    }
    let lease = LEASE.shared(|lease| *lease);
    json!({
        "state": standing(&lease).name(),
        "worker_id": current_node().map(|node| node.worker),
        "not_before": lease.interval().map(|interval| time_text(interval.first_ms())),
        "not_after": lease.interval().map(|interval| time_text(interval.end_ms())),
        "coordinator": lease.coordinator.text().map(for_message),
        "failing_since": lease.failing_since_ms.map(time_text),
        "last_error": lease.last_error.text().map(for_message),
    })
}

fn sql_version() -> String {
    let query = "SELECT extversion FROM pg_catalog.pg_extension WHERE extname OPERATOR(pg_catalog.=) 'idgen'";
    spi::read_one(query).unwrap_or_default()
}

fn check(name: &str, ok: bool, message: String) -> Value {
    json!({ "check": name, "ok": ok, "message": for_message(message) })
}

fn check_preloaded() -> Value {
    match shmem::is_preloaded() {
        true => check("preloaded", true, "ids can be generated".to_owned()),
        false => check("preloaded", false, "set shared_preload_libraries = 'idgen' and restart".to_owned()),
    }
}

fn check_versions(library: &str, sql: &str) -> Value {
    let message = match library == sql {
        true => "library and SQL objects are of one version".to_owned(),
        false => format!(
            "the library is {library}, the SQL objects are {sql}: run ALTER EXTENSION idgen UPDATE, and restart if the library was replaced"
        ),
    };
    check("versions", library == sql, message)
}

fn check_worker() -> Value {
    if recovery::is_in_progress() {
        return check("worker", true, "a standby needs no worker id".to_owned());
    }
    let Some(node) = current_node() else {
        return check("worker", false, without_worker_id());
    };
    if let Err(e) = default_layout().space(node) {
        // A datacenter is always a setting.
        let is_leased = is_leased();
        let whence = if is_leased && e.field == "worker" { "the leased " } else { "idgen." };
        let message = format!("{whence}{}_id is {}, and the layout has room for 0 to {}", e.field, e.value, e.max);
        return check("worker", false, message);
    }
    let is_number = format!("this server is worker {} of datacenter {}", node.worker, node.datacenter);
    if is_leased() {
        return check_lease(is_number);
    }
    let whence = match settings::worker_undecided() {
        true => "idgen.worker_id is not set and acts as 0",
        false => "idgen.worker_id is set",
    };
    if let Some(pool) = worker::local::pool_that_grants(node.worker) {
        let message = format!(
            "{is_number}, as {whence}; pool \"{pool}\" in this database grants the same worker id to other servers: lease it from there with idgen.worker_pool, or set one that no pool has"
        );
        return check("worker", false, message);
    }
    if shmem::is_preloaded() && settings::has_worker_pool() {
        return check_lease(is_number);
    }
    match settings::worker_undecided() {
        true => check(
            "worker",
            false,
            "idgen.worker_id is not set and acts as 0: set it, differently on each server whose ids meet, or set idgen.worker_pool"
                .to_owned(),
        ),
        false => {
            check("worker", true, format!("{is_number}, as idgen.worker_id is set; no pool in this database grants it"))
        }
    }
}

/// Why there is none.
fn without_worker_id() -> String {
    match settings::has_worker_pool() {
        true => {
            let why = shmem::is_preloaded().then(|| LEASE.shared(|lease| lease.last_error.text())).flatten();
            let why = why.unwrap_or_else(|| "the coordinator has not answered yet".to_owned());
            format!("this server has no worker id yet from pool \"{}\": {why}", settings::pool_name())
        }
        false => "this server has no worker id: it had a pool, idgen.worker_pool names none any more, and idgen.worker_id is not set".to_owned(),
    }
}

/// This server's worker id and datacenter; `None` while it has no worker id.
fn current_node() -> Option<Node> {
    node::CURRENT.get().map_or(Some(settings::node()), node::CurrentNode::get)
}

fn is_leased() -> bool {
    node::CURRENT.get().is_some_and(|current| !current.is_setting())
}

fn check_lease(is_number: String) -> Value {
    let lease = LEASE.shared(|lease| *lease);
    let why = lease.last_error.text().map_or_else(String::new, |error| format!(": {error}"));
    match standing(&lease) {
        Standing::Leased if lease.falls_short => check(
            "worker",
            false,
            format!(
                "{is_number}, and its ids are further ahead of the coordinator's clock than idgen.worker_max_lead allows there"
            ),
        ),
        Standing::Leased => {
            let coordinator = lease.coordinator.text().unwrap_or_default();
            let pool = settings::pool_name();
            check(
                "worker",
                true,
                format!("{is_number}, leased from pool \"{pool}\" of the coordinator at {coordinator}"),
            )
        }
        Standing::Failing => check("worker", false, format!("{is_number}, and the lease could not be renewed{why}")),
        Standing::Ended => check("worker", false, format!("{is_number}, and the lease has ended{why}")),
        Standing::Set | Standing::Waiting => {
            check("worker", false, format!("{is_number} until the keeper has leased another{why}"))
        }
    }
}

/// The default layout, and every other in use: does one end within a year?
fn check_layouts() -> Value {
    let now_ms = system_clock::wall_ms();
    let in_use = snowflake::stats::tenants().into_iter().map(|(_, tenant, _)| tenant.layout);
    let ending = in_use.chain([default_layout()]).filter(|layout| layout.ends_within_a_year(now_ms));
    match ending.min_by_key(|layout| layout.ends_at_ms()) {
        None => check("layouts", true, "no layout in use ends within a year".to_owned()),
        Some(layout) => {
            let ends_at = time_text(layout.ends_at_ms());
            check("layouts", false, format!("layout \"{layout}\" has no ids from {ends_at} on"))
        }
    }
}

fn check_default_layout() -> Value {
    let changed = clock::stats::is_layout_changed();
    let message = match changed {
        false => "idgen.layout is what it was when ids were last issued",
        true => {
            "idgen.layout is another than before this start: old and new ids of one table may be equal, and decode differently"
        }
    };
    check("idgen.layout", !changed, message.to_owned())
}

/// How far the clock may be behind before somebody should look at it.
const BEHIND_MS: i64 = 1000;

fn check_clock() -> Value {
    if let Some((steps, days)) = clock::stats::far_forward() {
        return check(
            "clock",
            false,
            format!(
                "the wall clock was set forward by {days} days, in {steps} {}: if it is wrong, set it right before more ids are generated, as they keep its time; if it is right, run SELECT idgen.reset_stats()",
                if steps == 1 { "step" } else { "steps" }
            ),
        );
    }
    let behind_ms = clock::stats::behind_ms();
    match behind_ms < BEHIND_MS {
        true => check("clock", true, "ids go by the wall clock".to_owned()),
        false => check(
            "clock",
            false,
            format!(
                "the wall clock is {behind_ms} ms behind the times of ids: it was set back, or ids began ahead of it after a crash or a promotion"
            ),
        ),
    }
}

/// The mark has passed the label.
const PASSED: &str = "could not write how far ids may go, so a standby that is promoted now may issue ids again: raise max_worker_processes if no background worker could be started, or see the server's log";

fn check_mark() -> Value {
    if let Some((path, error)) = clock::stats::write_error() {
        return check("mark", false, format!("the high-water file \"{path}\" could not be written: {error}"));
    }
    if clock::stats::is_label_passed() {
        return check("mark", false, PASSED.to_owned());
    }
    match clock::stats::mark_ms() {
        Some(mark_ms) => check("mark", true, format!("ids are durably promised up to {}", time_text(mark_ms))),
        None => check("mark", true, "no id was generated since the server started".to_owned()),
    }
}

//! `idgen.status()` and `idgen.reset_stats()`, which cover all capabilities.

use crate::pg::ereport::for_message;
use crate::pg::{recovery, spi, system_clock};
use crate::snowflake::{default_layout, node};
use crate::worker::{SERVER_LEASE, WorkerStatus};
use crate::{clock, lease, place, reset_time, segment, settings, shmem, snowflake, worker};
use idgen_core::layout::{Node, time_text, time_text_us};
use pgrx::JsonB;
use pgrx::prelude::*;
use serde_json::{Value, json};

/// Sets the counters of all views to zero. Without preload it does nothing.
#[pg_extern(sql = "CREATE FUNCTION idgen.reset_stats() RETURNS void VOLATILE PARALLEL UNSAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn reset_stats() {
    snowflake::stats::reset();
    clock::stats::reset();
    segment::stats::reset();
    lease::stats::reset();
    worker::reset_counters();
    reset_time::set();
}

/// Versions, settings, the worker id, and checks. Without preload the check "preloaded" fails and the worker is null.
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
            entry("preloaded", check_preloaded()),
            entry("versions", check_versions(library, &sql)),
            entry("worker", check_worker()),
            entry("layouts", check_layouts()),
            entry("idgen.layout", check_default_layout()),
            entry("clock", check_clock()),
            entry("mark", check_mark()),
            entry("segments", check_segments()),
            entry("pools", check_pools()),
            entry("triggers", check_triggers()),
            entry("wal", check_wal()),
            entry("history", check_history()),
        ],
    }))
}

/// The state of the worker id, as in `idgen.stat_worker`; null without preload.
fn worker() -> Value {
    if !shmem::is_preloaded() {
        return Value::Null;
    }
    let lease = SERVER_LEASE.shared(|lease| *lease);
    json!({
        "state": worker::status(&lease).name(),
        "worker_id": current_node().map(|node| node.worker),
        "not_before": lease.rectangle().map(|rectangle| time_text(rectangle.first_ms())),
        "not_after": lease.rectangle().map(|rectangle| time_text(rectangle.end_ms())),
        "coordinator": lease.coordinator.text().map(for_message),
        "failing_since": lease.failing_since_ms.map(time_text),
        "last_error": lease.last_error.text().map(for_message),
    })
}

fn sql_version() -> String {
    let query = "SELECT extversion FROM pg_catalog.pg_extension WHERE extname OPERATOR(pg_catalog.=) 'idgen'";
    spi::read_one(query).unwrap_or_default()
}

/// The message of a check that succeeds, or of one that fails.
type Check = Result<String, String>;

fn entry(name: &str, check: Check) -> Value {
    json!({ "check": name, "ok": check.is_ok(), "message": for_message(check.unwrap_or_else(|message| message)) })
}

fn check_preloaded() -> Check {
    match shmem::is_preloaded() {
        true => Ok("idgen is preloaded".to_owned()),
        false => {
            Err("idgen is not preloaded: set shared_preload_libraries = 'idgen' and restart the server".to_owned())
        }
    }
}

fn check_versions(library: &str, sql: &str) -> Check {
    if library == sql {
        return Ok("the library and the SQL objects have the same version".to_owned());
    }
    Err(format!(
        "the library has version {library} and the SQL objects have version {sql}: run ALTER EXTENSION idgen UPDATE, and restart the server if the library was replaced"
    ))
}

fn check_worker() -> Check {
    if recovery::is_in_progress() {
        return Ok("a standby needs no worker id".to_owned());
    }
    let node = current_node().ok_or_else(without_worker_id)?;
    if let Err(e) = default_layout().id_space(node) {
        // A datacenter id is always a setting.
        let name = match is_leased() && e.field == "worker" {
            true => "the leased worker id".to_owned(),
            false => format!("idgen.{}_id", e.field),
        };
        return Err(format!("{name} is {}, but the layout allows at most {}", e.value, e.max));
    }
    let subject = format!("this server has worker id {} and datacenter id {}", node.worker, node.datacenter);
    if is_leased() {
        return check_lease(subject);
    }
    let source = match settings::worker_undecided() {
        true => "the default of idgen.worker_id",
        false => "idgen.worker_id",
    };
    if let Some(pool) = worker::pool_that_grants(node.worker) {
        return Err(format!(
            "{subject} by {source}, but pool \"{pool}\" in this database grants the same worker id to other servers: lease a worker id with idgen.worker_pool, or set idgen.worker_id to one outside of all pools"
        ));
    }
    if shmem::is_preloaded() && settings::has_worker_pool() {
        return check_lease(subject);
    }
    if settings::worker_undecided() {
        return Err("idgen.worker_id is not set and acts as 0: set a different one on each server whose ids meet, or set idgen.worker_pool".to_owned());
    }
    Ok(format!("{subject} by {source}, and no pool in this database grants it"))
}

/// Why this server has no worker id.
fn without_worker_id() -> String {
    if !settings::has_worker_pool() {
        return "this server has no worker id: idgen.worker_pool was removed, and idgen.worker_id is not set"
            .to_owned();
    }
    let why =
        shmem::is_preloaded().then(|| SERVER_LEASE.shared(|lease| lease.last_error)).and_then(|error| error.text());
    let why = why.unwrap_or_else(|| "the coordinator has not answered yet".to_owned());
    format!("this server has no worker id yet from pool \"{}\": {why}", settings::pool_name())
}

/// This server's worker id and datacenter id; `None` while it has no worker id.
fn current_node() -> Option<Node> {
    node::CURRENT.get().map_or(Some(settings::node()), node::CurrentNode::get)
}

fn is_leased() -> bool {
    node::CURRENT.get().is_some_and(|current| !current.is_setting())
}

fn check_lease(subject: String) -> Check {
    let lease = SERVER_LEASE.shared(|lease| *lease);
    let why = lease.last_error.text().map_or_else(String::new, |error| format!(": {error}"));
    match worker::status(&lease) {
        WorkerStatus::Leased if lease.falls_short => Err(format!(
            "{subject}, but its ids are further ahead of the coordinator's clock than idgen.worker_max_lead allows there"
        )),
        WorkerStatus::Leased => {
            let (pool, coordinator) = (settings::pool_name(), lease.coordinator.text().unwrap_or_default());
            Ok(format!("{subject}, leased from pool \"{pool}\" of the coordinator at {coordinator}"))
        }
        WorkerStatus::Failing => Err(format!("{subject}, but the lease could not be renewed{why}")),
        WorkerStatus::Ended => Err(format!("{subject}, but the lease has ended{why}")),
        WorkerStatus::Set | WorkerStatus::Waiting => {
            Err(format!("{subject} until it has leased one from the pool{why}"))
        }
    }
}

/// Fails if the default layout or another one in use ends within a year.
fn check_layouts() -> Check {
    let now_ms = system_clock::wall_ms();
    let in_use = snowflake::stats::tenants().into_iter().map(|(_, tenant, _)| tenant.layout);
    let ending = in_use.chain([default_layout()]).filter(|layout| layout.ends_within_a_year(now_ms));
    match ending.min_by_key(|layout| layout.ends_at_ms()) {
        None => Ok("no layout in use ends within a year".to_owned()),
        Some(layout) => Err(format!("layout \"{layout}\" has no ids from {} on", time_text(layout.ends_at_ms()))),
    }
}

fn check_default_layout() -> Check {
    match clock::stats::is_layout_changed() {
        false => Ok("idgen.layout is the same as when ids were last issued".to_owned()),
        true => Err("idgen.layout was changed before this start: old and new ids of one table can be equal, and decode differently".to_owned()),
    }
}

/// A clock that is this far behind ids fails the check.
const BEHIND_MS: i64 = 1000;

fn check_clock() -> Check {
    if let Some((steps, days)) = clock::stats::far_forward() {
        let steps = if steps == 1 { "1 step".to_owned() } else { format!("{steps} steps") };
        return Err(format!(
            "the wall clock was set forward by {days} days, in {steps}: if it is wrong, correct it before more ids are generated, because they keep its time; if it is right, run SELECT idgen.reset_stats()"
        ));
    }
    let behind_ms = clock::stats::behind_ms();
    if behind_ms >= BEHIND_MS {
        return Err(format!(
            "the wall clock is {behind_ms} ms behind the times of ids: it was set back, or ids began ahead of it after a crash or a promotion"
        ));
    }
    Ok("ids follow the wall clock".to_owned())
}

fn check_mark() -> Check {
    if let Some((path, error)) = clock::stats::write_error() {
        return Err(format!("high-water file \"{path}\" could not be written: {error}"));
    }
    if clock::stats::is_label_passed() {
        return Err("could not tell standbys the high-water mark, so a standby promoted now may issue ids again: raise max_worker_processes if no background worker could be started, or see the server's log".to_owned());
    }
    Ok(clock::stats::mark_ms().map_or_else(
        || "no id was issued since the server started".to_owned(),
        |mark_ms| format!("ids are durably promised up to {}", time_text(mark_ms)),
    ))
}

/// Fails if the coordinator grants no values of an attached segment.
fn check_segments() -> Check {
    let (count, errors) = if shmem::is_preloaded() { segment::stats::attached() } else { (0, Vec::new()) };
    match (count, errors.first()) {
        (0, _) => Ok("no attached segment is in use".to_owned()),
        (_, None) => Ok(format!("the coordinator answers for all attached segments in use: {count}")),
        (_, Some(error)) => {
            Err(format!("{} of {count} attached segments in use live on their stock: {error}", errors.len()))
        }
    }
}

/// Fails after a loss of WAL, until the operator has dealt with it.
fn check_wal() -> Check {
    match place::is_wal_lost() {
        false => Ok("no WAL of this server is known to be lost".to_owned()),
        true => Err(format!(
            "WAL of this server was reset or lost, so segments may hand out values again and holders of leases may be forgotten. {}",
            place::wal_lost_hint()
        )),
    }
}

/// Fails if ids may still be made under a worker id that its pool no longer has.
fn check_pools() -> Check {
    match worker::outside_of_ranges() {
        None => Ok("no worker id outside of the range of its pool is in use".to_owned()),
        Some((pool, worker_id, until_us)) => Err(format!(
            "worker id {worker_id} is outside of the range of its pool \"{pool}\", and may be in use until {}: let no other pool grant it, and set it on no server, before then",
            time_text_us(until_us)
        )),
    }
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
fn check_triggers() -> Check {
    match spi::read_one::<String>(TO_ENABLE_TRIGGERS) {
        None => Ok("the triggers of the tables of idgen are enabled always".to_owned()),
        Some(statements) => Err(format!(
            "triggers of the tables of idgen are not enabled always, as after a restore with --disable-triggers, so logical replication can lower the max_id of a segment, and sessions do not notice what it writes: run {statements}"
        )),
    }
}

/// Fails while worker ids cannot be used at once, because grants may be lost.
fn check_history() -> Check {
    match worker::held_back_until_us() {
        None => Ok("no interruption of the history of grants holds back worker ids".to_owned()),
        Some(until_us) => Err(format!(
            "worker ids that are granted now begin at {}: a failover, a restore or a holder has shown that grants may be lost; ids of servers are ahead of the clock until then, and other holders wait; if the clock was wrong when that was noticed, run SELECT worker_begin_history(<time of the last grant before it>)",
            time_text_us(until_us)
        )),
    }
}

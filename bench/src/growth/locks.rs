//! Named locks with many names, while other sessions hold locks.

use crate::harness::comparison::Comparison;
use crate::harness::pgbench::{self, Background};
use crate::harness::report::{Row, Section, Table};
use crate::harness::scale::Scale;
use crate::harness::server::Server;
use idgen_testkit::sql::{PATIENCE, value};

const NAMED: &str = "named lock";
const ADVISORY: &str = "pg_advisory_lock";
/// The target for the time of a named lock, in multiples of `pg_advisory_lock`.
const MAX_OF_ADVISORY: f64 = 1.3;
const CLIENTS: u32 = 64;

pub fn names(server: &Server, scale: &Scale, section: &mut Section) {
    let connections = scale.idle_sessions + CLIENTS + 20;
    let server = server.start_another("max_connections", &connections.to_string());
    let idle = hold_locks(&server, scale.idle_sessions);
    let contenders = scale
        .lock_names
        .iter()
        .flat_map(|&names| [NAMED, ADVISORY].map(|lock| (name_of(lock, names), script(lock, names))));
    // So many sessions need a second to fill their caches.
    let seconds = 3 * scale.seconds;
    let measured = Comparison::measure(2 * scale.rounds, contenders, |script| {
        [1e6 / pgbench::run(&server, script, CLIENTS, seconds).rate]
    });
    idle.stop(&server);
    let mut rows = Vec::new();
    for &names in scale.lock_names {
        let [[named], [advisory]] = [NAMED, ADVISORY].map(|lock| measured.of(&name_of(lock, names)));
        let what = format!("{NAMED} / {ADVISORY} (time of a cycle, clients: {CLIENTS}, names: {names})");
        section.at_most(MAX_OF_ADVISORY, what, named / advisory);
        rows.push(Row::new(names.to_string(), vec![named.clone(), advisory.clone(), named / advisory]));
    }
    section.add(Table::new(
        "lock_acquire against names",
        format!(
            "pgbench, prepared statements, {CLIENTS} clients, {seconds} s each. Each acquires and releases a lock whose name \
             it draws at random, in two statements. {} idle sessions hold a named lock each. The time is that between \
             the ends of two cycles, of all clients together.",
            scale.idle_sessions
        ),
        ["named lock, µs", "pg_advisory_lock, µs", "ratio"],
        rows,
    ));
}

fn name_of(lock: &str, names: u32) -> String {
    format!("{lock}, names: {names}")
}

fn script(lock: &str, names: u32) -> String {
    let draw = format!("\\set n random(1, {names})");
    let name = "'bench:' || :n::text";
    match lock {
        NAMED => format!("{draw}\nSELECT lock_acquire({name});\nSELECT lock_release({name})"),
        _ => format!(
            "{draw}\nSELECT pg_advisory_lock(hashtextextended({name}, 0));\n\
             SELECT pg_advisory_unlock(hashtextextended({name}, 0))"
        ),
    }
}

/// Sessions that hold a lock each and do nothing.
fn hold_locks(server: &Server, sessions: u32) -> Background {
    let script = "SELECT lock_acquire('idle:' || :client_id::text);\n\\sleep 1000 s\nSELECT 1";
    let idle = Background::start(server, script, sessions);
    let mut client = server.client();
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted";
    let all_hold = || value::<i64>(&mut client, held) >= i64::from(sessions);
    server.cluster.wait_for(PATIENCE, "the idle sessions to hold their locks", all_hold);
    idle
}

//! What it costs to take a lock and let go of it, in a loop on the server.

use super::MOST;
use crate::calls::Calls;
use crate::contender::{Contender, EMPTY};
use crate::report::{Figure, Row, Table};
use crate::scale::Scale;
use crate::server::Server;

/// A way to take one lock after the other, by both.
struct Loop {
    what: &'static str,
    named: Contender,
    advisory: Contender,
}

const LOOPS: [Loop; 5] = [
    Loop {
        what: "one name, SQL",
        named: Contender::call(
            "lock_acquire, one name, SQL",
            "CASE WHEN lock_acquire('bench') IS NOT NULL THEN lock_release('bench') END",
        ),
        advisory: Contender::call(
            "pg_advisory_lock, one name, SQL",
            "CASE WHEN pg_advisory_lock(hashtextextended('bench', 0)) IS NOT NULL \
             THEN pg_advisory_unlock(hashtextextended('bench', 0)) END",
        ),
    },
    Loop {
        what: "a thousand names in turn, SQL",
        named: Contender::call(
            "lock_acquire, a thousand names in turn, SQL",
            "CASE WHEN lock_acquire('bench:' || generate_series % 1000) IS NOT NULL \
             THEN lock_release('bench:' || generate_series % 1000) END",
        ),
        advisory: Contender::call(
            "pg_advisory_lock, a thousand names in turn, SQL",
            "CASE WHEN pg_advisory_lock(hashtextextended('bench:' || generate_series % 1000, 0)) IS NOT NULL \
             THEN pg_advisory_unlock(hashtextextended('bench:' || generate_series % 1000, 0)) END",
        ),
    },
    Loop {
        what: "a new name each time, SQL",
        named: Contender::call(
            "lock_acquire, a new name each time, SQL",
            "CASE WHEN lock_acquire('bench:' || generate_series) IS NOT NULL \
             THEN lock_release('bench:' || generate_series) END",
        ),
        advisory: Contender::call(
            "pg_advisory_lock, a new name each time, SQL",
            "CASE WHEN pg_advisory_lock(hashtextextended('bench:' || generate_series, 0)) IS NOT NULL \
             THEN pg_advisory_unlock(hashtextextended('bench:' || generate_series, 0)) END",
        ),
    },
    Loop {
        what: "one name, PL/pgSQL",
        named: Contender::block(
            "lock_acquire, one name, PL/pgSQL",
            "PERFORM lock_acquire('bench'); PERFORM lock_release('bench');",
        ),
        advisory: Contender::block(
            "pg_advisory_lock, one name, PL/pgSQL",
            "PERFORM pg_advisory_lock(hashtextextended('bench', 0)); \
             PERFORM pg_advisory_unlock(hashtextextended('bench', 0));",
        ),
    },
    Loop {
        what: "one name, PL/pgSQL, for the transaction",
        named: Contender::block("lock_acquire_xact, PL/pgSQL", "PERFORM lock_acquire_xact('bench'); COMMIT;"),
        advisory: Contender::block(
            "pg_advisory_xact_lock, PL/pgSQL",
            "PERFORM pg_advisory_xact_lock(hashtextextended('bench', 0)); COMMIT;",
        ),
    },
];

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let mut contenders = vec![Contender::call(EMPTY, "1")];
    contenders.extend(LOOPS.into_iter().flat_map(|own| [own.named, own.advisory]));
    let calls = Calls::measure(server, scale, &contenders);
    let ratio = |own: &Loop| calls.cpu_of(own.named.name).over(calls.cpu_of(own.advisory.name));
    let figure = |own: &Loop| {
        let what = format!("CPU time of a named lock, to pg_advisory_lock's, in a loop, {}", own.what);
        Figure::at_most(MOST, what, ratio(own))
    };
    let row = |own: &Loop| {
        let times = [&own.named, &own.advisory].map(|contender| calls.cpu_of(contender.name).clone());
        Row { name: own.what.into(), cells: times.into_iter().chain([ratio(own)]).collect() }
    };
    let table = Table {
        title: "Taking and letting go in a loop".into(),
        how: format!(
            "One session. In SQL `SELECT count(CASE WHEN lock_acquire(name) IS NOT NULL THEN lock_release(name) END) FROM \
             generate_series(1, {})`, in PL/pgSQL a tenth of that, a PERFORM for each call; for the transaction with a \
             COMMIT in each round. Beside it the same with `pg_advisory_lock(hashtextextended(name, 0))`, where PostgreSQL \
             has hashed a constant name before the loop begins. CPU time is that of the session's process; the loop is \
             in it, which by itself takes {} ns in SQL.",
            scale.calls,
            calls.cpu_of(EMPTY)
        ),
        columns: ["named, CPU ns", "pg_advisory_lock, CPU ns", "ratio"].map(str::to_owned).into(),
        rows: LOOPS.iter().map(row).collect(),
    };
    (LOOPS.iter().map(figure).collect(), vec![table])
}

//! One lock that everybody wants: how fast it goes from hand to hand, and whether everybody gets as much of it.

use super::MOST;
use crate::fairness::{FAIR, jain};
use crate::pgbench::ends_by_client;
use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::Server;

/// Beside the one who holds it.
const WAITERS: [u32; 3] = [2, 8, 32];
const STATEMENTS: [(&str, &str); 2] = [
    ("named lock", "SELECT lock_acquire('bench');\nSELECT lock_release('bench')"),
    (
        "pg_advisory_lock",
        "SELECT pg_advisory_lock(hashtextextended('bench', 0));\nSELECT pg_advisory_unlock(hashtextextended('bench', 0))",
    ),
];

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let mut figures = Vec::new();
    let mut rows = Vec::new();
    for waiters in WAITERS {
        // Who sleeps and who is awake differs from second to second.
        let measured = rounds(4 * scale.rounds, &STATEMENTS, |(_, statement)| {
            let grants = ends_by_client(server, statement, waiters + 1, scale.seconds);
            (grants.iter().sum::<f64>() / f64::from(scale.seconds), jain(&grants))
        });
        let parts: Vec<[Samples; 2]> = measured
            .iter()
            .map(|rounds| {
                [Samples::new(rounds.iter().map(|(rate, _)| *rate)), Samples::new(rounds.iter().map(|(_, jain)| *jain))]
            })
            .collect();
        let time = parts[1][0].over(&parts[0][0]);
        figures.extend([
            Figure::at_most(MOST, format!("time of a hand-off, to pg_advisory_lock's, waiters: {waiters}"), time),
            Figure::at_least(FAIR, format!("fairness of the named lock, waiters: {waiters}"), parts[0][1].clone()),
        ]);
        let named = STATEMENTS.iter().zip(parts);
        rows.extend(
            named.map(|((name, _), parts)| Row { name: format!("{name}, waiters: {waiters}"), cells: parts.into() }),
        );
    }
    let table = Table {
        title: "A contended lock".into(),
        how: format!(
            "pgbench, prepared statements, {} s each: every client takes the same lock and lets go of it at once, in two \
             statements. Fairness is Jain's index of the grants by client: 1 when all have as many, 1/n when one of n has \
             them all.",
            scale.seconds
        ),
        columns: ["hand-offs a second", "fairness"].map(str::to_owned).into(),
        rows,
    };
    (figures, vec![table])
}

//! One lock that everybody wants: how fast it goes from hand to hand, and whether everybody gets as much of it.

use super::MOST;
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
/// 1 is everybody as often as everybody else. A client that begins a little later has a little less.
const FAIR: f64 = 0.99;

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

/// Jain's index of fairness.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::jain;

    #[test]
    fn fairness_is_1_for_equal_shares_and_falls_to_one_nth() {
        assert_eq!(jain(&[5.0, 5.0, 5.0, 5.0]), 1.0);
        assert_eq!(jain(&[5.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[2.0, 1.0]), 0.9);
    }
}

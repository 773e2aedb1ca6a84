//! One lease that everybody wants: how fast it goes from hand to hand, and what a grant costs with many who wait.

use crate::fairness::{FAIR, jain};
use crate::pgbench::ends_by_client;
use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::{Server, wal_bytes};
use idgen_testkit::sql::value;
use postgres::Client;

/// Beside the one who holds it.
const WAITERS: [u32; 3] = [2, 8, 32];
const SCRIPT: &str = "SELECT token FROM lease_acquire('bench') \\gset\nSELECT lease_release('bench', :token)";
/// How much more a grant may cost with the most who wait than with the fewest.
const SAME: f64 = 1.2;
const COLUMNS: [&str; 4] = ["hand-offs a second", "fairness", "probes a grant", "WAL bytes a grant"];

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let mut client = server.client();
    let measured = rounds(2 * scale.rounds, &WAITERS, |waiters| {
        let before = Counts::now(&mut client);
        let mut ends = Vec::new();
        let wal = wal_bytes(&mut client, |_| ends = ends_by_client(server, SCRIPT, waiters + 1, scale.seconds));
        let after = Counts::now(&mut client);
        let grants = after.grants - before.grants;
        let rate = ends.iter().sum::<f64>() / f64::from(scale.seconds);
        [rate, jain(&ends), (after.probes - before.probes) / grants, wal / grants]
    });
    let part = |index: usize, part: usize| Samples::new(measured[index].iter().map(|parts| parts[part]));
    let last = WAITERS.len() - 1;
    let mut figures: Vec<Figure> = (0..WAITERS.len())
        .map(|index| {
            Figure::at_least(FAIR, format!("fairness of the lease, waiters: {}", WAITERS[index]), part(index, 1))
        })
        .collect();
    figures.extend([2, 3].map(|column| {
        let what = format!("{}, waiters: {}, to those with {}", COLUMNS[column], WAITERS[last], WAITERS[0]);
        Figure::at_most(SAME, what, part(last, column).over(&part(0, column)))
    }));
    let row = |(index, waiters): (usize, &u32)| Row {
        name: format!("waiters: {waiters}"),
        cells: (0..COLUMNS.len()).map(|column| part(index, column)).collect(),
    };
    let table = Table {
        title: "A contended lease".into(),
        how: format!(
            "pgbench, prepared statements, {} s each: every client acquires the same lease and releases it at once, in two \
             transactions. Its name is not defined. Fairness is Jain's index of the grants by client: 1 when all have as \
             many, 1/n when one of n has them all. A probe is a look at the rows.",
            scale.seconds
        ),
        columns: COLUMNS.map(str::to_owned).into(),
        rows: WAITERS.iter().enumerate().map(row).collect(),
    };
    (figures, vec![table])
}

/// What `idgen.stat_lease` counts.
struct Counts {
    grants: f64,
    probes: f64,
}

impl Counts {
    fn now(client: &mut Client) -> Self {
        let mut count = |what: &str| value(client, &format!("SELECT ({what})::float8 FROM idgen.stat_lease"));
        Self { grants: count("grants + take_overs"), probes: count("probes") }
    }
}

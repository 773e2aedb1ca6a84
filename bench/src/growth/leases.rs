//! One lease among many names.

use super::{Growth, copy_rows, database};
use crate::harness::comparison::Comparison;
use crate::harness::report::Section;
use crate::harness::samples::Samples;
use crate::harness::scale::Scale;
use crate::harness::server::Server;
use crate::harness::session::{Cost, Session, repeat};
use idgen_testkit::sql::execute;
use postgres::{Client, Statement};
use std::time::Duration;

const LOOK: &str = "SELECT state, owner, expires_at FROM idgen.leases WHERE name = $1";
const ACQUIRE: &str = "SELECT token FROM lease_acquire($1)";
const RELEASE: &str = "SELECT lease_release($1, $2)";

/// Each operation and its target.
const OPERATIONS: [(&str, f64); 3] =
    [("one name of `idgen.leases`", 2.0), ("lease_acquire", super::SAME), ("lease_release", super::SAME)];

pub fn names(server: &Server, scale: &Scale, section: &mut Section) {
    let mut databases: Vec<Database> = scale.names.iter().map(|names| Database::fill(server, *names)).collect();
    let time = Duration::from_secs(scale.seconds.into());
    let contenders = scale.names.iter().enumerate().map(|(index, names)| (names.to_string(), index));
    let measured = Comparison::measure(2 * scale.rounds, contenders, |&index| databases[index].costs(time));
    for (index, (operation, target)) in OPERATIONS.into_iter().enumerate() {
        let of = |costs: &[Samples; 6]| [costs[2 * index].clone(), costs[2 * index + 1].clone()];
        let costs = measured.iter().zip(scale.names).map(|((_, costs), names)| (*names, of(costs)));
        let growth = Growth {
            operation,
            size: "names",
            reference: scale.names[0],
            target,
            how: format!(
                "All names are defined; half of them are held. One session reads the row of one name after another \
                 from `idgen.leases` (`{LOOK}`). Then it acquires and releases one free lease after another, each in \
                 a transaction of its own, in a database for each number of names."
            ),
        };
        growth.report(&costs.collect::<Vec<_>>(), section);
    }
}

/// A database with names 0, 1, 2 and so on, of which the odd ones are free.
struct Database {
    names: u32,
    session: Session,
    statements: [Statement; 3],
}

impl Database {
    fn fill(server: &Server, names: u32) -> Self {
        let mut client = database(server, &format!("names_{names}"));
        execute(&mut client, "SELECT lease_define('name:' || n, ttl => '1 day') FROM generate_series(0, 1) AS n");
        execute(&mut client, "SELECT lease_acquire('name:0')");
        execute(&mut client, "SELECT lease_release('name:1', (lease_acquire('name:1')).token)");
        let (series, template) = (format!("generate_series(2, {names} - 1)"), "template.name = 'name:' || n % 2");
        let (definition, lease) =
            ("'name', 'name:' || n", "'name', 'name:' || n, 'token', nextval('idgen.lease_token')");
        execute(&mut client, &copy_rows("idgen.lease_definition", &series, template, definition));
        execute(&mut client, &copy_rows("idgen.lease", &series, template, lease));
        execute(&mut client, "VACUUM ANALYZE");
        let statements =
            [LOOK, ACQUIRE, RELEASE].map(|sql| client.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}")));
        Self { names, session: Session::new(client), statements }
    }

    /// The time and the CPU time of each operation.
    fn costs(&mut self, time: Duration) -> [f64; 6] {
        let [mut looked, mut acquired, mut released] = [(); 3].map(|()| Cost::default());
        let Self { names, session, statements: [look, acquire, release] } = self;
        repeat(time, |number| {
            let name = name(number, *names);
            let rows = session.measure(&mut looked, 1, |client| client.query(look, &[&name]));
            assert_eq!(rows.expect("idgen.leases failed").len(), 1, "{name} is there");
        });
        repeat(time, |number| {
            let name = free_name(number, *names);
            let query = |client: &mut Client| client.query_one(acquire, &[&name]);
            let token: i64 = session.measure(&mut acquired, 1, query).expect("lease_acquire failed").get(0);
            let query = |client: &mut Client| client.query_one(release, &[&name, &token]);
            session.measure(&mut released, 1, query).expect("lease_release failed");
        });
        let costs = [looked, acquired, released].map(|cost| cost.us_per_call());
        costs.concat().try_into().expect("two measurements of three operations")
    }
}

/// Names that follow each other are far apart: neighbours share a page.
const STRIDE: u64 = 7919;

fn name(number: u64, names: u32) -> String {
    format!("name:{}", number * STRIDE % u64::from(names))
}

fn free_name(number: u64, names: u32) -> String {
    format!("name:{}", 2 * (number * STRIDE % u64::from(names / 2)) + 1)
}

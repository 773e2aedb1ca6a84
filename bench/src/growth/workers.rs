//! A worker id from a pool in which all others are taken.

use super::{Growth, database};
use crate::harness::comparison::Comparison;
use crate::harness::report::Section;
use crate::harness::scale::Scale;
use crate::harness::server::Server;
use crate::harness::session::{Cost, Session, repeat};
use idgen_testkit::sql::{execute, row};
use postgres::{Client, Statement};
use std::time::{Duration, SystemTime};

pub fn pools(server: &Server, scale: &Scale, section: &mut Section) {
    let mut client = database(server, "pools");
    let pools: Vec<Pool> = scale.pools.iter().map(|slots| Pool::fill(&mut client, *slots)).collect();
    execute(&mut client, "VACUUM ANALYZE");
    let (acquire, release) = (prepare(&mut client, ACQUIRE), prepare(&mut client, RELEASE));
    let mut session = Session::new(client);
    let time = Duration::from_secs(scale.seconds.into());
    let contenders = pools.iter().map(|pool| (pool.slots.to_string(), pool));
    let measured = Comparison::measure(2 * scale.rounds, contenders, |pool| {
        let (mut acquired, mut released) = (Cost::default(), Cost::default());
        repeat(time, |number| pool.cycle(&mut session, [&acquire, &release], number, [&mut acquired, &mut released]));
        let ([us, cpu_us], [release_us, release_cpu_us]) = (acquired.us_per_call(), released.us_per_call());
        [us, cpu_us, release_us, release_cpu_us]
    });
    for (operation, column) in [("worker_acquire", 0), ("worker_release", 2)] {
        let costs = measured.iter().zip(scale.pools);
        let costs = costs.map(|((_, costs), slots)| (*slots, [costs[column].clone(), costs[column + 1].clone()]));
        let growth = Growth {
            operation,
            size: "slots of the pool",
            reference: scale.pools[0],
            target: 2.0,
            how: "All worker ids but one are taken, by holders whose id times reach into the future. One session \
                  acquires the one that is left and releases it, in two transactions, as a new owner each time."
                .to_owned(),
        };
        growth.report(&costs.collect::<Vec<_>>(), section);
    }
}

const ACQUIRE: &str = "SELECT worker_id, token, not_before FROM worker_acquire($1, $2, '1 hour', clock_timestamp())";
const RELEASE: &str = "SELECT worker_release($1, $2, last_time => $3)";

fn prepare(client: &mut Client, sql: &str) -> Statement {
    client.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"))
}

struct Pool {
    name: String,
    slots: u32,
    /// The one worker id that is free.
    free: i32,
}

impl Pool {
    fn fill(client: &mut Client, slots: u32) -> Self {
        let (name, free) = (format!("pool:{slots}"), slots as i32 / 2);
        execute(client, &format!("SELECT worker_pool_define('{name}', count => {slots}, ttl => '1 hour')"));
        let template = format!(
            "SELECT token, not_before FROM worker_acquire('{name}', 'server', '1 hour', clock_timestamp(), {free})"
        );
        let template = row(client, &template);
        let (token, not_before): (i64, SystemTime) = (template.get(0), template.get(1));
        execute(
            client,
            &format!(
                "UPDATE idgen.worker_id AS other
                 SET token = other.worker_id + 1, owner = 'server ' || other.worker_id, role = template.role,
                     acquired_at = template.acquired_at, not_before = template.not_before,
                     not_after = template.not_after
                 FROM idgen.worker_id AS template
                 WHERE template.pool = '{name}' AND template.worker_id = {free}
                   AND other.pool = '{name}' AND other.worker_id <> {free}"
            ),
        );
        client.query_one(RELEASE, &[&name, &token, &not_before]).expect("worker_release failed");
        Self { name, slots, free }
    }

    fn cycle(&self, session: &mut Session, statements: [&Statement; 2], number: u64, costs: [&mut Cost; 2]) {
        let ([acquire, release], [acquired, released]) = (statements, costs);
        let owner = format!("new server {number}");
        let row = session.measure(acquired, 1, |client| client.query_one(acquire, &[&self.name, &owner]));
        let row = row.expect("worker_acquire failed");
        let (worker_id, token, not_before): (i32, i64, SystemTime) = (row.get(0), row.get(1), row.get(2));
        assert_eq!(worker_id, self.free, "all other worker ids are taken");
        let row = session.measure(released, 1, |client| client.query_one(release, &[&self.name, &token, &not_before]));
        assert!(row.expect("worker_release failed").get::<_, bool>(0), "the worker id is free again");
    }
}

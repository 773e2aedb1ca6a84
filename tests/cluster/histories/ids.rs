//! Ids of several layouts: none twice, and in real-time order over all sessions and databases, whatever happens.

use std::time::Duration;

use idgen_sim::history::order;
use idgen_testkit::recorder::{Draws, is_lost};
use idgen_testkit::sql::execute;
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::Row;
use postgres::error::SqlState;

use crate::storm::{Fault, Storm, repeat};

const LAYOUTS: [&str; 3] = ["snowflake", "seconds", "js53"];
const DATABASES: [&str; 2] = ["postgres", "other"];
const SESSIONS: usize = 12;

const FAULTS: [Fault; 10] = [
    Fault::Terminate,
    Fault::Clock(5_000),
    Fault::Clock(-4_000),
    Fault::KillBackend,
    Fault::Pause(Duration::from_millis(300)),
    Fault::KillPostmaster,
    Fault::Cancel,
    Fault::Clock(700),
    Fault::Immediate,
    Fault::Clock(0),
];

/// One by one, in batches, and as defaults of rows that roll back.
fn statement(layout: &str) -> String {
    let count = 50 + fastrand::usize(..400);
    match fastrand::u8(..3) {
        0 => format!("SELECT snowflake_next('{layout}') FROM generate_series(1, {count})"),
        1 => format!("SELECT snowflake_next_many({count}, '{layout}')"),
        _ => format!("INSERT INTO {layout} SELECT FROM generate_series(1, {count}) RETURNING id"),
    }
}

fn id(row: &Row) -> [i64; 1] {
    [row.get(0)]
}

pub fn draw(storm: &Storm, index: usize, draws: &[Draws<i64>; 3]) {
    let layout = index % LAYOUTS.len();
    while let Some(mut session) = storm.connect(DATABASES[index % 2]) {
        while storm.goes_on() {
            let drawn = draws[layout].draw(&mut session.client, &statement(LAYOUTS[layout]), id);
            match drawn {
                Err(error) if is_lost(&error) => break,
                Err(error) => assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED), "{error:?}"),
                Ok(()) => {}
            }
        }
        storm.forget(session.pid);
    }
}

pub fn set_up(cluster: &Cluster) {
    cluster.execute("CREATE DATABASE other");
    execute(&mut cluster.client_in("other"), "CREATE EXTENSION idgen");
    for (database, layout) in DATABASES.iter().flat_map(|database| LAYOUTS.map(|layout| (database, layout))) {
        let table = format!("CREATE TABLE {layout} (id bigint PRIMARY KEY DEFAULT snowflake_next('{layout}'))");
        execute(&mut cluster.client_in(database), &table);
    }
}

pub fn judge(draws: [Draws<i64>; 3]) {
    for (layout, draws) in LAYOUTS.iter().zip(draws) {
        let verdict = order::judge(&draws.into_draws());
        println!("{layout}: {verdict}");
        verdict.assert_clean(layout);
    }
}

fn run(cluster: &Cluster, draws: &[Draws<i64>; 3], wanted: usize, faults: &[Fault]) {
    let storm = Storm::new(cluster);
    let fewest = || draws.iter().map(Draws::count).min().unwrap_or(0);
    storm.run(SESSIONS, |index| draw(&storm, index, draws), fewest, wanted, faults);
}

#[test]
fn ids_of_each_layout_are_unique_and_in_real_time_order() {
    let cluster = Cluster::builder().fake_clock().start_with_extension();
    set_up(&cluster);
    let standby = cluster.standby_builder().fake_clock().start();
    let draws: [Draws<i64>; 3] = Default::default();
    let wanted = rounds(40_000, 1_000_000);
    run(&cluster, &draws, wanted / 2, &repeat(&FAULTS, rounds(10, 40)));
    // Behind the old primary's clock, and with all its ids.
    standby.wait_until_replayed(&cluster);
    cluster.stop(Stop::Immediate);
    standby.clock().set_offset_ms(-3_000);
    standby.promote();
    run(&standby, &draws, wanted / 2, &repeat(&FAULTS, rounds(5, 40)));
    judge(draws);
}

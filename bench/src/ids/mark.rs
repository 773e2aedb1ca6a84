//! What the durable mark costs: the first id after a pause waits for it.

use crate::pgbench::Load;
use crate::report::{Figure, Row, Table};
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::{Server, seconds};
use idgen_cluster_tests::sql::value;
use postgres::Client;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than a window of the mark and its reserve, so that each first id is a first one.
const PAUSE: Duration = Duration::from_secs(5);
/// `idgen.clock_window`, unless it is set.
const WINDOW: Duration = Duration::from_secs(3);
const NEXT: &str = "SELECT snowflake_next()";

/// One pause, then these one after the other, in milliseconds.
struct Pause {
    noop: f64,
    first: f64,
    writes: f64,
    next: f64,
    fsync: f64,
}

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let mut client = server.client();
    let file = File::create(server.cluster.data_dir().join("bench-fsync")).expect("the data directory is writable");
    for _ in 0..2 {
        write_and_sync(&file);
    }
    seconds(&mut client, NEXT);
    let pauses: Vec<Pause> = (0..scale.pauses).map(|_| pause(&mut client, &file)).collect();
    let in_load = writes_in_load(server, &mut client, scale.long);

    let of = |part: fn(&Pause) -> f64| Samples::new(pauses.iter().map(part));
    let row = |name: &str, samples| Row { name: name.into(), cells: vec![samples] };
    let most_in_load = (scale.long.as_secs() / WINDOW.as_secs() + 1) as f64;
    let figures = vec![
        Figure::at_most(1.0, "writes of the mark for the first id after a pause", of(|pause| pause.writes)),
        Figure::at_most(
            1.5,
            "what the first id after a pause takes longer than the next, to an fsync",
            of(|pause| (pause.first - pause.next) / pause.fsync),
        ),
        Figure::at_most(most_in_load, format!("writes of the mark in {:?} of load", scale.long), in_load),
    ];
    let table = Table {
        title: "An id after a pause".into(),
        how: format!(
            "One session after {PAUSE:?} without ids, each statement once, in this order, as its client sees it."
        ),
        columns: vec!["ms".into()],
        rows: vec![
            row("no-op", of(|pause| pause.noop)),
            row("first id", of(|pause| pause.first)),
            row("next id", of(|pause| pause.next)),
            row("two blocks written and synced by the benchmark", of(|pause| pause.fsync)),
        ],
    };
    (figures, vec![table])
}

fn pause(client: &mut Client, file: &File) -> Pause {
    sleep(PAUSE);
    // Wakes the session: its caches are cold, with ids or without.
    let noop = seconds(client, "SELECT noop()") * 1e3;
    let before = writes(client);
    let first = seconds(client, NEXT) * 1e3;
    let writes = writes(client) - before;
    let next = seconds(client, NEXT) * 1e3;
    let began = Instant::now();
    write_and_sync(file);
    Pause { noop, first, writes, next, fsync: began.elapsed().as_secs_f64() * 1e3 }
}

/// The same as a write of the mark: two copies of a record, each in a block of its own.
fn write_and_sync(file: &File) {
    for place in [0, 4096] {
        file.write_all_at(&[1; 512], place).expect("the file is writable");
    }
    file.sync_all().expect("the file can be synced");
}

fn writes_in_load(server: &Server, client: &mut Client, long: Duration) -> Samples {
    let before = writes(client);
    Load::start(server, NEXT, 2, long.as_secs() as u32).rate();
    Samples::new([writes(client) - before])
}

fn writes(client: &mut Client) -> f64 {
    value(client, "SELECT mark_writes::float8 FROM idgen.stat_clock")
}

//! What the durable mark costs: the first id after a pause waits for it.

use crate::pgbench::Load;
use crate::report::{Figure, Row, Table};
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::{Server, seconds};
use idgen_testkit::sql::row;
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
    /// Of the mark, meanwhile, and what idgen says that they took.
    writes: f64,
    writing: f64,
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
    let pauses: Vec<Pause> = (0..scale.pauses).map(|round| pause(&mut client, &file, round % 2 == 0)).collect();
    let in_load = writes_in_load(server, &mut client, scale.long);

    let of = |part: fn(&Pause) -> f64| Samples::new(pauses.iter().map(part));
    let line = |name: &str, samples| Row { name: name.into(), cells: vec![samples] };
    let most_in_load = (scale.long.as_secs() / WINDOW.as_secs() + 1) as f64;
    let figures = vec![
        Figure::at_most(1.0, "writes of the mark for the first id after a pause", of(|pause| pause.writes)),
        Figure::at_most(
            1.5,
            "what the first id after a pause takes longer than the next, to one write of the mark",
            of(|pause| (pause.first - pause.next) / pause.writing),
        ),
        Figure::at_most(most_in_load, format!("writes of the mark in {:?} of load", scale.long), in_load),
    ];
    let table = Table {
        title: "An id after a pause".into(),
        how: format!("One session after {PAUSE:?} without ids, each statement once, as its client sees it."),
        columns: vec!["ms".into()],
        rows: vec![
            line("no-op", of(|pause| pause.noop)),
            line("first id", of(|pause| pause.first)),
            line("of that, the mark written and synced, as `idgen.stat_clock` has it", of(|pause| pause.writing)),
            line("next id", of(|pause| pause.next)),
            line("two blocks written and synced by the benchmark", of(|pause| pause.fsync)),
        ],
    };
    (figures, vec![table])
}

/// The benchmark's own fsync takes turns with the mark's in going first: the second finds the disk awake.
fn pause(client: &mut Client, file: &File, own_first: bool) -> Pause {
    sleep(PAUSE);
    let own_before = own_first.then(|| write_and_sync(file));
    // Wakes the session: its caches are cold, with ids or without.
    let noop = seconds(client, "SELECT noop()") * 1e3;
    let before = writes(client);
    let first = seconds(client, NEXT) * 1e3;
    let after = writes(client);
    let next = seconds(client, NEXT) * 1e3;
    let fsync = own_before.unwrap_or_else(|| write_and_sync(file));
    Pause { noop, first, writes: after.0 - before.0, writing: after.1 - before.1, next, fsync }
}

/// The same as a write of the mark, two copies of a record, each in a block of its own: how many milliseconds it takes.
fn write_and_sync(file: &File) -> f64 {
    let began = Instant::now();
    for place in [0, 4096] {
        file.write_all_at(&[1; 512], place).expect("the file is writable");
    }
    file.sync_all().expect("the file can be synced");
    began.elapsed().as_secs_f64() * 1e3
}

fn writes_in_load(server: &Server, client: &mut Client, long: Duration) -> Samples {
    let before = writes(client);
    Load::start(server, NEXT, 2, long.as_secs() as u32).rate();
    Samples::new([writes(client).0 - before.0])
}

/// How often the mark was written, and how many milliseconds that took.
fn writes(client: &mut Client) -> (f64, f64) {
    let sql = "SELECT mark_writes::float8, 1000 * extract(epoch FROM mark_write_time)::float8 FROM idgen.stat_clock";
    let row = row(client, sql);
    (row.get(0), row.get(1))
}

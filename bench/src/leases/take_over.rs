//! A holder whose client is killed: how soon the next one has what he held.

use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::Server;
use idgen_testkit::sql::{PATIENCE, execute, value};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

/// What is held, and how it is let go of by whoever had it next.
const CONTENDERS: [(&str, &str, &str); 2] = [
    (
        "lease, bound to the session",
        "SELECT token FROM lease_acquire('bench', bind_session => true)",
        "SELECT lease_release(name, token) FROM idgen.lease WHERE name = 'bench'",
    ),
    ("pg_advisory_lock", "SELECT pg_advisory_lock(1)", "SELECT pg_advisory_unlock(1)"),
];

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let measured = rounds(3 * scale.rounds, &CONTENDERS, |(_, take, let_go)| ms_to_the_next(server, take, let_go));
    let named = CONTENDERS.iter().zip(measured);
    let table = Table {
        title: "From kill -9 of the holder's client to the next grant, ms".into(),
        how: "psql holds it, another client waits for it; the time is from the signal to that client's answer. It has the end \
              of the holder's session in it, of which PostgreSQL's own lock has nothing else; the grant of the lease is \
              synced."
            .into(),
        columns: vec!["ms".into()],
        rows: named.map(|((name, ..), ms)| Row { name: (*name).into(), cells: vec![Samples::new(ms)] }).collect(),
    };
    (Vec::new(), vec![table])
}

fn ms_to_the_next(server: &Server, take: &str, let_go: &str) -> f64 {
    let mut psql = server.cluster.program("psql");
    let psql = psql.args(["--no-psqlrc", "--quiet", "postgres"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = psql.spawn().expect("psql can be started");
    let mut input = holder.stdin.take().expect("it was asked for");
    writeln!(input, "{take};\n\\echo held").expect("psql reads");
    let mut lines = BufReader::new(holder.stdout.take().expect("it was asked for")).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line == "held")), "psql holds it");

    let (mut next, mut looking) = (server.client(), server.client());
    let pid = value::<i32>(&mut next, "SELECT pg_backend_pid()");
    let (granted, grants) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            execute(&mut next, take);
            granted.send(Instant::now()).expect("somebody wants to know");
            execute(&mut next, let_go);
        });
        let waiting = format!(
            "SELECT coalesce(wait_event_type IN ('Lock', 'Extension'), false) FROM pg_stat_activity WHERE pid = {pid}"
        );
        server.cluster.wait_for(PATIENCE, "the next one to wait", || value(&mut looking, &waiting));
        let killed = Instant::now();
        holder.kill().expect("psql can be killed");
        let ms = grants.recv().expect("it is granted").duration_since(killed).as_secs_f64() * 1000.0;
        holder.wait().expect("a child ends");
        ms
    })
}

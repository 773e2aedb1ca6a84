//! What one call costs, in a loop on the server.

use super::contender::{Contender, EMPTY, NEXT, NEXT_MANY, NEXTVAL, NOOP, SERIES, of};
use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::{Server, seconds, wal_bytes};
use idgen_cluster_tests::sql::backend_pid;

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let contenders = Contender::all(server);
    let mut client = server.client();
    // The first call of a session looks things up.
    for contender in &contenders {
        seconds(&mut client, &contender.statement(1000));
    }
    let pid = backend_pid(&mut client);
    let calls = scale.calls as f64;
    // The loop is the cheapest thing to measure, and everything else is compared with it.
    let measured = rounds(3 * scale.rounds, &contenders, |contender| {
        let statement = contender.statement(scale.calls);
        let (mut time, mut cpu) = (0.0, 0.0);
        let wal = wal_bytes(&mut client, |client| {
            let before = cpu_ns(pid);
            time = seconds(client, &statement);
            cpu = cpu_ns(pid) - before;
        });
        [time * 1e9 / calls, cpu / calls, wal / calls]
    });
    let part = |index: usize| -> Vec<Samples> {
        measured.iter().map(|rounds| Samples::new(rounds.iter().map(|parts| parts[index]))).collect()
    };
    let (ns, cpu, wal) = (part(0), part(1), part(2));

    let cpu_of = |name| of(&contenders, &cpu, name);
    let (empty, noop) = (cpu_of(EMPTY), cpu_of(NOOP));
    let row = |(index, contender): (usize, &Contender)| {
        let net = cpu[index].with(empty, |ns, empty| ns - empty);
        let cells = vec![ns[index].clone(), cpu[index].clone(), net, cpu[index].over(noop), wal[index].clone()];
        Row { name: contender.name.into(), cells }
    };
    let rows = contenders.iter().enumerate().map(row).collect();
    let table = Table {
        title: "A call in a loop".into(),
        how: format!(
            "One session, `SELECT count(f()) FROM generate_series(1, {})`, for a set `SELECT count(i) FROM f(n) AS i`. \
             CPU time is that of the session's process, which other work on the machine does not lengthen. The default \
             layout draws from the lead here.",
            scale.calls
        ),
        columns: ["ns", "CPU ns", "above the empty loop", "times the no-op", "WAL bytes an id"]
            .map(str::to_owned)
            .into(),
        rows,
    };
    let next = cpu_of(NEXT);
    let figures = vec![
        Figure::at_most(1.3, "CPU time of snowflake_next, to the no-op's, in a loop", next.over(noop)),
        Figure::at_least(2.0, "CPU time of nextval, to snowflake_next's, in a loop", cpu_of(NEXTVAL).over(next)),
        Figure::at_least(
            0.7,
            "CPU time of generate_series, to snowflake_next_many's",
            cpu_of(SERIES).over(cpu_of(NEXT_MANY)),
        ),
    ];
    (figures, vec![table])
}

/// The time for which a process had a processor, in nanoseconds.
fn cpu_ns(pid: i32) -> f64 {
    let path = format!("/proc/{pid}/schedstat");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let first = text.split(' ').next().and_then(|number| number.parse().ok());
    first.unwrap_or_else(|| panic!("{path} begins with a number"))
}

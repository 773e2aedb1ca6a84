//! What one call costs, in a loop on the server.

use super::contender::{Contender, EMPTY, NEXT, NEXT_MANY, NEXTVAL, NOOP, SERIES, of};
use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::{Server, seconds, wal_bytes};

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let contenders = Contender::all(server);
    let mut client = server.client();
    // The first call of a session looks things up.
    for contender in &contenders {
        seconds(&mut client, &contender.statement(1000));
    }
    // The loop is the cheapest thing to measure, and everything else is compared with it.
    let measured = rounds(3 * scale.rounds, &contenders, |contender| {
        let statement = contender.statement(scale.calls);
        let mut time = 0.0;
        let wal = wal_bytes(&mut client, |client| time = seconds(client, &statement));
        (time * 1e9 / scale.calls as f64, wal / scale.calls as f64)
    });
    let ns: Vec<_> = measured.iter().map(|rounds| Samples::new(rounds.iter().map(|(ns, _)| *ns))).collect();
    let wal: Vec<_> = measured.iter().map(|rounds| Samples::new(rounds.iter().map(|(_, wal)| *wal))).collect();

    let time_of = |name| of(&contenders, &ns, name);
    let (empty, noop) = (time_of(EMPTY), time_of(NOOP));
    let row = |((contender, ns), wal): ((&Contender, &Samples), &Samples)| {
        let net = ns.with(empty, |ns, empty| ns - empty);
        Row { name: contender.name.into(), cells: vec![ns.clone(), net, ns.over(noop), wal.clone()] }
    };
    let rows = contenders.iter().zip(&ns).zip(&wal).map(row).collect();
    let table = Table {
        title: "A call in a loop".into(),
        how: format!(
            "One session, `SELECT count(f()) FROM generate_series(1, {})`, for a set `SELECT count(i) FROM f(n) AS i`. \
             The default layout draws from the lead here.",
            scale.calls
        ),
        columns: ["ns", "ns above the empty loop", "times the no-op", "WAL bytes an id"].map(str::to_owned).into(),
        rows,
    };
    let figures = vec![
        Figure::at_most(1.3, "time of snowflake_next, to the no-op's, in a loop", time_of(NEXT).over(noop)),
        Figure::at_least(2.0, "rate of snowflake_next, to nextval's, in a loop", time_of(NEXTVAL).over(time_of(NEXT))),
        Figure::at_least(
            0.7,
            "rate of snowflake_next_many, to generate_series'",
            time_of(SERIES).over(time_of(NEXT_MANY)),
        ),
    ];
    (figures, vec![table])
}

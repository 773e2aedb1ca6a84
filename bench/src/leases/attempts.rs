//! Attempts at a lease that another holds: what they cost those who ask in vain.

use super::CLIENTS;
use crate::pgbench::run;
use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::{Server, wal_bytes};
use idgen_testkit::sql::value;

/// The server itself writes a few bytes now and then.
const NOTHING: f64 = 0.1;

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let mut client = server.client();
    let token: i64 = value(&mut client, "SELECT token FROM lease_acquire('bench', '1 hour')");
    let measured = rounds(2 * scale.rounds, &CLIENTS, |clients| {
        let (mut rate, mut count) = (0.0, 0.0);
        let wal = wal_bytes(&mut client, |_| {
            let ran = run(server, "SELECT token FROM lease_try_acquire('bench')", *clients, scale.seconds);
            (rate, count) = (ran.rate, ran.count);
        });
        [rate, wal / count]
    });
    let _: bool = value(&mut client, &format!("SELECT lease_release('bench', {token})"));

    let part = |rounds: &[[f64; 2]], index: usize| Samples::new(rounds.iter().map(|parts| parts[index]));
    let figure = |(clients, rounds): (&u32, &Vec<[f64; 2]>)| {
        Figure::at_most(NOTHING, format!("WAL bytes of an attempt in vain, clients: {clients}"), part(rounds, 1))
    };
    let row = |(clients, rounds): (&u32, &Vec<[f64; 2]>)| Row {
        name: format!("lease_try_acquire, clients: {clients}"),
        cells: vec![part(rounds, 0), part(rounds, 1)],
    };
    let table = Table {
        title: "Attempts in vain".into(),
        how: format!("pgbench, prepared statements, {} s, at one lease that is held.", scale.seconds),
        columns: ["attempts a second", "WAL bytes an attempt"].map(str::to_owned).into(),
        rows: CLIENTS.iter().zip(&measured).map(row).collect(),
    };
    (CLIENTS.iter().zip(&measured).map(figure).collect(), vec![table])
}

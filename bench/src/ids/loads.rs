//! Many sessions at once, one id or many in a statement.

use super::contender::{Contender, NEXT, NEXTVAL, NOOP, of};
use crate::pgbench::Load;
use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::Server;

const BATCH: u64 = 1000;
/// With more clients than these the design asks for nothing here.
const MOST: u32 = 8;

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let all = Contender::all(server);
    let (rates, many) = table(server, scale, &all, BATCH, |contender| contender.statement(BATCH));
    let mut figures = Vec::new();
    for (clients, rates) in scale.clients.iter().zip(&rates).filter(|(clients, _)| **clients <= MOST) {
        let rate_of = |name| of(&all, rates, name);
        let next = rate_of(NEXT);
        let title = |other| format!("{other}, clients: {clients}, {BATCH} ids a statement");
        figures.push(Figure::at_most(1.3, title("time of snowflake_next, to the no-op's"), rate_of(NOOP).over(next)));
        figures.push(Figure::at_least(2.0, title("rate of snowflake_next, to nextval's"), next.over(rate_of(NEXTVAL))));
    }
    let single: Vec<Contender> = all.into_iter().filter(|contender| contender.single().is_some()).collect();
    let (_, one) = table(server, scale, &single, 1, |contender| contender.single().unwrap_or_default());
    (figures, vec![many, one])
}

/// The rates by number of clients, then by contender, and the table of them.
fn table(
    server: &Server,
    scale: &Scale,
    contenders: &[Contender],
    batch: u64,
    statement: impl Fn(&Contender) -> String,
) -> (Vec<Vec<Samples>>, Table) {
    let of_clients = |clients: u32| -> Vec<Samples> {
        let measured = rounds(scale.rounds, contenders, |contender| {
            Load::start(server, &statement(contender), clients, scale.seconds).rate() * batch as f64 / 1e6
        });
        measured.into_iter().map(Samples::new).collect()
    };
    let rates: Vec<_> = scale.clients.iter().copied().map(of_clients).collect();
    let row = |(index, contender): (usize, &Contender)| Row {
        name: contender.name.into(),
        cells: rates.iter().map(|rates| rates[index].clone()).collect(),
    };
    let table = Table {
        title: format!("Million ids a second, {batch} in a statement"),
        how: format!(
            "pgbench, prepared statements, {} s each; it has its share of the cores. Every statement is a transaction: \
             where it writes WAL, it waits for the disk. The default layout has its lead of a second here.",
            scale.seconds
        ),
        columns: scale.clients.iter().map(|clients| format!("clients: {clients}")).collect(),
        rows: contenders.iter().enumerate().map(row).collect(),
    };
    (rates, table)
}

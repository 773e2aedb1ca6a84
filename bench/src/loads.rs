//! Many sessions at once, one id or many in a statement.

use crate::contender::{Contender, NEXTVAL, NOOP, of};
use crate::pgbench::Load;
use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::Server;

/// Many ids in a statement.
pub const BATCH: u64 = 1000;
/// With more clients than these the design asks for nothing here.
pub const MOST_CLIENTS: u32 = 8;

/// How many ids a second there are, in millions, of those who make so many in a statement.
pub struct Loads {
    batch: u64,
    seconds: u32,
    clients: &'static [u32],
    names: Vec<&'static str>,
    /// By number of clients, then by contender.
    rates: Vec<Vec<Samples>>,
}

impl Loads {
    pub fn measure(server: &Server, scale: &Scale, contenders: &[Contender], batch: u64) -> Self {
        let statement_of = |contender: &Contender| if batch == 1 { contender.single() } else { contender.batch(batch) };
        let loads = contenders.iter().filter_map(|contender| Some((contender.name, statement_of(contender)?)));
        let (names, statements): (Vec<_>, Vec<_>) = loads.unzip();
        let of_clients = |clients: u32| -> Vec<Samples> {
            let measured = rounds(scale.rounds, &statements, |statement| {
                Load::start(server, statement, clients, scale.seconds).rate() * batch as f64 / 1e6
            });
            measured.into_iter().map(Samples::new).collect()
        };
        let rates = scale.clients.iter().copied().map(of_clients).collect();
        Self { batch, seconds: scale.seconds, clients: scale.clients, names, rates }
    }

    /// What the design asks of the contender `next`: its time against the no-op's, its rate against that of nextval.
    pub fn figures(&self, next: &str, most_of_noop: f64) -> Vec<Figure> {
        let few = self.clients.iter().zip(&self.rates).filter(|(clients, _)| **clients <= MOST_CLIENTS);
        let of_clients = |(clients, rates): (&u32, &Vec<Samples>)| {
            let rate_of = |name| of(&self.names, rates, name);
            let (rate, batch) = (rate_of(next), self.batch);
            let title = |of, to| format!("{of} of {next}, to {to}'s, clients: {clients}, {batch} ids a statement");
            [
                Figure::at_most(most_of_noop, title("time", NOOP), rate_of(NOOP).over(rate)),
                Figure::at_least(2.0, title("rate", NEXTVAL), rate.over(rate_of(NEXTVAL))),
            ]
        };
        few.flat_map(of_clients).collect()
    }

    /// `how` adds what is particular to a subject.
    pub fn table(&self, how: &str) -> Table {
        let row = |(index, name): (usize, &&str)| Row {
            name: (*name).into(),
            cells: self.rates.iter().map(|rates| rates[index].clone()).collect(),
        };
        Table {
            title: format!("Million ids a second, {} in a statement", self.batch),
            how: format!(
                "pgbench, prepared statements, {} s each; it has its share of the cores. Every statement is a \
                 transaction: where it writes WAL, it waits for the disk. {how}",
                self.seconds
            ),
            columns: self.clients.iter().map(|clients| format!("clients: {clients}")).collect(),
            rows: self.names.iter().enumerate().map(row).collect(),
        }
    }
}

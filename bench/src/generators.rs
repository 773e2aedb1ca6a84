//! What snowflakes and segments have in common: calls in a loop, load from many clients, and keys of inserted rows.

use crate::harness::comparison::{Comparison, rows_of_all};
use crate::harness::loops::Loops;
use crate::harness::pgbench;
use crate::harness::report::{Section, Table};
use crate::harness::scale::Scale;
use crate::harness::server::{Server, seconds, wal_bytes};
use crate::harness::source::{Contender, FLOORS, NOOP};
use crate::peers::sql::{NEXTVAL, SEQUENCES};
use idgen_testkit::sql::{execute, row};
use postgres::Client;

/// Ids per statement, where a statement draws many.
pub const BATCH: u64 = 1000;
/// The most clients that the design sets targets for.
pub const MAX_CLIENTS: u32 = 8;

/// A generator and the others that it is compared with.
pub struct Generators {
    /// The contender that is judged.
    pub next: &'static str,
    /// The target for its time, in multiples of the no-op's.
    pub max_of_noop: f64,
    /// The functions of idgen.
    pub functions: Vec<Contender>,
    /// The alternatives apart from sequences.
    pub others: Vec<Contender>,
}

impl Generators {
    fn contenders(self) -> Vec<Contender> {
        FLOORS.into_iter().chain(self.functions).chain(SEQUENCES).chain(self.others).collect()
    }

    /// Measures a call in a loop.
    pub fn loops(self, server: &Server, scale: &Scale, note: &str, section: &mut Section) -> Loops {
        let Self { next, max_of_noop, .. } = self;
        let loops = Loops::measure(server, scale, self.contenders());
        let cpu = |name| loops.cpu(name);
        section.at_most(max_of_noop, format!("{next} / {NOOP} (CPU time in a loop)"), cpu(next) / cpu(NOOP));
        section.at_least(2.0, format!("{NEXTVAL} / {next} (CPU time in a loop)"), cpu(NEXTVAL) / cpu(next));
        section.add(loops.table(note));
        loops
    }

    /// Measures the load of many clients, with many ids per statement and with one.
    pub fn loads(self, server: &Server, scale: &Scale, note: &str, section: &mut Section) {
        let Self { next, max_of_noop, .. } = self;
        let contenders = self.contenders();
        for batch in [BATCH, 1] {
            let statements = contenders.iter().filter_map(|(name, source)| {
                Some((*name, if batch == 1 { source.single() } else { source.batch(batch) }?))
            });
            let statements: Vec<_> = statements.collect();
            let rates = scale.clients.iter().map(|&clients| {
                let rates = Comparison::measure(scale.rounds, statements.clone(), |statement| {
                    [pgbench::run(server, statement, clients, scale.seconds).rate * batch as f64 / 1e6]
                });
                (clients, rates)
            });
            let rates: Vec<_> = rates.collect();
            for (clients, rates) in rates.iter().filter(|(clients, _)| batch > 1 && *clients <= MAX_CLIENTS) {
                let [[noop], [nextval], [judged]] = [NOOP, NEXTVAL, next].map(|name| rates.of(name));
                let load = format!("clients: {clients}, {batch} ids per statement");
                section.at_most(max_of_noop, format!("{next} / {NOOP} (time per id, {load})"), noop / judged);
                section.at_least(2.0, format!("{next} / {NEXTVAL} (ids per second, {load})"), judged / nextval);
            }
            section.add(Table::new(
                format!("Million ids per second, {batch} per statement"),
                format!(
                    "pgbench, prepared statements, {} s each. pgbench runs on the same cores. Every statement is a \
                     transaction. One that writes WAL waits until it is flushed. {note}",
                    scale.seconds
                ),
                scale.clients.iter().map(|clients| format!("clients: {clients}")),
                rows_of_all(rates.iter().map(|(_, rates)| rates)),
            ));
        }
    }
}

const BIGSERIAL: &str = "bigserial";
const MB: f64 = 1e6;

/// A key column: its name in the report, and its definition.
pub type Key = (&'static str, &'static str);

/// Measures an INSERT of many rows for each key, and judges the keys in `judged`.
pub fn inserts(server: &Server, scale: &Scale, keys: Vec<Key>, judged: &[&str], section: &mut Section) {
    let mut client = server.client();
    let known = [(BIGSERIAL, "bigserial"), ("bigint, nextval CACHE 32", "bigint DEFAULT nextval('seq_32')")];
    let costs = Comparison::measure(scale.rounds, known.into_iter().chain(keys), |column| {
        insert(&mut client, column, scale.rows)
    });
    let [bigserial, ..] = costs.of(BIGSERIAL);
    for name in judged {
        section.at_most(1.0, format!("{name} / {BIGSERIAL} (time of INSERT)"), &costs.of(name)[0] / bigserial);
    }
    section.add(Table::new(
        format!("{} rows in one INSERT", scale.rows),
        "Into a new table of the key and an int, after a checkpoint. The time includes the commit.",
        ["s", "times bigserial", "table MB", "index MB", "WAL MB"],
        costs.rows(|[time, sizes @ ..]| [vec![time.clone(), time / bigserial], sizes.to_vec()].concat()),
    ));
}

/// Seconds, and megabytes of table, index and WAL.
fn insert(client: &mut Client, column: &str, rows: u64) -> [f64; 4] {
    execute(client, &format!("CREATE TABLE inserted (id {column} PRIMARY KEY, n int)"));
    execute(client, "CHECKPOINT");
    let statement = format!("INSERT INTO inserted (n) SELECT n FROM generate_series(1, {rows}) AS n");
    let (time, wal) = wal_bytes(client, |client| seconds(client, &statement));
    let sizes = row(client, "SELECT pg_table_size('inserted')::float8, pg_indexes_size('inserted')::float8");
    let (table, index): (f64, f64) = (sizes.get(0), sizes.get(1));
    execute(client, "DROP TABLE inserted");
    [time, table / MB, index / MB, wal / MB]
}

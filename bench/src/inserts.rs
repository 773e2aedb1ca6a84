//! Many rows in one INSERT, keyed by each.

use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::{Server, seconds, wal_bytes};
use idgen_testkit::sql::{execute, row};
use postgres::Client;

const MB: f64 = 1e6;

/// A column that is the key, as its table is made with it.
pub struct Key {
    pub name: &'static str,
    pub column: &'static str,
}

const BIGSERIAL: &str = "bigserial";

/// What one INSERT took.
struct Cost {
    seconds: f64,
    table_mb: f64,
    index_mb: f64,
    wal_mb: f64,
}

/// Of each key, round by round.
pub struct Inserts {
    keys: Vec<Key>,
    rows: u64,
    costs: Vec<Vec<Cost>>,
}

impl Inserts {
    pub fn measure(server: &Server, scale: &Scale, others: impl IntoIterator<Item = Key>) -> Self {
        let mut client = server.client();
        let mut keys = vec![
            Key { name: BIGSERIAL, column: "bigserial" },
            Key { name: "bigint, nextval CACHE 32", column: "bigint DEFAULT nextval('seq_32')" },
        ];
        keys.extend(others);
        let costs = rounds(scale.rounds, &keys, |key| insert(&mut client, key, scale.rows));
        Self { keys, rows: scale.rows, costs }
    }

    /// What the design asks of a key: no more time than bigserial.
    pub fn figure(&self, name: &str) -> Figure {
        let what = format!("time of INSERT with {name}, to {BIGSERIAL}'s");
        let index = self.keys.iter().position(|key| key.name == name).expect("it is among the keys");
        Figure::at_most(1.0, what, self.of(index, |cost| cost.seconds).over(&self.bigserial()))
    }

    pub fn table(&self) -> Table {
        let row = |(index, key): (usize, &Key)| {
            let seconds = self.of(index, |cost| cost.seconds);
            let ratio = seconds.over(&self.bigserial());
            let sizes = [
                self.of(index, |cost| cost.table_mb),
                self.of(index, |cost| cost.index_mb),
                self.of(index, |cost| cost.wal_mb),
            ];
            Row { name: key.name.into(), cells: [seconds, ratio].into_iter().chain(sizes).collect() }
        };
        Table {
            title: format!("{} rows in one INSERT", self.rows),
            how: "Into a fresh table of the key and an int, after a checkpoint; the time has the commit in it.".into(),
            columns: ["s", "times bigserial", "table MB", "index MB", "WAL MB"].map(str::to_owned).into(),
            rows: self.keys.iter().enumerate().map(row).collect(),
        }
    }

    fn bigserial(&self) -> Samples {
        self.of(0, |cost| cost.seconds)
    }

    fn of(&self, index: usize, part: fn(&Cost) -> f64) -> Samples {
        Samples::new(self.costs[index].iter().map(part))
    }
}

fn insert(client: &mut Client, key: &Key, rows: u64) -> Cost {
    execute(client, &format!("CREATE TABLE inserted (id {} PRIMARY KEY, n int)", key.column));
    execute(client, "CHECKPOINT");
    let statement = format!("INSERT INTO inserted (n) SELECT n FROM generate_series(1, {rows}) AS n");
    let mut time = 0.0;
    let wal = wal_bytes(client, |client| time = seconds(client, &statement));
    let sizes = row(client, "SELECT pg_table_size('inserted')::float8, pg_indexes_size('inserted')::float8");
    let (table, index): (f64, f64) = (sizes.get(0), sizes.get(1));
    execute(client, "DROP TABLE inserted");
    Cost { seconds: time, table_mb: table / MB, index_mb: index / MB, wal_mb: wal / MB }
}

//! Many rows in one INSERT, keyed by each.

use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::{Server, seconds, wal_bytes};
use idgen_cluster_tests::sql::{execute, row};
use postgres::Client;

const MB: f64 = 1e6;

struct Key {
    name: &'static str,
    column: &'static str,
}

const BIGSERIAL: &str = "bigserial";
const SNOWFLAKE: &str = "snowflake_next, `snowflake`";
const SECONDS: &str = "snowflake_next, `seconds`";

/// What one INSERT took.
struct Cost {
    seconds: f64,
    table_mb: f64,
    index_mb: f64,
    wal_mb: f64,
}

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let mut client = server.client();
    let keys = keys(server);
    let measured = rounds(scale.rounds, &keys, |key| insert(&mut client, key, scale.rows));

    let seconds: Vec<_> = measured.iter().map(|costs| samples(costs, |cost| cost.seconds)).collect();
    let time_of = |name: &str| {
        let index = keys.iter().position(|key| key.name == name).expect("it is among the keys");
        &seconds[index]
    };
    let bigserial = time_of(BIGSERIAL);
    let row = |((key, costs), seconds): ((&Key, &Vec<Cost>), &Samples)| {
        let of = |part: fn(&Cost) -> f64| samples(costs, part);
        let sizes = [of(|cost| cost.table_mb), of(|cost| cost.index_mb), of(|cost| cost.wal_mb)];
        let cells = [seconds.clone(), seconds.over(bigserial)].into_iter().chain(sizes).collect();
        Row { name: key.name.into(), cells }
    };
    let table = Table {
        title: format!("{} rows in one INSERT", scale.rows),
        how: "Into a fresh table of the key and an int, after a checkpoint; the time has the commit in it.".into(),
        columns: ["s", "times bigserial", "table MB", "index MB", "WAL MB"].map(str::to_owned).into(),
        rows: keys.iter().zip(&measured).zip(&seconds).map(row).collect(),
    };
    let figure = |name| {
        let what = format!("time of INSERT with {name}, to bigserial's");
        Figure::at_most(1.0, what, time_of(name).over(bigserial))
    };
    (vec![figure(SNOWFLAKE), figure(SECONDS)], vec![table])
}

fn keys(server: &Server) -> Vec<Key> {
    let key = |name, column| Key { name, column };
    let mut keys = vec![
        key(BIGSERIAL, "bigserial"),
        key("bigint, nextval CACHE 32", "bigint DEFAULT nextval('seq_32')"),
        key(SNOWFLAKE, "bigint DEFAULT snowflake_next()"),
        key(SECONDS, "bigint DEFAULT snowflake_next('seconds')"),
        key("PL/pgSQL over a sequence", "bigint DEFAULT plpgsql_next()"),
        key("gen_random_uuid", "uuid DEFAULT gen_random_uuid()"),
    ];
    keys.extend(server.has_function("uuidv7").then_some(key("uuidv7", "uuid DEFAULT uuidv7()")));
    keys
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

fn samples(costs: &[Cost], part: impl Fn(&Cost) -> f64) -> Samples {
    Samples::new(costs.iter().map(part))
}

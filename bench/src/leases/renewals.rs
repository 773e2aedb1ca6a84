//! Making terms last: one lease in a transaction, and many.

use super::CLIENTS;
use crate::pgbench::run;
use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::{Server, wal_bytes};
use idgen_testkit::sql::column;
use postgres::Client;
use std::time::Instant;

const LIVE: usize = 10_000;
const BATCH: usize = 100;

#[derive(Clone, Copy)]
enum How {
    OneByOne(u32),
    Batches,
}

/// The leases that are renewed.
struct Live {
    names: Vec<String>,
    tokens: Vec<i64>,
}

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let mut client = server.client();
    let live = Live::acquire(&mut client);
    let hows = [How::OneByOne(CLIENTS[0]), How::OneByOne(CLIENTS[1]), How::Batches];
    // The first change of a page after a checkpoint writes the whole page.
    live.renew_in_batches(&mut client);
    let measured = rounds(2 * scale.rounds, &hows, |how| {
        let (mut rate, mut count) = (0.0, 0.0);
        let wal = wal_bytes(&mut client, |client| {
            (rate, count) = match how {
                How::OneByOne(clients) => live.renew_one_by_one(server, *clients, scale.seconds),
                How::Batches => live.renew_in_batches(client),
            }
        });
        [rate, wal / count]
    });
    live.release(&mut client);

    let name = |how: &How| match how {
        How::OneByOne(clients) => format!("lease_renew, clients: {clients}"),
        How::Batches => format!("lease_renew_many, {BATCH} of {LIVE} at a time, clients: 1"),
    };
    let row = |(how, rounds): (&How, &Vec<[f64; 2]>)| {
        let part = |index: usize| Samples::new(rounds.iter().map(|parts| parts[index]));
        Row { name: name(how), cells: vec![part(0), part(1)] }
    };
    let table = Table {
        title: "Renewals".into(),
        how: format!(
            "{LIVE} leases are held. One by one: pgbench, prepared statements, {} s, each client its own lease. In batches: \
             one client renews all of them once, a prepared statement for each batch. Each statement is a transaction, whose \
             WAL is synced before it answers.",
            scale.seconds
        ),
        columns: ["renewals a second", "WAL bytes a renewal"].map(str::to_owned).into(),
        rows: hows.iter().zip(&measured).map(row).collect(),
    };
    (Vec::new(), vec![table])
}

impl Live {
    /// They outlast the measurement without being renewed.
    fn acquire(client: &mut Client) -> Self {
        let names: Vec<String> = (0..LIVE).map(|i| format!("live:{i}")).collect();
        let acquire =
            format!("SELECT (lease_acquire('live:' || i, '1 hour')).token FROM generate_series(0, {LIVE} - 1) AS i");
        Self { names, tokens: column(client, &acquire) }
    }

    /// How many a second, and how many in all.
    fn renew_one_by_one(&self, server: &Server, clients: u32, seconds: u32) -> (f64, f64) {
        let tokens: Vec<String> = self.tokens[..clients as usize].iter().map(i64::to_string).collect();
        let token = format!("('{{{}}}'::bigint[])[:client_id::int + 1]", tokens.join(","));
        let ran = run(server, &format!("SELECT lease_renew('live:' || :client_id::text, {token})"), clients, seconds);
        (ran.rate, ran.count)
    }

    fn renew_in_batches(&self, client: &mut Client) -> (f64, f64) {
        let statement = client.prepare("SELECT * FROM lease_renew_many($1, $2)").expect("it can be prepared");
        let began = Instant::now();
        for (names, tokens) in self.names.chunks(BATCH).zip(self.tokens.chunks(BATCH)) {
            let renewed = client.query(&statement, &[&names, &tokens]).expect("they are held");
            assert_eq!(renewed.len(), BATCH, "all are held");
        }
        (LIVE as f64 / began.elapsed().as_secs_f64(), LIVE as f64)
    }

    fn release(self, client: &mut Client) {
        let release = "SELECT lease_release(name, token) FROM unnest($1::text[], $2::bigint[]) AS live (name, token)";
        client.execute(release, &[&self.names, &self.tokens]).expect("they are held");
    }
}

//! UUIDs of version 7 on real servers: crashes, clock steps, worker ids, and a random source that fails. They have the
//! generator of the ids of their layout.

use postgres::{Client, Row};

mod modes;
mod random;

/// What draws UUIDs into an array, by single calls and in batches. `$n` stands for their number.
const WAYS: [&str; 4] = [
    "SELECT array_agg(uuid_send(uuidv7_next())) FROM generate_series(1, $n)",
    "SELECT array_agg(uuid_send(id)) FROM uuidv7_next_many($n) AS id",
    "SELECT array_agg(uuid_send(uuidv7_next(node => true))) FROM generate_series(1, $n)",
    "SELECT array_agg(uuid_send(id)) FROM uuidv7_next_many($n, node => true) AS id",
];

/// The numbers that sort as the UUIDs of such a row do.
fn uuids(row: &Row) -> Vec<u128> {
    let bytes: Vec<Vec<u8>> = row.get(0);
    bytes.iter().map(|bytes| u128::from_be_bytes(bytes[..].try_into().expect("16 bytes"))).collect()
}

/// Draws so many UUIDs, one of [`WAYS`].
fn draw(client: &mut Client, way: &str, count: usize) -> Vec<u128> {
    let sql = way.replace("$n", &count.to_string());
    let drawn = uuids(&idgen_testkit::sql::row(client, &sql));
    assert_eq!(drawn.len(), count);
    drawn
}

/// The bits that a UUID has after its sequence number.
fn random_bits(uuid: u128) -> u64 {
    uuid as u64 & ((1 << 54) - 1)
}

//! Public ids while keys are added and the server crashes: a text decodes to its id and to nothing else.

use std::sync::Mutex;

use idgen_sim::history::texts::{self, Op};
use idgen_testkit::recorder::is_lost;
use idgen_testkit::{Cluster, rounds};
use postgres::error::SqlState;
use postgres::{Client, Error};

use crate::storm::{Fault, Storm, repeat};

const BATCH: i64 = 200;

const FAULTS: [Fault; 4] = [Fault::Terminate, Fault::KillBackend, Fault::KillPostmaster, Fault::Immediate];

/// Ids and the texts that an expression makes of them.
pub fn encode(client: &mut Client, expression: &str) -> Result<Vec<(i64, String)>, Error> {
    let first = fastrand::i64(0..i64::MAX - BATCH);
    let sql = format!("SELECT id, {expression} FROM generate_series({first}::bigint, {first} + {BATCH} - 1) AS id");
    Ok(client.query(&sql, &[])?.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Decodes the texts by an expression, and each with one character changed.
pub fn read(client: &mut Client, made: Vec<(i64, String)>, expression: &str) -> Result<Vec<Op>, Error> {
    let changed = made.iter().map(|(_, text)| changed(text));
    let texts: Vec<String> = made.iter().map(|(_, text)| text.clone()).chain(changed).collect();
    let decoded = client.query(&format!("SELECT text, {expression} FROM unnest($1::text[]) AS text"), &[&texts])?;
    let decoded = decoded.iter().map(|row| Op::Decode { text: row.get(0), id: row.get(1) });
    Ok(made.into_iter().map(|(id, text)| Op::Encode { id, text }).chain(decoded).collect())
}

fn batch(client: &mut Client, ops: &Mutex<Vec<Op>>) -> Result<(), Error> {
    let made = encode(client, "public_id('p', id)")?;
    if fastrand::u8(..50) == 0 {
        client.batch_execute("SELECT public_id_rotate('p')")?;
    }
    let read = read(client, made, "public_id_try_decode('p', text)")?;
    ops.lock().expect("no thread panics with the lock").extend(read);
    Ok(())
}

pub fn take_part(storm: &Storm, ops: &Mutex<Vec<Op>>) {
    while let Some(mut session) = storm.connect("postgres") {
        while storm.goes_on() {
            if let Err(error) = batch(&mut session.client, ops) {
                assert!(is_lost(&error) || error.code() == Some(&SqlState::QUERY_CANCELED), "{error:?}");
                break;
            }
        }
        storm.forget(session.pid);
    }
}

/// Another text, of the same length and with the same prefix.
fn changed(text: &str) -> String {
    let at = fastrand::usize("p_".len()..text.len());
    let other = if &text[at..=at] == "a" { "b" } else { "a" };
    format!("{}{other}{}", &text[..at], &text[at + 1..])
}

#[test]
fn public_ids_decode_to_their_ids_and_nothing_else_does() {
    let cluster = Cluster::builder().start_with_extension();
    cluster.execute("SELECT public_id_define('p', 'long')");
    let (ops, storm) = (Mutex::new(Vec::new()), Storm::new(&cluster));
    let count = || ops.lock().expect("no thread panics with the lock").len();
    storm.run(4, |_| take_part(&storm, &ops), count, rounds(20_000, 1_000_000), &repeat(&FAULTS, rounds(4, 40)));
    let verdict = texts::judge(&ops.into_inner().expect("no thread panicked with the lock"));
    println!("public ids: {verdict}");
    verdict.assert_clean("public ids");
}

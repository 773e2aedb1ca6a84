//! Texts that stand for ids: without a key, and under the keys of two databases.

use idgen_sim::history::Verdict;
use idgen_sim::history::texts::{self, Op};
use idgen_testkit::{Cluster, rounds};
use postgres::Client;

use crate::public_ids::{encode, read};

const ENCODE: &str = "public_id('p', id)";
const DECODE: &str = "public_id_try_decode('p', text)";

/// Texts that one client makes and another one reads.
fn texts(maker: &mut Client, make: &str, reader: &mut Client, decode: &str) -> Verdict {
    let mut ops: Vec<Op> = Vec::new();
    while ops.len() < rounds(2_000, 100_000) {
        let made = encode(maker, make).expect("the server runs");
        ops.extend(read(reader, made, decode).expect("the server runs"));
    }
    texts::judge(&ops)
}

/// Each database draws a key of its own, unless it is restored with that of the other one.
#[test]
fn judge_finds_that_another_database_with_a_key_of_its_own_decodes_nothing() {
    let cluster = Cluster::builder().start_with_extension();
    cluster.execute("CREATE DATABASE other");
    let [mut maker, mut reader] = ["postgres", "other"].map(|database| cluster.client_in(database));
    reader.batch_execute("CREATE EXTENSION idgen").expect("it is installed");
    for client in [&mut maker, &mut reader] {
        client.batch_execute("SELECT public_id_define('p', 'long')").expect("it is not defined");
    }
    texts(&mut maker, ENCODE, &mut cluster.client(), DECODE).assert_clean("the same key");
    let verdict = texts(&mut maker, ENCODE, &mut reader, DECODE);
    println!("two keys: {verdict}");
    assert!(verdict.count(texts::LOST) > 0);
    assert_eq!(verdict.violations(), verdict.count(texts::LOST), "{verdict}");
}

/// The id in base 16.
#[test]
fn judge_finds_that_texts_without_a_key_can_be_forged() {
    let cluster = Cluster::builder().start();
    let [mut maker, mut reader] = [cluster.client(), cluster.client()];
    let (make, decode) = ("'p_' || lpad(to_hex(id), 16, '0')", "('x' || substr(text, 3))::bit(64)::bigint");
    let verdict = texts(&mut maker, make, &mut reader, decode);
    println!("base 16 without a key: {verdict}");
    assert!(verdict.count(texts::FORGED) > 0);
    assert_eq!(verdict.violations(), verdict.count(texts::FORGED), "{verdict}");
}

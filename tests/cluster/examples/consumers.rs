//! Consumers: one that polls a table, and one that handles each message once.

use std::collections::BTreeMap;

use idgen_testkit::sql::{PATIENCE, column, execute, ids, value, wait_for_event};
use idgen_testkit::{Cluster, Example};
use postgres::Client;

use crate::{create_tables, finish, run_python, server, start};

const DAY_MS: i64 = 86_400_000;
const COPIED: &str = "SELECT id FROM event_copy WHERE consumer = 'mailer' ORDER BY id";
const WRITTEN: &str = "SELECT id FROM event ORDER BY id";

fn start_polling(cluster: &Cluster) -> Example {
    start(cluster, "polling_consumer.py", &["mailer"])
}

/// Waits until the consumer has begun and ended a whole poll from now on.
fn wait_for_a_poll(cluster: &Cluster, client: &mut Client) {
    let now: String = value(client, "SELECT clock_timestamp()::text");
    let mut ends = Vec::<String>::new();
    let sql = format!(
        "SELECT query_start::text FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND query = 'COMMIT' AND state = 'idle' AND query_start > '{now}'"
    );
    cluster.wait_for(PATIENCE, "a poll", || {
        ends.extend(column::<String>(client, &sql));
        ends.dedup();
        ends.len() >= 2
    });
}

#[test]
fn polling_consumer_reads_a_row_that_commits_after_a_later_one() {
    let cluster = server();
    let mut client = cluster.client();
    create_tables(&mut client, "polling_consumer.py");
    let _consumer = start_polling(&cluster);
    let mut late = cluster.client();
    execute(&mut late, "BEGIN; INSERT INTO event (body) VALUES ('late')");
    execute(&mut client, "INSERT INTO event (body) VALUES ('early')");
    wait_for_a_poll(&cluster, &mut client);
    execute(&mut late, "COMMIT");
    cluster.wait_for(PATIENCE, "both rows to be read", || ids(&mut client, COPIED) == ids(&mut client, WRITTEN));
    let order: Vec<String> = column(&mut client, "SELECT body FROM event_copy");
    assert_eq!(order, ["late", "early"]);
}

fn start_handling(cluster: &Cluster, messages: &[String]) -> Example {
    let mut consumer = start(cluster, "idempotent_consumer.py", &["billing"]);
    messages.iter().for_each(|line| consumer.send(line));
    consumer
}

fn messages(message_ids: &[i64]) -> Vec<String> {
    message_ids.iter().map(|id| message_line(*id, 7)).collect()
}

fn message_line(id: i64, account: i64) -> String {
    format!("{{\"id\": \"{id}\", \"account\": {account}, \"amount\": 5}}")
}

/// A server with the tables of the idempotent consumer, and the account of the messages.
fn server_with_account() -> (Cluster, Client) {
    let cluster = server();
    let mut client = cluster.client();
    create_tables(&mut client, "idempotent_consumer.py");
    execute(&mut client, "INSERT INTO account VALUES (7, 0)");
    (cluster, client)
}

fn balance(client: &mut Client) -> i64 {
    value(client, "SELECT balance::bigint FROM account")
}

#[test]
fn idempotent_consumer_waits_for_the_delivery_that_is_being_handled() {
    let (cluster, mut client) = server_with_account();
    for (end, outcome) in [("COMMIT", "repeated"), ("ROLLBACK", "handled")] {
        let id: i64 = value(&mut client, "SELECT snowflake_next()");
        execute(&mut client, &format!("BEGIN; INSERT INTO message_handled VALUES ('billing', {id})"));
        let program = start_handling(&cluster, &messages(&[id]));
        let mut other = cluster.client();
        let waiting = "SELECT pid FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'";
        let mut waiters: Vec<i32> = Vec::new();
        cluster.wait_for(PATIENCE, "the second delivery to wait", || {
            waiters = column(&mut other, waiting);
            !waiters.is_empty()
        });
        wait_for_event(&cluster, waiters[0], "transactionid");
        execute(&mut client, end);
        assert_eq!(finish(program, &cluster), [format!("{outcome} {id}")]);
    }
    assert_eq!(balance(&mut client), 5);
}

#[test]
fn idempotent_consumer_that_is_cut_off_leaves_the_message_to_the_next_delivery() {
    let (cluster, mut client) = server_with_account();
    let id: i64 = value(&mut client, "SELECT snowflake_next()");
    let handle = || start_handling(&cluster, &messages(&[id]));
    execute(&mut client, "BEGIN; UPDATE account SET balance = 0");
    let mut cut = handle();
    let mut other = cluster.client();
    let end = "SELECT count(pg_terminate_backend(pid)) = 1 FROM pg_locks
               WHERE NOT granted AND locktype IN ('transactionid', 'tuple')";
    cluster.wait_for(PATIENCE, "the consumer to wait for the account", || value(&mut other, end));
    cluster.wait_for(PATIENCE, "the consumer to fail", || cut.has_exited());
    execute(&mut client, "COMMIT");
    assert_eq!(finish(handle(), &cluster), [format!("handled {id}")]);
    assert_eq!(balance(&mut client), 5);
}

#[test]
fn idempotent_consumer_refuses_what_it_may_have_forgotten() {
    let (cluster, mut client) = server_with_account();
    let ages = "unnest(ARRAY[29, 30, 31, 32]) WITH ORDINALITY AS days(days, n)";
    let made = "snowflake_make(now() - days * interval '1 day' - interval '1 minute', 1023, 0, 'snowflake')";
    let message_ids = ids(&mut client, &format!("SELECT {made} FROM {ages} ORDER BY n"));
    for id in &message_ids {
        execute(&mut client, &format!("INSERT INTO message_handled VALUES ('billing', {id}), ('other', {id})"));
    }
    let lines = finish(start_handling(&cluster, &messages(&message_ids)), &cluster);
    let outcomes: BTreeMap<&str, &str> = lines
        .iter()
        .map(|line| line.rsplit_once(' ').expect("an outcome and an id"))
        .map(|(what, id)| (id, what))
        .collect();
    for (id, outcome) in message_ids.iter().zip(["repeated", "too old", "too old", "too old"]) {
        assert_eq!(outcomes[&*id.to_string()], outcome, "{id}");
    }
    let kept = ids(&mut client, "SELECT message_id FROM message_handled WHERE consumer = 'billing' ORDER BY 1 DESC");
    assert_eq!(kept, message_ids[..1]);
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM message_handled WHERE consumer = 'other'"), 4);
}

#[test]
fn idempotent_consumer_handles_no_message_twice_over_a_step_of_the_clock() {
    let cluster = Cluster::builder().conf("fsync", "off").fake_clock().start_with_extension();
    let mut client = cluster.client();
    create_tables(&mut client, "idempotent_consumer.py");
    execute(&mut client, "INSERT INTO account VALUES (7, 0)");
    let id: i64 = value(&mut client, "SELECT snowflake_make(now() - interval '20 days', 1023, 0, 'snowflake')");
    let deliver = || finish(start_handling(&cluster, &messages(&[id])), &cluster);
    assert_eq!(deliver(), [format!("handled {id}")]);
    cluster.clock().set_offset_ms(31 * DAY_MS);
    // Forgets, and so may any consumer.
    assert_eq!(finish(start_handling(&cluster, &[]), &cluster), [""; 0]);
    for offset_ms in [31 * DAY_MS, 0] {
        cluster.clock().set_offset_ms(offset_ms);
        assert_eq!(deliver(), [format!("too old {id}")]);
    }
    assert_eq!(balance(&mut client), 5);
}

#[test]
fn idempotent_consumer_reports_a_message_that_it_could_not_handle() {
    let (cluster, mut client) = server_with_account();
    let message_ids = ids(&mut client, "SELECT snowflake_next_many(2)");
    let unknown = message_line(message_ids[0], 8);
    let known = message_line(message_ids[1], 7);
    let lines = finish(start_handling(&cluster, &[unknown, known]), &cluster);
    assert_eq!(lines, [format!("failed {}", message_ids[0]), format!("handled {}", message_ids[1])]);
    assert_eq!(ids(&mut client, "SELECT message_id FROM message_handled"), message_ids[1..]);
    // The queue delivers it again.
    execute(&mut client, "INSERT INTO account VALUES (8, 0)");
    let again = finish(start_handling(&cluster, &[message_line(message_ids[0], 8)]), &cluster);
    assert_eq!(again, [format!("handled {}", message_ids[0])]);
}

#[test]
fn idempotent_consumer_keeps_amounts_exact() {
    let (cluster, mut client) = server_with_account();
    execute(&mut client, "UPDATE account SET balance = 12345678901234567.89");
    let message_ids = ids(&mut client, "SELECT snowflake_next_many(2)");
    let amounts = message_ids.iter().zip(["0.1", "NaN"]);
    let lines: Vec<String> = amounts
        .map(|(id, amount)| message_line(*id, 7).replace("\"amount\": 5", &format!("\"amount\": {amount}")))
        .collect();
    let answers = finish(start_handling(&cluster, &lines), &cluster);
    assert_eq!(answers, [format!("handled {}", message_ids[0]), format!("failed {}", message_ids[1])]);
    assert_eq!(value::<String>(&mut client, "SELECT balance::text FROM account"), "12345678901234567.99");
}

/// A row whose last change is not settled, and one that was deleted and is there again, do not wait for an open transaction.
#[test]
fn search_index_shows_rows_whose_last_change_is_not_settled() {
    let cluster = server();
    create_tables(&mut cluster.client(), "search_index.py");
    let lines = "
import psycopg, search_index, sys, tempfile
file = tempfile.mkdtemp() + '/products.db'
db, other = [psycopg.connect(sys.argv[1], autocommit=True) for _ in range(2)]
db.execute(\"INSERT INTO product (id, title) VALUES (-1, 'old'), (1, 'old'), (2, 'old'), (3, 'old')\")
search_index.build(db, file)
index = search_index.open_index(file)
titles = lambda: dict(index.execute('SELECT rowid, title FROM product').fetchall())
assert titles() == {-1: 'old', 1: 'old', 2: 'old', 3: 'old'}
db.execute('DELETE FROM product WHERE id > 1')
other.execute('BEGIN')
other.execute('SELECT snowflake_next()')
db.execute(\"INSERT INTO product (id, title) VALUES (2, 'new')\")
db.execute(\"UPDATE product SET title = 'new' WHERE id = 1\")
assert search_index.follow(db, index) > 0
first = search_index.position(index)
assert titles() == {-1: 'old', 1: 'new', 2: 'new'}
assert search_index.follow(db, index) == 0
assert search_index.position(index) == first
other.execute('COMMIT')
assert search_index.follow(db, index) > 0
assert titles() == {-1: 'old', 1: 'new', 2: 'new'}
print('in step')";
    assert_eq!(run_python(&cluster, "search_index.py", lines), "in step\n");
}

/// SQLite keeps what a write has changed in a file beside the index, by its name, until the write has ended.
#[test]
fn search_index_takes_nothing_from_the_one_that_it_replaces() {
    let cluster = server();
    create_tables(&mut cluster.client(), "search_index.py");
    let lines = "
import os, psycopg, search_index, sys, tempfile
file = tempfile.mkdtemp() + '/products.db'
db = psycopg.connect(sys.argv[1], autocommit=True)
titles = lambda index: dict(index.execute('SELECT rowid, title FROM product').fetchall())
db.execute(\"INSERT INTO product (id, title) VALUES (1, 'old')\")
search_index.build(db, file)
# killed in a write, after which the index is removed
child = os.fork()
if child == 0:
    index = search_index.open_index(file)
    index.execute('PRAGMA cache_size = 1')
    index.execute('BEGIN IMMEDIATE')
    index.executemany('INSERT INTO product (rowid, title) VALUES (?, ?)', [(n, 'x' * 9000) for n in range(2, 999)])
    os._exit(os.path.getsize(file + '-journal') == 0)
assert os.waitpid(child, 0)[1] == 0
os.remove(file)
assert not search_index.is_whole(file)
db.execute(\"UPDATE product SET title = 'new'\")
search_index.build(db, file)
assert search_index.is_whole(file)
searcher = search_index.open_index(file)
assert titles(searcher) == {1: 'new'}
# a connection that was open before sees the new index
db.execute(\"UPDATE product SET title = 'newer'\")
search_index.build(db, file)
assert titles(searcher) == {1: 'newer'}
assert os.listdir(os.path.dirname(file)) == ['products.db']
print('in step')";
    assert_eq!(run_python(&cluster, "search_index.py", lines), "in step\n");
}

//! A participant in transactions over several services: try, confirm, cancel.

use std::thread;

use idgen_testkit::Cluster;
use idgen_testkit::script::play;
use idgen_testkit::sql::{execute, expect_error, ids, row, value};
use postgres::Client;

use crate::{read, server, shuffled};

fn with_participant() -> (Cluster, Client) {
    let cluster = server();
    let client = participant(&cluster);
    (cluster, client)
}

fn participant(cluster: &Cluster) -> Client {
    let mut client = cluster.client();
    execute(&mut client, &read("sql/tcc.sql"));
    execute(&mut client, "INSERT INTO account VALUES (7, 1000000)");
    client
}

fn balance(client: &mut Client) -> i64 {
    value(client, "SELECT balance::bigint FROM account")
}

#[test]
fn tcc_cancel_without_a_try_refuses_the_late_try() {
    let (cluster, _client) = with_participant();
    play(
        &cluster,
        "client: SELECT snowflake_next() -> $id
        -- The try comes while the cancel is still running, and waits for it.
        client: BEGIN; SELECT tcc_cancel($id, 'pay')
        late waits for transactionid: SELECT tcc_try($id, 'pay', 7, 100)
        client: COMMIT
        late ends -> error 55000
        client: SELECT tcc_cancel($id, 'pay')
        client: SELECT tcc_try($id, 'pay', 7, 100) -> error 55000
        client: SELECT tcc_confirm($id, 'pay') -> error 55000
        client: SELECT balance FROM account -> 1000000
        -- A cancel waits for the try, and gives back what that took. Another step of the transaction is not concerned.
        client: SELECT snowflake_next() -> $id > $id
        client: SELECT tcc_try($id, 'fee', 7, 1)
        client: BEGIN; SELECT tcc_try($id, 'pay', 7, 100)
        late waits for transactionid: SELECT tcc_cancel($id, 'pay')
        client: COMMIT
        late ends
        client: SELECT balance FROM account -> 999999
        -- A deletion that commits while a try waits for it.
        client: SELECT snowflake_make(now() - interval '20 days', 1023, 0, 'snowflake') -> $old
        client: SELECT tcc_cancel($old, 'pay'); BEGIN; SELECT tcc_forget('10 days')
        late waits for transactionid: SELECT tcc_try($old, 'pay', 7, 100)
        client: COMMIT
        late ends -> error 55000
        client: SELECT balance FROM account -> 999999",
    );
}

#[test]
fn tcc_refuses_wrong_order_and_old_transactions() {
    let (_cluster, mut client) = with_participant();
    let id: i64 = value(&mut client, "SELECT snowflake_next()");
    expect_error(&mut client, &format!("SELECT tcc_confirm({id}, 'pay')"), "55000");
    expect_error(&mut client, &format!("SELECT tcc_try({id}, 'pay', 7, 1000001)"), "23514");
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM tcc_step"), 0, "a try that fails leaves no row");
    expect_error(&mut client, &format!("SELECT tcc_try({id}, 'pay', 8, 1)"), "23503");
    for call in [
        "tcc_try({id}, 'pay', 7, 100)",
        "tcc_confirm({id}, 'pay')",
        "tcc_confirm({id}, 'pay')",
        "tcc_try({id}, 'pay', 7, 100)",
    ] {
        execute(&mut client, &format!("SELECT {}", call.replace("{id}", &id.to_string())));
        assert_eq!(balance(&mut client), 999_900, "{call}");
    }
    expect_error(&mut client, &format!("SELECT tcc_cancel({id}, 'pay')"), "55000");
    assert_eq!(balance(&mut client), 999_900);
    // Wrong amounts, and another one the second time.
    let id = id + 1;
    for (arguments, code) in [("7, -1", "23514"), ("7, 'NaN'", "23514"), ("NULL, 1", "23514"), ("7, NULL", "23514")] {
        expect_error(&mut client, &format!("SELECT tcc_try({id}, 'pay', {arguments})"), code);
    }
    execute(&mut client, &format!("SELECT tcc_try({id}, 'pay', 7, 1)"));
    expect_error(&mut client, &format!("SELECT tcc_try({id}, 'pay', 7, 2)"), "22023");
    assert_eq!(balance(&mut client), 999_899);
    let repeatable_read = "BEGIN ISOLATION LEVEL REPEATABLE READ";
    for call in ["tcc_try({id}, 'fee', 7, 1)", "tcc_cancel({id}, 'fee')"] {
        let call = format!("SELECT {}", call.replace("{id}", &id.to_string()));
        expect_error(&mut client, &format!("{repeatable_read}; {call}; COMMIT"), "25001");
        execute(&mut client, "ROLLBACK");
    }
}

/// A step that was cancelled and one that is still tried, and then a clock that was a month ahead for a while.
#[test]
fn tcc_refuses_forgotten_transactions_whatever_the_clock_says() {
    let cluster = Cluster::builder().conf("fsync", "off").fake_clock().start_with_extension();
    let mut client = participant(&cluster);
    let made =
        "SELECT snowflake_make(now() - interval '20 days', 1023, n, 'snowflake') FROM generate_series(1, 3) AS n";
    let [cancelled, tried, unknown] = ids(&mut client, made)[..] else { panic!("three ids") };
    execute(&mut client, &format!("SELECT tcc_cancel({cancelled}, 'pay'), tcc_try({tried}, 'pay', 7, 100)"));
    let steps = "SELECT transaction_id FROM tcc_step ORDER BY 1";
    execute(&mut client, "SELECT tcc_forget('30 days')");
    assert_eq!(ids(&mut client, steps), [cancelled, tried]);
    cluster.clock().set_offset_ms(31 * 86_400_000);
    execute(&mut client, "SELECT tcc_forget('30 days')");
    assert_eq!(ids(&mut client, steps), [tried]);
    for offset_ms in [31 * 86_400_000, 0] {
        cluster.clock().set_offset_ms(offset_ms);
        for id in [cancelled, unknown] {
            for call in ["tcc_try({id}, 'pay', 7, 100)", "tcc_confirm({id}, 'pay')", "tcc_cancel({id}, 'pay')"] {
                let error =
                    expect_error(&mut client, &format!("SELECT {}", call.replace("{id}", &id.to_string())), "55000");
                assert_eq!(error.message(), format!("transaction {id} is too old"));
            }
        }
    }
    // The bound does not fall, and what is tried can still be ended.
    execute(&mut client, "SELECT tcc_forget('30 days')");
    expect_error(&mut client, &format!("SELECT tcc_try({cancelled}, 'pay', 7, 100)"), "55000");
    execute(&mut client, &format!("SELECT tcc_cancel({tried}, 'pay')"));
    assert_eq!(balance(&mut client), 1_000_000);
}

/// Transactions of the random test. Those divisible by three are confirmed, the others cancelled.
const TRANSACTIONS: u64 = 120;

#[test]
fn tcc_calls_in_any_order_and_number_have_one_effect() {
    let (cluster, mut client) = with_participant();
    let transaction_ids = ids(&mut client, &format!("SELECT snowflake_next_many({TRANSACTIONS})"));
    thread::scope(|scope| {
        for seed in 0..4 {
            let (cluster, transaction_ids) = (&cluster, &transaction_ids);
            scope.spawn(move || {
                let mut client = cluster.client();
                for number in shuffled(TRANSACTIONS * 4, seed) {
                    let (index, call) = (number % TRANSACTIONS, number / TRANSACTIONS % 2);
                    let id = transaction_ids[usize::try_from(index).expect("an index")];
                    let is_confirmed = index % 3 == 0;
                    let sql = match call {
                        0 => format!("SELECT tcc_try({id}, 'pay', 7, 1)"),
                        _ if is_confirmed => format!("SELECT tcc_confirm({id}, 'pay')"),
                        _ => format!("SELECT tcc_cancel({id}, 'pay')"),
                    };
                    if let Err(error) = client.batch_execute(&sql) {
                        // A late try, or a confirm before the try.
                        assert_eq!(error.code().expect("an error of the server").code(), "55000", "{sql}");
                        assert!((call == 0) != is_confirmed, "{sql} must succeed");
                    }
                }
            });
        }
    });
    for id in transaction_ids.iter().step_by(3) {
        execute(&mut client, &format!("SELECT tcc_confirm({id}, 'pay')"));
    }
    let states = row(
        &mut client,
        "SELECT count(*) FILTER (WHERE state = 'confirmed'),
        count(*) FILTER (WHERE state = 'cancelled'), count(*) FROM tcc_step",
    );
    assert_eq!([0, 1, 2].map(|n| states.get::<_, i64>(n)), [40, 80, 120]);
    assert_eq!(balance(&mut client), 1_000_000 - 40);
}

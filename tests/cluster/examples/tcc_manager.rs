//! A manager that drives transactions over two databases to their end.

use idgen_testkit::sql::{PATIENCE, execute, expect_error, in_new_database, row, value, wait_for_one};
use idgen_testkit::{Cluster, Stop, rounds, seed};
use postgres::Client;

use crate::crew::Crew;
use crate::programs::TCC_MANAGER;
use crate::{read, server, shuffled};

const MONEY: i64 = 1_000_000;

/// Of a transaction that takes an amount at the bank, and 1 in the shop.
pub fn steps(amount: i64) -> String {
    let step = |participant, step, account, amount| {
        format!(r#"{{"participant": "{participant}", "step": "{step}", "account": "{account}", "amount": "{amount}"}}"#)
    };
    format!("[{}, {}]", step("shop", "hold", 1, 1), step("bank", "pay", 7, amount))
}

/// The manager's tables and the shop are in `postgres`, the bank is in `bank`.
fn server_and_bank() -> (Cluster, Client, Client) {
    let cluster = server();
    let mut shop = cluster.client();
    execute(&mut shop, "CREATE ROLE app LOGIN");
    execute(&mut shop, &TCC_MANAGER.header_sql());
    execute(&mut shop, &format!("INSERT INTO account VALUES (1, {MONEY})"));
    execute(
        &mut shop,
        "CREATE OR REPLACE FUNCTION due_task_backoff(attempts int) RETURNS interval LANGUAGE sql AS
            $$ SELECT interval '20 ms' * least(attempts, 10) $$",
    );
    let mut bank = in_new_database(&cluster, "bank");
    execute(&mut bank, &read("sql/tcc.sql"));
    execute(&mut bank, &format!("INSERT INTO account VALUES (7, {MONEY})"));
    (cluster, shop, bank)
}

fn managers(cluster: &Cluster) -> Crew<'_> {
    let participants = [("shop", "postgres"), ("bank", "bank")].map(|(name, database)| {
        format!("{name}={}", cluster.conninfo().replace("dbname='postgres'", &format!("dbname='{database}'")))
    });
    Crew::new(cluster, "python/tcc_manager.py", "due_tasks", "1").with_arguments(&participants)
}

/// Begins transactions. Every fourth is too expensive for the bank. Returns the id of the last one.
fn begin(client: &mut Client, count: i64) -> i64 {
    let (small, large) = (steps(3), steps(MONEY + 1));
    value(
        client,
        &format!(
            "SELECT max(tcc_begin(CASE WHEN n % 4 = 0 THEN '{large}' ELSE '{small}' END::jsonb)) FROM generate_series(1, {count}) AS n"
        ),
    )
}

/// The ends of all steps of a participant, by transaction, as text. Panics if money was lost or made.
fn ends(participant: &mut Client) -> Vec<(i64, String)> {
    let sql = format!(
        "SELECT sum(balance) + (SELECT coalesce(sum(amount), 0) FROM tcc_step WHERE state = 'confirmed') = {MONEY} FROM account"
    );
    assert!(value::<bool>(participant, &sql), "money was lost, or made");
    let rows = participant.query("SELECT transaction_id, state FROM tcc_step ORDER BY 1", &[]).expect("a query");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Waits until all transactions have ended, and compares the participants with the manager.
fn assert_all_end_alike(cluster: &Cluster, shop: &mut Client, bank: &mut Client) {
    wait_for_one(cluster, "all transactions to end", "(SELECT FROM tcc_unfinished HAVING count(*) = 0) AS ended");
    let rows = shop.query("SELECT id, state FROM tcc_transaction ORDER BY 1", &[]).expect("a query");
    let decided: Vec<(i64, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(ends(shop), decided, "the shop");
    assert_eq!(ends(bank), decided, "the bank");
}

#[test]
fn transactions_end_alike_whatever_happens_to_managers() {
    let (cluster, mut shop, mut bank) = server_and_bank();
    let mut managers = managers(&cluster);
    managers.start(2);
    let steps = rounds(8, 500);
    for (step, random) in shuffled(steps as u64, seed()).into_iter().enumerate() {
        let last = begin(&mut shop, 20);
        // The application cancels some of them, while managers work on them.
        execute(
            &mut shop,
            &format!(
                "SELECT tcc_decide(id, 'cancelling', 'not wanted') FROM tcc_transaction WHERE id <= {last} ORDER BY id DESC LIMIT 3"
            ),
        );
        match step % 4 {
            3 => {
                cluster.restart_by(Stop::Immediate);
                (shop, bank) = (cluster.client(), cluster.client_in("bank"));
            }
            _ => managers.disturb(random),
        }
        let ended = "SELECT count(*) FROM tcc_transaction WHERE state IN ('confirmed', 'cancelled')";
        let before: i64 = value(&mut shop, ended);
        cluster.wait_for(PATIENCE, "a transaction to end", || value::<i64>(&mut shop, ended) >= before + 5);
    }
    assert_all_end_alike(&cluster, &mut shop, &mut bank);
    let counts = row(
        &mut shop,
        "SELECT count(*) FILTER (WHERE state = 'confirmed'), count(*) FILTER (WHERE reason ~ 'bank: .*violates'), count(*)
         FROM tcc_transaction",
    );
    let [confirmed, refused, all] = [0, 1, 2].map(|n| counts.get::<_, i64>(n));
    assert!(
        confirmed > 0 && refused > 0 && all == steps as i64 * 20,
        "{confirmed} confirmed, {refused} refused of {all}"
    );
    managers.end();
}

#[test]
fn transaction_is_decided_once() {
    let (_cluster, mut shop, _bank) = server_and_bank();
    let id = begin(&mut shop, 1);
    let decide = |client: &mut Client, decision: &str| {
        value::<String>(client, &format!("SELECT tcc_decide({id}, '{decision}')"))
    };
    assert_eq!(decide(&mut shop, "confirmed"), "trying");
    assert_eq!(decide(&mut shop, "cancelling"), "cancelling");
    assert_eq!(decide(&mut shop, "confirming"), "cancelling");
    // A repeated begin changes nothing.
    execute(&mut shop, &format!("SELECT tcc_begin('[]', id => {id})"));
    assert_eq!(
        value::<i64>(&mut shop, "SELECT count(*) FROM tcc_transaction JOIN due_task USING (id) WHERE steps <> '[]'"),
        1
    );
}

/// Also where the servers have other layouts: participants forget by the time in the id.
#[test]
fn transaction_is_as_it_was_begun() {
    let (cluster, ..) = server_and_bank();
    cluster.restart_with("idgen.layout", "js53");
    let (mut shop, mut bank) = (cluster.client(), cluster.client_in("bank"));
    let taken = "12345678.123456789012345678";
    execute(&mut shop, "UPDATE account SET balance = 1e9");
    execute(&mut bank, "SELECT tcc_forget('1 hour')");
    let step = format!(r#"{{"participant": "shop", "step": "hold", "account": 1, "amount": {taken}}}"#);
    let id: i64 = value(&mut shop, &format!("SELECT tcc_begin('[{step}]')"));
    execute(&mut bank, &format!("SELECT tcc_cancel({id}, 'unknown')"));
    expect_error(&mut shop, &format!("SELECT tcc_begin('[{step}, {step}]')"), "23505");
    let mut managers = managers(&cluster);
    managers.start(1);
    wait_for_one(&cluster, "the end", &format!("tcc_transaction WHERE id = {id} AND state = 'confirmed'"));
    assert_eq!(value::<String>(&mut shop, "SELECT amount::text FROM tcc_step WHERE state = 'confirmed'"), taken);
}

/// A participant that cannot be reached, because its functions are away, and then can.
#[test]
fn transactions_wait_for_a_participant_that_is_away() {
    let (cluster, mut shop, mut bank) = server_and_bank();
    let mut managers = managers(&cluster);
    execute(&mut bank, "ALTER FUNCTION tcc_try RENAME TO tcc_away");
    let confirmed: i64 = value(&mut shop, &format!("SELECT tcc_begin('{}', '1 day')", steps(3)));
    let late: i64 = value(&mut shop, &format!("SELECT tcc_begin('{}', '0 s')", steps(3)));
    managers.start(1);
    let waiting = |id: i64, state: &str| {
        format!("tcc_unfinished WHERE id = {id} AND state = '{state}' AND attempts >= 2 AND error IS NOT NULL")
    };
    wait_for_one(&cluster, "a try that is not answered", &waiting(confirmed, "trying"));
    // The other one was not tried at the bank, which is told to cancel it.
    wait_for_one(&cluster, "a cancellation", &format!("tcc_transaction WHERE id = {late} AND state = 'cancelled'"));
    execute(&mut bank, "ALTER FUNCTION tcc_away RENAME TO tcc_try; ALTER FUNCTION tcc_confirm RENAME TO tcc_away");
    wait_for_one(&cluster, "a confirmation that is not answered", &waiting(confirmed, "confirming"));
    execute(&mut bank, "ALTER FUNCTION tcc_away RENAME TO tcc_confirm");
    assert_all_end_alike(&cluster, &mut shop, &mut bank);
    let reason: String = value(&mut shop, &format!("SELECT reason FROM tcc_transaction WHERE id = {late}"));
    assert_eq!(reason, "the deadline has passed");
    managers.end();
}

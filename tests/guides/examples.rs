//! The programs of the guides on consumers and on transactions: `polling_consumer.py`, `idempotent_consumer.py`,
//! `segment_blocks.py` and `tcc.sql` in `examples`.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use idgen_testkit::ids::assert_distinct;
use idgen_testkit::sql::{PATIENCE, column, execute, expect_error, ids, row, value, wait_for_event};
use idgen_testkit::{Cluster, Stop, run};
use postgres::Client;

use crate::page::{blocks, read};
use crate::{repository, tools};

fn server() -> Cluster {
    Cluster::builder().conf("fsync", "off").start_with_extension()
}

/// Python with psycopg, in the directory of the examples.
fn python() -> Command {
    let mut command = Command::new(tools().join("python/bin/python"));
    command.current_dir(repository("examples/python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// A running program. Killed when dropped.
struct Program {
    process: Child,
    printed: PathBuf,
}

impl Program {
    /// Starts a program as the superuser, with a name for its output.
    fn start(cluster: &Cluster, file: &str, arguments: &[&str], input: Stdio, name: &str) -> Program {
        let printed = Path::new(&cluster.host()).join(name);
        let output = File::create(&printed).expect("the cluster's directory is writable");
        let mut command = python();
        command.arg(file).arg(cluster.conninfo()).args(arguments).stdin(input).stdout(output);
        Program { process: command.spawn().expect("Python runs"), printed }
    }

    /// Waits for the program to end well. Returns the lines that it has printed.
    fn lines(mut self, cluster: &Cluster) -> Vec<String> {
        cluster.wait_for(PATIENCE, "the program to end", || {
            let status = self.process.try_wait().expect("a child can be waited for");
            status.inspect(|status| assert!(status.success(), "{status}")).is_some()
        });
        self.printed_lines()
    }

    fn printed_lines(&self) -> Vec<String> {
        let printed = std::fs::read_to_string(&self.printed).expect("UTF-8");
        printed.lines().map(str::to_owned).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Creates the tables of a program's header.
fn create_tables(client: &mut Client, program: &str) {
    let text = read(&format!("examples/python/{program}"));
    let header = text.split("\"\"\"").nth(1).expect("a header");
    let indented = header.lines().filter(|line| line.starts_with("    ") && !line.contains("python3"));
    execute(client, &indented.collect::<Vec<_>>().join("\n"));
}

/// The same numbers in another order for each seed.
fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..count).collect();
    numbers
        .sort_by_key(|number| (number + 1).wrapping_mul(seed.wrapping_mul(2) + 0x9E37_79B9_7F4A_7C15).rotate_left(29));
    numbers
}

const COPIED: &str = "SELECT id FROM event_copy WHERE consumer = 'mailer' ORDER BY id";
const WRITTEN: &str = "SELECT id FROM event ORDER BY id";

fn start_polling(cluster: &Cluster) -> Program {
    Program::start(cluster, "polling_consumer.py", &["mailer"], Stdio::null(), "polled")
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

#[test]
fn polling_consumers_of_one_name_take_turns() {
    let cluster = server();
    let mut client = cluster.client();
    create_tables(&mut client, "polling_consumer.py");
    execute(&mut client, "INSERT INTO event (body) VALUES ('one')");
    execute(&mut client, "BEGIN; LOCK TABLE event_copy IN SHARE MODE");
    // One waits for the table in its handle(), the other for its turn.
    let _two = [start_polling(&cluster), start_polling(&cluster)];
    let waiting = "SELECT count(*) = 2 FROM pg_locks WHERE NOT granted";
    cluster.wait_for(PATIENCE, "both consumers to wait", || value(&mut client, waiting));
    execute(&mut client, "COMMIT");
    wait_for_a_poll(&cluster, &mut client);
    wait_for_a_poll(&cluster, &mut client);
    assert_eq!(ids(&mut client, COPIED), ids(&mut client, WRITTEN));
}

#[test]
fn polling_consumers_read_each_row_once_although_they_are_killed() {
    let cluster = server();
    let mut client = cluster.client();
    create_tables(&mut client, "polling_consumer.py");
    let written = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let cluster = &cluster;
                scope.spawn(move || {
                    let mut client = cluster.client();
                    for number in 0..60 {
                        let end = if number % 5 == 4 { "ROLLBACK" } else { "COMMIT" };
                        let insert = format!("INSERT INTO event (body) SELECT '{writer}' FROM generate_series(1, 3)");
                        // What the transaction does besides, for a random time.
                        let wait = "SELECT pg_sleep(random() * 0.04)";
                        execute(&mut client, &format!("BEGIN; {insert}; {wait}; SAVEPOINT s; {insert}; {end}"));
                    }
                })
            })
            .collect();
        let consumers = scope.spawn(|| {
            let mut client = cluster.client();
            while !written.load(Ordering::Relaxed) {
                let before = ids(&mut client, COPIED).len();
                let _two = [start_polling(&cluster), start_polling(&cluster)];
                cluster.wait_for(PATIENCE, "rows to be read", || {
                    ids(&mut client, COPIED).len() > before + 50 || written.load(Ordering::Relaxed)
                });
            }
        });
        let outcomes: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        written.store(true, Ordering::Relaxed);
        consumers.join().expect("the consumers are started");
        assert!(outcomes.iter().all(Result::is_ok), "the writers write");
    });
    let rows = ids(&mut client, WRITTEN);
    assert_eq!(rows.len(), 8 * 48 * 6);
    let _consumer = start_polling(&cluster);
    cluster.wait_for(PATIENCE, "the last row to be read", || ids(&mut client, COPIED).len() >= rows.len());
    // Not assert_eq, which would print thousands of ids.
    assert!(ids(&mut client, COPIED) == rows, "{:?}", value::<i64>(&mut client, "SELECT count(*) FROM event_copy"));
}

/// Messages in the order of a seed, as a file: each is there `times`.
fn messages(cluster: &Cluster, message_ids: &[i64], times: u64, seed: u64) -> Stdio {
    let count = u64::try_from(message_ids.len()).expect("a small number");
    let lines = shuffled(count * times, seed).into_iter().map(|number| {
        let id = message_ids[usize::try_from(number % count).expect("an index")];
        format!("{{\"id\": \"{id}\", \"account\": 7, \"amount\": 5}}\n")
    });
    let path = Path::new(&cluster.host()).join(format!("messages_{seed}"));
    std::fs::write(&path, lines.collect::<String>()).expect("the cluster's directory is writable");
    File::open(path).expect("a new file").into()
}

#[test]
fn idempotent_consumers_handle_a_message_once_although_they_are_killed() {
    let cluster = server();
    let mut client = cluster.client();
    create_tables(&mut client, "idempotent_consumer.py");
    execute(&mut client, "INSERT INTO account VALUES (7, 0)");
    let message_ids = ids(&mut client, "SELECT snowflake_next_many(400)");
    let start = |seed: u64| {
        let input = messages(&cluster, &message_ids, 2, seed);
        Program::start(&cluster, "idempotent_consumer.py", &["billing"], input, &format!("processed_{seed}"))
    };
    // Killed after some messages, mostly in the middle of one.
    for seed in 0..3 {
        let killed = start(seed);
        cluster.wait_for(PATIENCE, "some messages to be handled", || killed.printed_lines().len() > 20);
    }
    let running: Vec<_> = (3..6).map(start).collect();
    let lines: Vec<String> = running.into_iter().flat_map(|program| program.lines(&cluster)).collect();
    assert_eq!(lines.len(), 3 * 800);
    assert!(lines.iter().all(|line| line.starts_with("handled ") || line.starts_with("repeated ")));
    assert_eq!(value::<i64>(&mut client, "SELECT balance::bigint FROM account"), 5 * 400);
}

#[test]
fn idempotent_consumer_waits_for_the_delivery_that_is_being_handled() {
    let cluster = server();
    let mut client = cluster.client();
    create_tables(&mut client, "idempotent_consumer.py");
    execute(&mut client, "INSERT INTO account VALUES (7, 0)");
    for (end, outcome) in [("COMMIT", "repeated"), ("ROLLBACK", "handled")] {
        let id: i64 = value(&mut client, "SELECT snowflake_next()");
        execute(&mut client, &format!("BEGIN; INSERT INTO message_handled VALUES ('billing', {id})"));
        let input = messages(&cluster, &[id], 1, 0);
        let program = Program::start(&cluster, "idempotent_consumer.py", &["billing"], input, "processed");
        let mut other = cluster.client();
        let waiting = "SELECT pid FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'";
        let mut waiters: Vec<i32> = Vec::new();
        cluster.wait_for(PATIENCE, "the second delivery to wait", || {
            waiters = column(&mut other, waiting);
            !waiters.is_empty()
        });
        wait_for_event(&cluster, waiters[0], "transactionid");
        execute(&mut client, end);
        assert_eq!(program.lines(&cluster), [format!("{outcome} {id}")]);
    }
    assert_eq!(value::<i64>(&mut client, "SELECT balance::bigint FROM account"), 5);
}

#[test]
fn idempotent_consumer_that_is_cut_off_leaves_the_message_to_the_next_delivery() {
    let cluster = server();
    let mut client = cluster.client();
    create_tables(&mut client, "idempotent_consumer.py");
    execute(&mut client, "INSERT INTO account VALUES (7, 0)");
    let id: i64 = value(&mut client, "SELECT snowflake_next()");
    let start = || {
        let input = messages(&cluster, &[id], 1, 0);
        Program::start(&cluster, "idempotent_consumer.py", &["billing"], input, "processed")
    };
    execute(&mut client, "BEGIN; UPDATE account SET balance = 0");
    let mut cut = start();
    let mut other = cluster.client();
    let end = "SELECT count(pg_terminate_backend(pid)) = 1 FROM pg_locks
               WHERE NOT granted AND locktype IN ('transactionid', 'tuple')";
    cluster.wait_for(PATIENCE, "the consumer to wait for the account", || value(&mut other, end));
    cluster.wait_for(PATIENCE, "the consumer to fail", || cut.process.try_wait().expect("a child").is_some());
    execute(&mut client, "COMMIT");
    assert_eq!(start().lines(&cluster), [format!("handled {id}")]);
    assert_eq!(value::<i64>(&mut client, "SELECT balance::bigint FROM account"), 5);
}

#[test]
fn idempotent_consumer_refuses_what_it_may_have_forgotten() {
    let cluster = server();
    let mut client = cluster.client();
    create_tables(&mut client, "idempotent_consumer.py");
    execute(&mut client, "INSERT INTO account VALUES (7, 0)");
    let ages = "unnest(ARRAY[29, 30, 31, 32]) WITH ORDINALITY AS days(days, n)";
    let made = "snowflake_make(now() - days * interval '1 day' - interval '1 minute', 1023, 0, 'snowflake')";
    let message_ids = ids(&mut client, &format!("SELECT {made} FROM {ages} ORDER BY n"));
    for id in &message_ids {
        execute(&mut client, &format!("INSERT INTO message_handled VALUES ('billing', {id}), ('other', {id})"));
    }
    let input = messages(&cluster, &message_ids, 1, 0);
    let program = Program::start(&cluster, "idempotent_consumer.py", &["billing"], input, "processed");
    let lines = program.lines(&cluster);
    let outcomes: BTreeMap<&str, &str> = lines
        .iter()
        .map(|line| line.rsplit_once(' ').expect("an outcome and an id"))
        .map(|(what, id)| (id, what))
        .collect();
    for (id, outcome) in message_ids.iter().zip(["repeated", "too old", "too old", "too old"]) {
        assert_eq!(outcomes[&*id.to_string()], outcome, "{id}");
    }
    let kept = ids(&mut client, "SELECT message_id FROM message_handled WHERE consumer = 'billing' ORDER BY 1 DESC");
    assert_eq!(kept, message_ids[..2]);
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM message_handled WHERE consumer = 'other'"), 4);
}

fn with_segment() -> Cluster {
    let cluster = server();
    create_tables(&mut cluster.client(), "segment_blocks.py");
    cluster
}

fn numbers(lines: &[String]) -> Vec<i64> {
    lines.iter().map(|line| line.parse().expect("a number")).collect()
}

#[test]
fn segment_blocks_of_several_programs_are_distinct_over_a_crash() {
    let cluster = with_segment();
    let start = |name: &str| Program::start(&cluster, "segment_blocks.py", &["ticket", "200000"], Stdio::null(), name);
    let programs = ["a", "b", "c"].map(start);
    cluster.wait_for(PATIENCE, "the programs to count", || programs.iter().all(|p| p.printed_lines().len() > 2000));
    let unfinished = programs.iter().filter(|program| program.printed_lines().len() < 200_000).count();
    cluster.stop(Stop::Immediate);
    cluster.start_again();
    assert!(unfinished > 0, "the crash is in the middle");
    let mut all = ids(&mut cluster.client(), "SELECT segment_next('ticket')");
    for program in programs {
        let values = numbers(&program.lines(&cluster));
        // One statement for each thousand.
        for block in values.chunks(1000) {
            assert!(block.windows(2).all(|pair| pair[1] == pair[0] + 1), "a block is in one piece");
        }
        all.extend(values);
    }
    assert_eq!(all.len(), 600_001);
    assert_distinct(all);
}

#[test]
fn segment_blocks_of_threads_and_of_a_forked_child_are_distinct() {
    let cluster = with_segment();
    cluster.execute("ALTER SYSTEM SET track_functions = 'all'");
    cluster.reload();
    // The parent forks in the middle of a block, while other threads count.
    let case = "import os, signal, sys, threading; from segment_blocks import Blocks
signal.alarm(60)
blocks = Blocks(sys.argv[1], 'ticket', 500)
def count(): sys.stdout.write(''.join(f'{value}\\n' for value in [blocks.next() for _ in range(2200)]))
threads = [threading.Thread(target=count) for _ in range(4)]
[blocks.next() for _ in range(10)]
for thread in threads: thread.start()
child = os.fork()
if child == 0:
    signal.alarm(60)
    values = [blocks.next() for _ in range(700)]
    os.write(1, ''.join(f'{value}\\n' for value in values).encode()); os._exit(0)
status = os.waitpid(child, 0)[1]
for thread in threads: thread.join()
count(); sys.exit(status)";
    let printed = run(python().args(["-c", case]).arg(cluster.conninfo()));
    let values = numbers(&printed.lines().map(str::to_owned).collect::<Vec<_>>());
    assert_eq!(values.len(), 5 * 2200 + 700);
    assert_distinct(values);
    // 23 blocks of the parent, which has drawn ten values more, and two of the child. A session counts when it ends.
    let mut client = cluster.client();
    let counted = "SELECT calls FROM pg_stat_user_functions WHERE funcname = 'segment_reserve'";
    let running =
        "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query ~ 'segment_reserve'";
    cluster.wait_for(PATIENCE, "the sessions to end", || value(&mut client, running));
    assert_eq!(value::<i64>(&mut client, counted), 23 + 2);
}

fn with_participant() -> (Cluster, Client) {
    let cluster = server();
    let mut client = cluster.client();
    execute(&mut client, &read("examples/sql/tcc.sql"));
    execute(&mut client, "INSERT INTO account VALUES (7, 1000000)");
    (cluster, client)
}

fn balance(client: &mut Client) -> i64 {
    value(client, "SELECT balance::bigint FROM account")
}

#[test]
fn tcc_guide_shows_the_functions_of_the_file() {
    let file = read("examples/sql/tcc.sql");
    let shown = blocks("transactions.md", "sql");
    let shown: Vec<_> = shown.iter().filter(|block| block.starts_with("CREATE ")).collect();
    assert_eq!(shown.len(), 4, "the tables and three functions");
    for block in shown {
        assert!(file.contains(&**block), "not in tcc.sql: {block}");
    }
}

#[test]
fn tcc_cancel_without_a_try_refuses_the_late_try() {
    let (cluster, mut client) = with_participant();
    let id: i64 = value(&mut client, "SELECT snowflake_next()");
    let try_call = format!("SELECT tcc_try({id}, 'pay', 7, 100)");
    let cancel = format!("SELECT tcc_cancel({id}, 'pay')");
    // The try comes while the cancel is still running, and waits for it.
    let mut late = cluster.client();
    let pid = idgen_testkit::sql::backend_pid(&mut late);
    execute(&mut client, &format!("BEGIN; {cancel}"));
    thread::scope(|scope| {
        let call = scope.spawn(|| expect_error(&mut late, &try_call, "55000"));
        wait_for_event(&cluster, pid, "transactionid");
        execute(&mut client, "COMMIT");
        call.join().expect("the late try fails");
    });
    execute(&mut client, &cancel);
    expect_error(&mut client, &try_call, "55000");
    expect_error(&mut client, &format!("SELECT tcc_confirm({id}, 'pay')"), "55000");
    assert_eq!(balance(&mut client), 1_000_000);
    // A cancel waits for the try, and gives back what that took. Another step of the transaction is not concerned.
    let id = id + 1;
    execute(&mut client, &format!("SELECT tcc_try({id}, 'fee', 7, 1)"));
    execute(&mut client, &format!("BEGIN; SELECT tcc_try({id}, 'pay', 7, 100)"));
    thread::scope(|scope| {
        let call = scope.spawn(|| execute(&mut late, &format!("SELECT tcc_cancel({id}, 'pay')")));
        wait_for_event(&cluster, pid, "transactionid");
        execute(&mut client, "COMMIT");
        call.join().expect("the cancel succeeds");
    });
    assert_eq!(balance(&mut client), 999_999);
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
    let old: i64 = value(&mut client, "SELECT snowflake_make(now() - interval '31 days', 1023, 0, 'snowflake')");
    expect_error(&mut client, &format!("SELECT tcc_try({old}, 'pay', 7, 1)"), "55000");
    execute(&mut client, &format!("SELECT tcc_cancel({old}, 'pay')"));
    assert_eq!(balance(&mut client), 999_900);
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

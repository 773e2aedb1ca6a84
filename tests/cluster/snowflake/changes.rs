//! A consumer that reads by the column of `snowflake_change()` misses no change: many writers insert, update, delete and
//! change keys of few rows, and end in any way.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fastrand::Rng;
use idgen_testkit::script::play;
use idgen_testkit::sql::{backend_pid, column, execute, value};
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::Client;

const WRITERS: usize = 64;
/// Few, so that transactions wait for each other at their keys.
const KEYS: u32 = 200;
/// Changes of one storm. A process of the server crashes after the first half.
const CHANGES: usize = 20_000;

const TABLES: &str = "
    CREATE TABLE item (id int PRIMARY KEY, body text, change bigint NOT NULL);
    CREATE TABLE item_deleted (id int, change bigint PRIMARY KEY);
    CREATE INDEX ON item (change);
    CREATE TRIGGER change BEFORE INSERT OR UPDATE ON item FOR EACH ROW EXECUTE FUNCTION snowflake_change('change');
    CREATE TRIGGER keep_key AFTER UPDATE OR DELETE ON item
        FOR EACH ROW EXECUTE FUNCTION snowflake_change('change', 'item_deleted')";

/// What all threads of a storm share.
struct Storm<'a> {
    cluster: &'a Cluster,
    /// Changes, committed or not.
    changes: AtomicUsize,
    is_over: AtomicBool,
    prepared: AtomicUsize,
}

/// Ends the storm also if a check fails.
struct End<'a>(&'a Storm<'a>);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

struct Writer<'a> {
    storm: &'a Storm<'a>,
    rng: Rng,
}

impl Writer<'_> {
    fn run(&mut self) {
        let mut client = None;
        while !self.storm.is_over.load(Ordering::Relaxed) {
            let outcome = client.as_mut().map(|client| self.turn(client));
            // Lost, or the server has crashed: the next turn takes a new session.
            if outcome.is_none_or(|outcome| outcome.is_err_and(|error| error.is_closed())) {
                client = self.storm.cluster.try_client().ok();
            }
        }
    }

    fn turn(&mut self, client: &mut Client) -> Result<(), postgres::Error> {
        client.batch_execute("BEGIN")?;
        for _ in 0..self.rng.usize(1..4) {
            let sql = self.change();
            // A deadlock, or a key that another transaction has taken.
            if client.batch_execute(&sql).is_err() {
                return client.batch_execute("ROLLBACK");
            }
            self.storm.changes.fetch_add(1, Ordering::Relaxed);
        }
        match self.rng.u8(..10) {
            0 => client.batch_execute("ROLLBACK"),
            1 if self.rng.bool() => {
                let number = self.storm.prepared.fetch_add(1, Ordering::Relaxed);
                client.batch_execute(&format!("PREPARE TRANSACTION 'p{number}'"))
            }
            _ => client.batch_execute("COMMIT"),
        }
    }

    fn change(&mut self) -> String {
        let [id, other] = [0; 2].map(|_| self.rng.u32(..KEYS));
        let body = self.rng.u64(..);
        let insert = format!("INSERT INTO item VALUES ({id}, '{body}')");
        match self.rng.u8(..6) {
            0 | 1 => format!("DELETE FROM item WHERE id = {id}"),
            2 => format!("DELETE FROM item WHERE id = {id}; {insert}"),
            3 => format!("UPDATE item SET id = {other}, body = '{body}' WHERE id = {id}"),
            4 => format!("{insert} ON CONFLICT (id) DO UPDATE SET body = excluded.body"),
            _ => format!("{insert} ON CONFLICT DO NOTHING"),
        }
    }
}

/// Writers wait for the keys of prepared transactions, so none of them ends these.
fn end_a_prepared_one(client: &mut Client, rng: &mut Rng) -> Result<(), postgres::Error> {
    let ending = if rng.bool() { "COMMIT" } else { "ROLLBACK" };
    let sql = "SELECT gid FROM pg_prepared_xacts ORDER BY random() LIMIT 1";
    if let Some(row) = client.query_opt(sql, &[])? {
        client.batch_execute(&format!("{ending} PREPARED '{}'", row.get::<_, String>(0)))?;
    }
    Ok(())
}

/// A consumer with a copy of the table.
struct Consumer {
    upper: &'static str,
    position: i64,
    copy: HashMap<i32, String>,
    missed: usize,
}

const SETTLED: &str = "SELECT snowflake_settled()";
const NEWEST: &str =
    "SELECT coalesce(max(change), 0) FROM (SELECT change FROM item UNION ALL SELECT change FROM item_deleted) c";

/// What a consumer reads, and what a check of it needs, in one snapshot: the changed rows; the keys of deleted rows, unless
/// there is such a row again; all rows up to the bound; the keys that are not settled.
const READ: &str = "
    SELECT 'changed', id, body FROM item WHERE change > $1 AND change <= $2
    UNION ALL SELECT 'gone', id, NULL FROM item_deleted WHERE change > $1 AND change <= $2
        AND NOT EXISTS (SELECT FROM item WHERE item.id = item_deleted.id)
    UNION ALL SELECT 'row', id, body FROM item WHERE change <= $2
    UNION ALL SELECT 'later', id, NULL FROM item WHERE change > $2
    UNION ALL SELECT 'later', id, NULL FROM item_deleted WHERE change > $2";

impl Consumer {
    fn read(&mut self, client: &mut Client) -> Result<(), postgres::Error> {
        let upper: i64 = client.query_one(self.upper, &[])?.get(0);
        let read = client.query(READ, &[&self.position, &upper])?;
        self.position = upper.max(self.position);
        let (mut rows, mut later) = (HashMap::new(), HashSet::new());
        for row in &read {
            let (id, body): (i32, Option<String>) = (row.get(1), row.get(2));
            match row.get(0) {
                "changed" => _ = self.copy.insert(id, body.unwrap()),
                "gone" => _ = self.copy.remove(&id),
                "row" => _ = rows.insert(id, body.unwrap()),
                _ => _ = later.insert(id),
            }
        }
        let is_wrong = |id: &i32| !later.contains(id) && self.copy.get(id) != rows.get(id);
        self.missed += rows.keys().chain(self.copy.keys()).filter(|id| is_wrong(id)).collect::<HashSet<_>>().len();
        // A missed change is counted once.
        self.copy.retain(|id, _| later.contains(id) || rows.contains_key(id));
        self.copy.extend(rows);
        Ok(())
    }
}

fn consume(storm: &Storm, consumers: &mut [Consumer; 2], rng: &mut Rng, until: usize) {
    let mut client = None;
    while storm.changes.load(Ordering::Relaxed) < until {
        let outcome = client.as_mut().map(|client| {
            consumers.iter_mut().try_for_each(|one| one.read(client))?;
            (0..2).try_for_each(|_| end_a_prepared_one(client, rng))
        });
        if outcome.is_none_or(|outcome| outcome.is_err()) {
            client = storm.cluster.try_client().ok();
        }
    }
}

fn run_storm(cluster: &Cluster, consumers: &mut [Consumer; 2], rng: &mut Rng) {
    let (changes, prepared) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let storm = Storm { cluster, changes, is_over: AtomicBool::new(false), prepared };
    std::thread::scope(|scope| {
        let _end = End(&storm);
        for _ in 0..WRITERS {
            let mut writer = Writer { storm: &storm, rng: rng.fork() };
            scope.spawn(move || writer.run());
        }
        consume(&storm, consumers, rng, CHANGES / 2);
        cluster.kill9(backend_pid(&mut cluster.client()));
        cluster.wait_until_ready();
        consume(&storm, consumers, rng, CHANGES);
    });
}

#[test]
fn consumer_of_changes_misses_none() {
    // A writer can wait for a transaction that is still prepared when the storm ends.
    let builder = Cluster::builder().conf("max_connections", "300").conf("lock_timeout", "1s");
    let builder = builder.conf("deadlock_timeout", "50ms");
    let cluster = builder.conf("max_prepared_transactions", "2000").start_with_extension();
    cluster.execute(TABLES);
    let mut consumers = [SETTLED, NEWEST].map(|upper| Consumer { upper, position: 0, copy: HashMap::new(), missed: 0 });
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    for _ in 0..rounds(1, 50) {
        run_storm(&cluster, &mut consumers, &mut rng);
        // With transactions still prepared.
        cluster.stop(Stop::Immediate);
        cluster.start_again();
        let mut client = cluster.client();
        for gid in column::<String>(&mut client, "SELECT gid FROM pg_prepared_xacts") {
            execute(&mut client, &format!("COMMIT PREPARED '{gid}'"));
        }
        consumers.iter_mut().for_each(|consumer| consumer.read(&mut client).expect("the server runs"));
    }
    let [settled, naive] = consumers;
    println!("missed: {}, and {} by the naive consumer", settled.missed, naive.missed);
    assert_eq!(settled.missed, 0);
    assert!(naive.missed > 0, "no transaction has committed after a later change");
    let rows: i64 = value(&mut cluster.client(), "SELECT count(*) FROM item");
    assert_eq!(settled.copy.len() as i64, rows);
}

/// The insertion has drawn its id when the deletion draws a later one, and finds the key free afterwards.
#[test]
fn row_that_is_inserted_again_while_it_is_deleted_is_not_gone() {
    let cluster = Cluster::builder().start_with_extension();
    cluster.execute(TABLES);
    play(
        &cluster,
        "a: INSERT INTO item VALUES (1, 'old')
        a: CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN LOCK TABLE gate; RETURN NEW; END $$
        a: CREATE TRIGGER wait BEFORE INSERT ON item FOR EACH ROW EXECUTE FUNCTION wait()
        a: CREATE TABLE gate ()
        a: BEGIN; LOCK TABLE gate
        b waits for relation: INSERT INTO item VALUES (1, 'new')
        a: DELETE FROM item
        a: COMMIT
        b ends
        a: SELECT body, item.change < item_deleted.change FROM item, item_deleted -> new|t
        a: SELECT count(*) FROM item_deleted WHERE NOT EXISTS (SELECT FROM item WHERE item.id = item_deleted.id) -> 0",
    );
}

/// As for other triggers: rows that a subscription writes keep their ids, unless the trigger is enabled always.
#[test]
fn rows_of_a_replica_role_get_ids_only_if_the_trigger_is_enabled_always() {
    let cluster = Cluster::builder().start_with_extension();
    cluster.execute(TABLES);
    play(
        &cluster,
        "a: SET session_replication_role = replica
        a: INSERT INTO item VALUES (1, 'a', 7)
        a: SELECT change FROM item -> 7
        a: ALTER TABLE item ENABLE ALWAYS TRIGGER change
        a: UPDATE item SET body = 'b', change = 8
        a: SELECT change > 8 FROM item -> t",
    );
}

/// DETACH CONCURRENTLY commits before it waits for others. From then on PostgreSQL names no ancestors of the partition, and its
/// triggers fire until the end.
#[test]
fn key_of_a_partition_that_is_being_detached_is_kept() {
    let cluster = Cluster::builder().start_with_extension();
    play(
        &cluster,
        "a: CREATE SCHEMA parts
        a: CREATE TABLE parted (id int PRIMARY KEY, change bigint) PARTITION BY LIST (id)
        a: CREATE TABLE parts.half PARTITION OF parted FOR VALUES IN (1, 2, 3) PARTITION BY LIST (id)
        a: CREATE TABLE parts.one PARTITION OF parts.half FOR VALUES IN (1)
        a: CREATE TABLE parts.two PARTITION OF parts.half FOR VALUES IN (2)
        a: CREATE TABLE parted_deleted (id int, change bigint)
        a: CREATE TRIGGER keep_key AFTER UPDATE OR DELETE ON parted
            FOR EACH ROW EXECUTE FUNCTION snowflake_change('change', 'parted_deleted')
        a: INSERT INTO parted VALUES (1), (2)
        a: BEGIN; SELECT FROM parted
        b waits for Lock: ALTER TABLE parts.half DETACH PARTITION parts.one CONCURRENTLY
        c waits for Lock: ALTER TABLE parted DETACH PARTITION parts.half CONCURRENTLY
        d: DELETE FROM parts.one; DELETE FROM parts.two
        d: SELECT id FROM parted_deleted ORDER BY id -> 1, 2
        -- PostgreSQL 18 fails with XX000 when both detach
        d: SELECT pg_cancel_backend($b_pid), pg_cancel_backend($c_pid)
        b ends -> error 57014
        c ends -> error 57014",
    );
}

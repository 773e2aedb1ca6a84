//! The programs that run under every fault: how each is given work, what shows that it goes on, and what it promises.

use idgen_testkit::ids::assert_distinct;
use idgen_testkit::sql::{execute, value};

use crate::site::Site;
use crate::{leaders, read, run_python, tcc_manager};

pub struct Program {
    /// Below `examples`.
    pub path: &'static str,
    /// A program in Python that runs in its place, and imports it.
    pub wrapper: Option<&'static str>,
    /// ADDRESS is the connection string, OWNER another name for each copy, FILE another file.
    pub arguments: &'static [&'static str],
    /// By the superuser, after the SQL of the header.
    pub prepare: &'static str,
    /// Adds work. Called again and again.
    pub work: fn(&mut Site),
    /// How much is done. It grows if the program goes on.
    pub done: fn(&mut Site) -> i64,
    /// Panics if the promise was broken.
    pub check: fn(&mut Site),
}

impl Program {
    pub fn is_java(&self) -> bool {
        self.path.ends_with(".java")
    }

    /// The files of `examples/sql` that the header names, and the SQL in the header: its indented lines, but for commands.
    pub fn header_sql(&self) -> String {
        let text = read(self.path);
        let header = text.split(if self.is_java() { "*/" } else { "\"\"\"" }).find(|part| part.contains("Needs "));
        let header = header.expect("a header");
        let mut files: Vec<&str> = Vec::new();
        for word in header.split(|c: char| !c.is_alphanumeric() && !"._".contains(c)).map(|word| word.trim_matches('.'))
        {
            if word.ends_with(".sql") && !files.contains(&word) {
                files.push(word);
            }
        }
        let lines = header.lines().map(|line| line.strip_prefix(" *").unwrap_or(line));
        let is_command = |line: &str| ["python3 ", "java "].iter().any(|name| line.trim_start().starts_with(name));
        let lines = lines.filter(|line| line.starts_with("    ") && !is_command(line)).map(str::to_owned);
        files.into_iter().map(|file| read(&format!("sql/{file}"))).chain(lines).collect::<Vec<_>>().join("\n")
    }

    pub fn needs_grants(&self) -> bool {
        self.header_sql().contains("GRANT ")
    }
}

const TTL: &str = "1";

pub static DUE_TASKS: Program = Program {
    path: "python/due_tasks.py",
    wrapper: None,
    arguments: &["ADDRESS", "due_tasks", "OWNER", TTL],
    prepare: "SELECT lease_alter('due_tasks', slots => 4);
        ALTER TABLE due_task ALTER shard SET DEFAULT floor(4 * random())",
    work: |site| execute(&mut site.client, "INSERT INTO due_task (body) SELECT '{}' FROM generate_series(1, 5)"),
    done: |site| value(&mut site.client, "SELECT count(*) FROM reminder"),
    check: |site| {
        let wrong = "SELECT count(*) FROM (SELECT task_id AS id, count(*) FROM reminder GROUP BY 1) AS made
            FULL JOIN due_task USING (id) WHERE (state = 'done') IS DISTINCT FROM (count = 1)
                                                AND (state, count) IS DISTINCT FROM ('waiting', NULL)";
        assert_eq!(value::<i64>(&mut site.client, wrong), 0, "a task was lost, or done twice");
    },
};

pub static FENCED_JOB: Program = Program {
    path: "python/fenced_job.py",
    wrapper: None,
    arguments: &["ADDRESS", "importer", TTL],
    // With the token that is current when a line is written, and the session that writes it.
    prepare: "CREATE TABLE written (token bigint, pid int);
        CREATE FUNCTION note_token() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
            INSERT INTO written SELECT max(token), pg_backend_pid() FROM idgen.lease WHERE name = 'importer' AND depth > 0;
            RETURN NULL; END $$;
        CREATE TRIGGER note AFTER INSERT ON imported FOR EACH ROW EXECUTE FUNCTION note_token()",
    work: send_a_line,
    done: |site| value(&mut site.client, "SELECT count(*) FROM imported"),
    check: |site| {
        let foreign = "SELECT count(*) FROM (SELECT FROM written GROUP BY pid
                       HAVING count(DISTINCT token) > 1 OR bool_or(token IS NULL)) AS session";
        assert_eq!(value::<i64>(&mut site.client, foreign), 0, "a job has written under the token of another one");
    },
};

pub static IDEMPOTENT_CONSUMER: Program = Program {
    path: "python/idempotent_consumer.py",
    wrapper: None,
    arguments: &["ADDRESS", "billing"],
    prepare: "INSERT INTO account VALUES (7, 0)",
    work: |site| {
        let id: i64 = value(&mut site.client, "SELECT snowflake_next()");
        let message = format!("{{\"id\": \"{id}\", \"account\": 7, \"amount\": 5}}");
        for copy in &mut site.copies {
            (0..2).for_each(|_| copy.send_if_it_reads(&message));
        }
    },
    done: |site| value(&mut site.client, "SELECT balance::bigint FROM account"),
    check: |site| {
        let is_right = "SELECT balance = 5 * (SELECT count(*) FROM message_handled) FROM account";
        assert!(value::<bool>(&mut site.client, is_right), "a message was handled twice, or lost");
    },
};

pub static JOB: Program = Program {
    path: "pgbouncer/job.py",
    wrapper: None,
    arguments: &["ADDRESS", "ADDRESS", "counter", TTL, "1000000"],
    prepare: "CREATE TABLE step (n bigint);
        CREATE FUNCTION note_step() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
            $$ BEGIN INSERT INTO step VALUES (new.n); RETURN NULL; END $$;
        CREATE TRIGGER note AFTER UPDATE ON counter FOR EACH ROW EXECUTE FUNCTION note_step()",
    work: |_| (),
    done: |site| value(&mut site.client, "SELECT n FROM counter"),
    check: |site| {
        let is_right = "SELECT n = (SELECT count(*) FROM step) FROM counter";
        assert!(value::<bool>(&mut site.client, is_right), "an addition was lost");
    },
};

pub static LEADER: Program = Program {
    path: "python/leader.py",
    wrapper: Some(leaders::ASKING),
    arguments: &["ADDRESS", "OWNER", TTL],
    prepare: "",
    work: |_| (),
    done: printed_bytes,
    check: |site| {
        leaders::assert_one_leader_at_a_time(&site.copies);
    },
};

pub static OBSERVER: Program = Program {
    path: "python/leader.py",
    wrapper: None,
    arguments: &["ADDRESS", "watch", "scheduler"],
    prepare: "",
    work: |site| {
        let turn = site.turns;
        execute(
            &mut site.client,
            &format!(
                "NOTIFY idgen_lease, 'any role can send this'; SELECT lease_revoke('scheduler');
                 SELECT lease_acquire('scheduler', '1 min', data => '{{\"address\": \"leader-{turn}\"}}')"
            ),
        );
    },
    done: printed_bytes,
    check: |site| {
        let is_known = |line: &String| line == "no leader" || line.starts_with("leader-") && line.ends_with(" leads");
        assert!(site.copies.iter().flat_map(|copy| copy.lines()).all(|line| is_known(&line)));
    },
};

pub static POLLING_CONSUMER: Program = Program {
    path: "python/polling_consumer.py",
    wrapper: None,
    arguments: &["ADDRESS", "mailer"],
    prepare: "",
    work: |site| execute(&mut site.client, "INSERT INTO event (body) VALUES ('x'), ('y')"),
    done: |site| value(&mut site.client, "SELECT count(*) FROM event_copy"),
    check: |site| {
        let is_right = "SELECT (SELECT array_agg(id ORDER BY id) FROM event_copy)
            = (SELECT array_agg(id ORDER BY id) FROM event WHERE id <= (SELECT id FROM event_position))";
        assert!(value::<bool>(&mut site.client, is_right), "a row was read twice, or lost");
    },
};

pub static SEARCH_INDEX: Program = Program {
    path: "python/search_index.py",
    wrapper: None,
    arguments: &["ADDRESS", "FILE"],
    prepare: "",
    work: |site| {
        let turn = site.turns;
        execute(
            &mut site.client,
            // The second statement keeps keys after their rows are there again.
            &format!(
                "DELETE FROM product WHERE id % 7 = {turn} % 7;
                 WITH gone AS (DELETE FROM product WHERE id % 13 = {turn} % 13 RETURNING id)
                 INSERT INTO product (id, title) SELECT id, 'again in {turn}' FROM gone;
                 UPDATE product SET title = 'title {turn}', id = id + {turn} % 2 * (1::bigint << 40) WHERE id % 11 = {turn} % 11;
                 INSERT INTO product (title) SELECT 'new in {turn}' FROM generate_series(1, 20)"
            ),
        );
        // A copy that is behind has to build its index again.
        let forget = "UPDATE product_forgotten SET up_to = greatest(up_to, snowflake_settled());
                      DELETE FROM product_deleted USING product_forgotten WHERE change <= up_to";
        if turn % 5 == 0 {
            execute(&mut site.client, forget);
        }
    },
    done: printed_bytes,
    check: indexes_are_in_step,
};

pub static SEGMENT_BLOCKS: Program = Program {
    path: "python/segment_blocks.py",
    wrapper: None,
    arguments: &["ADDRESS", "ticket", "1000000000"],
    prepare: "",
    work: |_| (),
    done: printed_bytes,
    check: numbers_are_distinct,
};

pub static SHARDED_WORKER: Program = Program {
    path: "python/sharded_worker.py",
    wrapper: None,
    arguments: &["ADDRESS", "shards", "OWNER", TTL],
    prepare: "SELECT lease_alter('shards', slots => 1); CREATE TABLE added (amount bigint)",
    // Tasks also change while they wait. A frozen session may have locked some.
    work: |site| {
        execute(
            &mut site.client,
            "WITH new AS (INSERT INTO task (shard, amount) SELECT 0, n FROM generate_series(1, 3) AS n
                          WHERE (SELECT count(*) FROM task) < 300 RETURNING amount)
             INSERT INTO added SELECT amount FROM new;
             WITH more AS (UPDATE task SET amount = amount + 1
                           WHERE id = ANY(ARRAY(SELECT id FROM task ORDER BY id FOR UPDATE SKIP LOCKED)) RETURNING 1)
             INSERT INTO added SELECT 1 FROM more",
        );
    },
    done: |site| value(&mut site.client, "SELECT coalesce(sum(total), 0)::bigint FROM shard_total"),
    check: |site| {
        let is_right = "SELECT (SELECT sum(amount) FROM added)
            = (SELECT coalesce(sum(total), 0) FROM shard_total) + (SELECT coalesce(sum(amount), 0) FROM task)";
        assert!(value::<bool>(&mut site.client, is_right), "a task was lost, or counted twice");
    },
};

pub static TCC_MANAGER: Program = Program {
    path: "python/tcc_manager.py",
    wrapper: None,
    arguments: &["ADDRESS", "due_tasks", "OWNER", TTL, "bank=ADDRESS", "shop=ADDRESS"],
    prepare: "SELECT lease_alter('due_tasks', slots => 4);
        ALTER TABLE due_task ALTER shard SET DEFAULT floor(4 * random());
        GRANT SELECT, INSERT, UPDATE ON tcc_step TO app;
        GRANT SELECT ON tcc_forgotten TO app;
        GRANT SELECT, UPDATE ON account TO app;
        INSERT INTO account VALUES (1, 1000000), (7, 1000000)",
    // Every third one is too expensive, and the application cancels every fifth.
    work: |site| {
        let (amount, turn) = (if site.turns % 3 == 0 { 1_000_001 } else { 1 }, site.turns);
        let steps = tcc_manager::steps(amount);
        execute(
            &mut site.client,
            &format!(
                "SELECT CASE {turn} % 5 WHEN 0 THEN tcc_decide(id, 'cancelling') END FROM tcc_begin('{steps}') AS id"
            ),
        );
    },
    done: |site| value(&mut site.client, "SELECT count(*) FROM tcc_transaction WHERE state ~ 'ed$'"),
    check: |site| {
        let wrong = "SELECT count(*) FROM tcc_transaction AS t JOIN tcc_step AS s ON transaction_id = t.id
                     WHERE t.state ~ 'ed$' AND t.state <> s.state";
        assert_eq!(value::<i64>(&mut site.client, wrong), 0, "a step has another end than its transaction");
        let is_right =
            "SELECT sum(balance) + (SELECT coalesce(sum(amount), 0) FROM tcc_step WHERE state <> 'cancelled')
                               = 2000000 FROM account";
        assert!(value::<bool>(&mut site.client, is_right), "money was lost, or made");
    },
};

pub static WORKER_IDS: Program = Program {
    path: "python/worker_ids.py",
    wrapper: Some(ENDLESS_IDS),
    arguments: &["ADDRESS", "shop-ids", "OWNER", TTL],
    prepare: "",
    work: |_| (),
    done: printed_bytes,
    check: numbers_are_distinct,
};

pub static WORKER_IDS_IN_JAVA: Program = Program {
    path: "java/WorkerIds.java",
    wrapper: None,
    arguments: &["ADDRESS", "shop-ids", "OWNER", TTL, "1000000"],
    ..WORKER_IDS
};

/// At most an id a millisecond, so that a fault finds the program at work.
const ENDLESS_IDS: &str = "
import sys, time, worker_ids

conninfo, pool, owner, ttl = sys.argv[1:]
ids = worker_ids.WorkerIds(conninfo, pool, owner, float(ttl))
while True:
    print(ids.next(), flush=True)
    time.sleep(0.001)
";

fn send_a_line(site: &mut Site) {
    for (n, copy) in site.copies.iter_mut().enumerate() {
        copy.send_if_it_reads(&format!("line {} for {n}", site.turns));
    }
}

fn printed_bytes(site: &mut Site) -> i64 {
    let length =
        |copy: &idgen_testkit::Example| std::fs::metadata(copy.printed()).expect("a file of ours").len() as i64;
    site.copies.iter().map(length).sum()
}

fn numbers_are_distinct(site: &mut Site) {
    let lines = site.copies.iter().flat_map(|copy| copy.lines());
    assert_distinct(lines.map(|line| line.parse::<i64>().expect("a number")).collect());
}

/// Each index that is whole has what the table has, once it has followed, or was built again because keys are forgotten. The
/// table does not change during this.
fn indexes_are_in_step(site: &mut Site) {
    let lines = format!(
        "
import glob, os, psycopg, search_index, sys
db = psycopg.connect(sys.argv[1], autocommit=True)
rows = dict(db.execute('SELECT id, title FROM product').fetchall())
for file in filter(search_index.is_whole, glob.glob('{}/*.db')):
    index = search_index.open_index(file)
    while applied := search_index.follow(db, index):
        pass
    if applied is None:
        search_index.build(db, file + '.again')
        index = search_index.open_index(file + '.again')
        os.remove(file + '.again')
    titles = dict(index.execute('SELECT rowid, title FROM product').fetchall())
    assert titles == rows, (file, applied, titles.items() ^ rows.items())
    print(file)
",
        site.directory().display()
    );
    assert!(!run_python(&site.cluster, "search_index.py", &lines).is_empty());
}

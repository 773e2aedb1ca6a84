//! Data and objects in use over an upgrade from every release: ids, values, locks, leases and worker ids continue, and what
//! users have built on the extension works before and after.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{execute, expect_error, value};
use postgres::Client;

use super::{install, releases};

/// What a release brought, as its users use it.
struct Usage {
    since: &'static str,
    /// Tables, views and functions on the extension, and data.
    objects: &'static str,
    /// Each is true at any time after `objects`, before and after the upgrade.
    uses: &'static [&'static str],
}

const USAGES: &[Usage] = &[
    Usage {
        since: "0.1.0",
        objects: "
            CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_next(), note text,
                                 made timestamptz GENERATED ALWAYS AS (snowflake_time(id, 'snowflake')) STORED);
            CREATE INDEX orders_made ON orders (snowflake_time(id, 'snowflake'));
            CREATE VIEW recent AS SELECT * FROM orders WHERE id >= snowflake_floor(now() - interval '1 day');
            CREATE VIEW drawn AS SELECT layout, issued FROM idgen.stat_snowflake;
            INSERT INTO orders (note) VALUES ('first'), ('second')",
        uses: &[
            "WITH before AS (SELECT max(id) AS id FROM orders),
                  added AS (INSERT INTO orders DEFAULT VALUES RETURNING id, made)
             SELECT added.id > before.id AND added.made = snowflake_time(added.id) FROM added, before",
            "SELECT count(*) > 2 AND count(*) = (SELECT count(*) FROM orders) FROM recent",
            "SELECT sum(issued) >= 2 FROM drawn",
        ],
    },
    Usage {
        since: "0.2.0",
        objects: "CREATE VIEW ahead AS SELECT mark, lead FROM idgen.stat_clock",
        uses: &["SELECT count(*) = 1 FROM ahead", "SELECT snowflake_observe(max(id)) IS NOT NULL FROM orders"],
    },
    Usage {
        since: "0.3.0",
        objects: "CREATE UNIQUE INDEX orders_text ON orders (snowflake_encode(id, 'base58'))",
        uses: &["SELECT bool_and(id = snowflake_decode(snowflake_encode(id, 'base58'), 'base58')) FROM orders"],
    },
    Usage {
        since: "0.4.0",
        objects: "
            SELECT segment_create('ticket', step => 10);
            CREATE TABLE tickets (id bigint PRIMARY KEY DEFAULT segment_next('ticket'));
            CREATE VIEW stock AS SELECT tag, remaining FROM idgen.stat_segment;
            INSERT INTO tickets DEFAULT VALUES",
        uses: &[
            "WITH added AS (INSERT INTO tickets DEFAULT VALUES RETURNING id)
             SELECT added.id = 1 + (SELECT max(id) FROM tickets) FROM added",
            "SELECT remaining > 0 FROM stock WHERE tag = 'ticket'",
        ],
    },
    Usage {
        since: "0.5.0",
        objects: "
            CREATE TABLE notes (id int, version bigint NOT NULL DEFAULT 1);
            CREATE TRIGGER version BEFORE UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION row_version('version');
            CREATE VIEW locked AS SELECT name, granted FROM idgen.locks;
            INSERT INTO notes VALUES (1)",
        uses: &[
            "WITH changed AS (UPDATE notes SET id = 1 RETURNING version)
             SELECT changed.version = notes.version + 1 FROM changed, notes",
            // Another session holds it.
            "SELECT NOT lock_try_acquire('nightly')",
            "SELECT granted FROM locked WHERE name = 'nightly'",
        ],
    },
    Usage {
        since: "0.6.0",
        objects: "
            CREATE TABLE held (name text, token bigint);
            CREATE TABLE guarded (n int);
            CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION lease_guard('importer');
            CREATE VIEW holders AS SELECT name, slot, owner FROM idgen.leases;
            CREATE VIEW grants AS SELECT grants FROM idgen.stat_lease;
            SELECT lease_define('importer', 2);
            INSERT INTO held SELECT name, token FROM lease_acquire('importer', ttl => '1 hour', owner => 'app')",
        uses: &[
            "SELECT lease_renew(name, token) IS NOT NULL FROM held WHERE name = 'importer'",
            "WITH fenced AS MATERIALIZED (SELECT lease_fence(name, token) FROM held WHERE name = 'importer'),
                  written AS (INSERT INTO guarded SELECT 1 FROM fenced RETURNING n)
             SELECT n = 1 FROM written",
            "SELECT slot = 0 FROM holders WHERE name = 'importer' AND owner = 'app'",
            "SELECT grants > 0 FROM grants",
        ],
    },
    Usage {
        since: "0.7.0",
        objects: "
            CREATE TABLE workers (worker_id int, token bigint);
            CREATE VIEW keeper AS SELECT source, state FROM idgen.stat_worker;
            CREATE VIEW granted AS SELECT pool, worker_id, token FROM idgen.workers;
            SELECT lease_define('pods', 4);
            INSERT INTO workers SELECT worker_id, token FROM worker_acquire('pods', 'pod-1', '1 hour')",
        uses: &[
            "SELECT expires_at > now() FROM workers, LATERAL worker_renew('pods', token, '1 hour'::interval)",
            "SELECT source = 'setting' FROM keeper",
            "SELECT worker_id = 0 FROM granted JOIN workers USING (worker_id, token) WHERE pool = 'pods'",
        ],
    },
];

/// "0.10.0" is later than "0.9.0".
fn ordered(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().expect("a number")).collect()
}

fn assert_all_true(client: &mut Client, usages: &[&Usage], when: &str) {
    for usage in usages {
        for sql in usage.uses {
            assert!(value::<bool>(client, sql), "{when}: {sql}");
        }
    }
}

#[test]
fn data_and_objects_in_use_continue_over_the_upgrade_from_any_release_smoke() {
    // A refill worker for each database.
    let cluster = Cluster::builder().conf("idgen.worker_id", "0").conf("max_worker_processes", "32").start();
    for release in releases(&cluster) {
        let (database, mut client) = install(&cluster, &release);
        let mut holder = cluster.client_in(&database);
        let usages: Vec<&Usage> = USAGES.iter().filter(|usage| ordered(usage.since) <= ordered(&release)).collect();
        // Each statement in its own transaction, as worker_acquire() demands.
        for statement in usages.iter().flat_map(|usage| usage.objects.split(';')) {
            execute(&mut client, statement);
        }
        if ordered(&release) >= ordered("0.5.0") {
            execute(&mut holder, "SELECT lock_acquire('nightly')");
        }
        assert_all_true(&mut client, &usages, &format!("under the SQL of {release}"));

        execute(&mut cluster.client_in(&database), "ALTER EXTENSION idgen UPDATE");

        assert_all_true(&mut client, &usages, &format!("in a session since before the upgrade from {release}"));
        let mut later = cluster.client_in(&database);
        assert_all_true(&mut later, &usages, &format!("after the upgrade from {release}"));
    }
}

#[test]
fn downgrade_is_refused() {
    let cluster = Cluster::start();
    let releases = releases(&cluster);
    let mut client = cluster.client();
    execute(&mut client, "CREATE EXTENSION idgen");
    for release in releases {
        let error = expect_error(&mut client, &format!("ALTER EXTENSION idgen UPDATE TO '{release}'"), "22023");
        assert!(error.message().contains("no update path"), "{}", error.message());
    }
}

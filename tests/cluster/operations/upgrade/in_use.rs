//! Data and objects in use over an upgrade from every release: ids, values, locks, leases and worker ids continue, and what
//! users have built on the extension works before and after.

use idgen_testkit::sql::{PATIENCE, column, execute, expect_error, value};
use idgen_testkit::{Cluster, Stop};
use postgres::Client;

use super::{install, releases};

/// A capability, as its users use it.
struct Usage {
    /// Tables, views and functions on the extension, and data.
    objects: &'static str,
    /// Each is true at any time after `objects`, before and after the upgrade.
    uses: &'static [&'static str],
}

const USAGES: &[Usage] = &[
    Usage {
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
        objects: "CREATE VIEW ahead AS SELECT mark, lead FROM idgen.stat_clock",
        uses: &["SELECT count(*) = 1 FROM ahead", "SELECT snowflake_observe(max(id)) IS NOT NULL FROM orders"],
    },
    Usage {
        objects: "CREATE UNIQUE INDEX orders_text ON orders (snowflake_encode(id, 'base58'))",
        uses: &["SELECT bool_and(id = snowflake_decode(snowflake_encode(id, 'base58'), 'base58')) FROM orders"],
    },
    Usage {
        objects: "
            SELECT segment_create('ticket', step => 10), segment_grant('ticket', 'pg_monitor');
            CREATE TABLE tickets (id bigint PRIMARY KEY DEFAULT segment_next('ticket'));
            CREATE VIEW stock AS SELECT tag, remaining FROM idgen.stat_segment;
            INSERT INTO tickets DEFAULT VALUES",
        uses: &[
            "WITH added AS (INSERT INTO tickets DEFAULT VALUES RETURNING id)
             SELECT added.id = 1 + (SELECT max(id) FROM tickets) FROM added",
            "SELECT remaining > 0 FROM stock WHERE tag = 'ticket'",
            "SELECT drawers = '{pg_monitor}' FROM idgen.segment",
        ],
    },
    Usage {
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
        objects: "
            CREATE TABLE workers (worker_id int, token bigint, not_before timestamptz);
            CREATE VIEW keeper AS SELECT source, state FROM idgen.stat_worker;
            CREATE VIEW granted AS SELECT pool, worker_id, token, not_before FROM idgen.workers;
            SELECT lease_define('pods', 4);
            INSERT INTO workers SELECT worker_id, token, not_before FROM worker_acquire('pods', 'pod-1', '1 hour')",
        uses: &[
            "SELECT renewed.expires_at > now() FROM idgen.workers, worker_renew('pods', token, not_after) AS renewed",
            "SELECT source = 'setting' FROM keeper",
            "SELECT worker_id = 0 FROM granted JOIN workers USING (worker_id, token, not_before) WHERE pool = 'pods'",
        ],
    },
    Usage {
        objects: "
            SELECT public_id_define('ord');
            CREATE TABLE links (id bigint PRIMARY KEY DEFAULT snowflake_next(), uuid uuid DEFAULT uuidv7_next(), text text);
            INSERT INTO links (text) SELECT public_id('ord', 42)",
        uses: &[
            "SELECT public_id_decode('ord', text) = 42 FROM links",
            "SELECT uuidv7_next() > uuid FROM links",
            "SELECT snowflake_settled() IS NOT NULL",
        ],
    },
];

const INTERVALS: &str = "
    SELECT string_agg(concat_ws(' ', pool, number, not_before, not_after), ', ' ORDER BY pool, number)
    FROM idgen.worker_number";

fn assert_all_true(client: &mut Client, when: &str) {
    for usage in USAGES {
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
        // Each statement in its own transaction, as worker_acquire() demands.
        for statement in USAGES.iter().flat_map(|usage| usage.objects.split(';')) {
            execute(&mut client, statement);
        }
        execute(&mut holder, "SELECT lock_acquire('nightly')");
        assert_all_true(&mut client, &format!("under the SQL of {release}"));

        let intervals: String = value(&mut client, INTERVALS);

        execute(&mut cluster.client_in(&database), "ALTER EXTENSION idgen UPDATE");

        assert_eq!(value::<String>(&mut client, INTERVALS), intervals, "from {release}");
        assert_all_true(&mut client, &format!("in a session since before the upgrade from {release}"));
        let mut later = cluster.client_in(&database);
        assert_all_true(&mut later, &format!("after the upgrade from {release}"));
        let next = "SELECT worker_id <> 0 AND token > (SELECT token FROM workers)
                    FROM worker_acquire('pods', 'pod-2', '1 hour')";
        assert!(value::<bool>(&mut later, next), "from {release}");
        execute(&mut later, "SET ROLE pg_monitor; SELECT segment_next('ticket')");
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

/// The keeper's requests are those of 0.14.0. So this also tells of an earlier server at a coordinator of this release.
#[test]
fn servers_keep_their_worker_ids_and_segments_over_the_upgrade_of_their_coordinator_from_any_release() {
    let coordinator = Cluster::builder().conf("max_worker_processes", "32").start();
    for release in releases(&coordinator) {
        let (database, mut client) = install(&coordinator, &release);
        execute(&mut client, "SELECT lease_define('servers', 4, '3 s'), segment_create('t')");
        let conninfo = coordinator.connect_string(&database, "postgres");
        let builder = Cluster::builder().conf("idgen.worker_pool", "servers").conf("idgen.coordinator", &conninfo);
        let server = builder.start_with_extension();
        let renewals = "SELECT renewals FROM idgen.stat_worker WHERE state = 'leased'";
        let renewed = |since: i64| {
            server.wait_for(PATIENCE, "a renewal", || {
                column::<i64>(&mut server.client(), renewals).iter().any(|n| *n > since)
            });
            value::<i64>(&mut server.client(), "SELECT renewals FROM idgen.stat_worker")
        };
        let last = renewed(0);
        server.execute("SELECT segment_attach('t', '2 seconds')");
        let mut session = server.client();
        let draw = "SELECT max(snowflake_next()), max(segment_next('t')) FROM generate_series(1, 3000)";
        execute(&mut session, draw);

        execute(&mut client, "ALTER EXTENSION idgen UPDATE");

        renewed(last);
        execute(&mut session, draw);
        let kept = "SELECT changes = 1 AND worker_id = 0 FROM idgen.stat_worker";
        assert!(value::<bool>(&mut session, kept), "from {release}");
        drop(session);
        server.stop(Stop::Fast);
        let released = "SELECT state = 'free' FROM idgen.workers WHERE pool = 'servers'";
        assert!(value::<bool>(&mut client, released), "from {release}");
    }
}

//! Data and objects in use over an upgrade from every release: ids, values, locks and leases continue, and what users have
//! built on the extension works before and after.

use idgen_testkit::sql::{PATIENCE, column, execute, expect_error, in_new_database, value};
use idgen_testkit::{Cluster, Stop};
use postgres::Client;

use super::{database, install, place, releases, releases_before_pools, write_history};

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
            INSERT INTO idgen.lease_definition (name, slots, ttl, lock_delay, owner) VALUES ('importer', 2, '1 hour', '0', 'postgres');
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
            CREATE VIEW keeper AS SELECT source, state FROM idgen.stat_worker;
            CREATE VIEW granted AS SELECT pool, worker_id, token, not_before FROM idgen.workers",
        uses: &["SELECT source = 'setting' FROM keeper", "SELECT count(*) = 0 FROM granted"],
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
        for usage in USAGES {
            execute(&mut client, usage.objects);
        }
        execute(&mut holder, "SELECT lock_acquire('nightly')");
        assert_all_true(&mut client, &format!("under the SQL of {release}"));

        execute(&mut cluster.client_in(&database), "ALTER EXTENSION idgen UPDATE");

        assert_all_true(&mut client, &format!("in a session since before the upgrade from {release}"));
        let mut later = cluster.client_in(&database);
        assert_all_true(&mut later, &format!("after the upgrade from {release}"));
        execute(&mut later, "SELECT lease_define('importer', 2, '1 hour'), worker_pool_define('pods', 0, 4)");
        execute(&mut later, "SELECT worker_acquire('pods')");
        assert!(value::<bool>(&mut client, "SELECT count(*) = 1 FROM granted"), "from {release}");
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

/// Replaces the extension by that of a release, with its rows for the one worker id that is held.
fn go_back_to(release: &str, client: &mut Client, place: &str) {
    let steps = [
        "CREATE TABLE held AS SELECT pool, worker_id, token, owner, role, acquired_at, not_before, not_after
             FROM idgen.worker_id WHERE token IS NOT NULL",
        "DROP EXTENSION idgen",
        &format!("CREATE EXTENSION idgen VERSION '{release}'"),
        "INSERT INTO idgen.lease_definition (name, slots, ttl, lock_delay, owner) VALUES ('servers', 4, '10 s', '0', 'postgres')",
        "INSERT INTO idgen.worker_number (pool, number, not_before, not_after, token, owner, released)
             SELECT pool, worker_id, not_before, not_after, token, owner, false FROM held",
        "INSERT INTO idgen.lease (name, slot, token, depth, owner, role, acquired_at, ttl_us, ends_us, clock, revoked)
             SELECT pool, worker_id, token, 1, owner, role, acquired_at, 10000000, 0, 'of an earlier version', false FROM held",
    ];
    execute(client, "BEGIN");
    steps.into_iter().for_each(|step| execute(client, step));
    write_history(client, place);
    execute(client, "COMMIT");
}

const END_KEEPERS: &str =
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'idgen keeper'";

const IS_KEEPER_WAITING: &str = "SELECT count(*) > 0 FROM pg_stat_activity
     WHERE application_name = 'idgen keeper' AND wait_event_type = 'Lock'";

/// Between the new library and the update, the coordinator does not renew worker ids. Servers use them until they end.
#[test]
fn servers_keep_their_worker_ids_and_segments_over_the_upgrade_of_their_coordinator_to_pools() {
    let coordinator = Cluster::builder().conf("max_worker_processes", "32").start();
    let place = place(&coordinator);
    for release in releases_before_pools(&coordinator) {
        let mut client = in_new_database(&coordinator, &database(&release));
        execute(&mut client, "SELECT worker_pool_define('servers', 0, 4, '10 s')");
        let conninfo = coordinator.connect_string(&database(&release), "postgres");
        let builder = Cluster::builder().conf("idgen.worker_pool", "servers").conf("idgen.coordinator", &conninfo);
        let server = builder.start_with_extension();
        let mut session = server.client();
        execute(&mut session, "SELECT snowflake_next()");
        go_back_to(&release, &mut client, &place);
        execute(&mut client, "SELECT segment_create('t')");
        execute(&mut session, "SELECT segment_attach('t', '2 seconds')");
        let draw = "SELECT max(snowflake_next()), max(segment_next('t')) FROM generate_series(1, 3000)";
        execute(&mut session, draw);
        // As after the restart, the keeper connects and finds no pools.
        execute(&mut client, END_KEEPERS);
        server.wait_for(PATIENCE, "a refused renewal", || {
            let is_refused = "SELECT last_error LIKE '%Run ALTER EXTENSION idgen UPDATE%' FROM idgen.stat_worker";
            value::<Option<bool>>(&mut server.client(), is_refused) == Some(true)
        });
        let renewals = "SELECT renewals FROM idgen.stat_worker WHERE state = 'leased'";
        let before = column::<i64>(&mut session, "SELECT renewals FROM idgen.stat_worker")[0];

        // A renewal has found no pools, and meets the update.
        execute(&mut client, "BEGIN; ALTER EXTENSION idgen UPDATE");
        coordinator.wait_for(PATIENCE, "a renewal that waits for the update", || {
            value::<bool>(&mut coordinator.client(), IS_KEEPER_WAITING)
        });
        execute(&mut client, "COMMIT");

        server.wait_for(PATIENCE, "a renewal", || {
            column::<i64>(&mut server.client(), renewals).iter().any(|n| *n > before)
        });
        execute(&mut session, draw);
        let kept = "SELECT changes = 1 AND worker_id = 0 FROM idgen.stat_worker";
        assert!(value::<bool>(&mut session, kept), "from {release}");
        let is_same = "SELECT token = (SELECT token FROM held) FROM idgen.workers WHERE pool = 'servers'";
        assert!(value::<bool>(&mut client, is_same), "from {release}");
        assert!(!server.log().contains("is lost"), "from {release}");
        drop(session);
        server.stop(Stop::Fast);
        let released = "SELECT state = 'free' FROM idgen.workers WHERE pool = 'servers'";
        assert!(value::<bool>(&mut client, released), "from {release}");
    }
}

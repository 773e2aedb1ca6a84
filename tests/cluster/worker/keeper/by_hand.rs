//! Worker ids that are set by hand beside a pool. The pool may have granted them to other servers, unless this directory has
//! issued ids under them.

use idgen_testkit::grants::worker_id_of;
use idgen_testkit::ids::assert_distinct;
use idgen_testkit::sql::{PATIENCE, execute, expect_error, ids};
use idgen_testkit::{Builder, Cluster, Stop};
use std::thread;

use super::{Worker, coordinator, draw};
use crate::{POOL, builder, set_pool};

const BY_HAND: i32 = 5;
const WITHOUT_WORKER_ID: &str = "this server has no worker id yet from pool \"servers\"";

/// A server that issues ids under a worker id that is set.
fn by_hand(builder: Builder) -> Cluster {
    let server = builder.conf("idgen.worker_id", &BY_HAND.to_string()).start_with_extension();
    assert_eq!(worker_id_of(draw(&mut server.client())), BY_HAND);
    server
}

/// Moves a server to the pool, which grants it the worker id that it has. Then the coordinator stops.
fn move_to_pool(server: &Cluster, coordinator: &Cluster) {
    set_pool(server, POOL, &coordinator.conninfo());
    assert_eq!(Worker::wait_for_state(server, "leased").worker_id, Some(BY_HAND));
    coordinator.stop(Stop::Fast);
}

fn assert_has_no_worker_id(server: &Cluster) {
    assert_eq!(expect_error(&mut server.client(), "SELECT snowflake_next()", "55000").message(), WITHOUT_WORKER_ID);
}

#[test]
fn standby_that_is_promoted_after_the_move_to_a_pool_has_no_worker_id_before_its_first_lease_smoke() {
    for restarts in [false, true] {
        let coordinator = coordinator(builder(), 16, "1 hour");
        let primary = by_hand(builder());
        let standby = primary.standby();
        move_to_pool(&primary, &coordinator);
        set_pool(&standby, POOL, &coordinator.conninfo());
        if restarts {
            standby.restart();
        }
        standby.promote();
        assert_has_no_worker_id(&standby);
        let mut seen = ids(&mut primary.client(), "SELECT snowflake_next_many(1000)");
        coordinator.start_again();
        assert_ne!(Worker::wait_for_state(&standby, "leased").worker_id, Some(BY_HAND));
        seen.extend(ids(&mut standby.client(), "SELECT snowflake_next_many(1000)"));
        assert_distinct(seen);
    }
}

/// A statement applies no settings that change while it runs, and may draw before the keeper has started.
#[test]
fn statement_that_runs_over_the_promotion_does_not_draw_under_the_worker_id_by_hand() {
    let coordinator = coordinator(builder(), 16, "1 hour");
    let primary = by_hand(builder());
    primary.execute(
        "CREATE FUNCTION draw_as_soon_as_promoted() RETURNS SETOF bigint LANGUAGE plpgsql AS $$ BEGIN \
         WHILE pg_is_in_recovery() LOOP END LOOP; \
         RETURN QUERY SELECT snowflake_next() FROM generate_series(1, 1000); END $$",
    );
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    let mut client = standby.client();
    let drawing = thread::spawn(move || client.query("SELECT draw_as_soon_as_promoted()", &[]));
    let mut observer = standby.client();
    let running = "SELECT FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT draw_as_soon_as_promoted()'";
    standby.wait_for(PATIENCE, "the statement", || !observer.query(running, &[]).expect("a query").is_empty());
    move_to_pool(&primary, &coordinator);
    set_pool(&standby, POOL, &coordinator.conninfo());
    standby.promote();
    let drawn = drawing.join().expect("no panic").map(|rows| rows.len());
    let error = drawn.expect_err("ids under the worker id that another server has");
    assert_eq!(error.code().map(|code| code.code()), Some("55000"), "{error:?}");
    assert_has_no_worker_id(&standby);
}

#[test]
fn rewound_server_does_not_take_the_worker_id_by_hand_from_the_memory_of_another() {
    let coordinator = coordinator(builder(), 16, "1 hour");
    let first = by_hand(builder().conf("wal_log_hints", "on").conf("wal_keep_size", "1GB"));
    let second = first.standby();
    move_to_pool(&first, &coordinator);
    set_pool(&second, POOL, &coordinator.conninfo());
    second.promote();
    execute(&mut second.client(), "CHECKPOINT");
    // Otherwise pg_rewind has nothing to do, and the directory keeps its own memory.
    first.execute("CREATE TABLE diverged ()");
    first.stop(Stop::Fast);
    first.rewind_to(&second);
    first.wait_until_replayed(&second);
    first.promote();
    assert_has_no_worker_id(&first);
}

#[test]
fn backup_from_before_the_move_to_a_pool_has_no_worker_id_before_its_first_lease() {
    let coordinator = coordinator(builder(), 16, "1 hour");
    let server = by_hand(builder());
    let online = server.base_backup();
    server.stop(Stop::Fast);
    let cold = server.cold_backup();
    server.start_again();
    draw(&mut server.client());
    // The keeper has recorded that ids are issued by hand beside a pool, and has leased none.
    coordinator.stop(Stop::Fast);
    set_pool(&server, POOL, &coordinator.conninfo());
    Worker::wait_until(&server, "failures", |worker| worker.failures > 0);
    let recorded = server.base_backup();
    coordinator.start_again();
    assert_eq!(Worker::wait_for_state(&server, "leased").worker_id, Some(BY_HAND));
    coordinator.stop(Stop::Fast);
    for backup in [&online, &cold, &recorded] {
        let restored = server.restored(&backup.path().join("data"));
        restored.start_again();
        assert_has_no_worker_id(&restored);
    }
    server.stop(Stop::Immediate);
    server.restore_in_place(&recorded);
    server.start_again();
    assert_has_no_worker_id(&server);
}

#[test]
fn server_that_starts_with_its_first_pool_asks_for_the_worker_id_by_hand() {
    let coordinator = coordinator(builder(), 16, "1 hour");
    let server = by_hand(builder());
    coordinator.stop(Stop::Fast);
    set_pool(&server, POOL, &coordinator.conninfo());
    let other = builder().conf("idgen.worker_id", "9").start_with_extension();
    other.set_conf("idgen.worker_pool", POOL);
    other.restart_with("idgen.coordinator", &coordinator.conninfo());
    assert_has_no_worker_id(&other);
    coordinator.start_again();
    assert_eq!(Worker::wait_for_state(&other, "leased").worker_id, Some(9));
}

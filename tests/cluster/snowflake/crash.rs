//! The generator after the crash of one backend. Other tests show that no id repeats.

use std::sync::atomic::{AtomicUsize, Ordering};

use idgen_testkit::ids::{assert_distinct, assert_increasing};
use idgen_testkit::sql::{PATIENCE, backend_pid, ids, value};
use idgen_testkit::{Cluster, rounds};

const SESSIONS: usize = 8;

#[test]
fn generator_works_after_a_backend_was_killed_under_load_smoke() {
    let cluster = Cluster::builder().start_with_extension();
    for round in 1..=rounds(2, 20) {
        let statements = AtomicUsize::new(0);
        let drawn: Vec<Vec<i64>> = std::thread::scope(|scope| {
            let mut clients: Vec<_> = (0..SESSIONS).map(|_| cluster.client()).collect();
            let victim = backend_pid(&mut clients[round % SESSIONS]);
            let statements = &statements;
            let draw = |mut client: postgres::Client| {
                let mut received: Vec<i64> = Vec::new();
                // Draws until the crash ends the session.
                while let Ok(row) =
                    client.query_one("SELECT array_agg(snowflake_next()) FROM generate_series(1, 100)", &[])
                {
                    received.extend(row.get::<_, Vec<i64>>(0));
                    statements.fetch_add(1, Ordering::Relaxed);
                }
                received
            };
            let workers: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || draw(client))).collect();
            cluster.wait_for(PATIENCE, "load", || statements.load(Ordering::Relaxed) > 20 * SESSIONS);
            cluster.kill9(victim);
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        drawn.iter().for_each(|ids| assert_increasing(ids));
        assert_distinct(drawn.concat());

        cluster.wait_until_ready();
        assert_eq!(cluster.log().matches("all server processes terminated; reinitializing").count(), round);
        let mut client = cluster.client();
        // Shared memory is reinitialized: no generator is in use, and the counters are 0.
        assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.stat_snowflake"), 0);
        let after = ids(&mut client, "SELECT snowflake_next() FROM generate_series(1, 1000)");
        assert_increasing(&after);
        assert_increasing(&ids(&mut client, "SELECT snowflake_next_many(1000, 'js53')"));
        let issued = "SELECT sum(issued)::bigint FROM idgen.stat_snowflake";
        assert_eq!(value::<i64>(&mut client, issued), 2000);
    }
}

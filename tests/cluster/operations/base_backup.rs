//! Copies by pg_basebackup, of a primary under load and of its standby, which then run beside their origin.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use idgen_testkit::Cluster;
use idgen_testkit::ids::{assert_distinct, count_repeated};
use idgen_testkit::parallel::End;
use idgen_testkit::segment::{create, next};
use idgen_testkit::sql::{PATIENCE, execute, ids};
use postgres::Client;

const INSERT: &str = "INSERT INTO orders SELECT FROM generate_series(1, 100) RETURNING id";

fn primary() -> Cluster {
    let primary = Cluster::builder().conf("idgen.worker_id", "1").start_with_extension();
    primary.execute("CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_next())");
    primary
}

/// Gives a copy a worker id of its own before it draws.
fn with_worker_id(copy: Cluster, worker_id: &str) -> Cluster {
    copy.restart_with("idgen.worker_id", worker_id);
    copy
}

#[test]
fn copies_beside_a_primary_under_load_repeat_no_id_under_other_worker_ids_smoke() {
    let primary = primary();
    let standby = primary.standby();
    let (is_over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let session = |mut client: Client| {
        let mut seen = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            seen.extend(ids(&mut client, INSERT));
            count.fetch_add(1, Ordering::Relaxed);
        }
        seen
    };
    std::thread::scope(|scope| {
        let sessions = [(); 4].map(|()| {
            let client = primary.client();
            scope.spawn(|| session(client))
        });
        let end = End(&is_over);
        let wait_for_inserts = || {
            let enough = count.load(Ordering::Relaxed) + 100;
            primary.wait_for(PATIENCE, "inserts", || count.load(Ordering::Relaxed) > enough);
        };
        wait_for_inserts();
        let copies = [with_worker_id(primary.copy(), "2"), with_worker_id(standby.copy(), "3")];
        // The copy of a standby is one too.
        copies[1].promote();
        let mut of_copies = Vec::new();
        let mut copied = Vec::new();
        for copy in &copies {
            let mut client = copy.client();
            copied.push(ids(&mut client, "SELECT id FROM orders"));
            for _ in 0..100 {
                of_copies.extend(ids(&mut client, INSERT));
            }
        }
        wait_for_inserts();
        drop(end);
        let mut seen: Vec<i64> = sessions.into_iter().flat_map(|session| session.join().expect("no panic")).collect();
        for rows in copied {
            assert!(count_repeated(&seen, &rows) > 100, "the copy has the rows of its origin");
        }
        seen.extend(of_copies);
        assert_distinct(seen);
    });
}

/// The control: idgen cannot tell a copy from its origin.
#[test]
fn copy_beside_its_origin_repeats_ids_under_one_worker_id_and_values_of_segments() {
    let primary = primary();
    create(&mut primary.client(), "ticket", ", step => 10");
    let copy = primary.copy();
    let mut clients = [primary.client(), copy.client()];
    // Both begin at the same time ahead of their clocks.
    let begin = "SELECT snowflake_observe(snowflake_ceil(date_trunc('hour', now()) + interval '2 hours'))";
    clients.iter_mut().for_each(|client| execute(client, begin));
    let [of_primary, of_copy] = clients.each_mut().map(|client| ids(client, INSERT));
    assert_eq!(of_primary, of_copy);
    let [of_primary, of_copy] = clients.each_mut().map(|client| next(client, "ticket"));
    assert_eq!(of_primary, of_copy);

    let copy = with_worker_id(copy, "2");
    let of_copy = ids(&mut copy.client(), INSERT);
    assert_eq!(count_repeated(&of_copy, &ids(&mut primary.client(), INSERT)), 0);
}

//! Several leases in one call: all or none, in one commit, without a deadlock.

use idgen_testkit::Cluster;
use idgen_testkit::rounds;
use idgen_testkit::sql::{backend_pid, execute, row, value};
use postgres::Client;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{builder, scenario};

/// Also where a lease has several slots, or is not defined, and with the names in any order.
#[test]
fn terms_are_those_of_the_names_and_commit_together() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    execute(&mut client, "SELECT lease_define('pair', 2), lease_define('one')");
    for names in ["{one,pair,free}", "{free,pair,one}", "{pair}"] {
        let all = row(
            &mut client,
            &format!(
                "WITH got AS (SELECT * FROM lease_acquire_many('{names}', '1 min', 'me', '{{\"a\": 1}}'))
                 SELECT array_agg(name)::text, array_agg(token), array_agg(name::text) FROM got"
            ),
        );
        assert_eq!(all.get::<_, String>(0), names, "in the order asked");
        let (tokens, names): (Vec<i64>, Vec<String>) = (all.get(1), all.get(2));
        let shown = "SELECT token, owner, data->>'a' FROM idgen.leases WHERE name = $1 AND state = 'held'";
        for (token, name) in tokens.iter().zip(&names) {
            let row = client.query_one(shown, &[name]).unwrap();
            assert_eq!((row.get(0), row.get(1), row.get(2)), (*token, "me", "1"), "{name}");
        }
        let statement = "SELECT count(*) FILTER (WHERE is_free) FROM lease_release_many($1, $2)";
        assert_eq!(client.query_one(statement, &[&names, &tokens]).unwrap().get::<_, i64>(0), names.len() as i64);
        let again = client.query_one(statement, &[&names, &tokens]).unwrap();
        assert_eq!(again.get::<_, i64>(0), 0, "released terms are left out");
    }
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM lease_acquire_many('{}')"), 0);
}

#[test]
fn call_gets_all_or_none_and_leaves_what_is_free_to_others() {
    scenario(
        "holder: SELECT token FROM lease_acquire('b', '1 hour') -> $held
         other: SELECT count(*) FROM lease_try_acquire_many('{a,b,c}', ttl => '1 hour') -> 0
         -- Nothing of it is left, neither terms nor locks.
         observer: SELECT count(*) FROM idgen.leases WHERE name <> 'b' AND state = 'held' -> 0
         observer: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' -> 0
         many waits for Extension: SELECT string_agg(name, ',') FROM lease_acquire_many('{c,b,a}', '1 hour')
         -- While it waits for one, the others are free for a call that does not wait.
         other: SELECT token FROM lease_try_acquire('a', '0', '1 hour') -> $a
         other: SELECT token FROM lease_try_acquire('c', '0', '1 hour') -> $c
         holder: SELECT lease_release('b', $held) -> t
         many waits for Extension
         other: SELECT lease_release('a', $a), lease_release('c', $c) -> t|t
         many ends -> c,b,a",
    );
}

#[test]
fn call_waits_at_a_row_that_a_fence_has_locked_and_is_not_granted_in_parts() {
    scenario(
        "holder: SELECT lease_define('a'), lease_define('b')
         holder: SELECT token FROM lease_acquire('b', '100 ms') -> $token
         writer: BEGIN; SELECT lease_fence('b', $token)
         until: SELECT state FROM idgen.leases WHERE name = 'b' -> expired
         many waits for transactionid: SELECT string_agg(name, ',') FROM lease_acquire_many('{a,b}', '1 hour')
         other: SELECT count(*) FROM lease_try_acquire('a', '0', '1 s') -> 1
         writer: COMMIT
         many ends -> a,b
         holder: SELECT lease_renew('b', $token) -> error 55000",
    );
}

/// Slots that have rows are free for others at once, as after a call for one lease. Each grant counts once.
#[test]
fn call_leaves_the_queues_before_its_transaction_ends() {
    scenario(
        "a: SELECT lease_define('p', 2), lease_define('q', 2)
         a: CREATE TABLE rows AS SELECT * FROM lease_acquire_many('{p,q}') UNION ALL SELECT * FROM lease_acquire_many('{q,p}')
         a: SELECT count(*) FROM lease_release_many((SELECT array_agg(name) FROM rows), (SELECT array_agg(token) FROM rows)) -> 4
         a: SELECT idgen.reset_stats()
         a: BEGIN; SELECT FROM lease_acquire_many('{p,q}', '1 hour')
         a: SELECT grants, take_overs FROM idgen.stat_lease -> 2|0
         b: SELECT count(*) FROM lease_try_acquire('p', '0', '1 hour') -> 1
         b: SELECT count(*) FROM lease_try_acquire('q', '0', '1 hour') -> 1
         a: COMMIT
         b: SELECT count(*) FROM lease_try_acquire_many('{p,q}') -> 0
         b: SELECT grants, take_overs FROM idgen.stat_lease -> 4|0",
    );
}

/// Of each other, two transactions hold what the other one wants. One call alone cannot come into that.
#[test]
fn two_calls_in_one_transaction_can_deadlock_and_one_is_told() {
    scenario(
        "a: SELECT lease_define('x'), lease_define('y'); SET deadlock_timeout = '10min'
         a: BEGIN; SELECT FROM lease_acquire_many('{x}')
         b: SET deadlock_timeout = '10ms'
         b: BEGIN; SELECT FROM lease_acquire_many('{y}')
         a waits for advisory: SELECT count(*) FROM lease_acquire_many('{y}')
         b: SELECT count(*) FROM lease_acquire_many('{x}') -> error 40P01
         b: ROLLBACK
         a ends -> 1
         a: COMMIT",
    );
}

#[test]
fn writer_waits_for_all_shared_terms() {
    scenario(
        "a: SELECT array_agg(token) FROM lease_acquire_many('{p,q}', '1 hour', shared => true) -> $a
         b: SELECT array_agg(token) FROM lease_acquire_many('{q,p}', '1 hour', shared => true) -> $b
         writer waits for Extension: SELECT count(*) FROM lease_acquire_many('{p,q}', '1 hour')
         a: SELECT count(*) FROM lease_release_many('{p,q}', '$a') -> 2
         b: SELECT count(*) FROM lease_release_many('{q,p}', '$b') -> 2
         writer ends -> 2",
    );
}

/// A fence of several leases lets the transaction commit only if all tokens are current, and delays the take-over of each.
#[test]
fn several_leases_are_fenced_and_renewed_at_once() {
    scenario(
        "a: SELECT lease_define('x'), lease_define('y')
         a: SELECT array_agg(token) FROM lease_acquire_many('{x,y}', '1 hour') -> $tokens
         a: SELECT string_agg(name, ',') FROM lease_renew_many('{y,x}', (SELECT array_agg(t ORDER BY n DESC)
             FROM unnest('$tokens'::bigint[]) WITH ORDINALITY AS given (t, n))) -> y,x
         a: BEGIN; SELECT lease_fence_many('{x,y}', '$tokens')
         b: SELECT lease_revoke('x'), lease_revoke('y')
         c: SELECT count(*) FROM lease_try_acquire('x') -> 0
         d: SELECT count(*) FROM lease_try_acquire('y') -> 0
         a: COMMIT
         c: SELECT count(*) FROM lease_try_acquire('x', ttl => '1 hour') -> 1
         a: SELECT lease_fence_many('{y,x}', '$tokens') -> error 55000
         a: SELECT count(*) FROM lease_renew_many('{x,y}', '$tokens') -> 0
         a: SELECT lease_fence_many('{x}', '{1,2}') -> error 22023
         a: SELECT lease_acquire_many('{x,y,x}') -> error 22023 \"x\" is named twice
         a: SELECT lease_acquire_many('{x,NULL}') -> error 22004
         a: SELECT lease_acquire_many(NULL) -> error 22004",
    );
}

/// Clients ask for overlapping sets in different orders. There is never more than one holder of a name, no call gets a part,
/// and each call ends, without 40P01.
fn storm(cluster: &Cluster, clients: u64, rounds: usize) {
    const NAMES: u64 = 6;
    let holders: Vec<AtomicU64> = (0..NAMES).map(|_| AtomicU64::new(0)).collect();
    execute(&mut cluster.client(), "SELECT lease_define('n' || i) FROM generate_series(0, 2) AS i");
    std::thread::scope(|scope| {
        for number in 0..clients {
            let holders = &holders;
            scope.spawn(move || {
                let mut client = cluster.client();
                let mut random = number + 1;
                for _ in 0..rounds {
                    // Two to four names, from anywhere in the ring and in either direction.
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let (first, count, is_reversed) = (random >> 33, 2 + (random >> 40) % 3, random >> 50 & 1 == 1);
                    let mut wanted: Vec<u64> = (0..count).map(|i| (first + i) % NAMES).collect();
                    if is_reversed {
                        wanted.reverse();
                    }
                    let names: Vec<String> = wanted.iter().map(|name| format!("n{name}")).collect();
                    let call = "SELECT token FROM lease_acquire_many($1, '1 hour')";
                    let rows = client.query(call, &[&names]).unwrap_or_else(|error| panic!("{names:?}: {error:?}"));
                    let tokens: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
                    assert_eq!(tokens.len(), names.len(), "no part");
                    for name in &wanted {
                        assert_eq!(holders[*name as usize].swap(number + 1, Relaxed), 0, "one holder");
                    }
                    wanted.iter().for_each(|name| holders[*name as usize].store(0, Relaxed));
                    let released = client.query("SELECT FROM lease_release_many($1, $2)", &[&names, &tokens]).unwrap();
                    assert_eq!(released.len(), names.len());
                }
            });
        }
    });
}

#[test]
fn crossing_calls_neither_deadlock_nor_share_smoke() {
    let cluster = builder().start_with_extension();
    storm(&cluster, 8, rounds(60, 12_500));
}

/// Each term that is taken writes the data of the call.
#[test]
fn call_needs_the_memory_of_one_row_at_a_time() {
    const NAMES: &str = "(SELECT array_agg('n' || n) FROM generate_series(1, 64) AS n)";
    // The pages of the server that a process has seen are a part of its memory.
    let cluster = builder().conf("shared_buffers", "1MB").start_with_extension();
    let mut client = cluster.client();
    execute(&mut client, "SELECT lease_define('n' || n) FROM generate_series(1, 64) AS n");
    let call = format!(
        "WITH got AS MATERIALIZED (SELECT * FROM lease_acquire_many({NAMES}, data => to_jsonb(repeat('x', 1000000))))
         SELECT array_agg(name), array_agg(token) FROM got"
    );
    let acquire = |client: &mut Client| {
        let all = row(client, &call);
        let (names, tokens): (Vec<String>, Vec<i64>) = (all.get(0), all.get(1));
        client.execute("SELECT lease_release_many($1, $2)", &[&names, &tokens]).unwrap();
    };
    // The first call inserts the rows.
    acquire(&mut client);
    acquire(&mut client);
    let pid = backend_pid(&mut client);
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("the peak starts again");
    let kb = |name: &str| -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("Linux tells it");
        line.split_whitespace().next().and_then(|kb| kb.parse().ok()).expect("a number")
    };
    let before = kb("VmHWM:");
    acquire(&mut client);
    let grown = kb("VmHWM:") - before;
    assert!(grown < 20_000, "the session has grown by {grown} kB");
}

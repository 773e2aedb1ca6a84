//! Several slots in one transaction, and many names at once.

use idgen_testkit::lease::{Grant, acquire, try_acquire};
use idgen_testkit::rounds;
use idgen_testkit::sql::{PATIENCE, backend_pid, column, execute, expect_error, value};

use crate::{builder, release, states, wait_until_head, wait_until_queued};

#[test]
fn transaction_acquires_two_slots_of_a_name() {
    let cluster = builder().start_with_extension();
    let (mut client, mut other) = (cluster.client(), cluster.client());
    let pid = backend_pid(&mut other);
    execute(&mut client, "SELECT lease_define('two', 2, '1 day')");
    // New slots first, then the released ones.
    for _ in 0..2 {
        for end in ["ROLLBACK", "COMMIT"] {
            execute(&mut client, "BEGIN");
            let both = [acquire(&mut client, "'two'"), acquire(&mut client, "'two'")];
            assert_ne!(both[0].slot, both[1].slot);
            assert!(both[1].token > both[0].token);
            assert_eq!(try_acquire(&mut client, "'two'"), None, "both slots are taken");
            if end == "ROLLBACK" {
                execute(&mut client, end);
                assert!(!states(&mut client, "two").iter().any(|state| state.contains("held")));
                continue;
            }
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| acquire(&mut other, "'two'"));
                cluster.wait_for(PATIENCE, "the other to wait", || {
                    let sql = format!("SELECT count(*) = 1 FROM pg_locks WHERE pid = {pid} AND NOT granted");
                    value(&mut cluster.client(), &sql)
                });
                execute(&mut client, end);
                wait_until_head(&cluster, pid);
                assert!(release(&mut client, "two", both[0].token));
                let third = waiter.join().unwrap();
                assert_eq!(third.slot, both[0].slot);
                assert!(release(&mut client, "two", third.token) && release(&mut client, "two", both[1].token));
            });
        }
    }
    assert_eq!(states(&mut client, "two"), ["0 free", "1 free"]);
}

#[test]
fn transaction_reacquires_a_slot_that_it_released() {
    let cluster = builder().start_with_extension();
    let (mut client, mut other) = (cluster.client(), cluster.client());
    let pid = backend_pid(&mut other);
    execute(&mut client, "BEGIN");
    let first = acquire(&mut client, "'n'");
    assert!(release(&mut client, "n", first.token));
    let second = acquire(&mut client, "'n'");
    assert!(second.token > first.token);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| acquire(&mut other, "'n'"));
        wait_until_queued(&cluster, pid);
        execute(&mut client, "COMMIT");
        expect_error(&mut client, &format!("SELECT lease_release('n', {})", first.token), "55000");
        assert!(release(&mut client, "n", second.token));
        waiter.join().unwrap();
    });
}

/// More names than condition variables, so that some share one.
#[test]
fn concurrent_names_do_not_block_each_other() {
    const NAMES: i32 = 400;
    const CLIENTS: usize = 8;
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    let all = format!("generate_series(1, {NAMES}) AS n");
    let tokens: Vec<i64> = column(&mut client, &format!("SELECT (lease_acquire('n' || n, '1 day')).token FROM {all}"));
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let cluster = &cluster;
                scope.spawn(move || {
                    let mut client = cluster.client();
                    // Each client begins at another name, so that clients meet at a name only briefly.
                    (0..rounds(NAMES as usize, 10_000))
                        .map(|n| {
                            let n = (n + number * NAMES as usize / CLIENTS) % NAMES as usize + 1;
                            let Grant { slot, token } = acquire(&mut client, &format!("'n{n}', '1 day'"));
                            assert_eq!(slot, 0);
                            assert!(release(&mut client, &format!("n{n}"), token));
                            token
                        })
                        .collect::<Vec<i64>>()
                })
            })
            .collect();
        let names = format!("(SELECT array_agg('n' || n ORDER BY n) FROM {all})");
        let renewed = format!("SELECT count(*) FROM lease_renew_many({names}, $1, '1 day')");
        assert_eq!(client.query_one(&renewed, &[&tokens]).unwrap().get::<_, i64>(0), i64::from(NAMES));
        for (n, token) in (1..).zip(&tokens) {
            assert!(release(&mut client, &format!("n{n}"), *token));
        }
        let mut granted: Vec<i64> = waiters.into_iter().flat_map(|waiter| waiter.join().unwrap()).collect();
        let count = granted.len();
        granted.extend(&tokens);
        granted.sort_unstable();
        granted.dedup();
        assert_eq!(granted.len(), count + tokens.len(), "no token comes twice");
    });
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.lease"), 0);
}

//! Waits that end without the lease, wherever they wait: nothing of them is left, and the transaction can go on.

use idgen_cluster_tests::Cluster;
use idgen_cluster_tests::sql::{backend_pid, execute, refused, value};
use postgres::Client;

use crate::{acquire, await_head, await_queued, await_row, await_state, builder, locks_of, try_acquire};

/// Where a wait can be.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// For a term to end.
    Head,
    /// For others who came before.
    Queue,
    /// For a transaction that has fenced by a term that is over.
    Row,
}

const PLACES: [Place; 3] = [Place::Head, Place::Queue, Place::Row];

const WAITS: [&str; 3] = [
    "SELECT lease_acquire('w', '1 day')",
    "SELECT lease_try_acquire('w', '1 hour', '1 day')",
    "SELECT lease_acquire('w', '1 day', bind_session => true)",
];

/// Has the sessions keep the lease, so that whoever wants it waits there.
fn keep(cluster: &Cluster, place: Place, holder: &mut Client, first: &mut Client) {
    match place {
        Place::Head => {
            acquire(holder, "'w', '1 day'");
        }
        // In a transaction that has made the slot, which nobody else can see: the turn is over with it.
        Place::Queue => {
            execute(first, "BEGIN");
            acquire(first, "'w', '1 day'");
        }
        Place::Row => {
            let token = acquire(holder, "'w', '100 ms'").token;
            await_state(cluster, "w", "0 expired");
            execute(holder, &format!("BEGIN; SELECT lease_fence('w', {token})"));
        }
    }
}

fn await_waiting(cluster: &Cluster, place: Place, pid: i32) {
    match place {
        Place::Head => await_head(cluster, pid),
        Place::Queue => await_queued(cluster, pid),
        Place::Row => await_row(cluster, pid),
    }
}

/// Does this for each place and each way to wait: a client, its process, and who keeps the lease.
fn at_each_place(work: impl Fn(&Cluster, Place, &str, &mut Client, i32)) {
    let cluster = builder().start_with_extension();
    for place in PLACES {
        for wait in WAITS {
            let (mut holder, mut first, mut client) = (cluster.client(), cluster.client(), cluster.client());
            let pid = backend_pid(&mut client);
            keep(&cluster, place, &mut holder, &mut first);
            let rows = "SELECT coalesce(string_agg(lease::text, ','), '') FROM idgen.lease";
            let before: String = value(&mut cluster.client(), rows);
            work(&cluster, place, wait, &mut client, pid);
            assert_eq!(locks_of(&mut cluster.client(), pid), 0, "{place:?}, {wait}");
            assert_eq!(value::<String>(&mut cluster.client(), rows), before, "{place:?}, {wait}");
            for keeper in [&mut holder, &mut first] {
                execute(keeper, "COMMIT");
            }
            execute(&mut holder, "SELECT lease_release(name, token) FROM idgen.leases WHERE depth > 0");
            // Nobody is in the way.
            assert!(try_acquire(&mut holder, "'w'").is_some(), "{place:?}, {wait}");
            execute(&mut holder, "DELETE FROM idgen.lease");
        }
    }
}

#[test]
fn a_wait_that_is_cancelled_leaves_nothing() {
    at_each_place(|cluster, place, wait, client, pid| {
        execute(client, "BEGIN; SAVEPOINT s");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| refused(client, wait, "57014"));
            await_waiting(cluster, place, pid);
            execute(&mut cluster.client(), &format!("SELECT pg_cancel_backend({pid})"));
            waiter.join().unwrap();
        });
        execute(client, "ROLLBACK TO s");
        assert_eq!(locks_of(&mut cluster.client(), pid), 0, "{place:?}, {wait}");
        execute(client, "COMMIT");
    });
}

#[test]
fn a_limit_that_is_over_leaves_nothing() {
    at_each_place(|cluster, place, wait, client, pid| {
        // Both of PostgreSQL's limits, and the call's own.
        let mut endings = vec![("statement_timeout", wait.to_owned(), Some("57014"))];
        if wait.contains("try") {
            endings.push(("idle_session_timeout", wait.replace("1 hour", "50 ms"), None));
            endings.push(("lock_timeout", wait.replace("1 hour", "200 ms"), None));
        } else {
            endings.push(("lock_timeout", wait.to_owned(), Some("55P03")));
        }
        for (setting, wait, code) in endings {
            execute(client, &format!("BEGIN; SAVEPOINT s; SET LOCAL {setting} = '50ms'"));
            match code {
                Some(code) => {
                    refused(client, &wait, code);
                    execute(client, "ROLLBACK TO s");
                }
                None => assert_eq!(client.query(&wait, &[]).expect("an answer").len(), 0),
            }
            assert_eq!(locks_of(&mut cluster.client(), pid), 0, "{place:?}, {setting}, {wait}");
            execute(client, "COMMIT");
            assert_eq!(value::<String>(client, "SHOW lock_timeout"), "0");
        }
    });
}

#[test]
fn a_waiting_session_that_is_terminated_leaves_nothing() {
    at_each_place(|cluster, place, wait, client, pid| {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| client.simple_query(wait).is_err());
            await_waiting(cluster, place, pid);
            let end = format!("SELECT pg_terminate_backend({pid}, 60000)");
            assert!(value::<bool>(&mut cluster.client(), &end));
            assert!(waiter.join().unwrap());
        });
    });
}

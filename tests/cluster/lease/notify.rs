//! `lease_define(..., notify => true)`: NOTIFY tells other sessions of each term, when the transaction commits.

use idgen_testkit::lease::{acquire, try_acquire};
use idgen_testkit::sql::{PATIENCE, execute, expect_error};
use idgen_testkit::{Cluster, Stop};
use postgres::Client;
use postgres::fallible_iterator::FallibleIterator;

use crate::{builder, release, states, wait_for_state};

/// A session that listens.
struct Listener(Client);

impl Listener {
    fn of(cluster: &Cluster) -> Self {
        let mut client = cluster.client();
        execute(&mut client, "LISTEN idgen_lease");
        Self(client)
    }

    /// The payloads since the last call. They end with one that the test sends, because PostgreSQL keeps their order.
    fn seen(&mut self, cluster: &Cluster) -> Vec<String> {
        cluster.execute("NOTIFY idgen_lease, 'end'");
        let mut payloads = Vec::new();
        let mut notifications = self.0.notifications();
        let mut received = notifications.timeout_iter(PATIENCE);
        loop {
            let next = received.next().expect("a connection").expect("the last notification");
            if next.payload() == "end" {
                return payloads;
            }
            assert_eq!(next.channel(), "idgen_lease");
            payloads.push(next.payload().to_owned());
        }
    }

    /// The slot, event and owner of each payload since the last call.
    fn events(&mut self, cluster: &Cluster, name: &str) -> Vec<String> {
        let before_slot = format!("{{\"name\": \"{name}\", \"slot\": ");
        let event = |payload: String| {
            let rest = payload.strip_prefix(&before_slot).and_then(|rest| rest.strip_suffix('}'));
            let rest = rest.unwrap_or_else(|| panic!("{payload}"));
            rest.replace(", \"event\": \"", " ").replace("\", \"owner\": ", " ").replace('"', "")
        };
        self.seen(cluster).into_iter().map(event).collect()
    }
}

#[test]
fn each_term_that_begins_or_ends_is_told_without_its_token() {
    let cluster = builder().start_with_extension();
    let (mut listener, mut client) = (Listener::of(&cluster), cluster.client());
    execute(&mut client, "SELECT lease_define('w', notify => true)");
    let token = acquire(&mut client, "'w', owner => 'app-1'").token;
    let granted = r#"{"name": "w", "slot": 0, "event": "granted", "owner": "app-1"}"#;
    assert_eq!(listener.seen(&cluster), [granted]);

    // The term goes on.
    for call in [
        format!("lease_renew('w', {token})"),
        format!("lease_renew_many('{{w}}', '{{{token}}}')"),
        format!("lease_acquire('w', token => {token})"),
        format!("lease_fence('w', {token})"),
        format!("lease_release('w', {token})"),
    ] {
        execute(&mut client, &format!("SELECT {call}"));
        assert_eq!(listener.seen(&cluster), [""; 0], "{call}");
    }
    assert!(release(&mut client, "w", token));
    assert_eq!(listener.events(&cluster, "w"), ["0 released app-1"]);

    acquire(&mut client, "'w'");
    execute(&mut client, "SELECT lease_revoke('w')");
    assert_eq!(listener.events(&cluster, "w"), ["0 granted null", "0 revoked null"]);
    execute(&mut client, "SELECT lease_revoke('w')");
    assert_eq!(listener.seen(&cluster), [""; 0], "there is no term to revoke");

    // A session that ends, or a term that expires, is told when the next one begins.
    let mut bound = cluster.client();
    acquire(&mut bound, "'w', owner => 'bound', bind_session => true");
    drop(bound);
    acquire(&mut client, "'w', '100 ms', owner => 'expires'");
    wait_for_state(&cluster, "w", "0 expired");
    assert_eq!(listener.events(&cluster, "w"), ["0 granted bound", "0 expired bound", "0 granted expires"]);
    acquire(&mut client, "'w', '1 day'");
    assert_eq!(listener.events(&cluster, "w"), ["0 expired expires", "0 granted null"]);
}

#[test]
fn nothing_is_told_of_a_term_that_is_rolled_back() {
    let cluster = builder().start_with_extension();
    let (mut listener, mut client) = (Listener::of(&cluster), cluster.client());
    execute(&mut client, "SELECT lease_define('w', notify => true)");
    let acquire = "SELECT lease_acquire('w', owner => 'a')";
    execute(&mut client, &format!("BEGIN; {acquire}; ROLLBACK"));
    execute(&mut client, &format!("BEGIN; SAVEPOINT s; {acquire}; ROLLBACK TO s; COMMIT"));
    assert_eq!(listener.seen(&cluster), [""; 0]);
    execute(&mut client, &format!("BEGIN; SAVEPOINT s; {acquire}; RELEASE s"));
    assert_eq!(listener.seen(&cluster), [""; 0], "before the commit");
    execute(&mut client, "COMMIT");
    assert_eq!(listener.events(&cluster, "w"), ["0 granted a"]);
    execute(&mut client, "BEGIN; SAVEPOINT s; SELECT lease_revoke('w'); ROLLBACK TO s; COMMIT");
    assert_eq!(listener.seen(&cluster), [""; 0]);
}

/// Sessions remember which leases are watched.
#[test]
fn definition_with_notify_applies_to_all_sessions_when_it_commits() {
    let cluster = builder().start_with_extension();
    let (mut listener, mut client, mut definer) = (Listener::of(&cluster), cluster.client(), cluster.client());
    let mut term = |client: &mut Client| {
        let token = acquire(client, "'w'").token;
        release(client, "w", token);
        listener.events(&cluster, "w").len()
    };
    assert_eq!(term(&mut client), 0, "not defined");
    execute(&mut definer, "SELECT lease_define('w'), lease_define('other', notify => true)");
    assert_eq!(term(&mut client), 0);
    execute(&mut definer, "SELECT lease_define('w', notify => true)");
    assert_eq!(term(&mut client), 2);
    // In its own transaction, and not after a rollback.
    execute(&mut definer, "SELECT lease_drop('w')");
    assert_eq!(term(&mut client), 0, "dropped");
    execute(
        &mut definer,
        "BEGIN; SELECT lease_define('w', notify => true); SAVEPOINT s; SELECT lease_define('w'); ROLLBACK TO s",
    );
    let token = acquire(&mut definer, "'w'").token;
    execute(&mut definer, &format!("SELECT lease_release('w', {token}); COMMIT"));
    assert_eq!(term(&mut definer), 4);
    execute(&mut definer, "BEGIN; SELECT lease_define('w')");
    assert_eq!(term(&mut definer), 0, "not yet committed");
    execute(&mut definer, "ROLLBACK");
    assert_eq!(term(&mut definer), 2);
    execute(&mut definer, "SELECT lease_define('w')");
    assert_eq!(term(&mut client), 0, "redefined without notify");
}

#[test]
fn expired_term_is_told_when_fewer_slots_or_a_drop_end_it() {
    let cluster = builder().start_with_extension();
    let (mut listener, mut client) = (Listener::of(&cluster), cluster.client());
    execute(&mut client, "SELECT lease_define('w', 2, '100 ms', notify => true)");
    acquire(&mut client, "'w', owner => 'a'");
    acquire(&mut client, "'w', owner => 'b'");
    let expired = ["0 expired", "1 expired"];
    cluster.wait_for(PATIENCE, "both to expire", || states(&mut cluster.client(), "w") == expired);
    listener.seen(&cluster);
    execute(&mut client, "SELECT lease_define('w', 1, '100 ms', notify => true, force => true)");
    assert_eq!(listener.seen(&cluster), [""; 0]);
    acquire(&mut client, "'w', owner => 'c'");
    assert_eq!(listener.events(&cluster, "w"), ["1 expired b", "0 expired a", "0 granted c"]);
    cluster.wait_for(PATIENCE, "the term to expire", || states(&mut cluster.client(), "w") == ["0 expired", "1 free"]);
    execute(&mut client, "SELECT lease_drop('w')");
    assert_eq!(listener.events(&cluster, "w"), ["0 expired c"]);
}

/// A session that acquires another name deletes the row a day later. Without preload, each session does.
#[test]
fn expired_shared_term_is_told_when_its_row_is_deleted() {
    let cluster = builder().preload(false).start_with_extension();
    let (mut listener, mut client) = (Listener::of(&cluster), cluster.client());
    execute(&mut client, "SELECT lease_define('w', notify => true)");
    let slots = ["a", "b"].map(|owner| acquire(&mut client, &format!("'w', '1 min', '{owner}', shared => true")).slot);
    execute(&mut client, "UPDATE idgen.lease SET ends_us = ends_us - 90000000000");
    listener.seen(&cluster);
    acquire(&mut cluster.client(), "'new'");
    let mut events = listener.events(&cluster, "w");
    events.sort();
    let mut expected = [format!("{} expired a", slots[0]), format!("{} expired b", slots[1])];
    expected.sort();
    assert_eq!(events, expected);
}

/// PostgreSQL limits a payload to 7,999 bytes.
#[test]
fn payload_is_json_and_an_owner_from_before_its_limit_is_cut() {
    let cluster = builder().start_with_extension();
    let (mut listener, mut client) = (Listener::of(&cluster), cluster.client());
    let name = "repeat(E'\\x01', 254) || '\"'";
    let owner = "repeat(E'\\x02', 997) || 'ü\\'";
    execute(&mut client, &format!("SELECT lease_define({name}, notify => true)"));
    execute(&mut client, &format!("SELECT lease_acquire({name}, owner => {owner})"));
    let mut assert_told = |event: &str, owner: &str| {
        let payloads = listener.seen(&cluster);
        let [payload] = &payloads[..] else { panic!("{} payloads", payloads.len()) };
        let is_as_stored = format!(
            "SELECT $1::text::jsonb = jsonb_build_object('name', {name}, 'slot', 0, 'event', '{event}', 'owner', {owner})"
        );
        let row = cluster.client().query_one(&is_as_stored, &[payload]).expect("the payload is JSON");
        assert!(row.get::<_, bool>(0), "{payload}");
    };
    assert_told("granted", owner);
    execute(&mut client, "UPDATE idgen.lease SET owner = repeat(E'\\x02', 999) || 'ü' || repeat('x', 100000)");
    execute(&mut client, &format!("SELECT lease_revoke({name})"));
    assert_told("revoked", "repeat(E'\\x02', 999) || 'ü'");
}

#[test]
fn release_of_a_watched_lease_cannot_be_prepared() {
    let cluster = builder().conf("max_prepared_transactions", "1").start_with_extension();
    let (mut listener, mut client) = (Listener::of(&cluster), cluster.client());
    execute(&mut client, "SELECT lease_define('w', notify => true)");
    let token = acquire(&mut client, "'w', '1 day'").token;
    listener.seen(&cluster);
    execute(&mut client, &format!("BEGIN; SELECT lease_release('w', {token})"));
    expect_error(&mut client, "PREPARE TRANSACTION 'p'", "0A000");
    assert_eq!(try_acquire(&mut client, "'w'"), None);
    assert_eq!(listener.seen(&cluster), [""; 0]);
}

#[test]
fn definition_with_notify_outlives_a_crash() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('w', notify => true)");
    cluster.stop(Stop::Immediate);
    cluster.start_again();
    let mut listener = Listener::of(&cluster);
    acquire(&mut cluster.client(), "'w'");
    assert_eq!(listener.events(&cluster, "w"), ["0 granted null"]);
}

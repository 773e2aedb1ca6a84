//! Transactions with a single snapshot: a term of one mode begins only if the snapshot has the writes under the other.

use idgen_testkit::sql::{execute, expect_error};
use postgres::Client;

use super::{NAMES, expire, fence, read, start, write};
use crate::release;

const LEVELS: [&str; 2] = ["REPEATABLE READ", "SERIALIZABLE"];

fn begin(client: &mut Client, level: &str) {
    execute(client, &format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM t"));
}

/// Each case: what happens before the snapshot and what after it, and if a term of the other mode may begin then.
fn check(is_reader: bool, holder_reads: bool) {
    let cluster = start();
    cluster.execute("CREATE TABLE t (n int)");
    let call = |name: &str| format!("SELECT lease_acquire('{name}', '1 day', shared => {is_reader})");
    for (level, name) in LEVELS.into_iter().flat_map(|level| NAMES.map(|name| (level, name))) {
        let [mut holder, mut next] = [cluster.client(), cluster.client()];
        let hold = |client: &mut Client| if holder_reads { read(client, name).token } else { write(client, name) };
        let write_fenced = |client: &mut Client, token| {
            fence(client, name, token);
            execute(client, "INSERT INTO t VALUES (1); COMMIT");
        };
        // The holder came and went since the snapshot.
        begin(&mut next, level);
        let token = hold(&mut holder);
        write_fenced(&mut holder, token);
        release(&mut holder, name, token);
        expect_error(&mut next, &call(name), "40001");
        execute(&mut next, "ROLLBACK");
        // The holder was there already, and released since.
        let token = hold(&mut holder);
        begin(&mut next, level);
        write_fenced(&mut holder, token);
        release(&mut holder, name, token);
        expect_error(&mut next, &call(name), "40001");
        execute(&mut next, "ROLLBACK");
        // The holder expired before the snapshot in which its last write is missing, and did not release.
        let token = hold(&mut holder);
        expire(&mut holder, token);
        begin(&mut next, level);
        write_fenced(&mut holder, token);
        expect_error(&mut next, &call(name), "40001");
        execute(&mut next, "ROLLBACK");
        // Nothing has happened since the snapshot.
        release(&mut holder, name, token);
        begin(&mut next, level);
        execute(&mut next, &call(name));
        execute(&mut next, "ROLLBACK");
        // A transaction of its own has no older snapshot.
        let token = hold(&mut holder);
        expire(&mut holder, token);
        execute(&mut next, &format!("SET default_transaction_isolation = '{}'", level.to_lowercase()));
        execute(&mut next, &call(name));
        execute(&mut next, "RESET default_transaction_isolation; DELETE FROM idgen.lease");
    }
}

#[test]
fn reader_needs_a_snapshot_with_the_last_writes_smoke() {
    check(true, false);
}

#[test]
fn writer_needs_a_snapshot_with_what_readers_wrote_smoke() {
    check(false, true);
}

#[test]
fn reader_needs_no_snapshot_with_what_readers_wrote() {
    let cluster = start();
    cluster.execute("CREATE TABLE t (n int)");
    for (level, name) in LEVELS.into_iter().flat_map(|level| NAMES.map(|name| (level, name))) {
        let [mut one, mut two] = [cluster.client(), cluster.client()];
        begin(&mut two, level);
        let token = read(&mut one, name).token;
        read(&mut two, name);
        release(&mut one, name, token);
        execute(&mut two, "COMMIT");
        begin(&mut two, level);
        let newer = read(&mut one, name).token;
        // As for an exclusive term.
        expect_error(&mut two, &format!("SELECT lease_fence('{name}', {newer})"), "40001");
        execute(&mut two, "ROLLBACK; DELETE FROM idgen.lease");
    }
}

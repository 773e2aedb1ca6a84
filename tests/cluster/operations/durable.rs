//! What other sessions use at once outlives a crash, whatever `synchronous_commit` says: definitions, grants and keys.

use idgen_testkit::Cluster;
use idgen_testkit::script::play;
use idgen_testkit::sql::{execute, value};
use postgres::Client;

/// A server that flushes only what a commit waits for: the writer of the log sleeps.
fn with_lazy_flushes() -> Cluster {
    let builder = Cluster::builder().conf("wal_writer_delay", "10s").conf("synchronous_commit", "off");
    let cluster = builder.conf("idgen.worker_id", "1").start_with_extension();
    cluster.execute("CREATE ROLE r; CREATE ROLE heir; CREATE TABLE ordinary (n int)");
    cluster
}

/// True if the commit of the statement has waited for the disk.
fn is_flushed(client: &mut Client, statement: &str) -> bool {
    let before: String = value(client, "SELECT pg_current_wal_insert_lsn()::text");
    execute(client, statement);
    value(client, &format!("SELECT pg_current_wal_flush_lsn() > '{before}'"))
}

const WRITES: [&str; 40] = [
    "SELECT segment_create('t')",
    "SELECT segment_alter('t', max_id => 1000000)",
    "SELECT segment_alter('t', step => 2000)",
    "SELECT segment_alter('t', owner => 'r')",
    "SELECT segment_grant('t', 'public')",
    "SELECT segment_revoke('t', 'public')",
    "SELECT segment_grant('t', 'r', server => true)",
    "SELECT segment_request('t', 1, 'elsewhere', 0, 10)",
    "SELECT segment_leave('t', 1, 1000010)",
    "SELECT segment_resume('t', 2000000)",
    "UPDATE idgen.segment SET max_id = 3000000",
    "UPDATE idgen.segment SET step = 3000",
    "REASSIGN OWNED BY r TO heir",
    "SELECT segment_drop('t')",
    "INSERT INTO idgen.segment (tag, owner) VALUES ('raw', 'postgres')",
    "BEGIN; SELECT segment_create('later'); SET LOCAL synchronous_commit = off; COMMIT",
    "BEGIN; SAVEPOINT s; SELECT segment_create('kept'); RELEASE s; COMMIT",
    "SELECT public_id_define('p')",
    "SELECT public_id_rotate('p', 'long')",
    "SELECT public_id_retire('p', 1)",
    "SELECT public_id_alter('p', 'heir')",
    "SELECT public_id_grant('p', 'public')",
    "SELECT public_id_revoke('p', 'public')",
    "SELECT public_id_drop('p')",
    "SELECT lease_define('l', slots => 8)",
    "SELECT lease_alter('l', slots => 9)",
    "SELECT lease_acquire('l')",
    "UPDATE idgen.lease_definition SET notify = true",
    "SELECT lease_define('other')",
    "SELECT lease_drop('other')",
    "SELECT worker_pool_define('pool', count => 8)",
    "SELECT worker_pool_alter('pool', count => 9)",
    "SELECT worker_acquire('pool')",
    "SELECT worker_renew(pool, token, not_after) FROM idgen.workers",
    "SELECT worker_begin_history()",
    "SELECT worker_correct('pool', 0, now(), force => true)",
    "SELECT worker_pool_define('other pool')",
    "SELECT worker_move('pool', 'other pool')",
    "SELECT worker_pool_drop('other pool')",
    "DROP OWNED BY heir",
];

#[test]
fn every_write_of_the_extension_waits_for_the_disk() {
    let cluster = with_lazy_flushes();
    let mut client = cluster.client();
    let mut lazy = Vec::new();
    for write in WRITES {
        if write.contains("DROP OWNED") {
            execute(
                &mut client,
                "GRANT CREATE ON SCHEMA public TO heir; SELECT segment_create('owned'); SELECT segment_alter('owned', owner => 'heir')",
            );
        }
        if !is_flushed(&mut client, write) {
            lazy.push(write);
        }
    }
    assert!(lazy.is_empty(), "{lazy:#?}");
}

/// Another position of the log than that of the commit could be on disk.
#[test]
fn what_was_seen_before_a_crash_is_there_after_it() {
    play(
        &with_lazy_flushes(),
        "a: BEGIN; SELECT segment_create('t'); SELECT segment_next_many('t', 3); COMMIT
         server: crashes
         a: SELECT segment_create('t') -> error 42710
         a: SELECT public_id_define('ord', 'short')
         a: SELECT public_id('ord', 42) -> $text
         server: crashes
         a: SELECT public_id_decode('ord', '$text') -> 42
         a: SELECT segment_alter('t', max_id => 1000000)
         server: crashes
         a: SELECT segment_next('t') > 1000000 -> t",
    );
}

/// The control: neither ordinary rows nor a release, a fence and a refused attempt wait.
#[test]
fn commit_of_other_rows_does_not_wait_for_the_disk() {
    let cluster = with_lazy_flushes();
    let mut client = cluster.client();
    execute(&mut client, "SELECT segment_create('t')");
    let token: i64 = value(&mut client, "SELECT token FROM lease_acquire('l')");
    assert!(!is_flushed(&mut client, "INSERT INTO ordinary VALUES (1)"));
    let fenced = format!("BEGIN; SELECT lease_fence('l', {token}); INSERT INTO ordinary VALUES (2); COMMIT");
    assert!(!is_flushed(&mut client, &fenced));
    let refused = "BEGIN; SELECT lease_try_acquire('l'); INSERT INTO ordinary VALUES (3); COMMIT";
    assert!(!is_flushed(&mut client, refused));
    assert!(!is_flushed(&mut client, &format!("SELECT lease_release('l', {token})")));
}

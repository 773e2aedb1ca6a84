//! Public ids on real servers: what sessions know of keys that others change, standbys, servers without preload, dumps, and
//! what the log shows.

mod changes;
mod dump;
mod log;

use idgen_testkit::sql::{backend_pid, execute, value};
use idgen_testkit::{Cluster, Resources};
use postgres::Client;

/// The text of an id.
fn text(client: &mut Client, prefix: &str, id: i64) -> String {
    value(client, &format!("SELECT public_id('{prefix}', {id})"))
}

/// The id of a text; `None` if it is none.
fn decoded(client: &mut Client, prefix: &str, text: &str) -> Option<i64> {
    value(client, &format!("SELECT public_id_try_decode('{prefix}', '{text}')"))
}

#[test]
fn session_keeps_the_keys_of_many_prefixes_in_little_memory() {
    let (cluster, [mut client]) = Cluster::builder().start_with_clients();
    execute(&mut client, "SELECT public_id_define('p' || n) FROM generate_series(1, 5000) AS n");
    let mut client = cluster.client();
    let pid = backend_pid(&mut client);
    // What PostgreSQL remembers of tables and queries.
    let first = text(&mut client, "p1", 7);
    assert_eq!(decoded(&mut client, "p1", &first), Some(7));
    let memory_kb = || Resources::of(pid).expect("the session runs").memory;
    let before = memory_kb();
    let wrong = "SELECT count(*) FROM generate_series(1, 5000) AS n \
                 WHERE public_id_decode('p' || n, public_id('p' || n, n)) <> n";
    assert_eq!(value::<i64>(&mut client, wrong), 0);
    let grown = memory_kb() - before;
    assert!(grown < 10_000, "the session has grown by {grown} kB");
}

//! The connection to the coordinator is cut without notice to either end.

use std::sync::atomic::AtomicUsize;

use idgen_testkit::ids::{assert_increasing, last};
use idgen_testkit::sql::{PATIENCE, expect_error, row, stream, value};
use idgen_testkit::{Cluster, Proxy};
use postgres::Client;

use super::{Worker, any_of, assert_granted, coordinator, draw, draw_some};
use crate::{POOL, builder, pooled};
use idgen_testkit::grants::rectangles;

/// 16 ids a millisecond: few enough to draw every id of a lease.
const NARROW: &str = "time:41 worker:10 sequence:4 unit:1ms epoch:2020-01-01T00:00:00Z";

/// Draws up to the error at the end of the lease, and returns the ids.
fn draw_all(client: &mut Client) -> Vec<i64> {
    let (sql, mut ids) = (format!("SELECT snowflake_next_many(2000000000, '{NARROW}')"), Vec::new());
    let error = stream(client, sql.as_str(), &mut ids, &AtomicUsize::new(0)).expect_err("the lease ends");
    assert_eq!(error.code().map(|code| code.code()), Some("55000"), "{error:?}");
    ids
}

#[test]
fn ids_are_issued_up_to_the_end_of_the_lease_and_the_error_tells_the_cause() {
    let coordinator = coordinator(builder(), 4, "3 s");
    let proxy = Proxy::on_tcp(&coordinator);
    // Ids run ahead of the clock, so that they reach the end before the clock does.
    let server = pooled(&proxy.conninfo()).conf("idgen.max_drift", "10 s");
    let (server, [mut client]) = server.start_with_clients();
    draw(&mut client);
    let leased = Worker::of(&mut client);
    proxy.stop_forwarding();
    let mut ids = draw_all(&mut client);

    // Later the clock reaches the end too.
    let ended = Worker::wait_for_state(&server, "ended");
    assert_eq!((ended.worker_id, ended.changes), (leased.worker_id, leased.changes));
    let until_us = ended.until_us.expect("the server had a lease");
    let parts = format!(
        "SELECT (extract(epoch FROM ts) * 1000)::bigint, sequence FROM snowflake_parts({}, '{NARROW}')",
        last(&ids)
    );
    let parts = row(&mut client, &parts);
    assert_eq!((parts.get::<_, i64>(0), parts.get::<_, i64>(1)), (until_us / 1000 - 1, 15), "the last id of the lease");
    let granted = rectangles(&mut coordinator.client());
    assert_eq!(granted.len(), 1);
    // The answer to a renewal may have been cut off. Its end is not the one that the next renewal passes, which fails then.
    assert!(until_us <= granted[0].until_us, "{granted:?}");
    let is_superseded = until_us < granted[0].until_us;

    let error = expect_error(&mut client, "SELECT snowflake_next()", "55000");
    assert!(error.message().starts_with("the lease of worker id 0 from pool \"servers\" ended at "), "{error:?}");
    let detail = error.detail().expect("a DETAIL with time and cause");
    assert!(detail.starts_with("Requests to the coordinator have failed since "), "{detail}");
    assert!(
        detail.contains(&format!(": {}:{} has not answered within 500 ms", proxy.host(), proxy.port())),
        "{detail}"
    );

    proxy.resume_forwarding();
    server.wait_for(PATIENCE, "ids again", || client.simple_query("SELECT snowflake_next()").is_ok());
    let sql = format!("SELECT snowflake_next_many(1000, '{NARROW}')");
    ids.extend(idgen_testkit::sql::ids(&mut client, &sql));
    assert_increasing(&ids);
    let again = Worker::of(&mut client);
    assert_eq!((again.worker_id, again.changes), (leased.worker_id, leased.changes), "no other server has taken it");
    assert_eq!(rectangles(&mut coordinator.client()).len(), 1 + usize::from(is_superseded), "one token");
}

#[test]
fn next_holder_begins_where_the_cut_off_holder_ended() {
    let coordinator = coordinator(builder(), 1, "3 s");
    let proxy = Proxy::on_socket(&coordinator);
    let (first, [mut client]) = pooled(&proxy.conninfo()).start_with_clients();
    let mut of_first = draw_some(&mut client);
    let (second, [mut other]) = pooled(&coordinator.conninfo()).start_with_clients();
    assert_taken(&mut other);

    proxy.stop_forwarding();
    Worker::wait_for_state(&second, "leased");
    let until_us = Worker::of(&mut client).until_us.expect("the server had a lease");
    let of_second = draw_some(&mut other);
    let granted = rectangles(&mut coordinator.client());
    assert_eq!(granted.len(), 2, "{granted:?}");
    assert!(until_us <= granted[0].until_us && granted[0].until_us <= granted[1].from_us, "{until_us} {granted:?}");
    assert_eq!(Worker::of(&mut other).worker_id, Some(0));
    expect_error(&mut client, "SELECT snowflake_next()", "55000");

    proxy.resume_forwarding();
    let why = "SELECT coalesce(last_error LIKE '%are taken%', false) FROM idgen.stat_worker";
    first.wait_for(PATIENCE, "the reported cause", || value(&mut client, why));
    assert_taken(&mut client);
    coordinator.execute(&format!("SELECT worker_pool_alter('{POOL}', count => 2)"));
    let leased = Worker::wait_for_state(&first, "leased");
    assert_eq!((leased.worker_id, leased.changes), (Some(1), 2));
    of_first.extend(draw_some(&mut client));
    assert_increasing(&of_first);
    assert_granted(&coordinator, [(&first, of_first), (&second, of_second)]);
}

fn assert_taken(client: &mut Client) {
    let error = expect_error(client, "SELECT snowflake_next()", "55000");
    let detail = error.detail().unwrap_or_default();
    assert!(
        detail.contains("all 1 worker ids of pool \"servers\" are taken. Least recently renewed: 0 by \""),
        "{error:?}"
    );
}

#[test]
fn silent_host_is_skipped() {
    let coordinator = coordinator(builder(), 4, "3 s");
    let proxies = [Proxy::on_socket(&coordinator), Proxy::on_tcp(&coordinator)];
    proxies[0].stop_forwarding();
    let places = [&proxies[0], &proxies[1]].map(|proxy| (proxy.host().to_owned(), proxy.port().to_owned()));
    let server: Cluster = pooled(&any_of(&places)).start_with_extension();
    for (speaking, silent) in [(1, 0), (0, 1), (1, 0)] {
        proxies[speaking].resume_forwarding();
        proxies[silent].stop_forwarding();
        let mut client = server.client();
        let place = format!("{}:{}", places[speaking].0, places[speaking].1);
        let by = format!("SELECT state = 'leased' AND coordinator = '{place}' FROM idgen.stat_worker");
        server.wait_for(PATIENCE, "a lease from the host that answers", || value(&mut client, &by));
        draw(&mut client);
    }
    assert_eq!(Worker::of(&mut server.client()).changes, 1);
    assert_eq!(rectangles(&mut coordinator.client()).len(), 1, "one token, over either host");
}

//! The coordinator's clock leaps a year ahead and comes back.

use idgen_testkit::sql::{expect_error, hint, value};

use super::{acquire, at, builder, renewal, with_pool};

const YEAR_MS: i64 = 365 * 86_400_000;
const SECOND_US: i64 = 1_000_000;

/// The holder's time, by the true clock.
fn true_us() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    now.as_micros() as i64
}

#[test]
fn holder_that_reports_its_time_is_granted_no_far_rectangle() {
    let cluster = with_pool(builder().fake_clock(), 4);
    let mut client = cluster.client();
    let mut held = acquire(&mut client, &at(true_us()));
    cluster.clock().set_offset_ms(YEAR_MS);
    let is_leapt = "SELECT clock_timestamp() > to_timestamp($1) + interval '300 d'";
    assert!(client.query_one(is_leapt, &[&((true_us() / SECOND_US) as f64)]).unwrap().get::<_, bool>(0));
    held.until_us = value(&mut client, &renewal(&held, &at(true_us())));
    let next = acquire(&mut client, &at(true_us()));
    for grant in [&held, &next] {
        assert!(grant.from_us <= true_us() && grant.until_us <= true_us() + 10 * SECOND_US, "{grant:?}");
    }
    cluster.clock().set_offset_ms(0);
    held.until_us = value(&mut client, &renewal(&held, &at(true_us())));
    assert!(held.until_us <= true_us() + 10 * SECOND_US);
    let third = acquire(&mut client, &at(true_us()));
    assert!(third.from_us <= true_us(), "{third:?}");
}

/// A holder that does not report its time is granted a rectangle a year ahead. Later grants of the worker id fail with the
/// reason until the operator corrects it.
#[test]
fn worker_id_a_year_ahead_is_refused_until_it_is_corrected() {
    let cluster = with_pool(builder().fake_clock(), 1);
    let mut client = cluster.client();
    let started_us = true_us();
    cluster.clock().set_offset_ms(YEAR_MS);
    let token: i64 = value(&mut client, "SELECT token FROM worker_acquire('p', NULL, '10 s')");
    cluster.clock().set_offset_ms(0);
    cluster.execute(&format!("SELECT worker_release('p', {token})"));

    let sql = format!("SELECT worker_acquire('p', NULL, '10 s', {})", at(true_us()));
    let error = expect_error(&mut client, &sql, "55000");
    assert!(error.message().starts_with("worker id 0 of pool \"p\" cannot be used before "), "{}", error.message());
    assert!(
        error.detail().is_some_and(|detail| detail.contains("The clock of this server says")),
        "{:?}",
        error.detail()
    );
    assert!(hint(&error).contains("SELECT worker_correct('p', 0, "), "{}", hint(&error));

    cluster.execute(&format!("SELECT worker_correct('p', 0, {})", at(started_us)));
    let cured = acquire(&mut client, &at(true_us()));
    assert!(cured.from_us == started_us && cured.until_us <= true_us() + 10 * SECOND_US, "{cured:?}");
}

/// Both clocks were wrong when the holder renewed, and right again before its next id.
#[test]
fn release_with_the_last_time_gives_a_rectangle_of_wrong_clocks_back() {
    let cluster = with_pool(builder().fake_clock(), 1);
    let mut client = cluster.client();
    let mut held = acquire(&mut client, &at(true_us()));
    cluster.clock().set_offset_ms(YEAR_MS);
    held.until_us = value(&mut client, &renewal(&held, "clock_timestamp()"));
    cluster.clock().set_offset_ms(0);
    assert!(held.until_us > true_us() + 300 * 86_400 * SECOND_US, "{held:?}");
    let last_us = true_us();
    let release = format!("SELECT worker_release('p', {}, {}, {})", held.token, at(last_us), at(held.until_us));
    assert!(value::<bool>(&mut client, &release));
    let next = acquire(&mut client, &at(true_us()));
    assert!(next.from_us == last_us + 1 && next.until_us <= true_us() + 10 * SECOND_US, "{next:?}");
}

/// A free worker id that begins soon is preferred to one that begins late. A caller a year ahead is refused.
#[test]
fn far_worker_id_is_skipped_and_a_far_caller_refused() {
    let cluster = with_pool(builder(), 2);
    let mut client = cluster.client();
    let far = acquire(&mut client, "clock_timestamp()");
    cluster.execute(&format!(
        "SELECT worker_release('p', {}); UPDATE idgen.worker_id SET not_after = now() + interval '1 year' WHERE worker_id = 0",
        far.token
    ));
    let sql = "SELECT worker_id FROM worker_acquire('p', NULL, '10 s', clock_timestamp(), prefer => 0)";
    assert_eq!(value::<i32>(&mut client, sql), 1, "worker id 0 is preferred but begins too late");
    let ahead = "SELECT worker_acquire('p', NULL, '10 s', now() + interval '1 year')";
    let error = expect_error(&mut client, ahead, "55000");
    assert!(hint(&error).contains("idgen.worker_max_lead"), "{}", hint(&error));
}

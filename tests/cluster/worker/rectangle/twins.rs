//! Two processes with one token, as when a virtual machine is resumed twice.

use idgen_testkit::sql::{expect_error, value};

use super::{acquire, builder, renewal};

#[test]
fn second_process_with_the_same_token_is_refused_at_its_renewal() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('p', 4, '10 s')");
    let (mut client, mut other) = (cluster.client(), cluster.client());
    let mut one = acquire(&mut client, "clock_timestamp()");
    let twin = one.clone();
    one.until_us = value(&mut client, &renewal(&one, "clock_timestamp()"));
    let error = expect_error(&mut other, &renewal(&twin, "clock_timestamp()"), "55000");
    assert!(error.message().contains("was renewed by another holder of its token"), "{}", error.message());
    assert!(error.detail().is_some_and(|detail| detail.contains("Its not_after is ")));
    // The refused process keeps its rectangle, and the other one continues after it.
    assert!(one.until_us > twin.until_us);
    assert!(value::<i64>(&mut client, &renewal(&one, "clock_timestamp()")) > one.until_us);
}

/// The second renewal waits for the first one and is then refused.
#[test]
fn concurrent_renewals_with_one_token_succeed_once() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('p', 4, '10 s')");
    let mut grant = acquire(&mut cluster.client(), "clock_timestamp()");
    // Each moves the end by 10 s, which is less than the maximum lead.
    for _ in 0..5 {
        let (mut client, mut other) = (cluster.client(), cluster.client());
        let sql = renewal(&grant, &super::at(grant.until_us));
        let answers = std::thread::scope(|scope| {
            let one = scope.spawn(|| client.query_one(&sql, &[]));
            let two = scope.spawn(|| other.query_one(&sql, &[]));
            [one.join().unwrap(), two.join().unwrap()]
        });
        let (granted, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        let codes: Vec<_> = refused.iter().filter_map(|error| error.as_ref().err()?.code()).collect();
        assert_eq!(codes.iter().map(|code| code.code()).collect::<Vec<_>>(), ["55000"], "{refused:?}");
        let renewed: i64 = granted[0].as_ref().expect("partitioned").get(0);
        assert_eq!(renewed, grant.until_us + 10_000_000);
        grant.until_us = renewed;
    }
}

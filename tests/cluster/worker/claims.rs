//! Worker ids from a pool: no number has two holders, and no id time of a number is allowed twice.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use idgen_testkit::grants::{self, epoch_us};
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, expect_error, value};
use idgen_testkit::{Builder, Cluster, pause, rounds};
use postgres::{Client, Config};

fn builder() -> Builder {
    // Room for worker ids that are given back with an hour of id time to come.
    Cluster::builder().conf("statement_timeout", "1min").conf("fsync", "off").conf("idgen.worker_max_lead", "1d")
}

/// A number, and the microseconds of id time that its holder may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Allowed {
    number: i32,
    from_us: i64,
    until_us: i64,
}

/// Acquires with these arguments; `None` when the pool is exhausted.
fn acquire(client: &mut Client, arguments: &str) -> Option<(i64, Allowed)> {
    let (from, until) = (epoch_us("not_before"), epoch_us("not_after"));
    let sql = format!("SELECT token, worker_id, {from}, {until} FROM worker_acquire({arguments})");
    match client.query_one(&sql, &[]) {
        Ok(row) => Some((row.get(0), Allowed { number: row.get(1), from_us: row.get(2), until_us: row.get(3) })),
        Err(error) if error.code().is_some_and(|code| code.code() == "53400") => None,
        Err(error) => panic!("{sql}: {error:?}"),
    }
}

#[test]
fn as_many_claims_as_numbers_get_all_of_them_and_one_more_gets_none() {
    const NUMBERS: i32 = 32;
    let cluster = builder().start_with_extension();
    cluster.execute(&format!("SELECT lease_define('p', {NUMBERS}, '1 hour')"));
    let claims: Vec<_> = std::thread::scope(|scope| {
        let claim = || acquire(&mut cluster.client(), "'p', 'pod', '1 hour'");
        let claimants: Vec<_> = (0..NUMBERS).map(|_| scope.spawn(claim)).collect();
        claimants.into_iter().map(|claimant| claimant.join().unwrap()).collect()
    });
    let numbers: BTreeSet<i32> = claims.iter().flatten().map(|(_, allowed)| allowed.number).collect();
    assert_eq!(numbers, (0..NUMBERS).collect(), "all live claimants have the same owner, and numbers of their own");
    let mut client = cluster.client();
    let error = expect_error(&mut client, "SELECT worker_acquire('p', 'pod')", "53400");
    let detail = error.detail().expect("who has them");
    assert_eq!(detail.matches("\"pod\"").count(), 5, "{detail}");
}

#[test]
fn a_number_is_free_when_its_session_ends_and_a_token_after_ttl_and_delay() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('p', 1, '1 hour')");
    let (mut holder, mut client) = (cluster.client(), cluster.client());
    let (_, first) = acquire(&mut holder, "'p', 'a'").expect("it is free");
    assert_eq!(acquire(&mut client, "'p', 'b', '1 hour'"), None);
    let pid = backend_pid(&mut holder);
    assert!(value::<bool>(&mut client, &format!("SELECT pg_terminate_backend({pid}, 60000)")));
    let (token, second) = acquire(&mut client, "'p', 'b', '1 hour'").expect("its session is gone");
    // The first was allowed an hour of id time, and may have made ids of it: the second has to wait until it is over.
    assert_eq!(second.from_us, first.until_us);

    execute(&mut client, &format!("SELECT worker_release('p', {token})"));
    cluster.execute("SELECT lease_define('p', 1, '1 hour', '1 day')");
    acquire(&mut client, "'p', 'b', '100 ms'").expect("it was released");
    let state = "SELECT state FROM idgen.workers";
    cluster.wait_for(PATIENCE, "the number to rest", || value::<String>(&mut client, state) == "resting");
    assert_eq!(acquire(&mut client, "'p', 'c', '1 hour'"), None);
    cluster.execute("SELECT lease_define('p', 1, '1 hour', '1 ms')");
    cluster.wait_for(PATIENCE, "the rest to end", || acquire(&mut client, "'p', 'c', '1 hour'").is_some());
}

#[test]
fn who_is_early_is_told_how_long_to_wait() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('p', 1, '100 s')");
    let heard = Arc::new(Mutex::new(Vec::new()));
    let mut config: Config = cluster.connect_string("postgres", "postgres").parse().unwrap();
    let ear = Arc::clone(&heard);
    let mut client =
        config.notice_callback(move |notice| ear.lock().unwrap().push(notice)).connect(postgres::NoTls).unwrap();
    let (token, _) = acquire(&mut client, "'p', 'a', '100 s'").expect("it is free");
    execute(&mut client, &format!("SELECT worker_release('p', {token})"));
    assert_eq!(heard.lock().unwrap().len(), 0, "its times began at once");

    let clock = format!("SELECT {}", epoch_us("clock_timestamp()"));
    let before_us: i64 = value(&mut client, &clock);
    let (_, allowed) = acquire(&mut client, "'p', 'b', '100 s'").expect("it was released");
    let after_us: i64 = value(&mut client, &clock);
    let heard = heard.lock().unwrap();
    let [notice] = &heard[..] else { panic!("one notice, and not {heard:?}") };
    assert_eq!((notice.severity(), notice.code().code()), ("NOTICE", "00000"));
    let wait =
        notice.message().strip_prefix("worker id 0 of worker pool \"p\" can be used in ").expect("what it is about");
    let wait_ms: i64 = wait.strip_suffix(" s").expect("seconds").replace('.', "").parse().expect("with three decimals");
    let left_ms = |us: i64| (allowed.from_us - us + 999) / 1000;
    assert!((left_ms(after_us)..=left_ms(before_us)).contains(&wait_ms), "{wait}");
}

fn random(limit: u64) -> u64 {
    RandomState::new().hash_one(()) % limit
}

/// Claims, renewals, releases, and clients that vanish, are killed or stand still; what each was told at the last.
fn storm(cluster: &Cluster, wanted: usize, grants: &AtomicUsize, told: &Mutex<Vec<Allowed>>) {
    while grants.fetch_add(1, Ordering::Relaxed) < wanted {
        let mut client = cluster.client();
        let ttl = if random(3) == 0 { "NULL" } else { "'100 ms'" };
        let Some((token, mut allowed)) = acquire(&mut client, &format!("'p', 'pod-{}', {ttl}", random(8))) else {
            continue;
        };
        if hold(cluster, &mut client, token, &mut allowed) && random(2) == 0 {
            // Released with the last time of an id; else given up with all that was allowed.
            let last_us = allowed.from_us + random((allowed.until_us - allowed.from_us) as u64) as i64;
            let release = "SELECT worker_release('p', $1, 'epoch'::timestamptz + $2 * interval '1 microsecond')";
            if client.execute(release, &[&token, &(last_us as f64)]).is_ok() {
                allowed.until_us = last_us + 1;
            }
        }
        told.lock().unwrap().push(allowed);
    }
}

/// Renews some times. False if the number is lost, or the session.
fn hold(cluster: &Cluster, client: &mut Client, token: i64, allowed: &mut Allowed) -> bool {
    let last = "'epoch'::timestamptz + $2 * interval '1 microsecond'";
    let until = format!("SELECT {} FROM worker_renew('p', $1, {last})", epoch_us("not_after"));
    for _ in 0..random(4) {
        let pid = backend_pid(client);
        match random(16) {
            0 => {
                let _paused = pause(pid);
                // Longer than the lease lasts: others take its number.
                std::thread::sleep(std::time::Duration::from_millis(150));
            }
            1 => {
                cluster.execute(&format!("SELECT pg_terminate_backend({pid}, 60000)"));
                return false;
            }
            _ => {}
        }
        match client.query_one(&until, &[&token, &(allowed.until_us as f64)]) {
            Ok(row) => allowed.until_us = row.get(0),
            Err(error) => {
                assert_eq!(error.code().map(|code| code.code()), Some("55000"), "{error:?}");
                return false;
            }
        }
    }
    true
}

#[test]
fn rectangles_never_overlap_over_claims_renewals_releases_kills_and_pauses() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('p', 16, '100 ms')");
    grants::record(&cluster);
    let (count, told) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let wanted = rounds(1500, 50_000);
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| storm(&cluster, wanted, &count, &told));
        }
    });
    // By what every grant and renewal wrote, and by what the clients were told.
    let granted = grants::rectangles(&mut cluster.client());
    grants::assert_apart(&granted);
    let mut told = told.into_inner().unwrap();
    assert_eq!(granted.len(), told.len());
    told.sort_unstable();
    let of_one_number = |two: &&[Allowed]| two[0].number == two[1].number;
    for two in told.windows(2).filter(of_one_number) {
        assert!(two[0].until_us <= two[1].from_us, "one number, one time, two holders: {two:?}");
    }
    let again = told.windows(2).filter(of_one_number).count();
    println!("{} grants, {again} of a number that had a holder before", told.len());
    assert!(again > wanted / 10, "{again} of {} grants were of a number that had a holder before", told.len());
}

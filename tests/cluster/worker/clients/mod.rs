//! Runs the examples that make ids under a leased worker id.

/// Two tests of each of these functions, in the modules `python` and `java`.
macro_rules! in_both_languages {
    ($($client:ident,)*) => {
        mod python {
            $(#[test]
            fn $client() {
                super::$client(super::Python);
            })*
        }

        mod java {
            $(#[test]
            fn $client() {
                super::$client(super::Java);
            })*
        }
    };
}

mod faults;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use idgen_testkit::grants::{time_us_of, worker_id_of};
use idgen_testkit::ids::{assert_distinct, assert_increasing, last};
use idgen_testkit::sql::{PATIENCE, column, row, value};
use idgen_testkit::{Builder, Cluster, Example, FakeClock, Proxy, grants, rounds};
use postgres::Client;

const ENDLESS: usize = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
enum Language {
    Python,
    Java,
}
use Language::{Java, Python};

impl Language {
    fn path(self) -> &'static str {
        match self {
            Python => "python/worker_ids.py",
            Java => "java/WorkerIds.java",
        }
    }
}

/// A running client. Killed when dropped.
struct Instance(Example);

/// The server of the clients, and a TCP proxy, because JDBC supports only TCP.
struct Site {
    cluster: Cluster,
    proxy: Proxy,
}

fn builder() -> Builder {
    Cluster::builder().conf("fsync", "off")
}

impl Site {
    fn new(builder: Builder, count: usize) -> Site {
        Site::with_pool(builder, &format!("count => {count}"))
    }

    /// With these arguments of `worker_pool_define` after the name of the pool.
    fn with_pool(builder: Builder, definition: &str) -> Site {
        let cluster = builder.start_with_extension();
        cluster.execute(&format!("SELECT worker_pool_define('p', {definition})"));
        grants::record(&cluster);
        let proxy = Proxy::on_tcp(&cluster);
        Site { cluster, proxy }
    }

    fn start(&self, language: Language, owner: &str, ttl: &str, count: usize) -> Instance {
        self.start_under_clock(language, owner, ttl, count, None)
    }

    fn start_under_clock(
        &self,
        language: Language,
        owner: &str,
        ttl: &str,
        count: usize,
        clock: Option<&FakeClock>,
    ) -> Instance {
        let mut command = Example::command(&self.cluster, language.path());
        if let Some(clock) = clock {
            clock.apply_to(&mut command);
        }
        command.args([&self.address(language), "p", owner, ttl, &count.to_string()]);
        Instance(Example::start(&self.cluster, &mut command))
    }

    fn address(&self, language: Language) -> String {
        let (host, port) = (self.proxy.host(), self.proxy.port());
        match language {
            Python => self.proxy.conninfo(),
            Java => format!("jdbc:postgresql://{host}:{port}/postgres?user=postgres"),
        }
    }

    fn dir(&self) -> PathBuf {
        self.cluster.data_dir().parent().expect("the data directory is in the cluster's").to_owned()
    }

    /// The worker id and the last times, in microseconds since 1970, that an owner was granted.
    fn granted(&self, owner: &str) -> (i32, i64, i64) {
        let us = |time: &str| format!("(extract(epoch FROM {time}) * 1000000)::bigint");
        let sql = format!(
            "SELECT worker_id, {}, {} FROM idgen.worker_id WHERE owner = '{owner}' ORDER BY acquired_at DESC LIMIT 1",
            us("not_before"),
            us("not_after")
        );
        let row = row(&mut self.cluster.client(), &sql);
        (row.get(0), row.get(1), row.get(2))
    }
}

impl Instance {
    /// The ids printed so far, without an incomplete line.
    fn ids(&self) -> Vec<i64> {
        self.0.lines().iter().map(|line| line.parse().unwrap_or_else(|_| panic!("not an id: {line}"))).collect()
    }

    /// The last id printed.
    fn last(&self) -> Option<i64> {
        let mut file = File::open(self.0.printed()).expect("the file was created");
        let length = file.metadata().expect("an open file").len();
        let (mut tail, longest) = (String::new(), 64);
        file.seek(SeekFrom::Start(length.saturating_sub(longest))).expect("a file");
        file.take(longest).read_to_string(&mut tail).expect("ASCII");
        let (whole, _) = tail.rsplit_once('\n')?;
        Some(whole.rsplit('\n').next()?.parse().expect("an id"))
    }

    /// Waits for an id of this time or later, in microseconds since 1970.
    fn wait_for_time(&self, cluster: &Cluster, us: i64) {
        cluster.wait_for(PATIENCE, "later ids", || self.last().is_some_and(|id| time_us_of(id) >= us));
    }
}

/// The ids lie inside the rectangle. They increase, so the first and the last one show it for all.
fn assert_inside(ids: &[i64], (worker_id, from_us, until_us): (i32, i64, i64)) {
    assert_increasing(ids);
    assert!(ids.iter().all(|id| worker_id_of(*id) == worker_id), "worker id {worker_id}");
    let (first_us, last_us) = (time_us_of(ids[0]), time_us_of(last(ids)));
    assert!(from_us <= first_us && last_us < until_us, "{first_us} to {last_us} in {from_us} to {until_us}");
}

/// The database decodes the ids as the client has encoded them.
fn assert_parts(client: &mut Client, ids: &[i64]) {
    let sql = "SELECT id, (extract(epoch FROM ts) * 1000000)::bigint, worker, sequence
               FROM unnest($1::bigint[]) AS id, snowflake_parts(id, 'snowflake')";
    for row in client.query(sql, &[&ids]).unwrap() {
        let id: i64 = row.get(0);
        let parts: (i64, i32, i64) = (row.get(1), row.get(2), row.get(3));
        assert_eq!(parts, (time_us_of(id), worker_id_of(id), id & 4095), "{id}");
    }
}

#[test]
fn concurrent_clients_make_ids_inside_their_rectangles() {
    for _ in 0..rounds(1, 5) {
        make_ids_concurrently();
    }
}

fn make_ids_concurrently() {
    let owners: Vec<_> = (0..3).flat_map(|n| [(Python, format!("python-{n}")), (Java, format!("java-{n}"))]).collect();
    // As many worker ids as clients: no client takes one whose short ttl passes before its holder renews.
    let site = Site::new(builder(), owners.len());
    let count = 50_000;
    let start = |(language, owner): &(Language, String)| site.start(*language, owner, "0.1", count);
    let instances: Vec<_> = owners.iter().map(start).collect();
    let (mut client, mut all, mut worker_ids) = (site.cluster.client(), Vec::new(), BTreeSet::new());
    let mut ends_us = Vec::new();
    for ((_, owner), mut instance) in owners.iter().zip(instances) {
        let (status, errors) = instance.0.wait(&site.cluster);
        assert!(status.success(), "{owner}: {errors}");
        let ids = instance.ids();
        assert_eq!(ids.len(), count);
        let granted = site.granted(owner);
        assert_inside(&ids, granted);
        assert_parts(&mut client, &ids);
        worker_ids.insert(granted.0);
        ends_us.push((granted.0, time_us_of(last(&ids)) + 1));
        all.extend(ids);
    }
    assert_eq!(worker_ids.len(), owners.len(), "each client has its own worker id");
    assert_distinct(all);
    // The grant and the release of each token are recorded too.
    let renewals = "SELECT count(*) > 2 * count(DISTINCT token) FROM recorded";
    assert!(value::<bool>(&mut client, renewals), "the clients have renewed");

    let begins = "SELECT (worker_id, (extract(epoch FROM not_before) * 1000000)::bigint)::text
                  FROM generate_series(1, $n) AS n, worker_acquire('p', 'next-' || n, '1 min')";
    let mut begins: Vec<String> = column(&mut client, &begins.replace("$n", &owners.len().to_string()));
    let mut ends: Vec<_> = ends_us.iter().map(|(worker_id, us)| format!("({worker_id},{us})")).collect();
    begins.sort_unstable();
    ends.sort_unstable();
    assert_eq!(begins, ends, "the next rectangles begin right after the last ids");
}

/// Another client takes the only worker id, so the paused one cannot get a new token.
fn that_lost_its_worker_id_in_a_pause_stops_inside_its_rectangle(language: Language) {
    let site = Site::new(builder(), 1);
    let mut paused = site.start(language, "paused", "0.1", ENDLESS);
    site.cluster.wait_for(PATIENCE, "ids", || !paused.ids().is_empty());
    let guard = paused.0.pause();
    let granted = site.granted("paused");
    let mut client = site.cluster.client();
    let is_over = "SELECT state <> 'held' FROM idgen.workers";
    site.cluster.wait_for(PATIENCE, "the id times to end", || value(&mut client, is_over));
    let mut next = site.start(Python, "next", "30", ENDLESS);
    site.cluster.wait_for(PATIENCE, "ids of the next holder", || !next.ids().is_empty());
    guard.resume();
    let (status, errors) = paused.0.wait(&site.cluster);
    assert!(!status.success() && errors.contains("are taken"), "{status}: {errors}");
    assert_inside(&paused.ids(), granted);
    next.0.kill();
    assert_inside(&next.ids(), (0, granted.2, site.granted("next").2));
}

fn repeats_no_id_when_the_clock_steps_back(language: Language) {
    let site = Site::new(builder(), 1);
    let clock = FakeClock::new(&site.dir());
    let mut instance = site.start_under_clock(language, "a", "0.3", ENDLESS, Some(&clock));
    site.cluster.wait_for(PATIENCE, "ids", || !instance.ids().is_empty());
    clock.set_offset_ms(-3_600_000);
    let mut client = site.cluster.client();
    // A client reads the clock between two renewals.
    let mut wait_for_renewals = || {
        // Of those that move no end, too.
        let renewals = "SELECT n_tup_upd FROM pg_stat_all_tables WHERE relid = 'idgen.worker_id'::regclass";
        let before: i64 = value(&mut client, renewals);
        site.cluster.wait_for(PATIENCE, "renewals", || value::<i64>(&mut client, renewals) > before + 1);
    };
    wait_for_renewals();
    let before = instance.ids();
    wait_for_renewals();
    assert_eq!(instance.ids(), before, "the client waits for the clock");
    clock.set_offset_ms(0);
    site.cluster.wait_for(PATIENCE, "ids of a later time", || instance.ids().len() > before.len());
    instance.0.kill();
    assert_inside(&instance.ids(), site.granted("a"));
}

fn stops_inside_its_rectangle_when_the_clock_steps_ahead(language: Language) {
    let site = Site::new(builder(), 1);
    let clock = FakeClock::new(&site.dir());
    // The client also starts before its rectangle begins.
    clock.set_offset_ms(-1000);
    let mut instance = site.start_under_clock(language, "a", "30", ENDLESS, Some(&clock));
    site.cluster.wait_for(PATIENCE, "ids", || !instance.ids().is_empty());
    clock.set_offset_ms(3_600_000);
    let (status, errors) = instance.0.wait(&site.cluster);
    assert!(
        !status.success() && errors.contains("this clock is too far ahead of the database's"),
        "{status}: {errors}"
    );
    assert_inside(&instance.ids(), site.granted("a"));
}

/// The client's clock shows full hours, so it stands still while the client fills a millisecond with ids.
fn waits_when_a_millisecond_is_full(language: Language) {
    const IDS_PER_MS: usize = 4096;
    // Leases last longer than the current hour.
    let site = Site::with_pool(builder().conf("idgen.worker_max_lead", "1d"), "count => 1, ttl => '4 hours'");
    let clock = FakeClock::with_grain(&site.dir(), Duration::from_secs(3600));
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970").as_secs() as i64;
    // To the middle of the next hour, so that the hour does not end during the test.
    let ahead_s = 3600 + 1800 - now_s % 3600;
    clock.set_offset_ms(ahead_s * 1000);
    let mut instance = site.start_under_clock(language, "a", "14400", ENDLESS, Some(&clock));
    site.cluster.wait_for(PATIENCE, "a full millisecond", || instance.ids().len() >= IDS_PER_MS);
    clock.set_offset_ms((ahead_s + 3600) * 1000);
    site.cluster.wait_for(PATIENCE, "another full millisecond", || instance.ids().len() >= 2 * IDS_PER_MS);
    instance.0.kill();
    let ids = instance.ids();
    assert_inside(&ids, site.granted("a"));
    let sequences: Vec<_> = ids.iter().map(|id| (id & 4095) as usize).collect();
    assert!(sequences.iter().enumerate().all(|(n, sequence)| *sequence == n % IDS_PER_MS), "a sequence ended early");
    let times: Vec<_> = ids.chunks(IDS_PER_MS).map(|chunk| (time_us_of(chunk[0]), time_us_of(last(chunk)))).collect();
    assert!(times.iter().all(|(first_us, last_us)| first_us == last_us), "{times:?}");
    assert!(times[1].0 - times[0].0 >= 3_600_000_000, "the client did not wait for the clock: {times:?}");
}

in_both_languages! {
    that_lost_its_worker_id_in_a_pause_stops_inside_its_rectangle,
    repeats_no_id_when_the_clock_steps_back,
    stops_inside_its_rectangle_when_the_clock_steps_ahead,
    waits_when_a_millisecond_is_full,
}

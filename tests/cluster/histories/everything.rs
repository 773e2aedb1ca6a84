//! Everything at once, on a coordinator, its standby and a server of its fleet: the storms of this folder, UUIDs, segments,
//! settled consumers, a keeper, and 500 short sessions a minute. Then a calm stretch, in which nothing may grow: neither
//! memory, nor open files, nor shared memory of the postmaster and of idgen's background workers.
//!
//! The length is a number of short sessions: half a minute, or on two cores ten minutes for each of the `ROUNDS` of a soak:
//! `make soak ROUNDS=6` has an hour of it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use idgen_sim::history::rectangles;
use idgen_sim::history::settled::{self, Read};
use idgen_sim::history::{Verdict, order, texts};
use idgen_testkit::parallel::End;
use idgen_testkit::recorder::{Draws, is_lost};
use idgen_testkit::sql::{PATIENCE, execute, ids, value};
use idgen_testkit::{Cluster, Resources, Stop, rounds};
use postgres::{Client, Error, Row};

use crate::storm::{Fault, Storm, repeat};
use crate::worker_ids::{self, Told};
use crate::{ids as snowflakes, leases, locks, public_ids};

/// Between the starts of two short sessions.
const PACE: Duration = Duration::from_millis(60_000 / 500);

/// Between the turns of the other sessions: all answers of an hour fit into the memory of a small machine.
const TURN: Duration = Duration::from_millis(20);

const FAULTS: [Fault; 10] = [
    Fault::Terminate,
    Fault::Clock(2_000),
    Fault::Reload,
    Fault::KillBackend,
    Fault::Pause(Duration::from_millis(250)),
    Fault::Vacuum,
    Fault::KillPostmaster,
    Fault::Clock(0),
    Fault::Checkpoint,
    Fault::Immediate,
];

/// Those that end no background worker.
const CALM: [Fault; 5] = [Fault::Terminate, Fault::Reload, Fault::Cancel, Fault::Vacuum, Fault::Checkpoint];

/// The resources of processes at one time.
type Sample = BTreeMap<(i32, String), Resources>;

/// What the sessions have seen.
#[derive(Default)]
struct Seen {
    snowflakes: [Draws<i64>; 3],
    uuids: Draws<u128>,
    local: Draws<i64>,
    /// Of the segment that both servers draw from, and ids of the other server.
    shared: [Draws<i64>; 2],
    other: Draws<i64>,
    locks: locks::Calls,
    leases: leases::Record,
    told: Told,
    texts: Mutex<Vec<texts::Op>>,
    reads: Mutex<Vec<Read>>,
    short: AtomicUsize,
    /// In the calm stretch, when the server is not restarted.
    samples: Mutex<Option<Vec<Sample>>>,
}

const SESSIONS: usize = 24;

impl Seen {
    fn session(&self, storm: &Storm, index: usize) {
        match index {
            0..3 => snowflakes::draw(storm, index, &self.snowflakes),
            3 => draw(storm, "SELECT uuidv7_next_many(100)::text", &self.uuids, uuid),
            4 => draw(storm, "SELECT segment_next_many('local', 100)", &self.local, id),
            5 => draw(storm, "SELECT segment_next('fleet')", &self.shared[0], id),
            6..10 => locks::lock(storm, &self.locks),
            10..15 => leases::hold(storm, &self.leases),
            15..19 => worker_ids::take_part(storm, &self.told),
            19 => public_ids::take_part(storm, &self.texts),
            20..22 => turns(storm, write),
            22 => turns(storm, |client| self.consume(client)),
            _ => self.short_sessions(storm),
        }
    }

    fn run(&self, cluster: &Cluster, wanted: usize, faults: &[Fault]) {
        let storm = Storm::paced(cluster, TURN);
        let count = || self.short.load(Ordering::Relaxed);
        storm.run(SESSIONS, |index| self.session(&storm, index), count, wanted, faults);
    }

    /// Rows whose ids are settled, after those that were read before.
    fn consume(&self, client: &mut Client) -> Result<(), Error> {
        let after = self.reads.lock().expect("one consumer").last().map_or(0, |read| read.settled);
        let settled = client.query_one("SELECT snowflake_settled()", &[])?.get(0);
        let rows = client.query("SELECT id FROM event WHERE id > $1 AND id <= $2", &[&after, &settled])?;
        let ids = rows.iter().map(|row| row.get(0)).collect();
        self.reads.lock().expect("one consumer").push(Read { after, settled, ids });
        Ok(())
    }

    fn short_sessions(&self, storm: &Storm) {
        while let Some(mut session) = storm.connect("postgres") {
            let answered =
                session.client.query_one("SELECT segment_next('local'), snowflake_next(), idgen.status()", &[]);
            storm.forget(session.pid);
            drop(session);
            if answered.is_ok() && self.short.fetch_add(1, Ordering::Relaxed).is_multiple_of(5) {
                let mut samples = self.samples.lock().expect("one sampler");
                samples.iter_mut().for_each(|samples| samples.push(storm.cluster.resources()));
            }
            std::thread::sleep(PACE);
        }
    }

    /// The server of the fleet. It may be out of values, or without a worker id, for a while.
    fn of_the_fleet(&self, server: &Cluster, is_over: &AtomicBool) {
        let mut client = server.client();
        while !is_over.load(Ordering::Relaxed) {
            std::thread::sleep(TURN);
            for (sql, draws) in
                [("SELECT segment_next('fleet')", &self.shared[1]), ("SELECT snowflake_next()", &self.other)]
            {
                if let Err(error) = draws.draw(&mut client, sql, id) {
                    assert!(["55P03", "55000"].contains(&error.code().map_or("", |code| code.code())), "{error:?}");
                }
            }
        }
    }

    fn judge(self, client: &mut Client) {
        snowflakes::judge(self.snowflakes);
        locks::judge(self.locks);
        clean("leases", leases::judge(client, self.leases));
        clean("worker ids", rectangles::judge(&self.told.into_rectangles()));
        clean("public ids", texts::judge(&self.texts.into_inner().expect("no thread panicked")));
        clean("UUIDs", order::judge(&self.uuids.into_draws()));
        clean("a segment", order::judge(&self.local.into_draws()));
        clean("ids of the fleet's server", order::judge(&self.other.into_draws()));
        let shared = self.shared.map(Draws::into_draws);
        shared.iter().for_each(|draws| clean("a server's values of the fleet's segment", order::judge(draws)));
        clean("values of the fleet's segment", order::unique(&shared.concat()));
        let reads = self.reads.into_inner().expect("no thread panicked");
        clean("settled reads", settled::judge(&reads, &ids(client, "SELECT id FROM event"), &[]));
        assert!(reads.iter().any(|read| !read.ids.is_empty()), "the consumer has read nothing");
    }
}

fn clean(what: &str, verdict: Verdict) {
    println!("{what}: {verdict}");
    assert!(verdict.operations > 0, "{what}: there was nothing to judge");
    verdict.assert_clean(what);
}

fn id(row: &Row) -> [i64; 1] {
    [row.get(0)]
}

fn uuid(row: &Row) -> [u128; 1] {
    [u128::from_str_radix(&row.get::<_, String>(0).replace('-', ""), 16).expect("a UUID")]
}

/// Repeats a turn in a session, and in another one after an error: the session is lost, canceled, or out of values.
fn turns(storm: &Storm, mut turn: impl FnMut(&mut Client) -> Result<(), Error>) {
    while let Some(mut session) = storm.connect("postgres") {
        while storm.goes_on() {
            if let Err(error) = turn(&mut session.client) {
                let code = error.code().map_or("", |code| code.code());
                assert!(is_lost(&error) || ["57014", "55P03"].contains(&code), "{error:?}");
                break;
            }
        }
        storm.forget(session.pid);
    }
}

fn draw<T: Copy>(storm: &Storm, sql: &str, draws: &Draws<T>, id: fn(&Row) -> [T; 1]) {
    turns(storm, |client| draws.draw(client, sql, id));
}

/// Some rows, which another transaction with later ids can overtake.
fn write(client: &mut Client) -> Result<(), Error> {
    client.batch_execute("BEGIN; INSERT INTO event SELECT FROM generate_series(1, 20)")?;
    std::thread::sleep(Duration::from_micros(fastrand::u64(..10_000)));
    client.batch_execute(if fastrand::u8(..5) == 0 { "ROLLBACK" } else { "COMMIT" })
}

fn coordinator() -> Cluster {
    let builder = Cluster::builder().fake_clock().conf("fsync", "off").conf("wal_retrieve_retry_interval", "100 ms");
    let cluster = builder.conf("idgen.segment_timeout", "1min").start_with_extension();
    snowflakes::set_up(&cluster);
    leases::set_up(&mut cluster.client());
    worker_ids::set_up(&cluster);
    cluster.execute(
        "SELECT worker_pool_define('servers', first => 100, count => 50, ttl => '5 s');
         SELECT segment_create('local', max_step => 1000), segment_create('fleet', step => 10), public_id_define('p', 'long');
         CREATE TABLE event (id bigint PRIMARY KEY DEFAULT snowflake_next())",
    );
    cluster
}

/// No process has grown from the first to the last time that it was seen. Processes of these kinds were seen twice.
fn assert_flat(samples: &[Sample], kinds: &[&str]) {
    let mut lives = BTreeMap::<_, (Resources, Option<Resources>)>::new();
    for (process, now) in samples.iter().flatten() {
        lives.entry(process).and_modify(|(_, last)| *last = Some(*now)).or_insert((*now, None));
    }
    lives.retain(|_, (_, last)| last.is_some());
    for ((pid, title), (first, last)) in &lives {
        let last = last.expect("seen twice");
        println!("{pid} {title}: {first}, then {last}");
        assert_eq!(first.growth_to(last), [""; 0], "{pid} {title}: {first}, then {last}");
    }
    for kind in kinds {
        assert!(lives.keys().any(|(_, title)| title.contains(kind)), "no {kind} has lived on");
    }
}

#[test]
fn everything_at_once_keeps_every_promise_and_leaks_nothing() {
    let cluster = coordinator();
    let standby = cluster.standby_builder().synchronous().fake_clock().start();
    let conninfo = format!(
        "host={},{} port={},{} user=postgres dbname=postgres target_session_attrs=read-write",
        cluster.host(),
        standby.host(),
        cluster.port(),
        standby.port()
    );
    let server = Cluster::builder().conf("fsync", "off").conf("idgen.coordinator", &conninfo);
    let server = server.conf("idgen.worker_pool", "servers").conf("idgen.segment_timeout", "1s").start_with_extension();
    server.execute("SELECT segment_attach('fleet', '2 seconds')");
    let (seen, is_over) = (Seen::default(), AtomicBool::new(false));
    let wanted = rounds(120, 2_500);
    std::thread::scope(|scope| {
        let end = End(&is_over);
        scope.spawn(|| seen.of_the_fleet(&server, &is_over));
        seen.run(&cluster, wanted / 2, &repeat(&FAULTS, rounds(10, 60)));
        println!("the standby takes over");
        cluster.clock().set_offset_ms(0);
        standby.wait_until_replayed(&cluster);
        cluster.stop(Stop::Immediate);
        standby.promote();
        seen.run(&standby, wanted / 4, &CALM);
        println!("nothing may grow from here on");
        let warm = server.resources();
        *seen.samples.lock().expect("no thread panicked") = Some(Vec::new());
        seen.run(&standby, wanted / 4, &repeat(&CALM, rounds(5, 30)));
        assert_flat(&[warm, server.resources()], &["bin/postgres", "idgen keeper", "idgen supply"]);
        let samples = seen.samples.lock().expect("no thread panicked").take().expect("the calm stretch");
        assert_flat(&samples, &["bin/postgres", "idgen keeper", "idgen refill"]);
        // The fleet's server gets ids and values from the new coordinator.
        for draws in [&seen.shared[1], &seen.other] {
            let before = draws.count();
            server.wait_for(PATIENCE, "ids of the fleet's server", || draws.count() > before);
        }
        drop(end);
    });
    println!("all answers are judged");
    seen.judge(&mut standby.client());
}

/// The control: a session that keeps temporary tables open, and what it has read of them.
#[test]
fn process_that_grows_is_found() {
    let cluster = Cluster::builder().start_with_extension();
    let mut client = cluster.client();
    let pid = value(&mut client, "SELECT pg_backend_pid()");
    let before = Resources::of(pid).expect("it runs");
    execute(
        &mut client,
        "DO $$ BEGIN FOR n IN 1..60 LOOP EXECUTE format('CREATE TEMP TABLE t%s AS SELECT repeat(''x'', 1000) AS x
             FROM generate_series(1, 500)', n); END LOOP; END $$;
         SELECT set_config('kept.value', repeat('x', 30000000), false)",
    );
    let after = Resources::of(pid).expect("it runs");
    assert_eq!(before.growth_to(after), ["memory", "files"], "{before}, then {after}");
}

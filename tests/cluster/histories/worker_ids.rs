//! Worker ids: no id time of a worker id is told to two holders, whatever happens to holders, coordinator and clock.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use idgen_sim::history::rectangles::{self, Rectangle};
use idgen_testkit::grants::epoch_us;
use idgen_testkit::recorder::{is_lost, is_stale};
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::error::SqlState;
use postgres::{Client, Error, Statement};

use crate::storm::{Fault, Storm, repeat};

const TTL_MS: u64 = 100;
const SESSIONS: usize = 16;
/// The most that a holder puts between the times of two ids. So id times run ahead of no clock for long.
const STRIDE_US: i64 = 2_000;

/// A worker id whose holder has vanished is not granted again before its id times are over. So by two steps, or by the lead
/// after an interruption, all may be taken for so long.
const CLOCK_STEP_MS: i64 = 3_000;

const FAULTS: [Fault; 10] = [
    Fault::Pause(Duration::from_millis(2 * TTL_MS)),
    Fault::Terminate,
    Fault::Clock(CLOCK_STEP_MS),
    Fault::Cancel,
    Fault::KillBackend,
    Fault::Clock(-CLOCK_STEP_MS),
    Fault::Pause(Duration::from_millis(2 * TTL_MS)),
    Fault::KillPostmaster,
    Fault::Terminate,
    Fault::Immediate,
];

/// What holders were told that they may use: the rectangle of each grant, and what each renewal has added to it.
#[derive(Default)]
pub struct Told {
    count: AtomicUsize,
    rectangles: Mutex<Vec<Rectangle>>,
}

impl Told {
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub fn into_rectangles(self) -> Vec<Rectangle> {
        self.rectangles.into_inner().expect("no thread panicked with the lock")
    }
}

/// A holder, with the rectangles that it was told. Adds them to all when it is dropped.
pub struct Holder<'a> {
    told: &'a Told,
    rectangles: Vec<Rectangle>,
    /// After the time of its last id.
    pub next_us: i64,
}

impl<'a> Holder<'a> {
    pub fn new(told: &'a Told, worker_id: i32, token: i64, from_us: i64, until_us: i64) -> Holder<'a> {
        told.count.fetch_add(1, Ordering::Relaxed);
        let rectangles = vec![Rectangle { worker_id, token, from_us, until_us }];
        Holder { told, rectangles, next_us: from_us }
    }

    fn last(&self) -> Rectangle {
        *self.rectangles.last().expect("that of the grant")
    }

    /// Makes an id at a time that it may use.
    fn make_id(&mut self) {
        let end_us = self.last().until_us.min(self.next_us + STRIDE_US);
        if self.next_us < end_us {
            self.next_us = fastrand::i64(self.next_us..end_us) + 1;
        }
    }

    pub fn renewed(&mut self, until_us: i64) {
        self.told.count.fetch_add(1, Ordering::Relaxed);
        self.rectangles.push(Rectangle { from_us: self.last().until_us, until_us, ..self.last() });
    }

    /// Gives back the times after its last id.
    pub fn give_back(&mut self) {
        for rectangle in &mut self.rectangles {
            rectangle.from_us = rectangle.from_us.min(self.next_us);
            rectangle.until_us = rectangle.until_us.min(self.next_us);
        }
    }
}

impl Drop for Holder<'_> {
    fn drop(&mut self) {
        if let Ok(mut all) = self.told.rectangles.lock() {
            all.append(&mut self.rectangles);
        }
    }
}

/// The statements of a session.
struct Statements {
    acquire: Statement,
    renew: Statement,
    release: Statement,
}

impl Statements {
    fn prepare(client: &mut Client) -> Result<Statements, Error> {
        let (from, until) = (epoch_us("not_before"), epoch_us("not_after"));
        let time = |parameter: u32| format!("'epoch'::timestamptz + ${parameter}::float8 * interval '1 microsecond'");
        let acquire = format!(
            "SELECT worker_id, token, {from}, {until} FROM worker_acquire('p', $1, '{TTL_MS} ms', clock_timestamp())"
        );
        // The later one of its clock and its last id.
        let reached = format!("greatest(clock_timestamp(), {})", time(3));
        let renew = format!("SELECT {until} FROM worker_renew('p', $1, {}, {reached})", time(2));
        let release = format!("SELECT worker_release('p', $1, {}, {})", time(2), time(3));
        Ok(Statements {
            acquire: client.prepare(&acquire)?,
            renew: client.prepare(&renew)?,
            release: client.prepare(&release)?,
        })
    }
}

/// Acquires a worker id, makes ids and renews it, and releases it or vanishes.
fn hold(client: &mut Client, statements: &Statements, told: &Told) -> Result<(), Error> {
    let owner = format!("pod-{}", fastrand::usize(..SESSIONS));
    let row = match client.query_one(&statements.acquire, &[&owner]) {
        // All are held, or begin too far ahead.
        Err(error) if is_stale(&error) || error.code().is_some_and(|code| code.code() == "53400") => return Ok(()),
        row => row?,
    };
    let (worker_id, token) = (row.get(0), row.get(1));
    let mut holder = Holder::new(told, worker_id, token, row.get(2), row.get(3));
    for _ in 0..fastrand::u32(1..12) {
        holder.make_id();
        let (until_us, last_us) = (holder.last().until_us as f64, (holder.next_us - 1) as f64);
        match client.query_one(&statements.renew, &[&token, &until_us, &last_us]) {
            // It was paused for longer than its lease.
            Err(error) if is_stale(&error) => return Ok(()),
            row => holder.renewed(row?.get(0)),
        }
    }
    if fastrand::u32(..10) > 0 {
        let (until_us, last_us) = (holder.last().until_us as f64, (holder.next_us - 1) as f64);
        let released = client.query_one(&statements.release, &[&token, &last_us, &until_us]);
        // It makes no id once it has sent the release. Of a refused one, the server must not believe the last time.
        if !released.as_ref().is_err_and(is_stale) {
            holder.give_back();
            released?;
        }
    }
    Ok(())
}

pub fn take_part(storm: &Storm, told: &Told) {
    while let Some(mut session) = storm.connect("postgres") {
        let prepared = Statements::prepare(&mut session.client);
        while let Ok(statements) = &prepared
            && storm.goes_on()
        {
            match hold(&mut session.client, statements, told) {
                Err(error) if is_lost(&error) => break,
                Err(error) => assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED), "{error:?}"),
                Ok(()) => {}
            }
        }
        storm.forget(session.pid);
    }
}

pub fn set_up(cluster: &Cluster) {
    cluster.execute(&format!("SELECT worker_pool_define('p', count => {SESSIONS}, ttl => '{TTL_MS} ms')"));
}

fn run(cluster: &Cluster, told: &Told, wanted: usize, faults: &[Fault]) {
    let storm = Storm::new(cluster);
    storm.run(SESSIONS, |_| take_part(&storm, told), || told.count(), wanted, faults);
}

#[test]
fn id_times_of_worker_ids_are_told_to_one_holder() {
    let builder = Cluster::builder().fake_clock().conf("fsync", "off").conf("idgen.worker_max_lead", "10s");
    let cluster = builder.start_with_extension();
    set_up(&cluster);
    let told = Told::default();
    let wanted = rounds(6_000, 1_000_000);
    run(&cluster, &told, wanted / 2, &repeat(&FAULTS, rounds(20, 100)));
    let standby = cluster.standby_builder().fake_clock().start();
    standby.wait_until_replayed(&cluster);
    standby.stop(Stop::Fast);
    // The standby never has these grants, and its clock is behind.
    run(&cluster, &told, wanted / 6, &[Fault::Terminate, Fault::Clock(0)]);
    cluster.stop(Stop::Immediate);
    standby.start_again();
    standby.clock().set_offset_ms(-2_000);
    standby.promote();
    run(&standby, &told, wanted / 3, &repeat(&FAULTS, rounds(10, 100)));
    let rectangles = told.into_rectangles();
    let grants = rectangles.iter().map(|rectangle| rectangle.token).collect::<BTreeSet<_>>().len();
    let verdict = rectangles::judge(&rectangles);
    println!("worker ids: {verdict}, {grants} of them grants");
    assert!(grants > verdict.operations / 50, "there were too few grants");
    verdict.assert_clean("worker ids");
}

//! Snowflake ids: none is issued twice, and later ones are above those that were seen, although the clock is set back.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use idgen_testkit::ids::{assert_distinct, assert_increasing, last};
use idgen_testkit::sql::{ids, value};
use idgen_testkit::{Cluster, Stop};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Scene;
use crate::victim::{Death, Victim, draw_while};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// Sessions draw the first ids of the server.
    First,
    /// Sessions draw more, so that the mark moves.
    Draw,
    /// The server has crashed after draws, and starts as a standby.
    Start,
    /// The same, and it is promoted.
    Promotion,
    /// Sessions have drawn, and the server stops.
    Stop,
    /// WAL was reset, and the server starts.
    Loss,
}

pub struct Drawing {
    victim: Victim,
    course: Course,
    seen: Mutex<Vec<i64>>,
    /// What `idgen_place` was before the point.
    place: Mutex<String>,
}

const DRAW: &str = "SELECT snowflake_next_many(500)";

impl Drawing {
    pub fn new(course: Course, death: Death) -> Drawing {
        let builder = Cluster::builder()
            .conf("idgen.worker_id", "5")
            .conf("idgen.clock_window", "100ms")
            .conf("idgen.max_drift", "0");
        let victim = Victim::new(builder, death, |_| ());
        Drawing { victim, course, seen: Mutex::default(), place: Mutex::default() }
    }

    fn cluster(&self) -> &Cluster {
        self.victim.serving()
    }

    /// Draws until that fails.
    fn draw_while(&self, setting: &str, goes_on: impl Fn(&[i64]) -> bool) {
        let drawn = draw_while(self.cluster(), (setting, DRAW), goes_on);
        self.seen.lock().unwrap().extend(drawn);
    }
}

impl Scene for Drawing {
    fn victim(&self) -> &Victim {
        &self.victim
    }

    fn prepare(&self) {
        if self.course == Course::First {
            return;
        }
        let cluster = self.cluster();
        self.seen.lock().unwrap().extend(ids(&mut cluster.client(), DRAW));
        *self.place.lock().unwrap() = fs::read_to_string(cluster.data_dir().join("idgen_place")).expect("a place");
        match self.course {
            Course::Start | Course::Promotion => {
                cluster.kill9_all();
                cluster.write_signal("standby.signal");
            }
            Course::Loss => {
                cluster.execute("CHECKPOINT");
                cluster.stop(Stop::Immediate);
                cluster.reset_wal();
            }
            Course::First | Course::Draw | Course::Stop => {}
        }
    }

    fn work(&self, goes_on: &AtomicBool) {
        match self.course {
            Course::First | Course::Draw => std::thread::scope(|scope| {
                let draw = || self.draw_while("", |_| goes_on.load(Ordering::SeqCst));
                scope.spawn(draw);
                draw();
            }),
            Course::Start | Course::Loss => self.cluster().spawn(),
            Course::Promotion => {
                self.cluster().spawn();
                self.cluster().wait_until_ready();
                self.cluster().execute("SELECT pg_promote(wait => false)");
            }
            Course::Stop => {
                kill(Pid::from_raw(self.cluster().pid_of_postmaster()), Signal::SIGINT).expect("the server runs")
            }
        }
    }

    fn look(&self) {
        if matches!(self.course, Course::First | Course::Draw) {
            let is_soon = |drawn: &[i64]| last(drawn) >> 22 < (drawn[0] >> 22) + 250;
            self.draw_while("SET statement_timeout = '300 ms'", is_soon);
        }
    }

    fn check(&self) {
        self.victim.recover(-60_000);
        let cluster = self.cluster();
        let mut client = cluster.client();
        if value(&mut client, "SELECT pg_is_in_recovery()") {
            cluster.promote();
        }
        if self.course == Course::Loss && !self.victim.is_promoted() {
            assert!(cluster.data_dir().join("idgen_wal_lost").exists(), "the loss is forgotten");
        }
        if self.course == Course::Start {
            let place = fs::read_to_string(cluster.data_dir().join("idgen_place")).expect("a place");
            assert_ne!(place, *self.place.lock().unwrap(), "a promoted server passes for the one before");
        }
        let mut seen = self.seen.lock().unwrap();
        let (highest, later) = (seen.iter().max().copied().unwrap_or(0), ids(&mut cluster.client(), DRAW));
        assert!(later[0] > highest, "{} after {highest}", later[0]);
        assert_increasing(&later);
        seen.extend(later);
        assert_distinct(seen.clone());
    }
}

//! Sessions that draw from a server and record the ids that they see.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use idgen_testkit::Cluster;
use idgen_testkit::ids::assert_increasing;
use idgen_testkit::parallel::End;
use idgen_testkit::sql::{PATIENCE, backend_pid, stream};
use postgres::{Client, Statement};

/// The load of one server.
pub struct Load<'a> {
    pub cluster: &'a Cluster,
    /// The server's worker id while it is set by hand.
    pub by_hand: i32,
    ended: AtomicBool,
    /// The number of ids seen.
    pub count: AtomicUsize,
    /// The highest id that any session has seen.
    highest: AtomicI64,
    seen: Mutex<Vec<i64>>,
    silence: Mutex<Silence>,
    /// The number of failed statements by SQLSTATE, or by "connection".
    errors: Mutex<BTreeMap<String, usize>>,
}

/// The time in which no session saw an id.
struct Silence {
    last: Instant,
    longest: Duration,
    /// When the outage was over, and how long ids took from then on.
    due: Instant,
    late: Option<Duration>,
}

impl<'a> Load<'a> {
    pub fn new(cluster: &'a Cluster, by_hand: i32) -> Load<'a> {
        Load {
            cluster,
            by_hand,
            ended: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            highest: AtomicI64::new(0),
            seen: Mutex::default(),
            silence: Mutex::new(Silence::new()),
            errors: Mutex::default(),
        }
    }

    /// Draws in this many sessions. A session that fails is replaced.
    pub fn run<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, sessions: usize) -> End<'scope> {
        for _ in 0..sessions {
            scope.spawn(|| {
                while !self.has_ended() {
                    self.cluster.wait_for(PATIENCE, "an id", || self.has_ended() || self.session());
                }
            });
        }
        End(&self.ended)
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Runs one session to its end. True if it saw an id.
    fn session(&self) -> bool {
        self.cluster.try_client().is_ok_and(|mut client| self.draw(&mut client, &self.ended))
    }

    /// Draws in one session until an error or the end of the load. True if it saw an id.
    fn draw(&self, client: &mut Client, ended: &AtomicBool) -> bool {
        let prepared =
            ["SELECT snowflake_next()", "SELECT snowflake_next_many(30)", "SELECT snowflake_next_many(20000)"]
                .map(|sql| client.prepare(sql));
        let [Ok(one), Ok(some), Ok(many)] = prepared else {
            return false;
        };
        let mut turn = 0;
        while !ended.load(Ordering::Relaxed) {
            let statement = match turn {
                _ if turn % 1000 == 999 => &many,
                _ if turn % 20 == 19 => &some,
                _ => &one,
            };
            if self.run_statement(client, statement).is_err() {
                break;
            }
            turn += 1;
        }
        turn > 0
    }

    /// Runs one statement and records its ids, also if it fails.
    ///
    /// Each id must be above every id that any session had seen before the statement was sent. This holds over changes of the
    /// worker id, crashes and restarts too.
    fn run_statement(&self, client: &mut Client, statement: &Statement) -> Result<(), postgres::Error> {
        let floor = self.highest.load(Ordering::SeqCst);
        let mut ids = Vec::new();
        let outcome = stream(client, statement, &mut ids, &self.count);
        if let (Some(first), Some(last)) = (ids.first(), ids.last()) {
            assert!(*first > floor, "{first} after {floor}, in {}", self.cluster.data_dir().display());
            assert_increasing(&ids);
            self.highest.fetch_max(*last, Ordering::SeqCst);
            self.silence.lock().expect("no thread panics with the lock").end();
            self.seen.lock().expect("no thread panics with the lock").extend(ids);
        }
        if let Err(error) = &outcome {
            let code = error.code().map_or("connection", |code| code.code()).to_owned();
            *self.errors.lock().expect("no thread panics with the lock").entry(code).or_default() += 1;
        }
        outcome
    }

    /// Draws in one more session while `work` runs with its process id.
    pub fn with_victim(&self, work: impl FnOnce(i32)) {
        let mut client = self.cluster.client();
        let pid = backend_pid(&mut client);
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let _end = End(&ended);
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) && !client.is_closed() {
                    self.draw(&mut client, &ended);
                }
            });
            work(pid);
        });
    }

    /// Waits until another id is seen.
    pub fn wait_for_ids(&self) {
        let count = self.count.load(Ordering::Relaxed);
        self.cluster.wait_for(PATIENCE, "more ids", || self.count.load(Ordering::Relaxed) > count);
    }

    /// Starts measuring the time without ids.
    pub fn begin_outage(&self) {
        *self.silence.lock().expect("no thread panics with the lock") = Silence::new();
    }

    /// Marks the end of the outage's cause.
    pub fn expect_ids(&self) {
        let mut silence = self.silence.lock().expect("no thread panics with the lock");
        (silence.due, silence.late) = (Instant::now(), None);
    }

    /// Waits for the first id after the outage. Returns the longest time without ids, and the time since `expect_ids`.
    pub fn wait_for_expected_ids(&self) -> (Duration, Duration) {
        let silence = || self.silence.lock().expect("no thread panics with the lock");
        self.cluster.wait_for(PATIENCE, "ids after an outage", || silence().late.is_some());
        let silence = silence();
        (silence.longest, silence.late.expect("waited for"))
    }

    /// The ids and the errors.
    pub fn into_seen(self) -> (Vec<i64>, BTreeMap<String, usize>) {
        let reason = "no thread panics with the lock";
        (self.seen.into_inner().expect(reason), self.errors.into_inner().expect(reason))
    }
}

impl Silence {
    fn new() -> Silence {
        let now = Instant::now();
        Silence { last: now, longest: Duration::ZERO, due: now, late: None }
    }

    fn end(&mut self) {
        self.late.get_or_insert(self.due.elapsed());
        self.longest = self.longest.max(self.last.elapsed());
        self.last = Instant::now();
    }
}

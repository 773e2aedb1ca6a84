//! Sessions that draw from a server, and remember all that they have seen.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use idgen_testkit::Cluster;
use idgen_testkit::ids::assert_increasing;
use idgen_testkit::sql::{PATIENCE, backend_pid, stream};
use postgres::{Client, Statement};

/// The load of one server.
pub struct Load<'a> {
    pub cluster: &'a Cluster,
    /// The worker id that it has while it is set by hand.
    pub by_hand: i32,
    ended: AtomicBool,
    /// How many ids were seen.
    pub count: AtomicUsize,
    /// The highest id that any session has seen.
    highest: AtomicI64,
    seen: Mutex<Vec<i64>>,
    silence: Mutex<Silence>,
    /// How many statements ended with which SQLSTATE, or without one: with the connection.
    errors: Mutex<BTreeMap<String, usize>>,
}

/// How long no session was given an id.
struct Silence {
    last: Instant,
    longest: Duration,
    /// When ids can be expected again, and how long that took.
    due: Instant,
    late: Option<Duration>,
}

/// Ends a load, also when the test fails: or it would wait for its sessions for ever.
pub struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
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

    /// Draws in so many sessions. One that meets an error is followed by another.
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

    /// A session from its beginning to its end. Has it seen any id?
    fn session(&self) -> bool {
        self.cluster.try_client().is_ok_and(|mut client| self.draw(&mut client, &self.ended))
    }

    /// Draws in one session until it meets an error, or is told to end. Has it seen any id?
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
            if self.see(client, statement).is_err() {
                break;
            }
            turn += 1;
        }
        turn > 0
    }

    /// One statement, and what it returned: also when it came to no good end.
    ///
    /// What begins after an id was seen is issued after it. So each id is above all that any session had seen before its
    /// statement was sent: over changes of the number, crashes and restarts of the server too.
    fn see(&self, client: &mut Client, statement: &Statement) -> Result<(), postgres::Error> {
        let floor = self.highest.load(Ordering::SeqCst);
        let mut ids = Vec::new();
        let outcome = stream(client, statement, &mut ids, &self.count);
        if let (Some(first), Some(last)) = (ids.first(), ids.last()) {
            assert!(*first > floor, "{first} after {floor}, in {}", self.cluster.data_dir().display());
            assert_increasing(&ids);
            self.highest.fetch_max(*last, Ordering::SeqCst);
            self.silence.lock().expect("nobody panics with it").end();
            self.seen.lock().expect("nobody panics with it").extend(ids);
        }
        if let Err(error) = &outcome {
            let code = error.code().map_or("connection", |code| code.code()).to_owned();
            *self.errors.lock().expect("nobody panics with it").entry(code).or_default() += 1;
        }
        outcome
    }

    /// Has one more session draw while `work` is done, and tells its process.
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

    /// Waits until ids are seen that were not there when this was called.
    pub fn wait_for_ids(&self) {
        let count = self.count.load(Ordering::Relaxed);
        self.cluster.wait_for(PATIENCE, "more ids", || self.count.load(Ordering::Relaxed) > count);
    }

    /// From here on a time without ids counts.
    pub fn begin_outage(&self) {
        *self.silence.lock().expect("nobody panics with it") = Silence::new();
    }

    /// What the outage came from is over.
    pub fn expect_ids(&self) {
        let mut silence = self.silence.lock().expect("nobody panics with it");
        (silence.due, silence.late) = (Instant::now(), None);
    }

    /// Waits for ids that are expected. The longest time without any in the outage, and how long they were expected.
    pub fn wait_for_expected_ids(&self) -> (Duration, Duration) {
        let silence = || self.silence.lock().expect("nobody panics with it");
        self.cluster.wait_for(PATIENCE, "ids after an outage", || silence().late.is_some());
        let silence = silence();
        (silence.longest, silence.late.expect("waited for"))
    }

    /// All that was seen, and the errors that were met.
    pub fn into_seen(self) -> (Vec<i64>, BTreeMap<String, usize>) {
        let whole = "nobody panics with it";
        (self.seen.into_inner().expect(whole), self.errors.into_inner().expect(whole))
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

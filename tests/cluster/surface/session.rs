//! A session that judges the answer to each call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use idgen_testkit::Cluster;
use idgen_testkit::sql::{backend_pid, execute, value};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use postgres::error::SqlState;
use postgres::{Client, SimpleQueryMessage};

/// The longest that a call may take.
pub const LIMIT: Duration = Duration::from_secs(5);

/// What is held: by this session for locks, by any session for leases, each with its depth.
const HELD: &str = "SELECT format('lock %s %s %s', key, mode, granted), coalesce(depth, 1)
                    FROM idgen.locks WHERE pid = pg_backend_pid()
                    UNION ALL SELECT format('advisory %s %s %s %s', classid, objid, objsubid, mode), 1
                    FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
                    UNION ALL SELECT format('lease %s %s', name, slot), depth FROM idgen.leases WHERE depth > 0";

pub type Held = BTreeMap<String, i64>;

/// What the rows of a statement say.
#[derive(Clone, Copy, PartialEq)]
pub enum Answer {
    /// The statement has succeeded.
    Rows,
    /// `false`, or no row, says that the call has failed.
    Try,
    /// The SQLSTATE and the message of the call.
    Caught,
}

/// One statement, and what it may answer.
#[derive(Clone, Copy)]
pub struct Statement<'a> {
    pub sql: &'a str,
    /// Whether it may end by its timeout: it waits by design.
    pub may_wait: bool,
    /// Whether another session cancels it.
    pub cancelled: bool,
    pub answer: Answer,
    /// What ends the failed transaction or subtransaction.
    pub recovery: &'a str,
    /// More SQLSTATEs than those of the errors page.
    pub allowed: &'a [&'a str],
    /// Whether a failure leaves nothing held. Earlier rows of a statement may have left something.
    pub all_or_nothing: bool,
}

impl<'a> Statement<'a> {
    pub fn new(sql: &'a str) -> Statement<'a> {
        Statement {
            sql,
            may_wait: false,
            cancelled: false,
            answer: Answer::Rows,
            recovery: "",
            allowed: &[],
            all_or_nothing: true,
        }
    }
}

pub type Rows = Vec<Vec<Option<String>>>;

pub struct Session {
    pub client: Client,
    role: &'static str,
    pid: i32,
    seed: u64,
    documented: BTreeSet<String>,
    canceller: Client,
    watchdog: Watchdog,
    /// Its name before PostgreSQL 16 is another.
    pub parallel_setting: &'static str,
    /// The last statements, for the report.
    trail: Vec<String>,
    /// How often each SQLSTATE was the answer.
    pub answers: BTreeMap<String, usize>,
}

impl Session {
    pub fn new(cluster: &Cluster, role: &'static str, seed: u64, documented: &BTreeSet<String>) -> Session {
        let mut client = cluster.client_as("postgres", role);
        let pid = backend_pid(&mut client);
        Session {
            client,
            role,
            pid,
            seed,
            documented: documented.clone(),
            canceller: cluster.client(),
            parallel_setting: parallel_setting(cluster),
            watchdog: Watchdog::start(pid),
            trail: Vec::new(),
            answers: BTreeMap::new(),
        }
    }

    /// Runs a statement of the frame around the calls, which must succeed.
    pub fn frame(&mut self, sql: &str) {
        self.note(sql);
        execute(&mut self.client, sql);
    }

    /// Ends and releases what the calls have left. `DISCARD ALL` does so too.
    pub fn clean(&mut self, discard: bool) {
        self.frame("ROLLBACK");
        self.frame(if discard { "DISCARD ALL" } else { "CLOSE ALL; SELECT pg_advisory_unlock_all(); RESET ALL" });
    }

    /// Runs a statement. None if it raised an error; then `recovery` has run.
    pub fn attempt(&mut self, statement: Statement) -> Option<Rows> {
        let before = if statement.all_or_nothing { self.held() } else { Held::new() };
        let timeout = if statement.may_wait { Duration::from_millis(100) } else { LIMIT };
        self.frame(&format!("SET statement_timeout = '{} ms'", timeout.as_millis()));
        self.note(statement.sql);
        let begun = Instant::now();
        let answer = self.answer(&statement);
        let took = begun.elapsed();
        let rows = match answer {
            Ok(messages) => Some(rows_of(&messages)),
            Err(error) => {
                let error = error.as_db_error().unwrap_or_else(|| panic!("the connection is lost: {error:?}")).clone();
                self.judge(&statement, error.code().code(), error.message());
                None
            }
        };
        assert!(took < LIMIT, "it took {took:?}");
        if rows.is_none() && !statement.recovery.is_empty() {
            self.frame(statement.recovery);
        }
        if !self.ends_timeout(&statement) {
            return None;
        }
        let failed = rows.as_ref().is_none_or(|rows| self.says_failed(&statement, rows));
        if failed && statement.all_or_nothing {
            self.assert_nothing_added(&before);
        }
        rows
    }

    /// False if the timeout, which came as the statement had ended, was taken by the command that ends it.
    fn ends_timeout(&mut self, statement: &Statement) -> bool {
        const END: &str = "SET statement_timeout = 0";
        let late = self.client.batch_execute(END).err();
        let Some(late) = late else { return true };
        assert!(statement.may_wait && late.code() == Some(&SqlState::QUERY_CANCELED), "{END}: {late:?}");
        self.frame(statement.recovery);
        self.frame(END);
        false
    }

    fn answer(&mut self, statement: &Statement) -> Result<Vec<SimpleQueryMessage>, postgres::Error> {
        let Session { client, canceller, watchdog, pid, .. } = self;
        if !statement.cancelled {
            return watchdog.watch(|| client.simple_query(statement.sql));
        }
        let ended = AtomicBool::new(false);
        let answer = std::thread::scope(|scope| {
            scope.spawn(|| cancel(canceller, *pid, statement.sql, &ended));
            let answer = watchdog.watch(|| client.simple_query(statement.sql));
            ended.store(true, Ordering::Relaxed);
            answer
        });
        // Takes a cancel that came too late.
        let _ = client.simple_query("SELECT");
        answer
    }

    fn says_failed(&mut self, statement: &Statement, rows: &Rows) -> bool {
        match statement.answer {
            Answer::Rows => false,
            Answer::Try => rows.is_empty() || rows.iter().any(|row| row == &[Some("f".to_owned())]),
            Answer::Caught => {
                let text = rows[0][0].as_deref().expect("caught() returns a text");
                let (code, message) = text.split_once(' ').unwrap_or((text, ""));
                if code != "00000" {
                    self.judge(statement, code, message);
                }
                code != "00000"
            }
        }
    }

    /// An error with this SQLSTATE may be the answer to the statement.
    fn judge(&mut self, statement: &Statement, code: &str, message: &str) {
        *self.answers.entry(code.to_owned()).or_default() += 1;
        // 58 are errors of the system, such as of files, which work here.
        let internal = code.starts_with("XX") || code.starts_with("58");
        assert!(!internal, "an internal error: {code} {message}");
        match code {
            "57014" => assert!(statement.may_wait || statement.cancelled, "it hangs: {message}"),
            _ => {
                let known = self.documented.contains(code) || statement.allowed.contains(&code);
                assert!(known, "not in docs/errors.md: {code} {message}");
            }
        }
    }

    pub fn assert_nothing_added(&mut self, before: &Held) {
        assert_nothing_added(before, &self.held());
    }

    pub fn held(&mut self) -> Held {
        let mut held = Held::new();
        for row in self.client.query(HELD, &[]).unwrap_or_else(|error| panic!("{HELD}: {error:?}")) {
            *held.entry(row.get(0)).or_default() += i64::from(row.get::<_, i32>(1));
        }
        held
    }

    fn note(&mut self, sql: &str) {
        if self.trail.len() == 40 {
            self.trail.remove(0);
        }
        self.trail.push(sql.to_owned());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("with IDGEN_SURFACE_SEED={}, the last statements of {}:", self.seed, self.role);
            self.trail.iter().for_each(|sql| eprintln!("{sql};"));
        }
    }
}

/// Cancels the statement as soon as it runs. Returns when it has ended.
fn cancel(client: &mut Client, pid: i32, sql: &str, ended: &AtomicBool) {
    // The view truncates the text.
    let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity
                  WHERE pid = $1 AND state = 'active' AND starts_with($2, query)";
    while !ended.load(Ordering::Relaxed) {
        let cancelled = client.query(cancel, &[&pid, &sql]).unwrap_or_else(|error| panic!("{cancel}: {error:?}"));
        if !cancelled.is_empty() {
            return;
        }
    }
}

fn assert_nothing_added(before: &Held, after: &Held) {
    for (what, depth) in after {
        let had = before.get(what).copied().unwrap_or(0);
        assert!(*depth <= had, "the failed call holds {what}: depth {depth}, before it {had}");
    }
}

fn parallel_setting(cluster: &Cluster) -> &'static str {
    let names = "SELECT name FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query')";
    match value::<String>(&mut cluster.client(), names).as_str() {
        "force_parallel_mode" => "force_parallel_mode",
        _ => "debug_parallel_query",
    }
}

fn rows_of(messages: &[SimpleQueryMessage]) -> Rows {
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|n| row.get(n).map(str::to_owned)).collect()),
        _ => None,
    });
    rows.collect()
}

/// Far above the timeout of any statement.
const DEADLINE: Duration = Duration::from_secs(30);

pub struct Watchdog(Arc<Mutex<Option<Instant>>>);

impl Watchdog {
    pub fn start(backend: i32) -> Watchdog {
        let begun = Arc::new(Mutex::new(None::<Instant>));
        let watched = Arc::downgrade(&begun);
        std::thread::spawn(move || {
            while let Some(begun) = watched.upgrade() {
                let mut begun = begun.lock().unwrap();
                if begun.is_some_and(|begun| begun.elapsed() > DEADLINE) {
                    eprintln!("backend {backend} ignored its timeout for {DEADLINE:?}: killed");
                    let _ = kill(Pid::from_raw(backend), Signal::SIGKILL);
                    *begun = None;
                }
                drop(begun);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Watchdog(begun)
    }

    pub fn watch<T>(&self, statement: impl FnOnce() -> T) -> T {
        *self.0.lock().unwrap() = Some(Instant::now());
        let answer = statement();
        *self.0.lock().unwrap() = None;
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::{Held, assert_nothing_added};

    fn held(depth: i64) -> Held {
        Held::from([("lock 1 exclusive true".to_owned(), depth)])
    }

    #[test]
    fn released_lock_is_no_failure() {
        assert_nothing_added(&held(2), &held(1));
    }

    #[test]
    #[should_panic(expected = "depth 2, before it 1")]
    fn deeper_lock_after_a_failed_call_is_a_failure() {
        assert_nothing_added(&held(1), &held(2));
    }
}

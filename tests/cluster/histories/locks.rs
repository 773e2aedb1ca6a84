//! Named locks: every answer can be explained by one order of the calls, whatever happens to sessions and server.

use std::time::Duration;

use idgen_sim::history::holders::{Answer, Op};
use idgen_sim::history::linear::{self, LOCK};
use idgen_sim::history::{Call, NEVER, Ns, Outcome, Verdict};
use idgen_testkit::recorder::{Recorder, is_lost, now};
use idgen_testkit::{Cluster, rounds};
use postgres::{Client, Error};

use crate::storm::{Fault, Storm, repeat};

const NAMES: usize = 3;
const SESSIONS: usize = 16;

const FAULTS: [Fault; 8] = [
    Fault::Terminate,
    Fault::Cancel,
    Fault::Pause(Duration::from_millis(100)),
    Fault::KillBackend,
    Fault::Cancel,
    Fault::Terminate,
    Fault::KillPostmaster,
    Fault::Immediate,
];

/// Calls with the number of their name.
pub type Calls = Recorder<(usize, Op), Answer>;

/// The answer of a statement that returns a boolean.
fn ask(client: &mut Client, sql: &str, yes: Answer, no: Answer) -> Result<Answer, Error> {
    Ok(if client.query_one(sql, &[])?.get(0) { yes } else { no })
}

/// One session.
struct Locker<'a> {
    calls: &'a Calls,
    number: u32,
    /// When its last answer had arrived.
    answered: Ns,
}

impl Locker<'_> {
    fn token(&self) -> i64 {
        i64::from(self.number)
    }

    /// Acquires and releases a lock once. `None` once the session is of no use.
    fn cycle(&mut self, client: &mut Client) -> Option<()> {
        let (name, shared) = (fastrand::usize(..NAMES), fastrand::u8(..3) > 0);
        let wait = ["0", "2 ms", "20 ms"][fastrand::usize(..3)];
        let is_xact = fastrand::bool();
        let scope = if is_xact { "_xact" } else { "" };
        if is_xact {
            client.batch_execute("BEGIN").ok()?;
        }
        let acquire = (name, Op::Acquire { shared, ttl: NEVER });
        let sql = format!("SELECT lock_try_acquire{scope}('n{name}', '{wait}', shared => {shared})");
        let granted = Answer::Granted(self.token());
        let outcome = self.calls.call(self.number, acquire, || ask(client, &sql, granted, Answer::Refused));
        let is_granted = outcome == Outcome::Answered(granted);
        if outcome == Outcome::Unknown {
            return None;
        }
        self.answered = now();
        match (is_granted, is_xact) {
            (true, true) => self.commit(client, name),
            (true, false) => self.release(client, name, &format!("SELECT lock_release('n{name}', shared => {shared})")),
            (false, true) => client.batch_execute("ROLLBACK").ok(),
            (false, false) => Some(()),
        }
    }

    /// If this fails, the lock is free with the end of the session, or before.
    fn commit(&mut self, client: &mut Client, name: usize) -> Option<()> {
        let release = (name, Op::Release { token: self.token() });
        let outcome = self.calls.call(self.number, release, || client.batch_execute("COMMIT").map(|()| Answer::Done));
        self.answered = now();
        outcome.answer().map(drop)
    }

    /// Repeats a release that was canceled: it can have released the lock or not.
    fn release(&mut self, client: &mut Client, name: usize, sql: &str) -> Option<()> {
        let op = (name, Op::Release { token: self.token() });
        loop {
            let sent = now();
            let result = ask(client, sql, Answer::Done, Answer::Stale);
            let is_lost = result.as_ref().is_err_and(is_lost);
            let outcome = result.map_or(Outcome::Unknown, Outcome::Answered);
            let returned = if is_lost { NEVER } else { now() };
            self.calls.add(Call { session: self.number, op, sent, returned, outcome });
            if is_lost {
                return None;
            }
            self.answered = now();
            if outcome.answer().is_some() {
                return Some(());
            }
        }
    }
}

pub fn lock(storm: &Storm, calls: &Calls) {
    while let Some(mut session) = storm.connect("postgres") {
        let mut locker = Locker { calls, number: calls.number(), answered: now() };
        while storm.goes_on() && locker.cycle(&mut session.client).is_some() {}
        // All that the session held is free: from its last answer on, and at the latest when the server has no such process.
        let (sent, returned) = (locker.answered, storm.end(session));
        for name in 0..NAMES {
            let op = (name, Op::End);
            calls.add(Call { session: locker.number, op, sent, returned, outcome: Outcome::Unknown });
        }
    }
}

#[test]
fn named_locks_are_linearizable() {
    let cluster = Cluster::builder().conf("fsync", "off").start_with_extension();
    let (calls, storm) = (Calls::default(), Storm::new(&cluster));
    let faults = repeat(&FAULTS, rounds(16, 160));
    storm.run(SESSIONS, |_| lock(&storm, &calls), || calls.len(), rounds(20_000, 1_000_000), &faults);
    judge(calls);
}

pub fn judge(calls: Calls) {
    let mut by_name = vec![Vec::new(); NAMES];
    let mut granted = 0;
    for call in calls.into_calls() {
        granted += usize::from(matches!(call.outcome, Outcome::Answered(Answer::Granted(_))));
        let (name, call) = call.split();
        by_name[name].push(call);
    }
    let mut verdict = Verdict::default();
    by_name.iter().for_each(|calls| verdict.merge(linear::judge(calls, LOCK)));
    println!("named locks: {granted} grants, {verdict}");
    assert!(granted > verdict.operations / 20, "there was too little of everything");
    verdict.assert_clean("named locks");
}

//! Leases: one slot, several, and shared terms, some bound to their session, with fenced writes. Every answer can be
//! explained by one order of the calls, no token is written after a later one, and tokens rise in real time.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use idgen_sim::history::appends::Append;
use idgen_sim::history::holders::{self, Answer, Op, Token};
use idgen_sim::history::linear::{self, LEASE};
use idgen_sim::history::order::{self, Draw};
use idgen_sim::history::{Call, NEVER, Ns, Outcome, Verdict};
use idgen_testkit::recorder::{Recorder, is_lost, is_stale, now};
use idgen_testkit::sql::{execute, value};
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::error::SqlState;
use postgres::{Client, Error};

use crate::appends::{self, Appends, Fenced, PAUSE};
use crate::storm::{Fault, Storm, repeat};

const TTL: Duration = Duration::from_millis(150);
const SLOTS: u32 = 3;
const SESSIONS: usize = 18;

/// Names of each kind.
const GROUPS: usize = 2;
/// Lanes of a group: one for each slot of its names.
const LANES: usize = 2 + SLOTS as usize;

/// The kinds of names: one slot, one that readers share, and several slots.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Alone,
    Shared,
    Slots,
}

#[derive(Clone, Copy)]
struct Name {
    group: usize,
    kind: Kind,
}

impl Name {
    fn all() -> impl Iterator<Item = Name> {
        (0..GROUPS).flat_map(|group| [Kind::Alone, Kind::Shared, Kind::Slots].map(|kind| Name { group, kind }))
    }

    fn random() -> Name {
        let kind = [Kind::Alone, Kind::Shared, Kind::Slots][fastrand::usize(..3)];
        Name { group: fastrand::usize(..GROUPS), kind }
    }

    fn text(self) -> String {
        format!("{}-{}", ["alone", "shared", "slots"][self.kind as usize], self.group)
    }

    fn slots(self) -> usize {
        if self.kind == Kind::Slots { SLOTS as usize } else { 1 }
    }

    fn lanes(self) -> std::ops::Range<usize> {
        let first = self.group * LANES + self.kind as usize;
        first..first + self.slots()
    }
}

const FAULTS: [Fault; 10] = [
    Fault::Pause(PAUSE),
    Fault::Terminate,
    Fault::Cancel,
    Fault::Pause(PAUSE),
    Fault::Clock(60_000),
    Fault::KillBackend,
    Fault::Terminate,
    Fault::Clock(-60_000),
    Fault::KillPostmaster,
    Fault::Immediate,
];

#[derive(Default)]
pub struct Record {
    calls: Recorder<(Name, Op), Answer>,
    /// With their lanes.
    revocations: Recorder<(u32, Op), Answer>,
    appends: Appends,
    /// The lane of each token.
    lanes: Mutex<HashMap<Token, u32>>,
}

struct Holder<'a> {
    record: &'a Record,
    number: u32,
    /// When its last answer had arrived.
    answered: Ns,
}

impl Holder<'_> {
    /// Acquires, renews, writes and releases, or leaves out some of it.
    fn cycle(&mut self, client: &mut Client) -> Result<(), Error> {
        let name = Name::random();
        // Slot 0 of a name that readers share is not all that can be revoked.
        if name.kind != Kind::Shared && fastrand::u8(..20) == 0 {
            return self.revoke(client, name);
        }
        let shared = name.kind == Kind::Shared && fastrand::u8(..3) > 0;
        let bound = fastrand::u8(..5) == 0;
        let Some((token, lane)) = self.acquire(client, name, shared, bound)? else { return Ok(()) };
        for _ in 0..fastrand::u8(1..4) {
            let number = u64::from(self.record.appends.number());
            let answer = match fastrand::bool() {
                true => self.call_with(client, name, token, Op::Renew { token, ttl: ttl() }, "lease_renew")?,
                false => self.append(client, name, Append { lane, token, shared, number })?,
            };
            if answer == Answer::Stale {
                return Ok(());
            }
        }
        // A bound term would never end.
        if bound || fastrand::u8(..30) > 0 {
            self.call_with(client, name, token, Op::Release { token }, "lease_release")?;
        }
        Ok(())
    }

    fn revoke(&mut self, client: &mut Client, name: Name) -> Result<(), Error> {
        let slot = fastrand::usize(..name.slots());
        let lane = name.lanes().nth(slot).expect("a slot of the lease") as u32;
        let sql = format!("SELECT lease_revoke('{}', {slot})", name.text());
        let sent = now();
        let answer = client.query_one(&sql, &[]).map(|row| if row.get(0) { Answer::Done } else { Answer::Refused });
        let call = self.call((lane, Op::Revoke), sent, &answer);
        self.record.revocations.add(call);
        answer.map(drop)
    }

    fn acquire(
        &mut self,
        client: &mut Client,
        name: Name,
        shared: bool,
        bound: bool,
    ) -> Result<Option<(Token, u32)>, Error> {
        let op = Op::Acquire { shared, ttl: if bound { NEVER } else { ttl() } };
        let call =
            format!("lease_try_acquire('{}', '100 ms', shared => {shared}, bind_session => {bound})", name.text());
        let sent = now();
        let granted = client.query_opt(&format!("SELECT token, slot FROM {call}"), &[]).map(|row| {
            row.map(|row| {
                let (token, slot): (Token, i32) = (row.get(0), row.get(1));
                // Shared terms have no slot, and those above the last slot must not be.
                let slot = if name.kind == Kind::Slots { slot as usize } else { 0 };
                (token, name.lanes().nth(slot).expect("a slot of the lease") as u32)
            })
        });
        if let Ok(Some((token, lane))) = granted {
            self.record.lanes.lock().expect("no thread panics with the lock").insert(token, lane);
        }
        let answer = granted.map(|granted| granted.map_or(Answer::Refused, |(token, _)| Answer::Granted(token)));
        let Answer::Granted(token) = self.add(name, op, sent, answer)? else { return Ok(None) };
        Ok(Some((token, self.record.lanes.lock().expect("no thread panics with the lock")[&token])))
    }

    fn call_with(
        &mut self,
        client: &mut Client,
        name: Name,
        token: Token,
        op: Op,
        function: &str,
    ) -> Result<Answer, Error> {
        let sent = now();
        let answer = match client.batch_execute(&format!("SELECT {function}('{}', {token})", name.text())) {
            Err(error) if is_stale(&error) => Ok(Answer::Stale),
            result => result.map(|()| Answer::Done),
        };
        self.add(name, op, sent, answer)
    }

    fn append(&mut self, client: &mut Client, name: Name, append: Append) -> Result<Answer, Error> {
        let fenced = appends::fenced(client, &self.record.appends, &name.text(), append)?;
        let Fenced { answer, sent, returned, until } = fenced;
        let op = (name, Op::Fence { token: append.token, until });
        let outcome = Outcome::Answered(answer);
        self.record.calls.add(Call { session: self.number, op, sent, returned, outcome });
        self.answered = returned;
        Ok(answer)
    }

    fn add(&mut self, name: Name, op: Op, sent: Ns, answer: Result<Answer, Error>) -> Result<Answer, Error> {
        let call = self.call((name, op), sent, &answer);
        self.record.calls.add(call);
        answer
    }

    fn call<T>(&mut self, op: T, sent: Ns, answer: &Result<Answer, Error>) -> Call<T, Answer> {
        // A call that was canceled has changed nothing.
        let outcome = match answer {
            Ok(answer) => Outcome::Answered(*answer),
            Err(error) if is_lost(error) => Outcome::Unknown,
            Err(_) => Outcome::Failed,
        };
        let returned = if outcome == Outcome::Unknown { NEVER } else { now() };
        self.answered = if answer.is_ok() { returned } else { self.answered };
        Call { session: self.number, op, sent, returned, outcome }
    }
}

/// A server counts microseconds, and may have cut one off.
fn ttl() -> Ns {
    TTL.as_nanos() as Ns - 1_000
}

pub fn hold(storm: &Storm, record: &Record) {
    while let Some(mut session) = storm.connect("postgres") {
        let mut holder = Holder { record, number: record.calls.number(), answered: now() };
        while storm.goes_on() {
            if let Err(error) = holder.cycle(&mut session.client) {
                // What is bound to a session ends with it, so a session whose call has failed ends too.
                assert!(is_lost(&error) || error.code() == Some(&SqlState::QUERY_CANCELED), "{error:?}");
                break;
            }
        }
        let (sent, returned) = (holder.answered + 1, storm.end(session));
        for name in Name::all() {
            let (session, op, outcome) = (holder.number, (name, Op::End), Outcome::Unknown);
            record.calls.add(Call { session, op, sent, returned, outcome });
        }
    }
}

/// The calls of each lane. A call of a lost token can concern each lane of its name.
fn by_lane(calls: Vec<Call<(Name, Op), Answer>>, lanes: &HashMap<Token, u32>) -> Vec<Vec<holders::Call>> {
    let mut all = vec![Vec::new(); LANES * GROUPS];
    for call in calls {
        let (name, call) = call.split();
        let token = match (call.op, call.outcome) {
            (Op::Renew { token, .. } | Op::Fence { token, .. } | Op::Release { token }, _) => Some(token),
            (_, Outcome::Answered(Answer::Granted(token))) => Some(token),
            _ => None,
        };
        match token {
            Some(token) => all[lanes[&token] as usize].push(call),
            None => all[name.lanes()].iter_mut().for_each(|lane| lane.push(call.clone())),
        }
    }
    all
}

/// The grants of a name, whose tokens rise in real time.
fn grants(calls: &[Call<(Name, Op), Answer>], name: Name) -> Vec<Draw<Token>> {
    let of_name = calls.iter().filter(|call| call.op.0.lanes() == name.lanes());
    let granted = of_name.filter_map(|call| match call.outcome {
        Outcome::Answered(Answer::Granted(token)) => {
            Some(Draw { sent: call.sent, returned: call.returned, ids: vec![token] })
        }
        _ => None,
    });
    granted.collect()
}

pub fn judge(client: &mut Client, record: Record) -> Verdict {
    let (calls, revocations) = (record.calls.into_calls(), record.revocations.into_calls());
    println!(
        "revocations: {}",
        revocations.iter().filter(|call| call.outcome == Outcome::Answered(Answer::Done)).count()
    );
    let mut verdict = appends::judge(client, &record.appends.into_calls());
    println!("fenced appends: {verdict}");
    let mut tokens = Verdict::default();
    Name::all().for_each(|name| tokens.merge(order::judge(&grants(&calls, name))));
    println!("tokens: {tokens}");
    verdict.merge(tokens);
    let lanes = record.lanes.into_inner().expect("no thread panicked with the lock");
    let mut answers = Verdict::default();
    let mut by_lane = by_lane(calls, &lanes);
    for (lane, call) in revocations.into_iter().map(Call::split) {
        by_lane[lane as usize].push(call);
    }
    by_lane.iter().for_each(|calls| answers.merge(linear::judge(calls, LEASE)));
    println!("answers: {answers}");
    verdict.merge(answers);
    verdict
}

pub fn set_up(client: &mut Client) {
    for name in Name::all() {
        let (text, slots, ttl) = (name.text(), name.slots(), TTL.as_millis());
        execute(client, &format!("SELECT lease_define('{text}', {slots}, '{ttl} ms')"));
    }
    appends::create_list(client, LANES * GROUPS);
}

fn run(cluster: &Cluster, record: &Record, wanted: usize, faults: &[Fault]) {
    let storm = Storm::new(cluster);
    storm.run(SESSIONS, |_| hold(&storm, record), || record.calls.len(), wanted, faults);
}

#[test]
fn leases_and_their_fences_are_linearizable() {
    let builder = Cluster::builder().fake_clock().conf("fsync", "off").conf("wal_retrieve_retry_interval", "100 ms");
    let cluster = builder.start_with_extension();
    set_up(&mut cluster.client());
    let record = Record::default();
    let wanted = rounds(6_000, 1_000_000);
    run(&cluster, &record, wanted * 2 / 3, &repeat(&FAULTS, rounds(20, 200)));
    let standby = cluster.standby_builder().synchronous().fake_clock().start();
    run(&cluster, &record, wanted / 6, &[Fault::Terminate, Fault::Clock(0)]);
    cluster.stop(Stop::Immediate);
    standby.clock().set_offset_ms(-10_000);
    standby.promote();
    run(&standby, &record, wanted / 6, &repeat(&FAULTS[..4], rounds(4, 40)));
    let mut client = standby.client();
    let take_overs: i64 = value(&mut client, "SELECT take_overs FROM idgen.stat_lease");
    let verdict = judge(&mut client, record);
    println!("leases: {verdict}, {take_overs} take-overs on the last server");
    assert!(take_overs > 0, "no pause was longer than a term");
    verdict.assert_clean("leases");
}

//! Writes under a lease: each takes the next position of the lane's list, in one transaction with its fence.

use std::time::Duration;

use idgen_sim::history::appends::{self, Append};
use idgen_sim::history::holders::Answer;
use idgen_sim::history::{Call, Ns, Outcome, Verdict};
use idgen_testkit::recorder::{Recorder, is_stale, now};
use idgen_testkit::sql::execute;
use postgres::{Client, Error};

/// Longer than the terms of the storm.
pub const PAUSE: Duration = Duration::from_millis(250);

pub type Appends = Recorder<Append, ()>;

pub fn create_list(client: &mut Client, lanes: usize) {
    execute(
        client,
        &format!(
            "CREATE TABLE tail (lane int PRIMARY KEY, position bigint NOT NULL);
             INSERT INTO tail SELECT lane, 0 FROM generate_series(0, {lanes} - 1) AS lane;
             CREATE TABLE list (lane int, position bigint, token bigint, shared boolean, number bigint, PRIMARY KEY (lane, position))"
        ),
    );
}

/// The row lock of the tail is held until the commit, so positions are in the order of commits.
pub fn insert(append: &Append) -> String {
    let Append { lane, token, shared, number } = append;
    format!(
        "WITH next AS (UPDATE tail SET position = position + 1 WHERE lane = {lane} RETURNING position)
         INSERT INTO list SELECT {lane}, position, {token}, {shared}, {number} FROM next"
    )
}

/// What a fenced transaction tells about its lease: the answer of the fence, and until when the transaction was open for
/// certain.
pub struct Fenced {
    pub answer: Answer,
    pub sent: Ns,
    pub returned: Ns,
    pub until: Ns,
}

/// Appends in a transaction that fences first.
pub fn fenced(client: &mut Client, appends: &Appends, name: &str, append: Append) -> Result<Fenced, Error> {
    let sent = now();
    let fence = client.batch_execute(&format!("BEGIN; SELECT lease_fence('{name}', {})", append.token));
    let returned = now();
    let fenced = |answer, until| Ok(Fenced { answer, sent, returned, until });
    match fence {
        Err(error) if is_stale(&error) => {
            client.batch_execute("ROLLBACK")?;
            return fenced(Answer::Stale, 0);
        }
        fence => fence?,
    }
    if fastrand::u8(..60) == 0 {
        // The client is paused for longer than a term lasts, between its fence and its write.
        std::thread::sleep(PAUSE);
    }
    client.batch_execute(&insert(&append))?;
    let until = now();
    match appends.call(append.lane, append, || client.batch_execute("COMMIT")) {
        Outcome::Answered(()) => fenced(Answer::Done, until),
        // The transaction can have ended before.
        _ => fenced(Answer::Done, 0),
    }
}

pub fn judge(client: &mut Client, calls: &[Call<Append, ()>]) -> Verdict {
    let sql = "SELECT lane, token, shared, number FROM list ORDER BY lane, position";
    let rows = client.query(sql, &[]).expect("the list");
    let append = |row: &postgres::Row| Append {
        lane: row.get::<_, i32>(0) as u32,
        token: row.get(1),
        shared: row.get(2),
        number: row.get::<_, i64>(3) as u64,
    };
    appends::judge(&rows.iter().map(append).collect::<Vec<_>>(), calls)
}

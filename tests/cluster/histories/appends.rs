//! Writes under a lease: each takes the next position of the lane's list, in one transaction with its fence. And two
//! controls, whose stale writes the judge must find.

use idgen_sim::history::appends::{self, Append};
use idgen_sim::history::holders::Answer;
use idgen_sim::history::{Call, Ns, Outcome, Verdict};
use idgen_testkit::recorder::{Recorder, is_stale, now};
use idgen_testkit::sql::execute;
use idgen_testkit::{Cluster, rounds};
use postgres::{Client, Error};

use crate::storm::{Fault, Storm, repeat};

pub type Appends = Recorder<Append, ()>;

pub fn create_list(client: &mut Client, lanes: u32) {
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
fn insert(append: &Append) -> String {
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

/// How the controls take the lock and check that they have it. Both write later.
struct Control {
    setup: &'static str,
    /// Returns a token, or no row.
    acquire: &'static str,
    check: &'static str,
    release: &'static str,
}

/// The fence in a transaction of its own, before the one that writes.
const CHECKED_BEFORE: Control = Control {
    setup: "SELECT lease_define('n', 1, '100 ms')",
    acquire: "SELECT token FROM lease_try_acquire('n', '1 s')",
    check: "SELECT lease_fence('n', $token)",
    release: "SELECT lease_release('n', $token)",
};

/// `SET NX` with a time limit, as a row.
const SET_NX: Control = Control {
    setup: "CREATE SEQUENCE tokens; CREATE TABLE nx (name text PRIMARY KEY, token bigint, expires timestamptz)",
    acquire: "INSERT INTO nx VALUES ('n', nextval('tokens'), clock_timestamp() + interval '100 ms')
              ON CONFLICT (name) DO UPDATE SET token = nextval('tokens'), expires = clock_timestamp() + interval '100 ms'
              WHERE nx.expires < clock_timestamp() RETURNING token",
    check: "SELECT 1 / count(*) FROM nx WHERE token = $token",
    release: "DELETE FROM nx WHERE token = $token",
};

/// One turn of a holder that writes without a fence.
fn unfenced(client: &mut Client, appends: &Appends, control: &Control) -> Result<(), Error> {
    let Some(row) = client.query_opt(control.acquire, &[])? else { return Ok(()) };
    let token: i64 = row.get(0);
    let of_token = |sql: &str| sql.replace("$token", &token.to_string());
    client.batch_execute(&of_token(control.check))?;
    // The work, during which most pauses begin.
    client.batch_execute("SELECT pg_sleep(0.005)")?;
    let append = Append { lane: 0, token, shared: false, number: u64::from(appends.number()) };
    appends.call(0, append, || client.batch_execute(&insert(&append)));
    client.batch_execute(&of_token(control.release))
}

fn stale_writes(control: &Control) -> Verdict {
    let cluster = Cluster::builder().conf("fsync", "off").start_with_extension();
    let mut client = cluster.client();
    create_list(&mut client, 1);
    execute(&mut client, control.setup);
    let (appends, storm) = (Appends::default(), Storm::new(&cluster));
    let session = |_| {
        let mut session = storm.connect("postgres").expect("the storm has begun");
        while storm.goes_on() {
            // A lost lease is an error here.
            let _ = unfenced(&mut session.client, &appends, control);
        }
        storm.forget(session.pid);
    };
    let pauses = repeat(&[Fault::Pause(std::time::Duration::from_millis(150))], rounds(15, 400));
    storm.run(4, session, || appends.len(), rounds(300, 20_000), &pauses);
    judge(&mut client, &appends.into_calls())
}

#[test]
fn judge_finds_stale_writes_of_a_fence_in_an_earlier_transaction() {
    let verdict = stale_writes(&CHECKED_BEFORE);
    println!("fence in an earlier transaction: {verdict}");
    assert!(verdict.count(appends::STALE) > 0);
    assert_eq!(verdict.violations(), verdict.count(appends::STALE), "{verdict}");
}

#[test]
fn judge_finds_stale_writes_under_set_nx() {
    let verdict = stale_writes(&SET_NX);
    println!("SET NX with a time limit: {verdict}");
    assert!(verdict.count(appends::STALE) > 0);
    assert_eq!(verdict.violations(), verdict.count(appends::STALE), "{verdict}");
}

//! A client that counts in a table under a lease until its standard input ends. It acquires, reads the counter, works, and
//! writes the counter plus one. If its last argument is `fence`, it fences in the writing transaction. It prints the outcome
//! of each attempt. A test pauses it at random moments.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postgres::error::SqlState;
use postgres::{Client, NoTls};

/// About as long as the statements around it, so that pauses hit both.
const WORK: Duration = Duration::from_millis(5);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [connect, owner, how] = arguments.as_slice() else { panic!("usage: holder CONNINFO OWNER fence|trust") };
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(|| {
        let _ = std::io::read_to_string(std::io::stdin());
        IS_OVER.store(true, Ordering::Relaxed);
    });
    let mut client = Client::connect(connect, NoTls).expect("the server is running");
    while !IS_OVER.load(Ordering::Relaxed) {
        let token: i64 =
            integer(&mut client, &format!("SELECT token FROM lease_acquire('counter', '200 ms', '{owner}')"));
        let n: i64 = integer(&mut client, "SELECT n FROM counter");
        std::thread::sleep(WORK);
        let is_counted = is_held(write(&mut client, (how == "fence").then_some(token), n + 1));
        println!("{}", if is_counted { "counted" } else { "refused" });
        is_held(client.execute("SELECT lease_release('counter', $1)", &[&token]).map(drop));
    }
}

fn integer(client: &mut Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

fn write(client: &mut Client, fence: Option<i64>, n: i64) -> Result<(), postgres::Error> {
    let mut transaction = client.transaction()?;
    if let Some(token) = fence {
        transaction.execute("SELECT lease_fence('counter', $1)", &[&token])?;
    }
    transaction.execute("UPDATE counter SET n = $1", &[&n])?;
    transaction.commit()
}

/// False if the lease was lost. Any other error panics.
fn is_held(outcome: Result<(), postgres::Error>) -> bool {
    if let Err(error) = &outcome {
        assert_eq!(error.code(), Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE), "{error:?}");
    }
    outcome.is_ok()
}

//! Clients that draw ids all the time, and remember each one that they have seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use postgres::{Client, NoTls};

use super::ensemble::{Ensemble, MEMBERS, address};

/// Ids that are not stored, ids of rows, and values of a segment. The first column has them.
const DRAW: &str = "SELECT snowflake_next_many(20)";
const INSERT: &str = "INSERT INTO orders SELECT FROM generate_series(1, 5) RETURNING id";
const NUMBER: &str = "SELECT segment_next('invoice') FROM generate_series(1, 5)";

/// A client connects to another member, if there are two leaders, after this many statements.
const STATEMENTS: usize = 50;

#[derive(Default)]
pub struct Progress {
    ended: AtomicBool,
    /// How many snowflake ids were drawn on each member, and the last one.
    drawn: [AtomicUsize; 3],
    last: [AtomicI64; 3],
}

impl Progress {
    pub fn drawn(&self, member: usize) -> usize {
        self.drawn[member].load(Ordering::Relaxed)
    }

    pub fn last(&self, member: usize) -> i64 {
        self.last[member].load(Ordering::Relaxed)
    }
}

/// What the clients have seen.
#[derive(Default)]
pub struct Seen {
    pub drawn: Vec<i64>,
    pub inserted: Vec<i64>,
    pub numbers: Vec<i64>,
}

pub struct Load {
    pub progress: Arc<Progress>,
    clients: Vec<(&'static str, JoinHandle<Vec<i64>>)>,
}

impl Load {
    pub fn start(ensemble: &Ensemble) -> Load {
        let progress = Arc::new(Progress::default());
        let clients = [DRAW, DRAW, INSERT, INSERT, NUMBER].map(|sql| {
            let (conninfo, progress) = (ensemble.conninfo(), Arc::clone(&progress));
            (sql, std::thread::spawn(move || draw(&conninfo, sql, &progress)))
        });
        Load { progress, clients: clients.into() }
    }

    /// Ends the clients and returns the ids that they have seen.
    pub fn end(mut self) -> Seen {
        self.progress.ended.store(true, Ordering::Relaxed);
        let mut seen = Seen::default();
        for (sql, client) in self.clients.drain(..) {
            let ids = client.join().expect("a client does not panic");
            match sql {
                DRAW => seen.drawn.extend(ids),
                INSERT => seen.inserted.extend(ids),
                _ => seen.numbers.extend(ids),
            }
        }
        seen
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.progress.ended.store(true, Ordering::Relaxed);
    }
}

/// After each error the client connects again.
fn draw(conninfo: &str, sql: &str, progress: &Progress) -> Vec<i64> {
    let mut seen = Vec::new();
    while !progress.ended.load(Ordering::Relaxed) {
        let _ = Client::connect(conninfo, NoTls).and_then(|client| draw_in_session(client, sql, progress, &mut seen));
        std::thread::sleep(Duration::from_millis(2));
    }
    seen
}

fn draw_in_session(
    mut client: Client,
    sql: &str,
    progress: &Progress,
    seen: &mut Vec<i64>,
) -> Result<(), postgres::Error> {
    let host: String = client.query_one("SELECT host(inet_server_addr())", &[])?.get(0);
    let member = MEMBERS.into_iter().find(|&member| address(member) == host).expect("a member");
    let statement = client.prepare(sql)?;
    for _ in 0..STATEMENTS {
        let rows = client.query(&statement, &[])?;
        seen.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
        if sql == DRAW {
            progress.drawn[member].fetch_add(rows.len(), Ordering::Relaxed);
            progress.last[member].fetch_max(seen[seen.len() - 1], Ordering::Relaxed);
        }
        // Leaves the machine to the others.
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

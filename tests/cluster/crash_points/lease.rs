//! Leases: a lease is granted or not, its tokens rise, and a fenced write that was answered is there.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use idgen_testkit::Cluster;
use idgen_testkit::ids::assert_increasing;
use idgen_testkit::lease::take_if_free;
use idgen_testkit::sql::{column, execute, value};
use postgres::{Client, Error};

use crate::Scene;
use crate::victim::{Death, Victim};

pub struct Holding {
    victim: Victim,
    seen: Mutex<Seen>,
}

/// What the client knows.
#[derive(Default)]
struct Seen {
    tokens: Vec<i64>,
    /// The tokens of fenced writes.
    written: Vec<i64>,
    /// It holds the lease: no call to acquire or to release has begun since it was told so.
    holds: bool,
}

impl Holding {
    pub fn new(death: Death) -> Holding {
        let prepare = "SELECT lease_define('l', ttl => '1 hour');
                       CREATE TABLE written (n bigserial, token bigint)";
        let victim = Victim::new(Cluster::builder(), death, |cluster| cluster.execute(prepare));
        Holding { victim, seen: Mutex::default() }
    }

    /// Holds the lease for one write. A session beside it extends the term, also while the write is not committed.
    fn hold(&self, client: &mut Client, beside: &mut Client) -> Result<(), Error> {
        let token: i64 = client.query_one("SELECT token FROM lease_acquire('l')", &[])?.get(0);
        let tell = |tell: fn(&mut Seen, i64)| tell(&mut self.seen.lock().unwrap(), token);
        tell(|seen, token| {
            seen.tokens.push(token);
            seen.holds = true;
        });
        client.query_one("SELECT lease_renew('l', $1)", &[&token])?;
        client.batch_execute(&format!(
            "BEGIN; SELECT lease_fence('l', {token}); INSERT INTO written (token) VALUES ({token})"
        ))?;
        beside.query_one("SELECT lease_renew('l', $1)", &[&token])?;
        client.batch_execute("COMMIT")?;
        tell(|seen, token| seen.written.push(token));
        tell(|seen, _| seen.holds = false);
        client.query_one("SELECT lease_release('l', $1)", &[&token])?;
        Ok(())
    }
}

impl Scene for Holding {
    fn victim(&self) -> &Victim {
        &self.victim
    }

    fn work(&self, goes_on: &AtomicBool) {
        let [Ok(mut client), Ok(mut beside)] = [(); 2].map(|()| self.victim.serving().try_client()) else { return };
        while goes_on.load(Ordering::SeqCst) && self.hold(&mut client, &mut beside).is_ok() {}
    }

    fn check(&self) {
        self.victim.recover(0);
        let mut client = self.victim.serving().client();
        let mut seen = self.seen.lock().unwrap();
        let held: Vec<i64> = column(&mut client, "SELECT token FROM idgen.leases WHERE name = 'l' AND state = 'held'");
        if seen.holds {
            assert_eq!(held, [*seen.tokens.last().unwrap()], "the holder has lost its lease");
        }
        match held[..] {
            [token] => {
                assert_eq!(take_if_free(&mut client, "l"), None, "it is held");
                execute(&mut client, &format!("SELECT lease_renew('l', {token})"));
                execute(&mut client, &format!("SELECT lease_fence('l', {token})"));
                execute(&mut client, "SELECT lease_revoke('l')");
                // A grant whose answer was lost.
                if seen.tokens.last() != Some(&token) {
                    seen.tokens.push(token);
                }
            }
            [] => {}
            _ => panic!("one slot has several holders: {held:?}"),
        }
        seen.tokens.push(take_if_free(&mut client, "l").expect("it is free"));
        assert_increasing(&seen.tokens);
        let written: Vec<i64> = column(&mut client, "SELECT token FROM written ORDER BY n");
        assert_increasing(&written);
        assert!(written.starts_with(&seen.written), "{written:?} lacks some of {:?}", seen.written);
        assert!(written.len() <= seen.written.len() + 1, "{written:?} has more than {:?}", seen.written);
    }
}

/// Otherwise a take-over could lock the row after it was found free. If that is rolled back later, the lock delay would have
/// begun long before the revocation.
#[test]
fn revocation_locks_the_row_before_it_reads_the_clock() {
    let holding = Holding::new(Death::Process);
    let victim = holding.victim();
    let [mut holder, mut definer] = [victim.serving().client(), victim.serving().client()];
    execute(&mut holder, "SELECT lease_acquire('l')");
    victim.arm("row: found free");
    std::thread::scope(|scope| {
        let revoking = scope.spawn(|| execute(&mut definer, "SELECT lease_revoke('l')"));
        while !revoking.is_finished() {
            if victim.is_stopped() {
                drop(victim.wait_until_stopped());
                panic!("it writes a row that it has only found free");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    // The control: a renewal comes there.
    let token: i64 = value(&mut holder, "SELECT token FROM lease_acquire('l')");
    std::thread::scope(|scope| {
        scope.spawn(|| execute(&mut holder, &format!("SELECT lease_renew('l', {token})")));
        assert!(victim.wait_until_stopped().is_some(), "no renewal comes to the point");
    });
}

//! The ring of a tag: draws beside installs, changes of the row, and each other.

use super::assert_rising;
use idgen_core::segment::table::{Key, Table, Tenant};
use idgen_core::segment::{Answer, Ended, Handle, Ring};
use loom::sync::{Arc, Mutex};
use loom::thread::{self, JoinHandle};

const KEY: Key = Key { database: 5, creation: 1 };
const OTHER: Key = Key { database: 5, creation: 2 };

/// One ring, and the table's lock.
struct Server {
    rings: Vec<Ring>,
    tenants: Mutex<Vec<Option<Tenant>>>,
}

impl Server {
    fn new() -> Arc<Self> {
        Arc::new(Self { rings: vec![Ring::new()], tenants: Mutex::new(vec![None]) })
    }

    fn attach(&self, key: Key, version: i64) -> Handle {
        let mut tenants = self.tenants.lock().unwrap();
        Table { rings: &self.rings, tenants: &mut tenants }.attach(key, version, 1, 0, &[]).handle
    }

    /// As the refill worker does: under the lock, only for who still lives there, and where there is room. Was it?
    fn install(&self, handle: Handle, first: i64, count: u64, low_water: u64) -> bool {
        let tenants = self.tenants.lock().unwrap();
        let lives_here = tenants[0].is_some_and(|tenant| tenant.handle == handle);
        lives_here && self.install_alone(handle, first, count, low_water)
    }

    /// The same where nobody else takes the lock.
    fn install_alone(&self, handle: Handle, first: i64, count: u64, low_water: u64) -> bool {
        let has_room = self.rings[0].has_room();
        if has_room {
            self.rings[0].install(handle, first, count, low_water);
        }
        has_room
    }

    /// The values of one draw, and whether to ask. Nothing when dry.
    fn draw(&self, handle: Handle, want: u64) -> Result<(Vec<i64>, bool), Ended> {
        Ok(match self.rings[0].draw(handle, want)? {
            Answer::Dry => (Vec::new(), false),
            Answer::Drawn { run, ask } => ((run.first..run.first + run.count as i64).collect(), ask),
        })
    }

    /// Draws so many times, one way or another; the values rise.
    fn draws(&self, handle: Handle, wants: &[u64]) -> Vec<i64> {
        let values: Vec<i64> = wants.iter().flat_map(|want| self.draw(handle, *want).unwrap().0).collect();
        assert_rising(&values);
        values
    }
}

fn beside<T: 'static>(server: &Arc<Server>, work: impl FnOnce(&Server) -> T + 'static) -> JoinHandle<T> {
    let server = server.clone();
    thread::spawn(move || work(&server))
}

/// What all have drawn, and what is left: nothing twice, nothing lost.
fn assert_exactly(server: &Server, handle: Handle, mut drawn: Vec<i64>, expected: &[i64]) {
    loop {
        let (more, _) = server.draw(handle, 9).unwrap();
        if more.is_empty() {
            break;
        }
        drawn.extend(more);
    }
    drawn.sort_unstable();
    assert_eq!(drawn, expected);
}

/// G1: draws at the edge of a range that another, with a skip in between, follows.
#[test]
fn draws_at_the_edge() {
    loom::model(|| {
        let server = Server::new();
        let handle = server.attach(KEY, 1);
        server.install(handle, 1, 2, 0);
        server.install(handle, 11, 2, 0);
        let other = beside(&server, move |server| server.draws(handle, &[1, 2]));
        let mut drawn = server.draws(handle, &[2, 1]);
        drawn.extend(other.join().unwrap());
        assert_exactly(&server, handle, drawn, &[1, 2, 11, 12]);
    });
}

/// G1: no late draw pairs an old position with a new range, and none loses a value. The third range takes the place of
/// the first as soon as that is used up.
#[test]
fn draws_against_install() {
    loom::model(|| {
        let server = Server::new();
        let handle = server.attach(KEY, 1);
        server.install(handle, 1, 1, 0);
        server.install(handle, 11, 1, 0);
        let late = beside(&server, move |server| server.draws(handle, &[1]));
        let worker = beside(&server, move |server| server.install_alone(handle, 21, 2, 0));
        let mut drawn = server.draws(handle, &[1]);
        drawn.extend(late.join().unwrap());
        let expected: &[i64] = if worker.join().unwrap() { &[1, 11, 21, 22] } else { &[1, 11] };
        assert_exactly(&server, handle, drawn, expected);
    });
}

/// G1: a draw that meets the range just being installed draws of all of it or of nothing.
#[test]
fn draws_of_what_is_being_installed() {
    loom::model(|| {
        let server = Server::new();
        let handle = server.attach(KEY, 1);
        server.install(handle, 1, 1, 0);
        server.install(handle, 11, 1, 0);
        assert_eq!(server.draws(handle, &[1]), [1]);
        let worker = beside(&server, move |server| server.install_alone(handle, 21, 2, 0));
        let drawn = server.draws(handle, &[1, 1]);
        assert!(worker.join().unwrap());
        assert_exactly(&server, handle, drawn, &[11, 21, 22]);
    });
}

/// G1: a range grows while it is drawn from.
#[test]
fn draws_against_a_range_that_grows() {
    loom::model(|| {
        let server = Server::new();
        let handle = server.attach(KEY, 1);
        server.install(handle, 1, 1, 0);
        let other = beside(&server, move |server| server.draws(handle, &[2]));
        let worker = beside(&server, move |server| server.install_alone(handle, 2, 2, 0));
        let mut drawn = server.draws(handle, &[1]);
        drawn.extend(other.join().unwrap());
        worker.join().unwrap();
        assert_exactly(&server, handle, drawn, &[1, 2, 3]);
    });
}

/// G1, G3: the row changes while a backend draws by the old handle: it draws of the old range or learns that it has
/// ended, and never of the new one.
#[test]
fn draws_against_a_change_of_the_row() {
    loom::model(|| {
        let server = Server::new();
        let old = server.attach(KEY, 1);
        server.install(old, 1, 2, 0);
        let late = beside(&server, move |server| server.draw(old, 1).map(|(values, _)| values));
        let changer = beside(&server, |server| {
            let new = server.attach(KEY, 2);
            server.install(new, 3, 2, 0);
            server.draws(new, &[1])
        });
        let late = late.join().unwrap();
        let drawn = changer.join().unwrap();
        assert_eq!(drawn, [3]);
        assert!(late == Ok(vec![1]) || late == Err(Ended), "{late:?}");
        assert_exactly(&server, server.attach(KEY, 2), drawn, &[3, 4]);
    });
}

/// G1: the ring goes to another tag and comes back, with values that look alike.
#[test]
fn draws_against_another_tenant() {
    loom::model(|| {
        let server = Server::new();
        let first = server.attach(KEY, 1);
        server.install(first, 1, 1, 0);
        let late = beside(&server, move |server| server.draw(first, 1).map(|(values, _)| values));
        let other = server.attach(OTHER, 1);
        server.install(other, 100, 1, 0);
        let again = server.attach(KEY, 1);
        server.install(again, 3, 1, 0);
        let late = late.join().unwrap();
        assert!(late == Ok(vec![1]) || late == Err(Ended), "{late:?}");
        assert!(!server.install(other, 101, 1, 0), "a late refill of who is gone");
        assert_exactly(&server, again, Vec::new(), &[3]);
    });
}

/// A refill is asked for once, whoever gets to low water.
#[test]
fn one_asks() {
    loom::model(|| {
        let server = Server::new();
        let handle = server.attach(KEY, 1);
        server.install(handle, 1, 3, 2);
        let asks = move |server: &Server| server.draw(handle, 1).unwrap().1;
        let others = [(); 2].map(|()| beside(&server, asks));
        let asked = others.map(|t| t.join().unwrap()).into_iter().chain([asks(&server)]).filter(|ask| *ask).count();
        assert_eq!(asked, 1);
    });
}

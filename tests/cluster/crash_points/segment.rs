//! Segments, of one server and of a fleet: no value is drawn twice, and none is above `max_id`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use idgen_testkit::Cluster;
use idgen_testkit::ids::{assert_distinct, assert_increasing};
use idgen_testkit::sql::{execute, ids, value};

use crate::Scene;
use crate::victim::{Death, Victim, draw_while};

/// What the server is that dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Alone,
    /// Its tag is attached to that of a coordinator.
    Server,
    Coordinator,
}

pub struct Drawing {
    victim: Victim,
    role: Role,
    /// The coordinator of a server, or the server of a coordinator.
    other: Option<Cluster>,
    seen: Mutex<Vec<i64>>,
}

fn create(cluster: &Cluster) {
    cluster.execute("SELECT segment_create('t', step => 20, min_step => 20, max_step => 20)");
}

fn attach(cluster: &Cluster, coordinator: &Cluster) {
    cluster.set_conf("idgen.coordinator", &coordinator.conninfo());
    cluster.reload();
    cluster.execute("SELECT segment_attach('t', '2 s'); SELECT segment_alter('t', step => 20, min_step => 20)");
}

impl Drawing {
    pub fn new(role: Role, death: Death) -> Drawing {
        let other = (role != Role::Alone).then(|| Cluster::builder().start_with_extension());
        let prepare = |victim: &Cluster| match role {
            Role::Alone => create(victim),
            Role::Server => {
                create(other.as_ref().unwrap());
                attach(victim, other.as_ref().unwrap());
            }
            Role::Coordinator => {
                create(victim);
                attach(other.as_ref().unwrap(), victim);
            }
        };
        let victim = Victim::new(Cluster::builder(), death, prepare);
        Drawing { victim, role, other, seen: Mutex::default() }
    }

    fn servers(&self) -> impl Iterator<Item = &Cluster> {
        [self.victim.serving()].into_iter().chain(&self.other)
    }

    /// Draws until that fails.
    fn draw_while(&self, cluster: &Cluster, setting: &str, goes_on: impl Fn(&[i64]) -> bool) {
        let drawn = draw_while(cluster, (setting, "SELECT segment_next('t')"), goes_on);
        self.seen.lock().unwrap().extend(drawn);
    }
}

impl Scene for Drawing {
    fn victim(&self) -> &Victim {
        &self.victim
    }

    fn work(&self, goes_on: &AtomicBool) {
        std::thread::scope(|scope| {
            for cluster in self.servers() {
                scope.spawn(|| self.draw_while(cluster, "", |_| goes_on.load(Ordering::SeqCst)));
            }
        });
    }

    fn look(&self) {
        self.servers().for_each(|cluster| {
            self.draw_while(cluster, "SET idgen.segment_timeout = '100 ms'", |drawn| drawn.len() < 100)
        });
    }

    fn check(&self) {
        self.victim.recover(0);
        if self.role == Role::Coordinator && self.victim.is_promoted() {
            let server = self.other.as_ref().expect("its server");
            server.reload_with("idgen.coordinator", &self.victim.serving().conninfo());
        }
        let mut seen = self.seen.lock().unwrap();
        let highest = seen.iter().max().copied().unwrap_or(0);
        // After a promotion, the coordinator first hears from its server.
        let patience = "SET idgen.segment_timeout = '25 s'";
        for cluster in self.servers() {
            let mut client = cluster.client();
            execute(&mut client, patience);
            let later = ids(&mut client, "SELECT segment_next('t') FROM generate_series(1, 100)");
            assert_increasing(&later);
            assert!(self.role != Role::Alone || later[0] > highest, "{} after {highest}", later[0]);
            let max_id: i64 = value(&mut client, "SELECT max_id FROM idgen.segment WHERE tag = 't'");
            assert!(later[99] <= max_id, "{} is above max_id, {max_id}", later[99]);
            seen.extend(later);
        }
        assert_distinct(seen.clone());
    }
}

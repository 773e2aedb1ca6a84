//! Worker ids: rectangles do not overlap, and each id of a server lies in one that was granted to it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use idgen_testkit::grants::{Seen, assert_ids_granted, record, rectangles};
use idgen_testkit::ids::assert_distinct;
use idgen_testkit::sql::{PATIENCE, ids};
use idgen_testkit::{Builder, Cluster, Stop};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Scene;
use crate::victim::{Death, Victim};

/// What the server does that dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Grants worker ids.
    Pool,
    /// Leases one.
    Keeper,
}

pub struct Leasing {
    victim: Victim,
    role: Role,
    /// The coordinator of a keeper, or the server of a pool.
    other: Cluster,
    seen: Mutex<Vec<Seen>>,
}

fn define(coordinator: &Cluster) {
    coordinator.execute("SELECT worker_pool_define('servers', count => 1, ttl => '1 s')");
    record(coordinator);
}

fn pooled(coordinator: &Cluster) -> Builder {
    Cluster::builder().conf("idgen.worker_pool", "servers").conf("idgen.coordinator", &coordinator.conninfo())
}

impl Leasing {
    pub fn new(role: Role, death: Death) -> Leasing {
        let (victim, other) = match role {
            Role::Pool => {
                let victim = Victim::new(Cluster::builder(), death, define);
                let server = pooled(victim.serving()).start_with_extension();
                (victim, server)
            }
            Role::Keeper => {
                let coordinator = Cluster::builder().start_with_extension();
                define(&coordinator);
                (Victim::new(pooled(&coordinator), death, |_| ()), coordinator)
            }
        };
        Leasing { victim, role, other, seen: Mutex::default() }
    }

    fn server(&self) -> &Cluster {
        if self.role == Role::Pool { &self.other } else { self.victim.serving() }
    }

    fn coordinator(&self) -> &Cluster {
        if self.role == Role::Pool { self.victim.serving() } else { &self.other }
    }

    fn saw(&self, server: &Cluster, ids: Vec<i64>) {
        self.seen.lock().unwrap().push(Seen { data_dir: server.data_dir(), ids });
    }

    /// Draws longer than the pause between two renewals. False if that fails.
    fn draw(&self, goes_on: &AtomicBool) -> bool {
        let server = self.server();
        let Ok(mut client) = server.try_client() else { return false };
        let (mut drawn, began) = (Vec::new(), Instant::now());
        let mut goes_well = true;
        while goes_well && began.elapsed() < Duration::from_secs(1) {
            let rows = client.query("SELECT snowflake_next_many(10), pg_sleep(0.002)", &[]);
            goes_well = rows.is_ok() && goes_on.load(Ordering::SeqCst);
            drawn.extend(rows.iter().flatten().map(|row| row.get::<_, i64>(0)));
        }
        self.saw(server, drawn);
        goes_well
    }
}

impl Scene for Leasing {
    fn victim(&self) -> &Victim {
        &self.victim
    }

    fn prepare(&self) {
        self.saw(self.server(), ids(&mut self.server().client(), "SELECT snowflake_next_many(10)"));
        // The point may be one of the first grant.
        self.server().stop(Stop::Fast);
    }

    /// The server starts, draws, and stops. That of a pool starts again, and runs in the end.
    fn work(&self, goes_on: &AtomicBool) {
        loop {
            self.server().spawn();
            let postmaster = Pid::from_raw(self.server().pid_of_postmaster());
            while goes_on.load(Ordering::SeqCst) && self.server().try_client().is_err() {}
            if !self.draw(goes_on) {
                return;
            }
            kill(postmaster, Signal::SIGINT).expect("the server runs");
            if self.role == Role::Keeper {
                // All points that are left are those of the stop.
                return;
            }
            self.server().wait_until_exited();
        }
    }

    fn check(&self) {
        self.victim.recover(0);
        self.server().wait_until_ready();
        if self.role == Role::Pool && self.victim.is_promoted() {
            self.server().set_conf("idgen.coordinator", &self.coordinator().conninfo());
            self.server().reload();
        }
        let mut client = self.server().client();
        // The last holder's time may not be over.
        self.server().wait_for(PATIENCE, "a worker id", || {
            let rows = client.query("SELECT snowflake_next_many(1000)", &[]);
            let rows = rows.inspect(|rows| self.saw(self.server(), rows.iter().map(|row| row.get(0)).collect()));
            rows.is_ok()
        });
        let seen = self.seen.lock().unwrap();
        assert_ids_granted(&rectangles(&mut self.coordinator().client()), &seen);
        assert_distinct(seen.iter().flat_map(|seen| seen.ids.clone()).collect());
    }
}

//! Three servers under load, with every fault of theirs, of their coordinator and of the network: no value twice, the values
//! of each server rise, and they draw again after each fault.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use idgen_sim::history::NEVER;
use idgen_sim::history::order::{self, Draw};
use idgen_testkit::parallel::End;
use idgen_testkit::recorder::Draws;
use idgen_testkit::sql::{PATIENCE, column};
use idgen_testkit::{Cluster, Proxy, Stop, rounds, seed};

use super::{coordinator, draw_patiently};

/// Longer than any fault that a round waits for, so that a draw that waits for longer is lost.
const RESERVE: &str = "2 seconds";

#[derive(Clone, Copy, Debug)]
enum Fault {
    BackendKilled,
    SupplyKilled,
    SupplyEnded,
    PostmasterKilled,
    Restarted,
    AllRestarted,
    ClockStepped,
    Detached,
    CoordinatorKilled,
    CoordinatorSessionsEnded,
    Silence,
    StandbyAway,
    Failover,
    Altered,
    Recreated,
    Restored,
}

const FAULTS: [Fault; 16] = [
    Fault::BackendKilled,
    Fault::SupplyKilled,
    Fault::SupplyEnded,
    Fault::PostmasterKilled,
    Fault::Restarted,
    Fault::AllRestarted,
    Fault::ClockStepped,
    Fault::Detached,
    Fault::CoordinatorKilled,
    Fault::CoordinatorSessionsEnded,
    Fault::Silence,
    Fault::StandbyAway,
    Fault::Failover,
    Fault::Altered,
    Fault::Recreated,
    Fault::Restored,
];

/// The values that one server's sessions have seen.
struct Load<'a> {
    server: &'a Cluster,
    is_over: &'a AtomicBool,
    draws: Draws<i64>,
}

impl<'a> Load<'a> {
    fn new(server: &'a Cluster, is_over: &'a AtomicBool) -> Load<'a> {
        Load { server, is_over, draws: Draws::default() }
    }

    /// Draws until the storm is over. A session that is lost is replaced.
    fn draw(&self) {
        let mut client = None;
        for turn in 0.. {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let Some(session) = client.as_mut() else {
                client = self.server.try_client().ok();
                continue;
            };
            let sql = if turn % 10 == 0 { "SELECT segment_next_many('t', 200)" } else { "SELECT segment_next('t')" };
            match self.draws.draw(session, sql, |row| [row.get(0)]) {
                Ok(()) => {}
                Err(error) if error.as_db_error().is_some() && !session.is_closed() => {
                    let code = error.code().expect("an error of the server").code();
                    // Out of values for a while, and detached.
                    assert!(["55P03", "55000", "57P01", "57P02", "57P03"].contains(&code), "{sql}: {error:?}");
                }
                Err(_) => client = None,
            }
        }
    }

    fn wait_for_values(&self) {
        let before = self.draws.count();
        self.server.wait_for(PATIENCE, "values", || self.draws.count() > before + 500);
    }
}

/// The coordinator, its synchronous standby, and the network in front of the coordinator.
struct Coordinators {
    serving: Cluster,
    standby: Cluster,
    proxy: Proxy,
}

impl Coordinators {
    fn of(serving: Cluster) -> Coordinators {
        let standby = serving.standby_builder().synchronous().start();
        let proxy = Proxy::on_socket(&serving);
        Coordinators { serving, standby, proxy }
    }

    fn conninfo(&self) -> String {
        format!(
            "host={},{} port={},{} user=postgres dbname=postgres target_session_attrs=read-write",
            self.proxy.host(),
            self.standby.host(),
            self.proxy.port(),
            self.standby.port()
        )
    }

    fn lead(&self, servers: &[Load]) {
        for load in servers {
            load.server.set_conf("idgen.coordinator", &self.conninfo());
            load.server.reload();
        }
    }
}

struct Storm<'a> {
    coordinators: Coordinators,
    loads: &'a [Load<'a>],
    rng: Rng,
}

impl Storm<'_> {
    fn happen(&mut self, fault: Fault) {
        let load = &self.loads[self.rng.usize(..self.loads.len())];
        let server = load.server;
        match fault {
            Fault::BackendKilled => {
                kill9(server, "client backend' AND query LIKE '%segment_next%");
            }
            Fault::SupplyKilled => kill9(server, "idgen supply"),
            Fault::SupplyEnded => server
                .execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idgen supply'"),
            Fault::PostmasterKilled => {
                server.kill9_and_restart();
            }
            Fault::Restarted => server.restart(),
            Fault::AllRestarted => {
                self.loads.iter().for_each(|load| load.server.stop(Stop::Fast));
                self.loads.iter().rev().for_each(|load| load.server.start_again());
            }
            Fault::ClockStepped => {
                // The first server has a clock of its own.
                for offset_ms in [3_600_000, -3_600_000, 0] {
                    self.loads[0].server.clock().set_offset_ms(offset_ms);
                    self.loads[0].wait_for_values();
                }
            }
            Fault::Detached => attach_again(server),
            Fault::CoordinatorKilled => {
                self.coordinators.serving.kill9_postmaster();
                self.coordinators.serving.start_again();
            }
            Fault::CoordinatorSessionsEnded => self.coordinators.serving.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'idgen supply'",
            ),
            Fault::Silence => {
                self.coordinators.proxy.stop_forwarding();
                // Requests hang, and answers are lost.
                std::thread::sleep(Duration::from_millis(500 + self.rng.u64(..2500)));
                self.coordinators.proxy.resume_forwarding();
            }
            Fault::StandbyAway => {
                let Coordinators { serving, standby, .. } = &self.coordinators;
                let unconfirmed = || serving.log().matches("canceling statement due to statement timeout").count();
                let before = unconfirmed();
                standby.stop(Stop::Fast);
                serving.wait_for(PATIENCE, "retries", || unconfirmed() >= before + 2 * self.loads.len());
                standby.start_again();
            }
            Fault::Failover => self.fail_over(),
            // Past the grants of the meantime.
            Fault::Altered => self
                .coordinators
                .serving
                .execute("SELECT segment_alter(tag, max_id => max_id + 1000000000) FROM idgen.segment"),
            Fault::Recreated => {
                let sql = "SELECT segment_drop('t'), segment_create('t', step => 10)";
                self.coordinators.serving.execute(sql);
            }
            Fault::Restored => self.restore(),
        }
        self.loads.iter().for_each(Load::wait_for_values);
    }

    /// The standby has every grant that counts.
    fn fail_over(&mut self) {
        self.coordinators.serving.kill9_postmaster();
        self.coordinators.standby.promote();
        self.loads.iter().for_each(Load::wait_for_values);
        let next = self.coordinators.standby.standby_builder().synchronous().start();
        self.coordinators.serving = std::mem::replace(&mut self.coordinators.standby, next);
        self.coordinators.proxy = Proxy::on_socket(&self.coordinators.serving);
        self.coordinators.lead(self.loads);
    }

    /// The coordinator's directory is lost, and restored from a base backup that lacks the last grants.
    fn restore(&mut self) {
        let backup = self.coordinators.serving.copy();
        backup.stop(Stop::Fast);
        // It keeps the number that the backup knows.
        attach_again(self.loads[0].server);
        self.loads.iter().for_each(Load::wait_for_values);
        self.coordinators.standby.stop(Stop::Immediate);
        self.coordinators.serving.kill9_postmaster();
        backup.set_conf("synchronous_standby_names", "");
        backup.start_again();
        self.coordinators = Coordinators::of(backup);
        self.coordinators.lead(self.loads);
    }
}

fn attach_again(server: &Cluster) {
    server.execute("SELECT segment_detach('t')");
    server.execute(&format!("SELECT segment_attach('t', '{RESERVE}')"));
}

fn kill9(server: &Cluster, backend_type: &str) {
    let sql = format!(
        "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = '{backend_type}' LIMIT 1"
    );
    let pids: Vec<i32> = column(&mut server.client(), &sql);
    for pid in pids {
        server.kill9_if_running(pid);
    }
}

#[test]
fn fleet_draws_no_value_twice_whatever_happens() {
    let rng = Rng::with_seed(seed());
    let builder = Cluster::builder().conf("wal_retrieve_retry_interval", "100 ms");
    let coordinators = Coordinators::of(coordinator(builder));
    let servers = [true, false, false].map(|has_clock| {
        let builder = Cluster::builder().conf("idgen.segment_timeout", "2s");
        let builder = if has_clock { builder.fake_clock() } else { builder };
        super::attach(builder, &coordinators.conninfo(), RESERVE)
    });
    let is_over = AtomicBool::new(false);
    let loads = servers.each_ref().map(|server| Load::new(server, &is_over));
    std::thread::scope(|scope| {
        let end = End(&is_over);
        loads.iter().for_each(|load| (0..2).for_each(|_| drop(scope.spawn(|| load.draw()))));
        let mut storm = Storm { coordinators, loads: &loads, rng };
        for _ in 0..rounds(4, 48) {
            let mut faults = FAULTS;
            storm.rng.shuffle(&mut faults);
            for fault in faults {
                println!("{fault:?}");
                storm.happen(fault);
            }
        }
        drop(end);
        // The coordinator's own values are those of no server. After a restore it waits for the next report of each.
        let own = draw_patiently(&storm.coordinators.serving, 1);
        loads[0].draws.add(Draw { sent: 0, returned: NEVER, ids: own });
    });
    // In order on each server, and different on all.
    let mut all = Vec::new();
    for (server, load) in loads.into_iter().enumerate() {
        let draws = load.draws.into_draws();
        order::judge(&draws).assert_clean(&format!("server {server}"));
        all.extend(draws);
    }
    let verdict = order::unique(&all);
    println!("values of a fleet: {verdict}");
    verdict.assert_clean("all servers");
}

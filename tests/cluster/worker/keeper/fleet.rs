//! A fleet of servers under load, with faults of the servers and of their coordinator.

use std::collections::BTreeSet;
use std::thread;

use fastrand::Rng;
use idgen_testkit::ids::assert_distinct;
use idgen_testkit::sql::{PATIENCE, column, execute, value};
use idgen_testkit::{Cluster, Stop, pause, rounds, seed};

use super::faults::{ALL, FIRST_BY_HAND, FIRST_OTHER, Fault, OTHER_POOL};
use super::load::Load;
use super::{Worker, any_of, coordinator};
use crate::{builder, pooled};
use idgen_testkit::grants::{Rectangle, Seen, assert_ids_granted, merge_lost, rectangles, worker_id_of};

const TTL: &str = "1500 ms";

/// The next event.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A fault of a server while the coordinator answers.
    Fault(Fault),
    /// A fault of a server while no coordinator answers.
    FaultInOutage(Fault),
    /// The coordinator is killed and starts again after all leases have ended.
    Outage,
    /// The coordinator is killed and starts again at once.
    CoordinatorKilled,
    /// The coordinator is killed and its standby promoted.
    Failover,
    CoordinatorClockStepped,
    /// Of two standbys, the one that lacks the last grants is promoted.
    LaggardPromoted,
    /// By a year and back.
    CoordinatorClockLeapt,
    /// The standby is down for a while, and every wait for it is cancelled.
    StandbyAway,
}

const YEAR_MS: i64 = 365 * 86_400_000;

/// Every event once, in random order.
fn events(random: &mut Rng) -> Vec<Event> {
    let can_wait = |fault: &Fault| !fault.needs_coordinator() && !matches!(fault, Fault::Copied);
    let mut in_outage: Vec<Fault> = ALL.into_iter().filter(can_wait).collect();
    random.shuffle(&mut in_outage);
    // Outages are slow.
    in_outage.truncate(rounds(3, in_outage.len()));
    in_outage.push(Fault::Copied);
    let in_outage = in_outage.into_iter().map(Event::FaultInOutage);
    let mut events: Vec<Event> = ALL.into_iter().map(Event::Fault).chain(in_outage).collect();
    events.extend([Event::Outage, Event::CoordinatorKilled, Event::Failover, Event::CoordinatorClockStepped]);
    events.extend([Event::CoordinatorClockLeapt, Event::LaggardPromoted, Event::StandbyAway]);
    random.shuffle(&mut events);
    events
}

/// The coordinator and its synchronous standby.
struct Coordinators {
    serving: Cluster,
    standby: Cluster,
}

impl Coordinators {
    fn start() -> Coordinators {
        // Nothing commits and nothing is granted until the standby has found its primary again.
        let builder = builder().fake_clock().conf("wal_retrieve_retry_interval", "100 ms");
        // After a failover ids begin this far ahead. A small lead lets leases end during the test.
        let builder = builder.conf("idgen.worker_max_lead", "6 s");
        let serving = coordinator(builder, 24, TTL);
        serving.execute(&format!("SELECT worker_pool_define('{OTHER_POOL}', {FIRST_OTHER}, 24, '{TTL}')"));
        // Neither unrelated warnings nor their absence must matter.
        serving.execute(
            "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE WARNING 'a trigger that warns'; RETURN NULL; END $$;
             CREATE TRIGGER warn AFTER INSERT OR UPDATE ON idgen.worker_id FOR EACH ROW EXECUTE FUNCTION warn();
             CREATE ROLE quiet LOGIN SUPERUSER; ALTER ROLE quiet SET client_min_messages = error;",
        );
        let standby = serving.standby_builder().synchronous().fake_clock().start();
        Coordinators { serving, standby }
    }

    fn connect_string(&self) -> String {
        let addresses = [&self.serving, &self.standby].map(|cluster| (cluster.host(), cluster.port().to_owned()));
        any_of(&addresses).replace("user=postgres", "user=quiet")
    }

    /// Promotes the standby and gives it a standby.
    fn promote(&mut self, servers: &[Cluster], promoted: impl FnOnce()) {
        self.standby.promote();
        promoted();
        let next = self.standby.standby_builder().synchronous().fake_clock().start();
        self.serving = std::mem::replace(&mut self.standby, next);
        self.redirect(servers);
    }

    /// Points the servers to the current coordinator.
    fn redirect(&self, servers: &[Cluster]) {
        for server in servers {
            server.reload_with("idgen.coordinator", &self.connect_string());
        }
    }

    /// Adds a second standby. A grant needs only one of the two.
    fn second_standby(&self) -> Cluster {
        let mut client = self.serving.client();
        let first: String = value(&mut client, "SHOW synchronous_standby_names");
        let second = self.serving.standby_builder().fake_clock().start();
        let name = format!("SELECT min(application_name) FROM pg_stat_replication WHERE application_name <> '{first}'");
        let mut name_of_second = None::<String>;
        self.serving.wait_for(PATIENCE, "the second standby", || {
            name_of_second = value(&mut client, &name);
            name_of_second.is_some()
        });
        let names = format!("ANY 1 ({first}, {})", name_of_second.expect("waited for"));
        self.serving.set_conf("synchronous_standby_names", &names);
        self.serving.reload();
        second
    }

    /// Kills the primary and its first standby, which has every confirmed grant. Returns those grants.
    fn lose_all_but(&mut self, laggard: Cluster) -> Vec<Rectangle> {
        self.serving.kill9_postmaster();
        let mut client = self.standby.client();
        let is_replayed = "SELECT pg_last_wal_replay_lsn() = pg_last_wal_receive_lsn()
                           AND NOT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')";
        self.standby.wait_for(PATIENCE, "the replay of every confirmed grant", || value(&mut client, is_replayed));
        let granted = rectangles(&mut client);
        self.standby.kill9_postmaster();
        self.standby = laggard;
        granted
    }
}

/// The fleet and the ids of copies of its servers.
struct Fleet<'a> {
    coordinators: Coordinators,
    servers: &'a [Cluster],
    loads: &'a [Load<'a>],
    copies: Vec<Seen>,
    /// The grants from before a failover that lost the last ones.
    lost: Vec<Rectangle>,
}

impl Fleet<'_> {
    fn apply(&mut self, event: Event, random: &mut Rng) {
        let index = match event {
            Event::Fault(fault) | Event::FaultInOutage(fault) if fault.needs_fake_clock() => self.loads.len() - 1,
            _ => random.usize(..self.loads.len()),
        };
        println!("{event:?}, server {index}");
        let load = &self.loads[index];
        match event {
            Event::Fault(fault) => self.copies.extend(fault.happen(load, Some(&self.coordinators.serving), random)),
            Event::FaultInOutage(fault) => {
                self.begin_outage();
                self.coordinators.serving.kill9_postmaster();
                self.copies.extend(fault.happen(load, None, random));
                self.coordinators.serving.start_again();
                end_outage(event, self.loads);
            }
            Event::Outage => {
                self.begin_outage();
                self.coordinators.serving.kill9_postmaster();
                for server in self.servers {
                    Worker::wait_for_state(server, "ended");
                }
                self.coordinators.serving.start_again();
                end_outage(event, self.loads);
            }
            Event::CoordinatorKilled => {
                self.begin_outage();
                self.coordinators.serving.kill9_postmaster();
                self.coordinators.serving.start_again();
                end_outage(event, self.loads);
            }
            Event::Failover => {
                self.begin_outage();
                self.coordinators.serving.kill9_postmaster();
                self.coordinators.promote(self.servers, || end_outage(event, self.loads));
            }
            Event::LaggardPromoted => self.promote_a_laggard(event, random),
            Event::CoordinatorClockStepped => {
                self.begin_outage();
                let step_ms = 1 + random.usize(..3000) as i64;
                self.step_clock(&[step_ms, -step_ms, 0]);
                end_outage(event, self.loads);
            }
            Event::CoordinatorClockLeapt => {
                self.begin_outage();
                self.step_clock(&[YEAR_MS, 0]);
                end_outage(event, self.loads);
            }
            Event::StandbyAway => {
                self.begin_outage();
                self.lose_the_standby();
                end_outage(event, self.loads);
            }
        }
    }

    /// Waits for ids first, so that the outage does not count time from before it.
    fn begin_outage(&self) {
        self.loads.iter().for_each(Load::wait_for_ids);
        self.loads.iter().for_each(Load::begin_outage);
    }

    fn step_clock(&self, offsets_ms: &[i64]) {
        for offset_ms in offsets_ms {
            self.coordinators.serving.clock().set_offset_ms(*offset_ms);
            self.wait_for_renewals();
        }
    }

    fn promote_a_laggard(&mut self, event: Event, random: &mut Rng) {
        let laggard = self.coordinators.second_standby();
        let receivers = || column::<i32>(&mut laggard.client(), "SELECT pid FROM pg_stat_wal_receiver");
        laggard.wait_for(PATIENCE, "its receiver", || receivers().len() == 1);
        let paused = pause(receivers()[0]);
        // The laggard lacks renewals, the end of a lease and the grant of another one.
        let load = &self.loads[random.usize(..self.loads.len())];
        self.copies.extend(Fault::TokenEnded.happen(load, Some(&self.coordinators.serving), random));
        self.wait_for_renewals();
        self.begin_outage();
        let granted = self.coordinators.lose_all_but(laggard);
        self.lost = merge_lost(std::mem::take(&mut self.lost), granted);
        paused.resume();
        self.coordinators.promote(self.servers, || ());
        end_outage(event, self.loads);
    }

    fn lose_the_standby(&self) {
        let Coordinators { serving, standby } = &self.coordinators;
        standby.stop(Stop::Fast);
        let mut impatient = serving.client();
        let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
                      WHERE wait_event = 'SyncRep' OR usename = 'quiet' AND query LIKE '%worker_confirm%'";
        for server in self.servers {
            let before = Worker::of(&mut server.client()).failures;
            Worker::wait_until(server, "failures", |worker| {
                execute(&mut impatient, cancel);
                worker.failures > before + 3
            });
        }
        standby.start_again();
    }

    fn wait_for_renewals(&self) {
        for server in self.servers {
            let before = Worker::of(&mut server.client()).renewals;
            Worker::wait_until(server, "a renewal", |worker| worker.renewals != before);
        }
    }
}

/// The coordinator is back. Waits until all servers issue ids, and prints the time without ids, in total and from now on.
fn end_outage(event: Event, loads: &[Load]) {
    loads.iter().for_each(Load::expect_ids);
    let outages = loads.iter().map(|load| {
        let (longest, late) = load.wait_for_expected_ids();
        format!("{} ms, {} of them with the coordinator back", longest.as_millis(), late.as_millis())
    });
    println!("    {event:?}: no ids for {}", outages.collect::<Vec<_>>().join("; "));
}

#[test]
fn fleet_issues_no_id_twice_under_any_fault() {
    let mut random = Rng::with_seed(seed());
    let coordinators = Coordinators::start();
    let start = |index: usize| {
        let server = pooled(&coordinators.connect_string());
        // Only one has a fake clock, because that is slow.
        if index == 2 { server.fake_clock() } else { server }.start_with_extension()
    };
    let servers: Vec<Cluster> = (0..3).map(start).collect();
    let loads: Vec<Load> = servers.iter().zip(FIRST_BY_HAND..).map(|(server, id)| Load::new(server, id)).collect();
    let mut fleet = Fleet { coordinators, servers: &servers, loads: &loads, copies: Vec::new(), lost: Vec::new() };
    thread::scope(|scope| {
        let _ends: Vec<_> = loads.iter().map(|load| load.run(scope, 2)).collect();
        loads.iter().for_each(Load::wait_for_ids);
        for _ in 0..rounds(1, 10) {
            for event in events(&mut random) {
                fleet.apply(event, &mut random);
            }
        }
        loads.iter().for_each(Load::wait_for_ids);
    });
    let Fleet { coordinators, copies: mut seen, lost, .. } = fleet;
    println!("{} ids of {} copies", seen.iter().map(|copy| copy.ids.len()).sum::<usize>(), seen.len());
    let mut of_settings = Vec::new();
    for load in loads {
        let (data_dir, by_hand) = (load.cluster.data_dir(), load.by_hand);
        let (ids, errors) = load.into_seen();
        let worker_ids: BTreeSet<i32> = ids.iter().map(|id| worker_id_of(*id)).collect();
        println!("{} ids of worker ids {worker_ids:?}, errors {errors:?}", ids.len());
        // Neither another server nor a pool has the worker id that is set by hand.
        let (set, ids): (Vec<i64>, Vec<i64>) = ids.into_iter().partition(|id| worker_id_of(*id) == by_hand);
        of_settings.extend(set);
        seen.push(Seen { data_dir, ids });
    }
    let granted = merge_lost(rectangles(&mut coordinators.serving.client()), lost);
    println!("{} rectangles", granted.len());
    assert_ids_granted(&granted, &seen);
    assert_distinct(seen.into_iter().flat_map(|server| server.ids).chain(of_settings).collect());
}

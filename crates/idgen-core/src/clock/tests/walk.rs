//! A server that draws in several layouts, under any steps of the clock, with crashes and restarts at any time.

use super::*;
use crate::generator::{FLOORS, Floor, Generator, GeneratorHandle, GeneratorTable};
use crate::layout::Node;
use crate::snowflake::{Bounds, IdSpace, Issue};

/// Ticks of 1 ms, 10 ms and a second.
const LAYOUTS: [&str; 4] = ["snowflake", "sonyflake", "seconds", "js53"];

/// A host with a server. Anything may happen to its wall clock.
struct Host {
    boot_ms: i64,
    wall_ms: i64,
    drift_ms: i64,
    disk: Option<Vec<u8>>,
    spaces: Vec<(Layout, IdSpace)>,
    /// What S3 allows each space while it is ahead of the limit: since when, and the time of its id then.
    ahead_since: Vec<Option<(i64, i64)>>,
    server: Option<Server>,
}

struct Server {
    mark: Mark,
    turn: u64,
    table: GeneratorTable<'static>,
    attached: Vec<(usize, GeneratorHandle)>,
}

#[derive(Debug, Clone)]
enum Event {
    Pass(i64),
    Step(i64),
    /// `idgen.max_drift` is changed.
    Drift(i64),
    /// In one of the layouts.
    Draw(usize, u64),
    /// All layouts are evicted, and attach again.
    Evict,
    Crash {
        while_writing: bool,
    },
    CleanRestart,
}

impl Host {
    fn new(layouts: &[&str]) -> Self {
        let parse = |text: &&str| {
            let layout = Layout::parse(text).unwrap();
            (layout, layout.id_space(Node::default()).unwrap())
        };
        let mut host = Self {
            boot_ms: 1000,
            wall_ms: NOW_MS,
            drift_ms: DRIFT_MS,
            disk: None,
            spaces: layouts.iter().map(parse).collect(),
            ahead_since: vec![None; layouts.len()],
            server: None,
        };
        host.start();
        host
    }

    /// As before the first id after a start.
    fn start(&mut self) {
        let found = self.disk.as_deref().map(|bytes| Record::newest(bytes).expect("one record is intact"));
        // Without a file this is the first start, and there is no later checkpoint.
        let first = Evidence { checkpoint_ms: self.wall_ms, ..evidence(self.wall_ms) };
        let floor_ms = first.floor_ms(found.as_ref());
        // Leaked: a table in shared memory lives as long as the server.
        let generators: Vec<Generator> = (0..=self.spaces.len()).map(|_| Generator::new()).collect();
        let floors: Vec<Floor> = (0..FLOORS).map(|_| Floor::new()).collect();
        let tenants = vec![None; generators.len()];
        let mut table = GeneratorTable::new(generators.leak(), tenants.leak(), floors.leak());
        table.raise_floor(floor_ms);
        let turn = found.map_or(0, |found| found.record.turn);
        self.server = Some(Server { mark: Mark::unknown(), turn, table, attached: Vec::new() });
        self.ahead_since.fill(None);
        self.attach();
    }

    fn attach(&mut self) {
        let table = &mut self.server.as_mut().unwrap().table;
        let attach = |(layout, space): &(Layout, IdSpace)| {
            let attachment = table.attach(*space, (*layout, Node::default()), None);
            (attachment.index, attachment.handle)
        };
        let attached = self.spaces.iter().map(attach).collect();
        self.server.as_mut().unwrap().attached = attached;
    }

    fn write(&mut self, mark_ms: i64) {
        let server = self.server.as_mut().unwrap();
        server.turn += 1;
        let record = record(server.turn, mark_ms);
        let bytes = self.disk.get_or_insert_with(|| vec![0; FILE]);
        put(bytes, &record);
    }

    /// Issues as the extension does. Returns the first and last slot, or `None` if it would have to wait.
    fn issue(&mut self, layout: usize, want: u64) -> Option<(u64, u64)> {
        let mut opened_ms = i64::MIN;
        for _ in 0..4 {
            let (space, server) = (self.spaces[layout].1, self.server.as_ref().unwrap());
            let (index, handle) = server.attached[layout];
            let generator = &server.table.generators[index];
            let limit_ms = (self.wall_ms + self.drift_ms).max(opened_ms);
            let bounds = Bounds { now_ms: self.wall_ms, limit_ms, ceiling_ms: server.mark.mark_ms() };
            match generator.issue(handle, &space, want, &bounds).unwrap() {
                Issue::Issued(run) => {
                    let last = run.first + run.count - 1;
                    self.assert_lead(layout, space.time_ms(last));
                    return Some((run.first, last));
                }
                Issue::Reserve { last_ms, .. } => {
                    let target = Target::past(last_ms.max(self.wall_ms + self.drift_ms), WINDOW_MS);
                    self.write(target.mark_ms);
                    self.server.as_ref().unwrap().mark.publish(target);
                }
                Issue::Ahead { time_ms } => {
                    let unit_us = i64::from(self.spaces[layout].0.unit_ms()) * US_PER_MS;
                    generator.open_tick(unit_us, self.boot_ms * US_PER_MS).ok()?;
                    opened_ms = time_ms;
                }
                Issue::Wait { .. } => return None,
                other => panic!("{other:?}"),
            }
        }
        panic!("the mark was moved and is still an obstacle");
    }

    /// S3: within the drift; or the space was ahead already, and has got no further than time has passed, but for the tick
    /// that it opened first.
    fn assert_lead(&mut self, layout: usize, last_ms: i64) {
        if last_ms <= self.wall_ms + self.drift_ms {
            self.ahead_since[layout] = None;
            return;
        }
        let (since_ms, first_ms) = *self.ahead_since[layout].get_or_insert((self.boot_ms, last_ms));
        let tick_ms = i64::from(self.spaces[layout].0.unit_ms());
        let (passed_ms, gone_ms) = (self.boot_ms - since_ms, last_ms - first_ms);
        assert!(gone_ms <= passed_ms + tick_ms, "S3: {gone_ms} ms in {passed_ms} ms, ticks of {tick_ms} ms");
    }

    fn happen(&mut self, event: &Event) -> Option<(u64, u64)> {
        match *event {
            Event::Pass(ms) => {
                self.boot_ms += ms;
                self.wall_ms += ms;
            }
            Event::Step(ms) => self.wall_ms += ms,
            Event::Drift(ms) => self.drift_ms = ms,
            Event::Draw(layout, want) => return self.issue(layout % self.spaces.len(), want),
            Event::Evict => {
                self.server.as_mut().unwrap().table.restart_at(i64::MIN);
                self.attach();
            }
            Event::Crash { while_writing } => {
                let server = self.server.take().unwrap();
                if let (true, Some(bytes)) = (while_writing, self.disk.as_mut()) {
                    // A torn write: nothing was issued under it.
                    for at in record(server.turn + 1, 0).offsets() {
                        bytes[at as usize..][..100].fill(0x5a);
                    }
                }
                self.start();
            }
            Event::CleanRestart => {
                // Exact: after the last id, and not before the floor.
                let server = self.server.as_ref().unwrap();
                if server.mark.known_ms().is_some() {
                    self.write(server.table.unused_from_ms());
                }
                self.start();
            }
        }
        None
    }

    /// A burst in a layout, which ends at its limit. Returns its lead over the wall clock.
    fn burst(&mut self, layout: usize) -> i64 {
        let (_, last) = self.happen(&Event::Draw(layout, 100_000_000)).unwrap();
        self.spaces[layout].1.time_ms(last) - self.wall_ms
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0i64..50).prop_map(Event::Pass),
        1 => (0i64..10_000).prop_map(Event::Pass),
        2 => prop_oneof![-20i64..20, -5_000i64..5_000, -4_000_000i64..4_000_000].prop_map(Event::Step),
        1 => (0i64..20_000).prop_map(Event::Drift),
        14 => (0usize..4, prop_oneof![3 => Just(1u64), 1 => 1u64..20_000]).prop_map(|(l, n)| Event::Draw(l, n)),
        1 => Just(Event::Evict),
        1 => any::<bool>().prop_map(|while_writing| Event::Crash { while_writing }),
        1 => Just(Event::CleanRestart),
    ]
}

proptest! {
    /// S1, S2, S3.
    #[test]
    fn slots_rise_under_any_clock_steps_crashes_and_restarts(events in prop::collection::vec(any_event(), 1..300)) {
        let mut host = Host::new(&LAYOUTS);
        let mut last_slots = [None; LAYOUTS.len()];
        for event in &events {
            if let (Some((first, last)), Event::Draw(layout, _)) = (host.happen(event), event) {
                let before = last_slots[*layout].replace(last);
                prop_assert!(before.is_none_or(|slot| slot < first), "{:?}", event);
            }
        }
    }

    /// S3: generation never stops.
    #[test]
    fn slow_draws_never_wait_whatever_the_clock_does(
        steps in prop::collection::vec(prop_oneof![8 => Just(0i64), 1 => -4_000_000i64..4_000_000], 1..300),
    ) {
        let mut host = Host::new(&["snowflake"]);
        for step in steps {
            host.happen(&Event::Step(step));
            host.happen(&Event::Pass(1));
            prop_assert!(host.happen(&Event::Draw(0, 1)).is_some());
        }
    }
}

/// Ids that have fallen back to the wall clock after a crash get ahead again by the drift only.
#[test]
fn lost_lead_does_not_return() {
    let mut host = Host::new(&["js53"]);
    host.happen(&Event::Draw(0, 1)).unwrap();
    host.happen(&Event::Crash { while_writing: false });
    assert!(host.burst(0) > DRIFT_MS, "ids are ahead right after the crash");
    for _ in 0..100 {
        host.happen(&Event::Pass(100));
        host.happen(&Event::Draw(0, 1)).unwrap();
    }
    assert_eq!(host.burst(0), DRIFT_MS);
}

/// The lead that one layout keeps at its full rate is no room for the bursts of another one.
#[test]
fn lead_of_a_layout_is_not_another_ones() {
    let mut host = Host::new(&["sonyflake", "js53"]);
    [0, 1].into_iter().for_each(|layout| assert!(host.happen(&Event::Draw(layout, 1)).is_some()));
    host.happen(&Event::Crash { while_writing: false });
    for _ in 0..10_000 {
        host.happen(&Event::Pass(1));
        host.happen(&Event::Draw(0, 1000));
        host.happen(&Event::Draw(1, 1));
    }
    assert!(host.burst(1) <= DRIFT_MS);
    host.happen(&Event::Pass(10));
    assert!(host.burst(0) > DRIFT_MS, "the first one is still ahead");
}

/// S3: nothing is rounded to the longest tick of any layout.
#[test]
fn clean_restarts_add_no_lead() {
    let mut host = Host::new(&["snowflake", "seconds"]);
    host.drift_ms = 0;
    for _ in 0..8 {
        host.happen(&Event::Pass(1000));
        host.happen(&Event::Draw(1, 1)).unwrap();
        host.happen(&Event::CleanRestart);
    }
    host.happen(&Event::Pass(1));
    let (first, _) = host.happen(&Event::Draw(0, 1)).unwrap();
    assert_eq!(host.spaces[0].1.time_ms(first), host.wall_ms);

    // Bursts with restarts between them are no further ahead than one burst.
    let mut host = Host::new(&["js53"]);
    for _ in 0..5 {
        assert!(host.burst(0) <= DRIFT_MS);
        host.happen(&Event::Pass(1));
        host.happen(&Event::CleanRestart);
    }
}

/// The same lead costs the same, whatever it is from: a crash, a step back, or a drift that was lowered.
#[test]
fn ids_ahead_go_on_at_once_whatever_put_them_there() {
    const LEAD_MS: i64 = 19_000;
    let ahead_by = |cause: &str| {
        let mut host = Host::new(&["snowflake"]);
        host.drift_ms = LEAD_MS;
        assert_eq!(host.burst(0), LEAD_MS);
        match cause {
            "drift" => host.drift_ms = 1000,
            "step" => host.happen(&Event::Step(-LEAD_MS)).map_or((), |_| ()),
            _ => {
                host.happen(&Event::Crash { while_writing: false });
                host.drift_ms = 1000;
            }
        }
        host
    };
    for cause in ["drift", "step", "crash"] {
        let mut host = ahead_by(cause);
        for ms in 0..100 {
            assert!(host.happen(&Event::Draw(0, 1)).is_some(), "{cause}: waits after {ms} ms");
            host.happen(&Event::Pass(1));
        }
        // And no faster than time passes, but for the tick that is opened first.
        let before_ms = host.burst(0);
        for _ in 0..100 {
            host.happen(&Event::Pass(1));
            assert!(host.burst(0) <= before_ms + 1, "{cause}");
            assert!(host.happen(&Event::Draw(0, 1)).is_none(), "{cause}");
        }
    }
}

/// The lead of ids over the clock does not grow, and shrinks as they are drawn slowly.
#[test]
fn lead_after_a_backward_step_shrinks() {
    let mut host = Host::new(&["snowflake"]);
    host.happen(&Event::Draw(0, 1)).unwrap();
    host.happen(&Event::Step(-60_000));
    let mut lead_ms = i64::MAX;
    for _ in 0..60_000 {
        host.happen(&Event::Pass(1));
        let (_, last) = host.happen(&Event::Draw(0, 4)).unwrap();
        let now_ms = host.spaces[0].1.time_ms(last) - host.wall_ms;
        assert!(now_ms <= lead_ms);
        lead_ms = now_ms;
    }
    assert!(lead_ms <= 60, "{lead_ms}");
}

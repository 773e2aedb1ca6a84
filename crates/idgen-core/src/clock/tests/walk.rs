//! A server under any steps of the clock, with crashes and restarts at any time.

use super::*;
use crate::layout::Node;
use crate::snowflake::{Bounds, IdSpace, Issue};

/// A host with a server. Anything may happen to its wall clock.
struct Host {
    boot_ms: i64,
    wall_ms: i64,
    disk: Option<Vec<u8>>,
    space: IdSpace,
    server: Option<Server>,
}

struct Server {
    clock: EffectiveClock,
    mark: Mark,
    turn: u64,
    free: u64,
}

#[derive(Debug, Clone)]
enum Event {
    Pass(i64),
    Step(i64),
    Draw(u64),
    /// A process that takes it on itself to lower the clock, and does not get to it.
    StalledProcess,
    Crash {
        while_writing: bool,
    },
    CleanRestart,
}

impl Host {
    fn read(&self) -> Reading {
        reading(self.wall_ms, self.boot_ms)
    }

    /// As before the first id after a start.
    fn start(&mut self) {
        let found = self.disk.as_deref().map(|bytes| Record::newest(bytes).expect("one record is intact"));
        // Without a file this is the first start, and there is no later checkpoint.
        let at_start = Evidence { checkpoint_ms: self.wall_ms, ..evidence(self.wall_ms) };
        let floor_ms = at_start.floor_ms(found.as_ref());
        let clock = EffectiveClock::new(self.read());
        clock.raise(floor_ms, self.read());
        let turn = found.map_or(0, |found| found.record.turn);
        let free = self.space.first_slot_from(floor_ms);
        self.server = Some(Server { clock, mark: Mark::unknown(), turn, free });
    }

    fn write(&mut self, mark_ms: i64) {
        let server = self.server.as_mut().unwrap();
        server.turn += 1;
        let record = record(server.turn, mark_ms);
        let bytes = self.disk.get_or_insert_with(|| vec![0; FILE]);
        put(bytes, &record);
    }

    /// Issues as the extension does. Returns the first and last slot, or `None` if it would have to wait.
    fn issue(&mut self, want: u64) -> Option<(u64, u64)> {
        for _ in 0..3 {
            let now = self.read();
            let server = self.server.as_mut().unwrap();
            let next_ms = self.space.time_ms(server.free);
            if server.clock.is_stale(now.wall_ms()) {
                server.clock.sample(|| Some(now));
            }
            if server.clock.claim_lowering(now) {
                server.clock.lower(next_ms, now);
            }
            let limit_ms = (now.wall_ms() + DRIFT_MS).max(server.clock.now_ms(now));
            let bounds = Bounds { now_ms: now.wall_ms(), limit_ms, ceiling_ms: server.mark.mark_ms() };
            match self.space.next(server.free, want, &bounds) {
                Issue::Issued(run) => {
                    let last = run.first + run.count - 1;
                    // S3: no further ahead of the wall clock than the drift, or than ids are already and the time
                    // that may pass until the clock is lowered.
                    let most_ms = next_ms.max(now.wall_ms() + DRIFT_MS) + SAMPLE_EVERY_MS + LOWER_WITHIN_MS;
                    assert!(self.space.time_ms(last) <= most_ms, "S3");
                    server.free = last + 1;
                    return Some((run.first, last));
                }
                Issue::Reserve { .. } => {
                    let target = Target::past(limit_ms, WINDOW_MS);
                    self.write(target.mark_ms);
                    self.server.as_ref().unwrap().mark.publish(target);
                }
                Issue::Wait { .. } => return None,
                other => panic!("{other:?}"),
            }
        }
        panic!("the mark was moved and is still an obstacle");
    }

    fn happen(&mut self, event: &Event) -> Option<(u64, u64)> {
        match *event {
            Event::Pass(ms) => {
                self.boot_ms += ms;
                self.wall_ms += ms;
            }
            Event::Step(ms) => self.wall_ms += ms,
            Event::Draw(want) => return self.issue(want),
            Event::StalledProcess => {
                self.server.as_ref().unwrap().clock.claim_lowering(self.read());
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
                // Exact: after the last id, and not before the floor, where `free` began.
                let server = self.server.as_ref().unwrap();
                if server.mark.is_known() {
                    self.write(self.space.unused_from_ms(server.free));
                }
                self.start();
            }
        }
        None
    }
}

fn host(layout: &str) -> Host {
    let space = Layout::parse(layout).unwrap().id_space(Node::default()).unwrap();
    let mut host = Host { boot_ms: 1000, wall_ms: NOW_MS, disk: None, space, server: None };
    host.start();
    host
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0i64..50).prop_map(Event::Pass),
        1 => (0i64..10_000).prop_map(Event::Pass),
        2 => prop_oneof![-20i64..20, -5_000i64..5_000, -4_000_000i64..4_000_000].prop_map(Event::Step),
        12 => prop_oneof![3 => Just(1u64), 1 => 1u64..20_000].prop_map(Event::Draw),
        3 => Just(Event::StalledProcess),
        1 => any::<bool>().prop_map(|while_writing| Event::Crash { while_writing }),
        1 => Just(Event::CleanRestart),
    ]
}

proptest! {
    /// S1, S2, S3.
    #[test]
    fn slots_rise_under_any_clock_steps_crashes_and_restarts(
        events in prop::collection::vec(any_event(), 1..300),
        layout in prop::sample::select(vec!["snowflake", "sonyflake", "seconds", "js53"]),
    ) {
        let mut host = host(layout);
        let mut last_slot = None;
        for event in &events {
            if let Some((first, last)) = host.happen(event) {
                prop_assert!(last_slot.is_none_or(|slot| slot < first), "{:?}", event);
                last_slot = Some(last);
            }
        }
    }

    /// S3: generation never stops.
    #[test]
    fn slow_draws_never_wait_whatever_the_clock_does(
        steps in prop::collection::vec(prop_oneof![8 => Just(0i64), 1 => -4_000_000i64..4_000_000], 1..300),
    ) {
        let mut host = host("snowflake");
        for step in steps {
            host.happen(&Event::Step(step));
            host.happen(&Event::Pass(1));
            prop_assert!(host.happen(&Event::Draw(1)).is_some());
        }
    }
}

/// Ids that have fallen back to the wall clock after a crash get ahead again by the drift only. Bursts with restarts
/// between them are no further ahead than one burst.
#[test]
fn lost_lead_does_not_return() {
    let burst = |host: &mut Host| {
        let (_, last) = host.happen(&Event::Draw(100_000_000)).unwrap();
        host.space.time_ms(last) - host.wall_ms
    };
    let mut crashed = host("js53");
    crashed.happen(&Event::Draw(1)).unwrap();
    crashed.happen(&Event::Crash { while_writing: false });
    assert!(burst(&mut crashed) > DRIFT_MS, "ids are ahead right after the crash");
    for _ in 0..100 {
        crashed.happen(&Event::Pass(100));
        crashed.happen(&Event::Draw(1)).unwrap();
    }
    assert_eq!(burst(&mut crashed), DRIFT_MS);

    let mut restarted = host("js53");
    for _ in 0..5 {
        // One tick for each restart, which begins after the last tick.
        assert!(burst(&mut restarted) <= DRIFT_MS + 5);
        restarted.happen(&Event::CleanRestart);
    }
}

/// The lead of ids over the clock does not grow, and shrinks as they are drawn slowly.
#[test]
fn lead_after_a_backward_step_shrinks() {
    let mut host = host("snowflake");
    host.happen(&Event::Draw(1)).unwrap();
    host.happen(&Event::Step(-60_000));
    let mut lead_ms = i64::MAX;
    for _ in 0..60_000 {
        host.happen(&Event::Pass(1));
        let (_, last) = host.happen(&Event::Draw(4)).unwrap();
        let now_ms = host.space.time_ms(last) - host.wall_ms;
        assert!(now_ms <= lead_ms);
        lead_ms = now_ms;
    }
    assert!(lead_ms <= 60, "{lead_ms}");
}

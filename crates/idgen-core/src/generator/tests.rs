use super::table::{FLOORS, RESERVED};
use super::*;
use crate::layout::{Layout, Node};
use crate::tenancy::Attachment;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

/// 2026-01-01.
const NOW_MS: i64 = 1_767_225_600_000;

type Attached = Attachment<GeneratorHandle>;

/// A table, and backends that remember handles.
struct Server {
    /// Leaked: a table in shared memory lives as long as the server.
    table: GeneratorTable<'static>,
    default: Option<IdSpace>,
    worker: u32,
}

impl Server {
    fn new(size: usize) -> Self {
        let generators: Vec<Generator> = (0..size).map(|_| Generator::new()).collect();
        let floors: Vec<Floor> = (0..FLOORS).map(|_| Floor::new()).collect();
        let mut table = GeneratorTable::new(generators.leak(), vec![None; size].leak(), floors.leak());
        table.raise_floor(NOW_MS);
        Self { table, default: None, worker: 0 }
    }

    fn space(&self, text: &str) -> (IdSpace, Layout, Node) {
        let layout = Layout::parse(text).unwrap();
        let node = Node { datacenter: Some(0), worker: self.worker };
        (layout.id_space(node).unwrap(), layout, node)
    }

    fn raise_floor(&mut self, floor_ms: i64) {
        self.table.raise_floor(floor_ms);
    }

    /// When the generator that a space has, or gets, allows another tick ahead of the limit.
    fn open_tick(&self, attached: Attached, boot_us: i64) -> Result<(), i64> {
        self.table.generators[attached.index].open_tick(TICK_US, boot_us)
    }

    /// The id that the views show as the last one of a layout.
    fn last_id(&self, attached: Attached) -> Option<i64> {
        let tenant = self.table.tenants[attached.index].as_ref()?;
        let free = self.table.generators[attached.index].free_slot(tenant.handle);
        Some(tenant.space.id(tenant.last_issued(free)?))
    }

    fn attach(&mut self, text: &str) -> Attached {
        let (space, layout, node) = self.space(text);
        self.table.attach(space, (layout, node), self.default)
    }

    /// `None` if the tenancy has ended or the caller would have to wait.
    fn draw(&self, text: &str, attached: Attached, now_ms: i64) -> Option<i64> {
        let (space, ..) = self.space(text);
        let bounds = Bounds { now_ms, limit_ms: now_ms + 1000, ceiling_ms: i64::MAX };
        match self.table.generators[attached.index].issue(attached.handle, &space, 1, &bounds) {
            Ok(Issue::Issued(run)) => Some(space.id(run.first)),
            _ => None,
        }
    }
}

fn tagged(tag: usize) -> String {
    format!("time:41 tag:10={tag} worker:4 sequence:2 epoch:2020-01-01")
}

#[test]
fn attach_finds_a_space_under_any_spelling() {
    let mut server = Server::new(4);
    let first = server.attach("snowflake");
    let again = server.attach("twitter");
    assert_eq!((again.index, again.handle), (first.index, first.handle));
    assert!(first.is_new && !again.is_new);
    assert_ne!(server.attach("pgedge").index, first.index);
}

#[test]
fn default_layout_keeps_its_generator() {
    let mut server = Server::new(3);
    server.default = Some(server.space("snowflake").0);
    for tag in 0..10 {
        assert_ne!(server.attach(&tagged(tag)).index, RESERVED);
    }
    let kept = server.attach("snowflake");
    assert_eq!(kept.index, RESERVED);
    for tag in 0..10 {
        server.attach(&tagged(tag));
    }
    assert!(server.draw("snowflake", kept, NOW_MS).is_some(), "no other space takes it");
}

#[test]
fn full_table_evicts_the_space_that_was_idle_longest() {
    let mut server = Server::new(3);
    let busy = server.attach(&tagged(0));
    let still = server.attach(&tagged(1));
    server.draw(&tagged(1), still, NOW_MS + 1).unwrap();
    server.draw(&tagged(0), busy, NOW_MS + 5).unwrap();
    let is_current = |server: &Server, at: Attached| server.table.generators[at.index].is_current(at.handle);
    assert!(is_current(&server, still));
    let new = server.attach(&tagged(2));
    assert_eq!(new.index, still.index);
    assert!(is_current(&server, busy) && !is_current(&server, still));
    assert!(server.draw(&tagged(0), busy, NOW_MS + 10).is_some());
    assert_eq!(server.draw(&tagged(1), still, NOW_MS + 10), None, "the tenancy has ended");
}

/// Spaces that draw fast neither fill the table nor push others ahead of the clock.
#[test]
fn evicted_space_ahead_of_the_clock_continues_there_and_pushes_no_other_space() {
    let mut server = Server::new(2);
    let ahead = server.attach(&tagged(0));
    let last = (0..9).map(|_| server.draw(&tagged(0), ahead, NOW_MS).unwrap()).max().unwrap();
    let other = server.attach(&tagged(1));
    let id = server.draw(&tagged(1), other, NOW_MS).unwrap();
    assert_eq!(Layout::parse(&tagged(1)).unwrap().unpack(id).unwrap().time_ms, NOW_MS);
    let back = server.attach(&tagged(0));
    assert!(server.draw(&tagged(0), back, NOW_MS).unwrap() > last);
}

#[test]
fn raised_floor_holds_for_present_and_later_spaces() {
    let mut server = Server::new(3);
    let there = server.attach(&tagged(0));
    server.draw(&tagged(0), there, NOW_MS).unwrap();
    server.raise_floor(NOW_MS + 500);
    let time = |id| Layout::parse(&tagged(0)).unwrap().unpack(id).unwrap().time_ms;
    assert_eq!(time(server.draw(&tagged(0), there, NOW_MS).unwrap()), NOW_MS + 500);
    let comes = server.attach(&tagged(1));
    assert_eq!(time(server.draw(&tagged(1), comes, NOW_MS).unwrap()), NOW_MS + 500);
    // A lower one changes nothing.
    server.raise_floor(NOW_MS);
    assert_eq!(time(server.draw(&tagged(0), there, NOW_MS).unwrap()), NOW_MS + 500);
}

/// A floor skips slots that no caller received.
#[test]
fn last_id_is_one_that_was_issued() {
    let mut server = Server::new(3);
    let attached = server.attach(&tagged(0));
    assert_eq!(server.last_id(attached), None);
    server.raise_floor(NOW_MS + 500);
    assert_eq!(server.last_id(attached), None, "only a skip");
    let first = server.draw(&tagged(0), attached, NOW_MS).unwrap();
    assert_eq!(server.last_id(attached), Some(first));
    // Two floors in a row, and one that skips nothing.
    for floor_ms in [NOW_MS + 700, NOW_MS + 900, NOW_MS + 800] {
        server.raise_floor(floor_ms);
        assert_eq!(server.last_id(attached), Some(first));
    }
    let second = server.draw(&tagged(0), attached, NOW_MS).unwrap();
    assert!(second > first);
    assert_eq!(server.last_id(attached), Some(second));
}

#[test]
fn settled_id_never_falls_while_the_space_keeps_its_generator() {
    let mut server = Server::new(2);
    let (space, ..) = server.space(&tagged(0));
    assert_eq!(server.table.settle(&space, 7), 7);
    server.attach(&tagged(1));
    server.attach(&tagged(0));
    let settled = [8, 5, 9].map(|id| server.table.settle(&space, id));
    assert_eq!(settled, [8, 8, 9]);
}

/// While the server has no worker id, or another one that has issued nothing, ids are settled that it could go on from.
#[test]
fn worker_id_that_comes_back_begins_after_what_is_settled() {
    let text = tagged(0);
    for reader in [0, 5, 7] {
        let mut server = Server::new(3);
        server.worker = 5;
        let attached = server.attach(&text);
        server.draw(&text, attached, NOW_MS).unwrap();
        server.table.restart_at(i64::MIN);
        server.worker = reader;
        let (space, ..) = server.space(&text);
        let free = server.table.begin_to_settle(&space);
        assert_eq!(server.table.begin_to_settle(&space), free, "again");
        assert!(space.time_ms(free) >= NOW_MS, "what was drawn is settled, and not less");
        let settled = server.table.settle(&space, space.id_before(free));
        server.worker = 5;
        let back = server.attach(&text);
        let id = server.draw(&text, back, NOW_MS).unwrap();
        assert!(id > settled, "{id} is settled since {settled}, by worker id {reader}");
    }
}

#[test]
fn reached_time_is_that_of_the_latest_id_or_the_floor() {
    let mut server = Server::new(3);
    assert_eq!(server.table.reached_ms(), NOW_MS);
    server.raise_floor(NOW_MS + 500);
    assert_eq!(server.table.reached_ms(), NOW_MS + 500);
    let attached = server.attach(&tagged(0));
    server.draw(&tagged(0), attached, NOW_MS + 800).unwrap();
    assert_eq!(server.table.reached_ms(), NOW_MS + 800);
    // An evicted space begins after its last id. Other spaces have not reached that time.
    server.raise_floor(NOW_MS + 600);
    assert_eq!((server.table.reached_ms(), server.table.floor_ms()), (NOW_MS + 800, NOW_MS + 600));
}

/// The tick's length of the layouts below.
const TICK_US: i64 = 1000;

#[test]
fn tick_ahead_of_the_limit_is_opened_once_in_its_length() {
    let mut server = Server::new(3);
    let attached = server.attach(&tagged(0));
    assert_eq!(server.open_tick(attached, 500), Ok(()), "at once");
    assert_eq!(server.open_tick(attached, 500), Err(1500));
    assert_eq!(server.open_tick(attached, 1499), Err(1500));
    assert_eq!(server.open_tick(attached, 9000), Ok(()), "however long it was not needed");
    assert_eq!(server.open_tick(attached, 9001), Err(10_000), "and no more for that");
}

/// Otherwise spaces that share a generator would run ahead, a tick at each change.
#[test]
fn pace_of_ticks_ahead_of_the_limit_survives_an_eviction() {
    let mut server = Server::new(2);
    let attached = server.attach(&tagged(0));
    assert_eq!(server.open_tick(attached, 500), Ok(()));
    let other = server.attach(&tagged(1));
    assert_eq!(server.open_tick(other, 600), Ok(()), "it has opened none yet");
    let back = server.attach(&tagged(0));
    assert_eq!(server.open_tick(back, 700), Err(1500));
}

/// Ticks of a second, one generator for all but the default layout: each draw evicts the space of the one before.
#[test]
fn evicted_space_goes_on_within_its_tick() {
    let mut server = Server::new(2);
    let layout = |tag: usize| format!("time:32 tag:2={tag} sequence:10 unit:1s epoch:2020-01-01");
    let mut last = [0; 3];
    for n in 0..300 {
        let text = layout(n % 3);
        let attached = server.attach(&text);
        let id = server.draw(&text, attached, NOW_MS).unwrap();
        assert!(id > last[n % 3], "{id} after {}", last[n % 3]);
        last[n % 3] = id;
        let time_ms = Layout::parse(&text).unwrap().unpack(id).unwrap().time_ms;
        assert!(time_ms <= NOW_MS, "draw {n} is {} ms ahead", time_ms - NOW_MS);
    }
}

#[test]
fn next_time_is_that_of_the_next_id_of_any_space() {
    let mut server = Server::new(2);
    assert_eq!(server.table.next_ms(), NOW_MS);
    let attached = server.attach(&tagged(0));
    (0..9).for_each(|_| assert!(server.draw(&tagged(0), attached, NOW_MS).is_some()));
    assert_eq!(server.table.next_ms(), NOW_MS + 2);
}

/// A clean shutdown writes this time to the file.
#[test]
fn unused_time_begins_after_every_issued_id() {
    let mut server = Server::new(2);
    assert_eq!(server.table.unused_from_ms(), NOW_MS);
    let gone = server.attach(&tagged(0));
    (0..9).for_each(|_| assert!(server.draw(&tagged(0), gone, NOW_MS).is_some()));
    assert_eq!(server.table.unused_from_ms(), NOW_MS + 3);
    server.attach(&tagged(1));
    assert_eq!(server.table.unused_from_ms(), NOW_MS + 3, "also after ids of a space that left the table");
}

/// A tick of another layout's length after each clean restart would take all ids ahead of the clock.
#[test]
fn unused_time_is_not_rounded_to_the_longest_tick() {
    let mut server = Server::new(4);
    let attached = server.attach("seconds");
    let id = server.draw("seconds", attached, NOW_MS).unwrap();
    let time_ms = Layout::parse("seconds").unwrap().unpack(id).unwrap().time_ms;
    assert_eq!(server.table.unused_from_ms(), time_ms + 1);
}

#[test]
fn evicted_space_begins_after_all_its_ids_when_it_returns() {
    let mut server = Server::new(2);
    let attached = server.attach(&tagged(0));
    let before = server.draw(&tagged(0), attached, NOW_MS + 5).unwrap();
    server.attach(&tagged(1));
    // Even if the clock was set back since.
    let attached = server.attach(&tagged(0));
    assert!(server.draw(&tagged(0), attached, NOW_MS).unwrap() > before);
}

/// The ids in a user's table keep rising when the worker id changes.
#[test]
fn new_worker_id_begins_after_the_ids_of_the_old_one() {
    let mut server = Server::new(4);
    let text = "time:41 worker:4 sequence:2 epoch:2020-01-01";
    server.worker = 9;
    let old = server.attach(text);
    let last = (0..30).map(|_| server.draw(text, old, NOW_MS).unwrap()).max().unwrap();
    server.worker = 3;
    let new = server.attach(text);
    assert!(server.draw(text, new, NOW_MS).unwrap() > last);
    // Another tag is another layout: this one does not push it ahead of the clock.
    let other = server.attach(&tagged(1));
    let id = server.draw(&tagged(1), other, NOW_MS).unwrap();
    assert_eq!(Layout::parse(&tagged(1)).unwrap().unpack(id).unwrap().time_ms, NOW_MS);
}

proptest! {
    /// Many layouts share few generators, and backends keep old handles.
    #[test]
    fn ids_of_a_layout_rise_whatever_generators_it_had(
        steps in prop::collection::vec((0usize..8, 0usize..3, 0i64..6, any::<bool>()), 1..400),
    ) {
        let mut server = Server::new(4);
        server.default = Some(server.space(&tagged(0)).0);
        let mut now_ms = NOW_MS;
        let mut seen = HashSet::new();
        let mut last: HashMap<usize, i64> = HashMap::new();
        let mut remembered: HashMap<(usize, usize), Attached> = HashMap::new();
        for (tag, backend, step, fresh) in steps {
            now_ms += step;
            if fresh {
                remembered.insert((tag, backend), server.attach(&tagged(tag)));
            }
            if let Some(attached) = remembered.get(&(tag, backend))
                && let Some(id) = server.draw(&tagged(tag), *attached, now_ms)
            {
                prop_assert!(seen.insert(id), "{} twice", id);
                prop_assert!(last.insert(tag, id).is_none_or(|last| last < id));
            }
        }
    }
}

proptest! {
    /// Scans visit a part of the table, and miss no tenant. A table whose tenancies ended gives its places away again.
    #[test]
    fn scans_find_every_tenant(steps in prop::collection::vec((0usize..8, 0i64..9, 0usize..20), 1..60)) {
        let mut server = Server::new(5);
        server.default = Some(server.space(&tagged(0)).0);
        let mut now_ms = NOW_MS;
        for (tag, step, action) in steps {
            now_ms += step;
            match action {
                0 => server.table.restart_at(now_ms),
                1 => server.raise_floor(now_ms),
                _ => {
                    let attached = server.attach(&tagged(tag));
                    prop_assert_eq!(server.attach(&tagged(tag)).index, attached.index);
                    server.draw(&tagged(tag), attached, now_ms);
                }
            }
            let table = &server.table;
            let tenants = table.tenants.iter().enumerate().filter_map(|(index, tenant)| tenant.map(|_| index));
            prop_assert_eq!(table.in_use().map(|(index, ..)| index).collect::<Vec<_>>(), tenants.collect::<Vec<_>>());
            let free = |(index, tenant): (usize, &Option<GeneratorTenant>)| {
                tenant.map(|tenant| tenant.space.time_ms(table.generators[index].free_slot(tenant.handle)))
            };
            let latest_ms = table.tenants.iter().enumerate().filter_map(free).max();
            prop_assert!(latest_ms.is_none_or(|latest_ms| table.next_ms() >= latest_ms));
        }
    }
}

/// W1: no id is issued under an old worker id, and the new one begins after the old one's ids, at its floor.
#[test]
fn restart_ends_every_tenancy_and_begins_at_the_floor_and_after_every_id() {
    let mut server = Server::new(4);
    server.default = Some(server.space(&tagged(1)).0);
    let all = [1, 2, 3].map(|tag| (tag, server.attach(&tagged(tag))));
    let ahead = server.draw(&tagged(2), all[1].1, NOW_MS + 500).unwrap();
    server.table.restart_at(NOW_MS + 100);
    for (tag, attached) in all {
        assert_eq!(server.draw(&tagged(tag), attached, NOW_MS + 1000), None, "layout {tag}");
    }
    server.worker = 7;
    let (_, layout, _) = server.space(&tagged(2));
    let times_ms = [1, 2, 3].map(|tag| {
        let attached = server.attach(&tagged(tag));
        layout.unpack(server.draw(&tagged(tag), attached, NOW_MS).unwrap()).map(|parts| parts.time_ms).ok()
    });
    // Layout 2 continues after its last id. `layout` has another tag, and the same time field.
    let after_ms = layout.unpack(ahead).unwrap().time_ms;
    assert_eq!(times_ms[0], Some(NOW_MS + 100));
    assert!(times_ms[1].is_some_and(|time_ms| time_ms > after_ms));
    assert_eq!(times_ms[2], Some(NOW_MS + 100));
}

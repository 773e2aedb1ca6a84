use super::*;
use crate::snowflake::{Answer, Bounds};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

/// 2026-01-01.
const NOW_MS: i64 = 1_767_225_600_000;

/// A table with its memory, and backends that remember handles.
struct Server {
    generators: Vec<Generator>,
    tenants: Vec<Option<Tenant>>,
    floors_ms: [i64; FLOORS],
    kept: Option<IdSpace>,
    worker: u32,
    effective: EffectiveClock,
}

/// The wall clock says `NOW_MS`.
const READING: Reading = Reading { wall_ns: NOW_MS * 1_000_000, boot_ns: 0 };

impl Server {
    fn new(size: usize) -> Self {
        Self {
            generators: (0..size).map(|_| Generator::new()).collect(),
            tenants: vec![None; size],
            floors_ms: [NOW_MS; FLOORS],
            kept: None,
            worker: 0,
            effective: EffectiveClock::new(READING),
        }
    }

    fn space(&self, text: &str) -> (IdSpace, Layout, Node) {
        let layout = Layout::parse(text).unwrap();
        let node = Node { datacenter: 0, worker: self.worker };
        (layout.space(node).unwrap(), layout, node)
    }

    fn table(&mut self) -> Table<'_> {
        Table { generators: &self.generators, tenants: &mut self.tenants, floors_ms: &mut self.floors_ms }
    }

    fn raise_floor(&mut self, floor_ms: i64) {
        let Self { generators, tenants, floors_ms, effective, .. } = self;
        Table { generators, tenants, floors_ms }.raise_floor(floor_ms, effective, READING);
    }

    fn begin_anew(&mut self, floor_ms: i64) {
        let Self { generators, tenants, floors_ms, effective, .. } = self;
        Table { generators, tenants, floors_ms }.begin_anew(floor_ms, effective, READING);
    }

    /// The id that the views show as the last one of a layout.
    fn last_id(&self, place: Place) -> Option<i64> {
        let tenant = self.tenants[place.index].as_ref()?;
        let free = self.generators[place.index].free_slot(tenant.handle);
        Some(tenant.space.id(tenant.last_issued(free)?))
    }

    fn attach(&mut self, text: &str) -> Place {
        let (space, layout, node) = self.space(text);
        let kept = self.kept;
        self.table().attach(space, (layout, node), kept)
    }

    /// Draws by a handle; `None` when its tenancy has ended or it would have to wait.
    fn draw(&self, text: &str, place: Place, now_ms: i64) -> Option<i64> {
        let (space, ..) = self.space(text);
        let bounds = Bounds { now_ms, limit_ms: now_ms + 1000, mark_ms: i64::MAX };
        match self.generators[place.index].issue(place.handle, &space, 1, &bounds) {
            Ok(Answer::Issued(run)) => Some(space.id(run.first)),
            _ => None,
        }
    }
}

fn tagged(tag: usize) -> String {
    format!("time:41 tag:10={tag} worker:4 sequence:2 epoch:2020-01-01")
}

#[test]
fn a_space_is_found_again_under_any_spelling() {
    let mut server = Server::new(4);
    let first = server.attach("snowflake");
    let again = server.attach("twitter");
    assert_eq!((again.index, again.handle), (first.index, first.handle));
    assert!(first.new && !again.new);
    assert_ne!(server.attach("pgedge").index, first.index);
}

#[test]
fn the_default_layout_keeps_its_generator() {
    let mut server = Server::new(3);
    server.kept = Some(server.space("snowflake").0);
    for tag in 0..10 {
        assert_ne!(server.attach(&tagged(tag)).index, KEPT);
    }
    let kept = server.attach("snowflake");
    assert_eq!(kept.index, KEPT);
    for tag in 0..10 {
        server.attach(&tagged(tag));
    }
    assert!(server.draw("snowflake", kept, NOW_MS).is_some(), "never taken from it");
}

#[test]
fn the_one_that_was_still_for_longest_makes_room() {
    let mut server = Server::new(3);
    let busy = server.attach(&tagged(0));
    let still = server.attach(&tagged(1));
    server.draw(&tagged(1), still, NOW_MS + 1).unwrap();
    server.draw(&tagged(0), busy, NOW_MS + 5).unwrap();
    let new = server.attach(&tagged(2));
    assert_eq!(new.index, still.index);
    assert!(server.draw(&tagged(0), busy, NOW_MS + 10).is_some());
    assert_eq!(server.draw(&tagged(1), still, NOW_MS + 10), None, "its tenancy has ended");
}

/// Nobody can fill the table, and nobody is pushed ahead of the clock by those who draw fast.
#[test]
fn one_that_is_ahead_of_the_clock_makes_room_and_keeps_its_place_in_time() {
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
fn a_raised_floor_holds_for_all_that_is_there_and_all_that_comes() {
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

/// A floor skips slots, which are no ids of anybody.
#[test]
fn the_last_id_is_one_that_was_issued() {
    let mut server = Server::new(3);
    let place = server.attach(&tagged(0));
    assert_eq!(server.last_id(place), None);
    server.raise_floor(NOW_MS + 500);
    assert_eq!(server.last_id(place), None, "nothing but a skip");
    let first = server.draw(&tagged(0), place, NOW_MS).unwrap();
    assert_eq!(server.last_id(place), Some(first));
    // Two floors in a row, and one that skips nothing.
    for floor_ms in [NOW_MS + 700, NOW_MS + 900, NOW_MS + 800] {
        server.raise_floor(floor_ms);
        assert_eq!(server.last_id(place), Some(first));
    }
    let second = server.draw(&tagged(0), place, NOW_MS).unwrap();
    assert!(second > first);
    assert_eq!(server.last_id(place), Some(second));
}

/// Where ids begin, they are; also before the first one.
#[test]
fn ids_have_come_to_the_latest_one_or_to_where_they_begin() {
    let mut server = Server::new(3);
    assert_eq!(server.table().reached_ms(), NOW_MS);
    server.raise_floor(NOW_MS + 500);
    assert_eq!(server.table().reached_ms(), NOW_MS + 500);
    let place = server.attach(&tagged(0));
    server.draw(&tagged(0), place, NOW_MS + 800).unwrap();
    assert_eq!(server.table().reached_ms(), NOW_MS + 800);
    // The next id of a layout that is evicted begins after it; no id of the others has come there.
    server.raise_floor(NOW_MS + 600);
    assert_eq!((server.table().reached_ms(), server.table().floor_ms()), (NOW_MS + 800, NOW_MS + 600));
}

#[test]
fn a_floor_is_where_the_effective_clock_goes_on_from_and_settles_no_lower() {
    let mut server = Server::new(3);
    let place = server.attach(&tagged(0));
    server.raise_floor(NOW_MS + 5000);
    assert_eq!(server.effective.now_ms(READING), NOW_MS + 5000);
    server.draw(&tagged(0), place, NOW_MS + 5100).unwrap();
    server.raise_floor(NOW_MS + 60_000);
    let Server { generators, tenants, floors_ms, effective, .. } = &mut server;
    Table { generators, tenants, floors_ms }.settle(effective, READING);
    assert!(effective.now_ms(READING) >= NOW_MS + 60_000);
}

#[test]
fn the_next_id_of_all_is_known() {
    let mut server = Server::new(2);
    assert_eq!(server.table().next_ms(), NOW_MS);
    let place = server.attach(&tagged(0));
    (0..9).for_each(|_| assert!(server.draw(&tagged(0), place, NOW_MS).is_some()));
    assert_eq!(server.table().next_ms(), NOW_MS + 2);
}

/// What a clean shutdown writes.
#[test]
fn all_that_was_issued_is_settled() {
    let mut server = Server::new(2);
    assert_eq!(server.table().settled_ms(), NOW_MS);
    let gone = server.attach(&tagged(0));
    (0..9).for_each(|_| assert!(server.draw(&tagged(0), gone, NOW_MS).is_some()));
    assert_eq!(server.table().settled_ms(), NOW_MS + 3);
    server.attach(&tagged(1));
    assert_eq!(server.table().settled_ms(), NOW_MS + 3, "also of what has left the table");
}

#[test]
fn a_space_that_comes_back_begins_after_all_it_issued() {
    let mut server = Server::new(2);
    let place = server.attach(&tagged(0));
    let before = server.draw(&tagged(0), place, NOW_MS + 5).unwrap();
    server.attach(&tagged(1));
    // Even if the clock has gone back since.
    let place = server.attach(&tagged(0));
    assert!(server.draw(&tagged(0), place, NOW_MS).unwrap() > before);
}

/// Ids of a table go on rising when the server gets another number.
#[test]
fn a_new_worker_number_begins_above_the_old_one() {
    let mut server = Server::new(4);
    let text = "time:41 worker:4 sequence:2 epoch:2020-01-01";
    server.worker = 9;
    let old = server.attach(text);
    let last = (0..30).map(|_| server.draw(text, old, NOW_MS).unwrap()).max().unwrap();
    server.worker = 3;
    let new = server.attach(text);
    assert!(server.draw(text, new, NOW_MS).unwrap() > last);
    // Another tag is another layout: it does not start ahead of the clock because of this one.
    let other = server.attach(&tagged(1));
    let id = server.draw(&tagged(1), other, NOW_MS).unwrap();
    assert_eq!(Layout::parse(&tagged(1)).unwrap().unpack(id).unwrap().time_ms, NOW_MS);
}

proptest! {
    /// Many layouts over few generators, by backends that keep old handles: no id twice in a layout, and each layout's
    /// ids rise.
    #[test]
    fn no_id_comes_twice_however_generators_change_hands(
        steps in prop::collection::vec((0usize..8, 0usize..3, 0i64..6, any::<bool>()), 1..400),
    ) {
        let mut server = Server::new(4);
        server.kept = Some(server.space(&tagged(0)).0);
        let mut now_ms = NOW_MS;
        let mut seen = HashSet::new();
        let mut last: HashMap<usize, i64> = HashMap::new();
        let mut remembered: HashMap<(usize, usize), Place> = HashMap::new();
        for (tag, backend, step, fresh) in steps {
            now_ms += step;
            if fresh {
                remembered.insert((tag, backend), server.attach(&tagged(tag)));
            }
            if let Some(place) = remembered.get(&(tag, backend))
                && let Some(id) = server.draw(&tagged(tag), *place, now_ms)
            {
                prop_assert!(seen.insert(id), "{} twice", id);
                prop_assert!(last.insert(tag, id).is_none_or(|last| last < id));
            }
        }
    }
}

/// W1: what was issued under a number is over when the number is another, and the new one begins after it, at its floor.
#[test]
fn a_change_of_number_ends_every_tenancy_and_begins_after_all_that_was_issued() {
    let mut server = Server::new(4);
    server.kept = Some(server.space(&tagged(1)).0);
    let places = [1, 2, 3].map(|tag| (tag, server.attach(&tagged(tag))));
    let ahead = server.draw(&tagged(2), places[1].1, NOW_MS + 500).unwrap();
    server.begin_anew(NOW_MS + 100);
    for (tag, place) in places {
        assert_eq!(server.draw(&tagged(tag), place, NOW_MS + 1000), None, "layout {tag}");
    }
    server.worker = 7;
    let (_, layout, _) = server.space(&tagged(2));
    let times_ms = [1, 2, 3].map(|tag| {
        let place = server.attach(&tagged(tag));
        layout.unpack(server.draw(&tagged(tag), place, NOW_MS).unwrap()).map(|parts| parts.time_ms).ok()
    });
    // Layout 2 goes on after what it had issued; a tag is not of this layout, but its time is at the same place.
    let after_ms = layout.unpack(ahead).unwrap().time_ms;
    assert_eq!(times_ms[0], Some(NOW_MS + 100));
    assert!(times_ms[1].is_some_and(|time_ms| time_ms > after_ms));
    assert_eq!(times_ms[2], Some(NOW_MS + 100));
}

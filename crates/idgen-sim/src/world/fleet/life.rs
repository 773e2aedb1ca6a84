//! The postmaster of a server of a fleet: recovery, and what runs from then on.

use super::super::World;
use super::super::disk::{Entry, Signal};
use super::super::place;
use super::super::rows::{Key, Row};
use super::super::server::Phase;
use super::{Backend, COORDINATORS, TAGS, operators};
use std::rc::Rc;
use std::time::Duration;

pub fn start_up(backend: &Backend) {
    place::begin(backend.process);
    backend.process.step();
    let signal = backend.process.server(|server| server.directory.signal);
    let now_us = backend.world().now_us.get();
    match signal {
        Some(Signal::Standby) => return follow(backend),
        Some(_) => {
            backend.process.change(|server| server.follow());
            backend.process.step();
        }
        None => {}
    }
    backend.process.change(|server| {
        match signal == Some(Signal::Archive) {
            true => server.promote(),
            false => server.begin_to_write(),
        }
        checkpoint(server, now_us);
        server.phase = Phase::Starting;
    });
    begin_to_serve(backend);
}

/// A checkpoint of a server that writes.
pub fn checkpoint(server: &mut super::super::server::Server, now_us: i64) {
    server.checkpoint();
    server.directory.control.checkpoint_ms = server.wall_ms(now_us);
}

/// A server that may write lets sessions in.
pub fn begin_to_serve(backend: &Backend) {
    if backend.is_coordinator() {
        let raises = backend.shared.raises.borrow().clone();
        raises.into_iter().for_each(|(tag, max_id)| raise(backend, tag, max_id));
        backend.shared.raises.borrow_mut().clear();
    }
    backend.process.change(|server| server.phase = Phase::Running);
    if (0..TAGS.len()).any(|tag| backend.tag_row(tag).is_some_and(|row| row.link.server.is_some())) {
        backend.summon_worker(true, false);
    }
}

/// The operator raises `max_id` of a coordinator before the first server connects.
fn raise(backend: &Backend, tag: usize, max_id: i64) {
    if backend.tag_row(tag).is_none() {
        operators::create_again(backend, tag, operators::FLEET);
    }
    let Some(mut row) = backend.tag_row(tag).filter(|row| row.definition.max_id < max_id) else { return };
    row.definition.max_id = max_id;
    row.definition.upper_bound = row.definition.upper_bound.max(max_id);
    row.version += 1;
    backend.process.tell(|| format!("max_id of {} is raised to {max_id}", TAGS[tag]));
    let wall_ms = backend.process.server(|server| server.wall_ms(backend.world().now_us.get()));
    backend.process.directory(|directory| {
        let mut rows = (*directory.rows()).clone();
        rows.insert(Key::Segment(tag), Row::Segment(row));
        let timeline = directory.control.timeline;
        directory.wal.entries.push(Rc::new(Entry { timeline, wall_ms, rows: Rc::new(rows) }));
        directory.flush();
        // A standby that takes over has it.
        backend.shared.acknowledged.set(directory.wal.entries.len());
    });
}

/// A standby receives WAL until it is promoted or stopped.
fn follow(backend: &Backend) {
    backend.process.change(|server| server.follow());
    while backend.process.server(|server| server.phase == Phase::Recovering) {
        let from = COORDINATORS - 1 - backend.server();
        if backend.shared.coordinator.get() == from {
            replicate(backend.world(), from, backend.server());
            backend.world().signal(from);
        }
        let pause = backend.world().one_of(&[20, 20, 200, 5_000, 1_000_000]);
        backend.process.wait(Duration::from_micros(pause));
    }
}

/// A standby receives what a primary has flushed, or a part of it.
fn replicate(world: &World, from: usize, to: usize) {
    let servers = &mut *world.servers.borrow_mut();
    let known = servers[to].directory.wal.entries.len();
    let flushed = servers[from].directory.wal.flushed;
    if known >= flushed {
        return;
    }
    let until = known + 1 + world.choices.borrow_mut().below((flushed - known) as u32) as usize;
    let entries = servers[from].directory.wal.entries[known..until].to_vec();
    let checkpoint = servers[from].directory.control.checkpoint;
    let directory = &mut servers[to].directory;
    directory.wal.entries.extend(entries);
    directory.flush();
    directory.control.checkpoint = directory.control.checkpoint.max(checkpoint.min(until));
}

/// After the checkpoint of a clean stop.
pub fn shut_down(backend: &Backend) {
    place::end(backend.process);
    backend.process.change(|server| server.phase = Phase::Stopped);
}

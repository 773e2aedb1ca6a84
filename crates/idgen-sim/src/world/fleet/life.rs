//! The postmaster of a server of a fleet: the file `idgen_place`, recovery, and what runs from then on.

use super::super::World;
use super::super::disk::{ControlState, Entry, Signal};
use super::super::rows::{Key, Row};
use super::super::server::Phase;
use super::{Backend, COORDINATORS, TAGS, operators};
use idgen_core::coordinator::{Place, life_number};
use idgen_core::history::Identity;
use idgen_core::life::{self, Life, Start, Wal};
use std::rc::Rc;
use std::time::Duration;

const PLACE_FILE: &str = "idgen_place";
const SYSTEM: u64 = 7;
const BOOT: &str = "boot";

pub fn start_up(backend: &Backend) {
    begin_life(backend);
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
    server.directory.flush();
    server.directory.control.checkpoint = server.directory.wal.entries.len();
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
        backend.summon_once(true);
    }
}

/// The operator raises `max_id` of a coordinator before the first server connects.
fn raise(backend: &Backend, tag: usize, max_id: i64) {
    let Some(mut row) = backend.tag_row(tag) else {
        return operators::create_again(backend, tag, operators::FLEET);
    };
    row.definition.max_id = row.definition.max_id.max(max_id);
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

/// Before recovery, which removes the evidence.
fn begin_life(backend: &Backend) {
    let recorded = backend.recorded_life();
    let start = backend.process.server(|server| {
        let (signal, control) = (server.directory.signal, &server.directory.control);
        let exists = |name: &str| match name {
            "standby.signal" => signal == Some(Signal::Standby),
            "recovery.signal" => signal == Some(Signal::Archive),
            _ => signal == Some(Signal::Backup),
        };
        Start {
            follows_other_wal: life::starts_from_other_wal(exists, control.state == ControlState::InRecovery),
            system: SYSTEM,
            is_shut_down: control.state == ControlState::ShutDown,
            checkpoint: control.checkpoint as u64,
            is_first: false,
            boot: BOOT,
        }
    });
    let wal = recorded.as_ref().map_or_else(|| Life::default().wal_at(&start), |life| life.wal_at(&start));
    let number = match &recorded {
        Some(life) if wal == Wal::Continued => life.number.clone(),
        _ => life_number(backend.world().identity(), wal != Wal::Continued),
    };
    let checkpoint = Some(start.checkpoint);
    write_life(backend, &Life { number, system: Some(SYSTEM), checkpoint, unsynced_boot: None });
}

/// After the checkpoint of a clean stop.
pub fn shut_down(backend: &Backend) {
    if let Some(life) = backend.recorded_life() {
        let checkpoint = backend.process.server(|server| server.directory.control.checkpoint as u64);
        write_life(backend, &Life { checkpoint: Some(checkpoint), ..life });
    }
    backend.process.change(|server| server.phase = Phase::Stopped);
}

fn write_life(backend: &Backend, life: &Life) {
    backend.process.step();
    backend.process.directory(|directory| {
        let file = directory.file(PLACE_FILE);
        file.content = Some(life.to_string().into_bytes());
        file.sync_name();
    });
}

impl Backend<'_> {
    fn recorded_life(&self) -> Option<Life> {
        self.process.server(|server| {
            let content = server.directory.files.get(PLACE_FILE)?.content.as_ref()?;
            Some(Life::parse(std::str::from_utf8(content).expect("a text")))
        })
    }

    /// What grants from this server.
    pub fn identity(&self) -> Identity {
        let number = self.recorded_life().unwrap_or_default().number;
        self.process.server(|server| {
            let directory = &server.directory;
            let [inode, control] =
                [directory.identity, directory.control.identity].map(|identity| identity.to_string());
            let place = Place::new(&inode, &control, &number);
            Identity { system_identifier: SYSTEM, timeline: directory.control.timeline, database: 5, place }
        })
    }
}

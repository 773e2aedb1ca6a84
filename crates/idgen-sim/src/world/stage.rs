//! The processes of a world, the steps between which they change, and what happens to any server.

use super::World;
use super::choices::Choices;
use super::memory::Memory;
use super::process::{Scheduled, Work};
use super::server::{Floor, Phase, Server};
use std::rc::Rc;

pub struct Stage {
    pub world: Rc<World>,
    pub processes: Vec<Scheduled>,
    next_id: u64,
    pub steps: u64,
}

impl Stage {
    pub fn new(choices: Choices, has_story: bool) -> Self {
        let world = Rc::new(World::new(choices, has_story));
        Self { world, processes: Vec::new(), next_id: 0, steps: 0 }
    }

    /// Lets one process run until its next effect, or time pass. False if none could run.
    pub fn step(&mut self) -> bool {
        self.take_spawned();
        let world = self.world.clone();
        let now_us = world.now_us.get() + world.one_of(&[0, 0, 0, 20, 500, 20_000]);
        world.now_us.set(now_us);
        let ready: Vec<usize> = (0..self.processes.len()).filter(|i| self.processes[*i].is_ready(now_us)).collect();
        if ready.is_empty() {
            let next_us = self.processes.iter().map(Scheduled::wakes_at_us).min().unwrap_or(i64::MAX);
            // Dull: until the next process can run.
            let pause_us = world.one_of(&[10_000_000, 1_000_000, 100_000, 1000, 1]);
            world.now_us.set(next_us.min(now_us + pause_us));
            return false;
        }
        self.steps += 1;
        let index = ready[world.below(ready.len() as u32) as usize];
        if !self.processes[index].run() {
            self.processes.swap_remove(index).end(&world);
        }
        self.wake_signaled();
        true
    }

    /// The next step is likely another process's.
    pub fn take_turns(&mut self) {
        let next = 1.min(self.processes.len());
        self.processes.rotate_left(next);
    }

    fn take_spawned(&mut self) {
        for (server, name, work) in self.world.spawned.take() {
            self.next_id += 1;
            self.processes.push(Scheduled::new(&self.world, server, self.next_id, name, work));
        }
    }

    fn wake_signaled(&mut self) {
        for server in self.world.signaled.take() {
            self.processes.iter_mut().filter(|process| process.server == server).for_each(Scheduled::wake);
        }
    }

    /// Ends all processes of a server where they are.
    pub fn end_processes(&mut self, server: usize) {
        self.take_spawned();
        let processes = std::mem::take(&mut self.processes).into_iter();
        let (ended, rest): (Vec<_>, _) = processes.partition(|process| process.server == server);
        self.processes = rest;
        ended.into_iter().for_each(|process| process.end(&self.world));
        // What they have asked for in their last moments.
        self.world.spawned.borrow_mut().retain(|(of, ..)| *of != server);
    }

    pub fn server<R>(&self, index: usize, change: impl FnOnce(&mut Server) -> R) -> R {
        change(&mut self.world.servers.borrow_mut()[index])
    }

    pub fn start(&mut self, index: usize, postmaster: Work) {
        self.server(index, |server| {
            (server.memory, server.phase, server.replayed_ms) = (Rc::new(Memory::new()), Phase::Starting, None);
        });
        self.world.tell(index, || "starts".to_owned());
        self.world.spawn(index, "postmaster", postmaster);
    }

    pub fn crash(&mut self, index: usize) {
        self.world.tell(index, || "is killed".to_owned());
        self.end_processes(index);
        let world = self.world.clone();
        self.server(index, |server| {
            server.directory.crash(&mut world.choices.borrow_mut());
            server.stop(Floor::Mark);
        });
    }

    pub fn lose_power(&mut self, index: usize) {
        self.world.tell(index, || "loses power".to_owned());
        self.end_processes(index);
        let world = self.world.clone();
        self.server(index, |server| {
            server.directory.lose_power(&mut world.choices.borrow_mut());
            server.booted_us = world.now_us.get();
            server.stop(Floor::Unknown);
        });
        world.reach("a machine loses power");
    }

    /// A standby receives what a primary has flushed, or a part of it.
    pub fn replicate(&mut self, from: usize, to: usize) {
        let (entries, flushed, checkpoint_ms) = self.server(from, |server| {
            let directory = &server.directory;
            (directory.wal.entries.clone(), directory.wal.flushed, directory.control.checkpoint_ms)
        });
        let known = self.server(to, |server| server.directory.wal.entries.len());
        if known < flushed {
            let until = known + 1 + self.world.below((flushed - known) as u32) as usize;
            self.server(to, |server| {
                server.directory.wal.entries.extend_from_slice(&entries[known..until]);
                server.directory.flush();
                server.replayed_ms = Some(entries[until - 1].wall_ms);
                server.directory.control.checkpoint_ms = checkpoint_ms;
            });
        }
    }

    pub fn step_clock(&mut self) {
        const HOUR_US: i64 = 3_600_000_000;
        let index = self.world.below(self.world.servers.borrow().len() as u32) as usize;
        let by_us = self.world.one_of(&[-2_000_000, 2_000_000, -10_000, 10_000, -HOUR_US, HOUR_US, 24 * 365 * HOUR_US]);
        self.server(index, |server| server.offset_us += by_us);
        self.world.tell(index, || format!("its clock steps by {} ms", by_us / 1000));
    }

    pub fn correct_clock(&mut self) {
        let index = self.world.below(self.world.servers.borrow().len() as u32) as usize;
        self.server(index, |server| server.offset_us = 0);
        self.world.tell(index, || "its clock is corrected".to_owned());
    }

    pub fn fail_files(&mut self) {
        self.world.faults.borrow_mut().io_fails_once_in = self.world.one_of(&[4, 2, 1]);
    }

    pub fn fail_workers(&mut self) {
        self.world.faults.borrow_mut().no_workers = true;
    }

    pub fn end_faults(&mut self) {
        self.world.faults.take();
    }

    pub fn cancel_session(&mut self) {
        let sessions: Vec<u64> =
            self.processes.iter().filter(|process| process.name == "session").map(|process| process.id).collect();
        if !sessions.is_empty() {
            self.world.canceled.borrow_mut().insert(self.world.one_of(&sessions));
        }
    }

    /// A process gets no time for a while, a background worker more likely than another.
    pub fn suspend(&mut self) {
        if self.processes.is_empty() {
            return;
        }
        let worker = self.processes.iter().position(|process| process.name.ends_with("worker"));
        let any = self.world.below(self.processes.len() as u32) as usize;
        let index = worker.filter(|_| self.world.below(2) == 1).unwrap_or(any);
        let until_us = self.world.now_us.get() + self.world.one_of(&[10_000, 1_000_000, 20_000_000]);
        self.processes[index].stopped_until_us = until_us;
    }
}

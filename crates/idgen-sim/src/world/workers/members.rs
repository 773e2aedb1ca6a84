//! What happens to the servers that lease, and what their operators do.

use super::database::POOLS;
use super::member::{self, keep};
use super::{BY_HAND, COORDINATORS, NAMES, Workers};
use crate::world::disk::Signal;
use crate::world::process::Process;
use crate::world::run::Act;
use crate::world::server::Phase;
use crate::world::stage::Stage;

pub fn acts() -> Vec<Act<Workers>> {
    vec![
        |workers, stage| workers.if_running(stage, |_, stage, index| stage.crash(index)),
        |workers, stage| workers.if_running(stage, |_, stage, index| stage.lose_power(index)),
        |workers, stage| workers.if_running(stage, Workers::stop_cleanly),
        |workers, stage| workers.if_running(stage, Workers::kill_keeper),
        |workers, stage| workers.if_running(stage, Workers::back_up_member),
        |workers, stage| workers.if_running(stage, Workers::copy_memory),
        |workers, stage| workers.if_running(stage, Workers::copy_disk),
        Workers::restore_member,
        Workers::change_pool,
        Workers::change_pool,
        Workers::discard_member,
    ]
}

impl Workers {
    fn any_member(&self, stage: &Stage) -> Option<usize> {
        let index = COORDINATORS + stage.world.below((NAMES.len() - COORDINATORS) as u32) as usize;
        Some(index).filter(|index| stage.server(*index, |server| !server.is_void))
    }

    fn if_running(&mut self, stage: &mut Stage, act: fn(&mut Self, &mut Stage, usize)) {
        if let Some(index) = self.any_member(stage).filter(|index| self.phase(stage, *index) == Phase::Running) {
            act(self, stage, index);
        }
    }

    fn void_member(&self, stage: &Stage) -> Option<usize> {
        (COORDINATORS..NAMES.len()).find(|index| stage.server(*index, |server| server.is_void))
    }

    fn member<R>(&self, index: usize, change: impl FnOnce(&mut member::Member) -> R) -> R {
        change(&mut self.coordination.members.borrow_mut()[index - COORDINATORS])
    }

    fn stop_cleanly(&mut self, stage: &mut Stage, index: usize) {
        stage.world.tell(index, || "is asked to stop".to_owned());
        self.member(index, |member| member.must_stop = true);
        stage.world.signal(index);
    }

    fn start_keeper(&self, stage: &mut Stage, index: usize) {
        let coordination = self.coordination.clone();
        stage.world.spawn(index, "keeper worker", Box::new(move |process: &Process| keep(process, &coordination)));
    }

    fn kill_keeper(&mut self, stage: &mut Stage, index: usize) {
        stage.world.tell(index, || "its keeper is killed".to_owned());
        stage.end_processes(index);
        self.start_keeper(stage, index);
    }

    fn back_up_member(&mut self, stage: &mut Stage, index: usize) {
        stage.server(index, |server| server.backup = Some(server.directory.clone()));
    }

    /// A virtual machine is resumed twice.
    fn copy_memory(&mut self, stage: &mut Stage, index: usize) {
        let Some(copy) = self.void_member(stage) else { return };
        if !self.member(index, |member| member::has_lease(member)) {
            return;
        }
        stage.world.tell(index, || format!("is copied with its memory, as {}", NAMES[copy]));
        stage.world.reach("the memory of a running server is copied");
        let member = self.member(index, |member| {
            member.is_copied = true;
            member.clone()
        });
        for lease in [member.memory.lease.current, member.memory.lease.pending].into_iter().flatten() {
            self.coordination.judged.borrow_mut().copied(lease.token, lease.last_not_after_us);
        }
        // Its keeper may be about to give the lease up.
        if let member::Node::Leased(_, token) = member.memory.node {
            self.coordination.judged.borrow_mut().copied(token, member.memory.end_ms * 1000);
        }
        self.member(copy, |to| *to = member);
        let (directory, offset_us, booted_us) =
            stage.server(index, |server| (server.directory.clone(), server.offset_us, server.booted_us));
        stage.server(copy, |server| {
            (server.directory, server.is_void, server.phase) = (directory, false, Phase::Running);
            (server.offset_us, server.booted_us, server.backup) = (offset_us, booted_us, None);
        });
        self.start_keeper(stage, copy);
    }

    /// The files of a server are copied, and started beside it, with a pool.
    fn copy_disk(&mut self, stage: &mut Stage, index: usize) {
        let Some(copy) = self.void_member(stage) else { return };
        let (directory, identity) = (stage.server(index, |server| server.directory.clone()), stage.world.identity());
        stage.world.tell(index, || format!("its files are copied to {}", NAMES[copy]));
        stage.world.reach("the files of a server are copied beside it");
        let (pool, set) = (POOLS[self.pool(stage)], self.member(index, |member| member.set));
        self.member(copy, |member| (member.pool, member.set, member.is_copied) = (Some(pool), set, true));
        stage.server(copy, |server| {
            server.directory = directory.copy(identity);
            (server.is_void, server.phase, server.backup) = (false, Phase::Stopped, None);
        });
        self.start(stage, copy);
    }

    /// An older copy of its files is put back in its place. It has a pool.
    fn restore_member(&mut self, stage: &mut Stage) {
        let Some(index) = self.any_member(stage) else { return };
        let Some(backup) = stage.server(index, |server| server.backup.clone()) else { return };
        stage.world.tell(index, || "an older copy of its files is put back".to_owned());
        stage.world.reach("an older copy of a server's files is put back");
        stage.crash(index);
        let pool = POOLS[self.pool(stage)];
        self.member(index, |member| (member.pool, member.is_copied) = (Some(pool), true));
        let (control, signal) = (stage.world.identity(), stage.world.one_of(&[None, Some(Signal::Backup)]));
        stage.server(index, |server| {
            server.directory = backup.copy(server.directory.identity);
            server.directory.control.identity = control;
            server.directory.signal = signal;
        });
        self.start(stage, index);
    }

    /// To the pool that there is, to another one, or to the worker id by hand, which no other server has.
    fn change_pool(&mut self, stage: &mut Stage) {
        let Some(index) = self.any_member(stage) else { return };
        let choice = stage.world.below(5);
        let pool = self.pool(stage);
        self.member(index, |member| {
            member.pool = match choice {
                4 if !member.is_copied => {
                    member.set = Some((BY_HAND + index) as u32);
                    None
                }
                3 => Some(POOLS[1 - pool]),
                _ => Some(POOLS[pool]),
            };
        });
        stage.world.tell(index, || "its settings name another source of its worker id".to_owned());
        stage.world.signal(index);
    }

    /// Its data are gone for good.
    fn discard_member(&mut self, stage: &mut Stage) {
        let left = (COORDINATORS..NAMES.len()).filter(|index| stage.server(*index, |server| !server.is_void)).count();
        let Some(index) = self.any_member(stage).filter(|_| left > 2) else { return };
        stage.world.tell(index, || "is gone for good".to_owned());
        stage.crash(index);
        stage.server(index, |server| server.is_void = true);
    }
}

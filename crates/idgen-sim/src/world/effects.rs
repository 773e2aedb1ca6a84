//! What a process reads and changes of its server.

use super::clock::FileError;
use super::disk::{Directory, Entry};
use super::judge::{Now, Promised};
use super::memory::Memory;
use super::process::Process;
use super::rows::{Key, Row};
use super::server::Server;
use idgen_core::snowflake::{IdSpace, SlotRun};
use std::panic::resume_unwind;
use std::rc::Rc;

/// Ends a session's statement.
pub struct Canceled;

impl Process<'_> {
    pub fn server<R>(&self, read: impl FnOnce(&Server) -> R) -> R {
        read(&self.world.servers.borrow()[self.server])
    }

    pub fn change<R>(&self, change: impl FnOnce(&mut Server) -> R) -> R {
        change(&mut self.world.servers.borrow_mut()[self.server])
    }

    pub fn memory(&self) -> Rc<Memory> {
        self.server(|server| server.memory.clone())
    }

    pub fn directory<R>(&self, change: impl FnOnce(&mut Directory) -> R) -> R {
        self.change(|server| change(&mut server.directory))
    }

    pub fn tell(&self, text: impl FnOnce() -> String) {
        self.world.tell(self.server, text);
    }

    /// The next input or output of a file, which may fail.
    pub fn try_io(&self) -> Result<(), FileError> {
        let once_in = self.world.faults.borrow().io_fails_once_in;
        if once_in > 0 && self.world.once_in(once_in) {
            self.world.reach("a write of the file fails");
            self.memory().is_disturbed.set(true);
            return Err(FileError);
        }
        Ok(())
    }

    /// Ends the statement if an operator has asked for that.
    pub fn check_interrupts(&self) {
        if self.world.canceled.borrow_mut().remove(&self.id) {
            self.world.reach("a statement is canceled in a wait");
            resume_unwind(Box::new(Canceled));
        }
    }

    /// Commits rows. Others see them at once; a crash can lose them unless they are flushed.
    pub fn commit(&self, changes: Vec<(Key, Row)>, is_flushed: bool) {
        let now_us = self.world.now_us.get();
        let server = &mut self.world.servers.borrow_mut()[self.server];
        let wall_ms = server.wall_ms(now_us);
        let directory = &mut server.directory;
        let mut rows = (*directory.rows()).clone();
        rows.extend(changes);
        let timeline = directory.control.timeline;
        directory.wal.entries.push(Rc::new(Entry { timeline, wall_ms, rows: Rc::new(rows) }));
        if is_flushed {
            directory.wal.flushed = directory.wal.entries.len();
        }
    }

    pub fn judge_issue(&self, layout: usize, space: &IdSpace, run: &SlotRun, now: &Now) {
        let last = run.first + run.count - 1;
        let (id, time_ms) = (space.id(last), space.time_ms(last));
        self.tell(|| format!("issues {} ids of layout {layout}, up to {id} at {time_ms}", run.count));
        let broken = self.promised(|promised| promised.issue(layout, space, run, now));
        if let Some(broken) = broken {
            self.world.break_promise(self.server, broken);
        }
    }

    pub fn promised<R>(&self, change: impl FnOnce(&mut Promised) -> R) -> R {
        self.change(|server| change(&mut server.promised))
    }
}

//! The locks of a simulated server that leases need: of rows, and advisory ones. Each has a queue. A process waits until the
//! others have given up what conflicts, or its time has passed.

use crate::world::process::Process;
use std::cell::RefCell;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Those of a lease.
    Queue(usize),
    Definition(usize),
    SharedGrant(usize),
    Fence(usize, i32),
    Row(usize, i32),
    /// Held by the session that a term is bound to.
    Session(i64),
    Tokens,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Share,
    /// Of a row that is changed beside those who share it.
    Change,
    Exclusive,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    lock: Lock,
    by: u64,
    mode: Mode,
    is_granted: bool,
}

#[derive(Default)]
pub struct Locks(RefCell<Vec<Request>>);

/// The longest that a wait for a signal lasts.
const LONGEST_WAIT_US: i64 = 1_000_000;

impl Locks {
    /// True if others hold the lock in a mode that conflicts. Who waits for an advisory lock goes before those who come later.
    fn conflicts(&self, lock: Lock, by: u64, mode: Mode) -> bool {
        let requests = self.0.borrow();
        let is_row = matches!(lock, Lock::Row(..));
        let of_lock = || requests.iter().filter(|request| request.lock == lock);
        let is_own = of_lock().any(|request| request.by == by && request.is_granted);
        let waits_since =
            requests.iter().position(|request| request.lock == lock && request.by == by && !request.is_granted);
        let is_before = |index: usize| waits_since.is_none_or(|since| index < since);
        requests.iter().enumerate().filter(|(_, other)| other.lock == lock && other.by != by).any(|(index, other)| {
            let is_compatible = mode != Mode::Exclusive
                && other.mode != Mode::Exclusive
                && (mode == Mode::Share || other.mode == Mode::Share);
            !is_compatible && (other.is_granted || !is_row && !is_own && is_before(index))
        })
    }

    pub fn try_lock(&self, lock: Lock, by: u64, mode: Mode) -> bool {
        let is_granted = !self.conflicts(lock, by, mode);
        if is_granted {
            self.0.borrow_mut().push(Request { lock, by, mode, is_granted });
        }
        is_granted
    }

    /// Waits for the lock. False if the time has passed. If the process is ended, [`Locks::unlock_all`] takes the request back.
    pub fn lock(&self, process: &Process, lock: Lock, mode: Mode, until_us: i64) -> bool {
        process.step();
        if self.try_lock(lock, process.id, mode) {
            return true;
        }
        self.0.borrow_mut().push(Request { lock, by: process.id, mode, is_granted: false });
        loop {
            let left_us = until_us - process.world.now_us.get();
            let is_free = !self.conflicts(lock, process.id, mode);
            if is_free || left_us <= 0 {
                let mut requests = self.0.borrow_mut();
                let is_it = |request: &Request| request.lock == lock && request.by == process.id && !request.is_granted;
                let index = requests.iter().position(is_it).expect("it was added above");
                match is_free {
                    true => requests[index].is_granted = true,
                    false => drop(requests.remove(index)),
                }
                return is_free;
            }
            process.check_interrupts();
            process.wait(Duration::from_micros(left_us.min(LONGEST_WAIT_US) as u64));
        }
    }

    pub fn unlock(&self, lock: Lock, by: u64, mode: Mode) {
        let mut requests = self.0.borrow_mut();
        let is_it = |request: &Request| request.lock == lock && request.by == by && request.mode == mode;
        if let Some(index) = requests.iter().rposition(is_it) {
            requests.remove(index);
        }
    }

    /// At the end of a transaction. Locks of a session stay.
    pub fn unlock_all(&self, by: u64) {
        self.0.borrow_mut().retain(|request| request.by != by || matches!(request.lock, Lock::Session(_)));
    }

    pub fn unlock_session(&self, by: u64) {
        self.0.borrow_mut().retain(|request| request.by != by);
    }

    pub fn is_held(&self, lock: Lock) -> bool {
        self.0.borrow().iter().any(|request| request.lock == lock && request.is_granted)
    }

    pub fn waiting(&self, lock: Lock) -> usize {
        self.0.borrow().iter().filter(|request| request.lock == lock && !request.is_granted).count()
    }
}

//! What the procedures of the mark and the label need of a server.
//!
//! A procedure is the code of one process: it reads and changes the [`HighWater`] that all processes share, and reaches files,
//! WAL, clocks and other processes through a [`Port`] only. So the simulator runs the same procedures as a server, and can
//! crash it, or let other processes run, at each call of the port.

use super::Mark;
use super::label::{LabelReach, LabelWorker, Labels, NextLabel};
use super::record::{Found, Record};
use crate::generator::GeneratorTable;
use crate::sync::{AtomicBool as SharedBool, AtomicI64};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The mark and its label, in shared memory.
pub struct HighWater {
    pub mark: Mark,
    /// How far replicas know that ids may go.
    pub label: LabelState,
    /// The file was read since the server started, and ids begin at its floor. Holder of the file's lock.
    pub(super) is_begun: SharedBool,
    /// The file promises that floor.
    pub(super) is_ready: SharedBool,
}

pub struct LabelState {
    pub reach: LabelReach,
    /// The latest label that the newest record of the file allows. Holder of the file's lock.
    pub(super) allowed_ms: AtomicI64,
    /// The time that the next label must reach, for ids that wait for it.
    pub(super) wanted_ms: AtomicI64,
    pub(super) worker: LabelWorker,
}

impl HighWater {
    /// At the start nothing can be issued: the file is not read yet.
    #[allow(clippy::new_without_default, reason = "it is made in place, in shared memory")]
    pub fn new() -> Self {
        Self {
            mark: Mark::unknown(),
            label: LabelState {
                reach: LabelReach::new(),
                allowed_ms: AtomicI64::new(i64::MIN),
                wanted_ms: AtomicI64::new(i64::MIN),
                worker: LabelWorker::default(),
            },
            is_begun: SharedBool::new(false),
            is_ready: SharedBool::new(false),
        }
    }
}

/// The newest record that this server has written. Behind the lock of the file.
#[derive(Default)]
pub struct Written {
    /// The number of the newest durable record.
    pub turn: u64,
    /// The data directory was synced with the file in it since the server started. A server that starts does not know: an
    /// earlier one may have failed right before that.
    pub is_name_durable: bool,
    pub labels: Labels,
}

/// What a process waits for. Each is a signal of [`Port::signal`].
#[derive(Clone, Copy, Debug)]
pub enum WaitFor {
    /// Another process that writes the file.
    File,
    Label,
}

/// What an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first start of this server, or its file was removed.
    NoFile,
    /// `idgen.layout` differs from the one that an earlier start wrote into the file.
    LayoutChanged { before: String },
    /// The mark has passed the label: a standby does not know how far ids go.
    LabelPassed,
    /// A label has been written that covers the mark again.
    LabelKnownAgain,
}

/// One process of a server.
pub trait Port {
    type Error;

    fn high_water(&self) -> &HighWater;
    /// `idgen.max_drift` and `idgen.clock_window` in milliseconds.
    fn drift_and_window_ms(&self) -> (i64, i64);
    fn layout(&self) -> String;
    fn system_identifier(&self) -> u64;
    /// The number of the life of the data, from `idgen_place`; empty if it is not known.
    fn life(&self) -> String;
    /// CLOCK_BOOTTIME in microseconds.
    fn boot_us(&self) -> i64;

    /// Works under the lock of the generators.
    fn generators<R>(&self, work: impl FnOnce(&mut GeneratorTable) -> R) -> R;
    /// Works under the lock of the file; `None` if another process has it.
    fn try_file<R>(&self, work: impl FnOnce(&mut Written) -> R) -> Option<R>;
    /// Works under the lock of the file, and waits for it. Not for file I/O.
    fn file<R>(&self, work: impl FnOnce(&mut Written) -> R) -> R;
    /// The newest record; `None` if this server never had a file.
    fn read(&self) -> Result<Option<Found>, Self::Error>;
    /// Writes a record durably, and notes its turn. After an error the next call writes the same places again.
    fn write(&self, record: Record, written: &mut Written) -> Result<(), Self::Error>;
    /// The last write has failed.
    fn is_failing(&self) -> bool;

    /// Raises if the statement is canceled.
    fn check_interrupts(&self);
    /// From here on, a signal ends the next [`Port::wait`].
    fn prepare_to_wait(&self);
    fn wait(&self, for_what: WaitFor, at_most: Duration);
    fn end_wait(&self);
    /// Wakes all that wait.
    fn signal(&self);

    /// Starts a process that runs [`write_label`](super::labelling::write_label). False if none could be started.
    fn start_label_worker(&self) -> bool;
    /// In one transaction under a lock for which other label workers wait: chooses the label, writes and commits it. A lower
    /// label is flushed with its commit, because the next record says that no label is later: a crash must not bring the later
    /// one back. Otherwise only the order in WAL matters: what WAL loses is lost with the ids after it.
    fn commit_label(&self, choose: impl FnOnce() -> NextLabel) -> NextLabel;
    /// True from the moment when this process waits for a label until it has moved the mark, or the wait is rolled
    /// back.
    fn is_waiting(&self) -> &AtomicBool;

    /// Not under a lock.
    fn tell(&self, event: Event);
}

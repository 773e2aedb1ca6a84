//! A server with one process, for the procedures of the mark and the label: a port that records its effects. Times in the
//! record are relative to `NOW_MS`.

use super::*;
use crate::clock::label::NextLabel;
use crate::clock::labelling::{fail_label, write_label};
use crate::clock::port::{Event, HighWater, Port, WaitFor, Written};
use crate::clock::record::Found;
use crate::generator::{FLOORS, Floor, Generator, GeneratorTable};
use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// What becomes of the worker that a process has started, once that waits, or at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker {
    Writes,
    WritesAtOnce,
    Fails,
    IsSuspended,
    CannotStart,
}

/// The statement was canceled.
pub struct Canceled;

/// The file could not be written.
#[derive(Debug, PartialEq, Eq)]
pub struct Failed;

type Concurrent = Box<dyn FnOnce(&OneProcess)>;

pub struct OneProcess {
    pub high_water: HighWater,
    pub table: RefCell<GeneratorTable<'static>>,
    pub written: RefCell<Written>,
    /// The newest record of the file.
    pub file: RefCell<Option<Record>>,
    pub window_ms: Cell<i64>,
    pub boot_us: Cell<i64>,
    pub worker: Cell<Worker>,
    pub has_started: Cell<bool>,
    pub is_canceled: Cell<bool>,
    /// The statement is canceled while it waits.
    pub cancels_wait: Cell<bool>,
    pub writes_fail: Cell<bool>,
    /// Another process has the lock of the file.
    pub is_busy: Cell<bool>,
    /// What others do before this process tries the lock, or while its worker commits.
    pub concurrent: Cell<Option<Concurrent>>,
    pub is_waiting: AtomicBool,
    pub signals: Cell<u32>,
    is_prepared: Cell<bool>,
    log: RefCell<Vec<String>>,
}

impl OneProcess {
    /// A server that starts with this file.
    pub fn new(file: Option<Record>) -> Self {
        // Leaked: a table in shared memory lives as long as the server.
        let generators: Vec<Generator> = (0..2).map(|_| Generator::new()).collect();
        let floors: Vec<Floor> = (0..FLOORS).map(|_| Floor::new()).collect();
        let table = GeneratorTable::new(generators.leak(), vec![None; 2].leak(), floors.leak());
        Self {
            high_water: HighWater::new(),
            table: RefCell::new(table),
            written: RefCell::default(),
            file: RefCell::new(file),
            window_ms: Cell::new(WINDOW_MS),
            boot_us: Cell::new(3_600_000_000),
            worker: Cell::new(Worker::Writes),
            has_started: Cell::default(),
            is_canceled: Cell::default(),
            cancels_wait: Cell::default(),
            writes_fail: Cell::default(),
            is_busy: Cell::default(),
            concurrent: Cell::default(),
            is_waiting: AtomicBool::new(false),
            signals: Cell::default(),
            is_prepared: Cell::default(),
            log: RefCell::default(),
        }
    }

    fn did(&self, effect: impl Into<String>) {
        self.log.borrow_mut().push(effect.into());
    }

    /// What it has done since this was asked last.
    pub fn effects(&self) -> Vec<String> {
        self.log.take()
    }

    /// The mark, if it is known.
    pub fn mark(&self) -> Option<i64> {
        self.high_water.mark.known_ms().map(|mark_ms| mark_ms - NOW_MS)
    }

    pub fn floor(&self) -> i64 {
        self.table.borrow().floor_ms() - NOW_MS
    }

    pub fn label(&self) -> i64 {
        self.high_water.label.reach.until_ms() - NOW_MS
    }

    pub fn waits(&self) -> bool {
        self.is_waiting.load(Relaxed)
    }

    fn let_others_run(&self) {
        if let Some(concurrent) = self.concurrent.take() {
            concurrent(self);
        }
    }

    /// The worker that was started runs to its end.
    pub fn run_worker(&self) {
        if self.has_started.take() {
            match self.worker.get() {
                Worker::Writes | Worker::WritesAtOnce => write_label(self),
                Worker::Fails => fail_label(self),
                Worker::IsSuspended | Worker::CannotStart => self.has_started.set(true),
            }
        }
    }
}

impl Port for OneProcess {
    type Error = Failed;

    fn high_water(&self) -> &HighWater {
        &self.high_water
    }

    fn drift_and_window_ms(&self) -> (i64, i64) {
        (DRIFT_MS, self.window_ms.get())
    }

    fn layout(&self) -> String {
        Layout::parse("snowflake").unwrap().to_string()
    }

    fn system_identifier(&self) -> u64 {
        7
    }

    fn life(&self) -> String {
        OWN.to_owned()
    }

    fn boot_us(&self) -> i64 {
        self.boot_us.get()
    }

    fn generators<R>(&self, work: impl FnOnce(&mut GeneratorTable) -> R) -> R {
        work(&mut self.table.borrow_mut())
    }

    fn try_file<R>(&self, work: impl FnOnce(&mut Written) -> R) -> Option<R> {
        self.let_others_run();
        (!self.is_busy.get()).then(|| work(&mut self.written.borrow_mut()))
    }

    fn file<R>(&self, work: impl FnOnce(&mut Written) -> R) -> R {
        work(&mut self.written.borrow_mut())
    }

    fn read(&self) -> Result<Option<Found>, Failed> {
        self.did("read");
        Ok(self.file.borrow().clone().map(|record| Found { record, other_is_damaged: false }))
    }

    fn write(&self, record: Record, written: &mut Written) -> Result<(), Failed> {
        let (mark, label) = (record.mark_ms - NOW_MS, record.latest_label_ms - NOW_MS);
        assert_eq!(record.turn, written.turn + 1);
        assert_eq!(
            (&*record.layout, record.system_identifier, record.life.as_deref()),
            (&*self.layout(), 7, Some(OWN))
        );
        if self.writes_fail.get() {
            self.did("write fails");
            return Err(Failed);
        }
        self.did(format!("write {mark}, label up to {label}"));
        written.turn = record.turn;
        self.file.replace(Some(record));
        Ok(())
    }

    fn is_failing(&self) -> bool {
        self.writes_fail.get()
    }

    fn check_interrupts(&self) {
        if self.is_canceled.take() {
            // Without the message of a panic.
            resume_unwind(Box::new(Canceled));
        }
    }

    fn prepare_to_wait(&self) {
        self.is_prepared.set(true);
    }

    fn wait(&self, for_what: WaitFor, at_most: Duration) {
        assert!(self.is_prepared.get(), "a signal is lost");
        self.did(format!("wait for {for_what:?}"));
        self.boot_us.set(self.boot_us.get() + at_most.as_micros() as i64);
        self.is_busy.set(false);
        self.is_canceled.set(self.cancels_wait.take());
        self.run_worker();
    }

    fn end_wait(&self) {
        self.is_prepared.set(false);
    }

    fn signal(&self) {
        self.signals.set(self.signals.get() + 1);
    }

    fn start_label_worker(&self) -> bool {
        self.did("start");
        let starts = self.worker.get() != Worker::CannotStart;
        self.has_started.set(starts);
        if self.worker.get() == Worker::WritesAtOnce {
            self.run_worker();
        }
        starts
    }

    fn commit_label(&self, choose: impl FnOnce() -> NextLabel) -> NextLabel {
        let label = choose();
        let lower = if label.is_lower { ", which is lower" } else { "" };
        self.did(format!("label {}{lower}", label.until_ms - NOW_MS));
        self.let_others_run();
        label
    }

    fn is_waiting(&self) -> &AtomicBool {
        &self.is_waiting
    }

    fn tell(&self, event: Event) {
        assert!(self.written.try_borrow().is_ok(), "under a lock");
        self.did(format!("{event:?}"));
    }
}

//! Ids and the mark on a simulated server: the port of the core's procedures, sessions that draw, and the label worker.

use super::judge::Now;
use super::memory::Memory;
use super::process::Process;
use super::rows::{Key, Row};
use super::server::Phase;
use idgen_core::clock::label::{MarkLabel, NextLabel};
use idgen_core::clock::port::{Event, HighWater, Port, WaitFor, Written};
use idgen_core::clock::record::{FILE, Found, Record};
use idgen_core::clock::start::Evidence;
use idgen_core::clock::{Obstacle, labelling, moves};
use idgen_core::generator::{GeneratorHandle, GeneratorTable};
use idgen_core::snowflake::{Bounds, IdSpace, Issue, SlotRun};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub const HIGH_WATER_FILE: &str = "idgen/clock";

/// A process of a server, as the clock sees it.
pub struct Clock<'a> {
    pub process: &'a Process<'a>,
    pub memory: Rc<Memory>,
    is_waiting: AtomicBool,
    /// The count of signals before the wait was prepared.
    signals: std::cell::Cell<u64>,
}

/// Why the file cannot be used.
#[derive(Debug)]
pub struct FileError;

/// Why a draw has given no id.
#[derive(Debug)]
pub enum Refusal {
    File,
    /// The server is a standby.
    Standby,
    /// The clock is outside of the layout's time.
    Outside,
}

impl<'a> Clock<'a> {
    pub fn new(process: &'a Process<'a>) -> Self {
        let memory = process.memory();
        Self { process, memory, is_waiting: AtomicBool::new(false), signals: Default::default() }
    }

    fn wall_ms(&self) -> i64 {
        self.process.server(|server| server.wall_ms(self.process.world.now_us.get()))
    }

    fn evidence<'l>(&self, life: &'l str) -> Evidence<'l> {
        let (drift_ms, window_ms) = self.drift_and_window_ms();
        self.process.server(|server| {
            let label = server.label();
            Evidence {
                wall_ms: self.wall_ms(),
                life,
                is_promoted: label.is_some_and(|label| label.timeline != server.directory.control.timeline),
                label_ms: label.map(|label| label.until_ms),
                checkpoint_ms: server.directory.control.checkpoint_ms,
                replayed_ms: server.replayed_ms,
                prepared_ms: None,
                drift_ms,
                window_ms,
            }
        })
    }

    /// Draws up to `want` ids of a layout, at least one.
    pub fn draw(&self, layout: usize, want: u64) -> Result<(IdSpace, SlotRun), Refusal> {
        let mut attached = self.attach(layout)?;
        let mut opened_ms = i64::MIN;
        let mut pause_us = 0;
        loop {
            let wall_ms = self.wall_ms();
            let clock_limit_ms = wall_ms + self.drift_and_window_ms().0;
            let limit_ms = clock_limit_ms.max(opened_ms);
            let bounds = Bounds { now_ms: wall_ms, limit_ms, ceiling_ms: self.memory.high_water.mark.ceiling_ms() };
            let tick_us = self.memory.tick_us(layout);
            self.process.step();
            let (space, index, handle) = attached;
            let issue = self.memory.generator(index).issue(handle, &space, want, &bounds);
            match issue {
                Ok(Issue::Issued(run)) => {
                    // Others may have begun the tick by a later reading of the clock.
                    let latest_ms = self.now_bounds().limit_ms.max(clock_limit_ms);
                    let now = Now { limit_ms: latest_ms, boot_ms: self.boot_us() / 1000, tick_ms: tick_us / 1000 };
                    self.process.judge_issue(layout, &space, &run, &now);
                    let last_ms = space.time_ms(run.first + run.count - 1);
                    moves::move_if_due(self, last_ms.max(limit_ms));
                    return Ok((space, run));
                }
                Ok(Issue::Wait { time_ms }) => {
                    opened_ms = i64::MIN;
                    self.wait_for_limit(time_ms, self.boot_us() + tick_us);
                }
                Ok(Issue::Ahead { time_ms }) => match self.memory.generator(index).open_tick(tick_us, self.boot_us()) {
                    Ok(()) => opened_ms = time_ms,
                    Err(again_us) => {
                        if pause_us > 0 {
                            self.wait_for_limit(time_ms, again_us.min(self.boot_us() + pause_us));
                        }
                        pause_us = (2 * pause_us).max(100);
                    }
                },
                Ok(Issue::Reserve { first_ms, last_ms }) => self.raise_ceiling(&bounds, first_ms, last_ms)?,
                Ok(Issue::BeforeEpoch | Issue::Exhausted) => return Err(Refusal::Outside),
                Err(_) => attached = self.attach(layout)?,
            }
        }
    }

    fn raise_ceiling(&self, bounds: &Bounds, _first_ms: i64, last_ms: i64) -> Result<(), Refusal> {
        match self.memory.high_water.mark.obstacle(bounds.ceiling_ms, last_ms) {
            Obstacle::Mark { reserve_ms } => {
                let limit_ms = reserve_ms.max(bounds.now_ms + self.drift_and_window_ms().0);
                moves::reserve(self, reserve_ms, limit_ms).map_err(|FileError| Refusal::File)
            }
            Obstacle::Gone | Obstacle::LeaseEnd => Ok(()),
        }
    }

    fn attach(&self, layout: usize) -> Result<(IdSpace, usize, GeneratorHandle), Refusal> {
        if self.process.server(|server| server.phase != Phase::Running) {
            return Err(Refusal::Standby);
        }
        let (layout, node, space) = self.process.world.space(layout);
        let answer = space.next(0, 1, &self.now_bounds());
        if matches!(answer, Issue::BeforeEpoch | Issue::Exhausted) {
            return Err(Refusal::Outside);
        }
        if !moves::is_ready(&self.memory.high_water) {
            moves::begin(self, &self.evidence(&self.life())).map_err(|FileError| Refusal::File)?;
        }
        let attachment = self.generators(|table| table.attach(space, (layout, node), None));
        Ok((space, attachment.index, attachment.handle))
    }

    fn now_bounds(&self) -> Bounds {
        let now_ms = self.wall_ms();
        let limit_ms = now_ms + self.drift_and_window_ms().0;
        Bounds { now_ms, limit_ms, ceiling_ms: self.memory.high_water.mark.ceiling_ms() }
    }

    fn wait_for_limit(&self, limit_ms: i64, until_us: i64) {
        loop {
            self.check_interrupts();
            let wanted_us = (limit_ms - self.drift_and_window_ms().0).saturating_mul(1000);
            let by_wall_us = wanted_us.saturating_sub(self.wall_ms() * 1000);
            let left_us = by_wall_us.min(until_us.saturating_sub(self.boot_us()));
            if left_us <= 0 {
                return;
            }
            self.process.sleep(Duration::from_micros(left_us as u64));
        }
    }

    /// Makes ids begin at this time, if the server may issue any.
    pub fn observe(&self, floor_ms: i64) -> Result<(), Refusal> {
        self.attach(0)?;
        self.process.promised(|promised| promised.raise(floor_ms));
        moves::raise_to(self, floor_ms).map_err(|FileError| Refusal::File)
    }

    pub fn end_of_transaction(&self) {
        labelling::end_wait_of_transaction(self);
    }

    /// The file is new: it gets its name when it is complete.
    fn create(&self, record: &Record) -> Result<(), FileError> {
        let mut content = vec![0; FILE];
        for offset in record.offsets() {
            let offset = offset as usize;
            let bytes = record.encode();
            content[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        self.process.step();
        self.process.try_io()?;
        self.process.directory(|directory| directory.file(HIGH_WATER_FILE).content = Some(content));
        Ok(())
    }

    fn overwrite(&self, record: &Record) -> Result<(), FileError> {
        for offset in record.offsets() {
            self.process.step();
            self.process.try_io()?;
            self.process.directory(|directory| {
                directory.file(HIGH_WATER_FILE).write_at(&record.encode(), offset as usize);
            });
        }
        self.process.step();
        if let Err(error) = self.process.try_io() {
            self.process.directory(|directory| directory.file(HIGH_WATER_FILE).fail_to_sync());
            return Err(error);
        }
        self.process.directory(|directory| directory.file(HIGH_WATER_FILE).sync());
        Ok(())
    }

    fn write_file(&self, record: &Record, written: &mut Written) -> Result<(), FileError> {
        if self.process.directory(|directory| directory.file(HIGH_WATER_FILE).content.is_none()) {
            written.is_name_durable = false;
            self.create(record)?;
        } else {
            self.overwrite(record)?;
        }
        if !written.is_name_durable {
            self.process.step();
            self.process.try_io()?;
            self.process.directory(|directory| directory.file(HIGH_WATER_FILE).sync_name());
            written.is_name_durable = true;
        }
        written.turn = record.turn;
        Ok(())
    }
}

impl Port for Clock<'_> {
    type Error = FileError;

    fn high_water(&self) -> &HighWater {
        &self.memory.high_water
    }

    fn drift_and_window_ms(&self) -> (i64, i64) {
        let settings = &self.process.world.settings;
        (settings.drift_ms.get(), settings.window_ms.get())
    }

    fn layout(&self) -> String {
        "snowflake".to_owned()
    }

    fn system_identifier(&self) -> u64 {
        1
    }

    fn life(&self) -> String {
        self.memory.life.borrow().clone()
    }

    fn boot_us(&self) -> i64 {
        self.process.server(|server| server.boot_us(self.process.world.now_us.get()))
    }

    fn generators<R>(&self, work: impl FnOnce(&mut GeneratorTable) -> R) -> R {
        work(&mut self.memory.table.borrow_mut())
    }

    fn try_file<R>(&self, work: impl FnOnce(&mut Written) -> R) -> Option<R> {
        self.process.step();
        let mut written = self.memory.written.try_borrow_mut().ok()?;
        Some(work(&mut written))
    }

    fn file<R>(&self, work: impl FnOnce(&mut Written) -> R) -> R {
        loop {
            self.process.step();
            if let Ok(mut written) = self.memory.written.try_borrow_mut() {
                return work(&mut written);
            }
            self.process.sleep(Duration::from_micros(100));
        }
    }

    fn read(&self) -> Result<Option<Found>, FileError> {
        self.process.step();
        let content = self.process.directory(|directory| directory.file(HIGH_WATER_FILE).content.clone());
        content.map(|content| Record::newest(&content).ok_or(FileError)).transpose()
    }

    fn write(&self, record: Record, written: &mut Written) -> Result<(), FileError> {
        self.process.promised(|promised| promised.mark_ms = promised.mark_ms.max(record.mark_ms));
        let outcome = self.write_file(&record, written);
        self.memory.is_failing.set(outcome.is_err());
        self.process.tell(|| match &outcome {
            Ok(()) => format!("the file promises {} (label up to {})", record.mark_ms, record.latest_label_ms),
            Err(FileError) => "the file could not be written".to_owned(),
        });
        outcome
    }

    fn is_failing(&self) -> bool {
        self.memory.is_failing.get()
    }

    fn check_interrupts(&self) {
        self.process.check_interrupts();
    }

    fn prepare_to_wait(&self) {
        self.signals.set(self.memory.signals.get());
    }

    fn wait(&self, _for_what: WaitFor, at_most: Duration) {
        if self.signals.get() == self.memory.signals.get() {
            self.process.wait(at_most);
        }
    }

    fn end_wait(&self) {}

    fn signal(&self) {
        self.memory.signals.set(self.memory.signals.get() + 1);
        self.process.world.signal(self.process.server);
    }

    fn start_label_worker(&self) -> bool {
        self.process.step();
        if self.process.world.faults.borrow().no_workers {
            self.memory.is_disturbed.set(true);
            return false;
        }
        self.process.world.spawn(self.process.server, "label worker", Box::new(label_worker));
        true
    }

    fn commit_label(&self, choose: impl FnOnce() -> NextLabel) -> NextLabel {
        let _catalog = loop {
            match self.memory.catalog.try_borrow_mut() {
                Ok(lock) => break lock,
                Err(_) => self.process.sleep(Duration::from_millis(1)),
            }
            self.process.step();
        };
        let next = choose();
        let timeline = self.process.server(|server| server.directory.control.timeline);
        let label = MarkLabel { timeline, until_ms: next.until_ms };
        self.process.step();
        self.process.tell(|| format!("commits the label: {label}"));
        self.process.commit(vec![(Key::Label, Row::Label(label))], next.is_lower);
        next
    }

    fn is_waiting(&self) -> &AtomicBool {
        &self.is_waiting
    }

    fn tell(&self, event: Event) {
        if event == Event::LabelPassed {
            self.process.world.reach("the mark has passed the label");
        }
        self.process.tell(|| format!("{event:?}"));
    }
}

/// The label worker of a server. If it ends early, the postmaster's other processes learn of it.
fn label_worker(process: &Process) {
    let clock = Clock::new(process);
    let guard = OnEnd(&clock, std::cell::Cell::new(false));
    labelling::write_label(&clock);
    guard.1.set(true);
}

struct OnEnd<'a, 'b>(&'a Clock<'b>, std::cell::Cell<bool>);

impl Drop for OnEnd<'_, '_> {
    fn drop(&mut self) {
        if !self.1.get() {
            // No effect: only shared memory is changed.
            labelling::fail_label(self.0);
        }
    }
}

//! Sessions that draw values of tags.

use super::super::effects::Canceled;
use super::super::rows::{Key, Row};
use super::judge::Drawn;
use super::memory::RingRow;
use super::{Backend, TAGS, tag_row};
use idgen_core::segment::turns::Ticket;
use idgen_core::segment::{Draw, RingHandle, ValueRun};
use idgen_core::tenancy::Ended;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

const TIMEOUT_US: i64 = 5_000_000;
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// A tag that a process draws from, as it remembers it.
#[derive(Clone, Copy)]
struct Attached {
    tag: usize,
    row: RingRow,
    is_in_order: bool,
    index: usize,
    handle: RingHandle,
    announced: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    TimedOut,
    /// There are no more values, or no such tag.
    Refused,
}

/// A session of some statements.
pub fn draw(backend: &Backend) {
    let world = backend.world();
    let mut known = [None; TAGS.len()];
    for _ in 0..1 + world.below(10) {
        let tag = world.below(backend.shared.tags as u32) as usize;
        let mut attached = known[tag].take();
        for _ in 0..1 + world.below(3) {
            let (want, is_block) = (world.one_of(&[1, 1, 2, 7]), world.once_in(4));
            let drawing = || Drawing { backend, attached, want, is_block, joined: None, above: None }.draw(tag);
            match catch_unwind(AssertUnwindSafe(drawing)) {
                Ok(Ok((after, _))) => {
                    world.reach("a session has drawn values");
                    attached = Some(after);
                }
                Ok(Err(refusal)) => {
                    backend.process.tell(|| format!("cannot draw of {}: {refusal:?}", TAGS[tag]));
                    break;
                }
                Err(reason) if reason.is::<Canceled>() => break,
                Err(reason) => resume_unwind(reason),
            }
        }
        // The next statement hears of changes.
        known[tag] = attached.filter(|attached| attached.announced == backend.memory.announced.get());
        backend.process.sleep(Duration::from_micros(world.one_of(&[0, 100, 10_000, 1_000_000])));
    }
}

/// Draws until a value is above those that the server had received before.
pub fn draw_new(backend: &Backend, tag: usize) -> Result<(), Refusal> {
    let received = tag_row(backend.world(), backend.server(), tag).and_then(|row| row.link.received);
    loop {
        let drawing = Drawing { backend, attached: None, want: 100, is_block: false, joined: None, above: None };
        let (_, run) = drawing.draw(tag)?;
        if received.is_none_or(|received| run.last() > received) {
            return Ok(());
        }
    }
}

struct Drawing<'a> {
    backend: &'a Backend<'a>,
    attached: Option<Attached>,
    want: u64,
    is_block: bool,
    /// The ring whose turn this process has joined.
    joined: Option<(usize, Ticket)>,
    /// What was drawn before it joined the turn. Values of a turn stay for its calls, however late these wake up.
    above: Option<i64>,
}

impl Drop for Drawing<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl Drawing<'_> {
    fn draw(mut self, tag: usize) -> Result<(Attached, ValueRun), Refusal> {
        let began_us = self.backend.now_us();
        let mut requested_at = None;
        loop {
            self.backend.process.check_interrupts();
            let attached = match self.attached {
                Some(attached) => attached,
                None => *self.attached.insert(self.look_up(tag)?),
            };
            self.backend.process.step();
            match self.draw_from(&attached) {
                Ok(Draw::Drawn { run, request }) => {
                    self.judge(&attached, &run);
                    if request {
                        self.backend.prefetch(attached.index);
                    }
                    return Ok((attached, run));
                }
                Ok(Draw::Dry) => {
                    let state = &self.backend.memory.states[attached.index];
                    if requested_at == Some(state.refills.get()) && state.exhausted.get() {
                        self.refuse_or_look_up(&attached)?;
                        requested_at = None;
                        continue;
                    }
                    self.request(&attached, &mut requested_at);
                    if self.backend.now_us() - began_us >= TIMEOUT_US {
                        return Err(Refusal::TimedOut);
                    }
                    self.backend.process.wait(CHECK_EVERY);
                    if !self.backend.memory.table(|table| table.has_tenancy(attached.index, attached.handle)) {
                        requested_at = None;
                    }
                }
                Err(Ended) => {
                    self.withdraw();
                    requested_at = None;
                    self.attached = self.attach_again(attached);
                }
            }
        }
    }

    /// Reads the row of the tag.
    fn look_up(&self, tag: usize) -> Result<Attached, Refusal> {
        let backend = self.backend;
        let announced = backend.memory.announced.get();
        backend.process.step();
        let row = backend.tag_row(tag).ok_or(Refusal::Refused)?;
        let (version, stride, is_attached) = (row.version, row.definition.stride, row.link.is_attached());
        let ring_row = RingRow { key: row.key, version, stride, is_attached };
        let (index, handle) = backend.attach_ring(ring_row);
        Ok(Attached { tag, row: ring_row, is_in_order: row.is_in_order(), index, handle, announced })
    }

    /// The ring was given to another tag, or the row has changed. Reads no row unless it may have.
    fn attach_again(&self, attached: Attached) -> Option<Attached> {
        if attached.announced != self.backend.memory.announced.get() {
            return None;
        }
        let (index, handle) = self.backend.attach_ring(attached.row);
        let version = attached.row.version;
        let is_same = self.backend.memory.table(|table| {
            table.tenants[index].is_some_and(|tenant| tenant.handle == handle && tenant.version == version)
        });
        is_same.then_some(Attached { index, handle, ..attached })
    }

    fn draw_from(&mut self, attached: &Attached) -> Result<Draw, Ended> {
        let (memory, Attached { index, handle, is_in_order, .. }) = (&self.backend.memory, *attached);
        let ring = &memory.rings[index];
        if !is_in_order {
            return if self.is_block { ring.draw_block(handle, self.want) } else { ring.draw(handle, self.want) };
        }
        if !memory.table(|table| table.has_tenancy(index, handle)) {
            return Err(Ended);
        }
        let Some((_, ticket)) = self.joined else { return Ok(Draw::Dry) };
        let claim = memory.turns.borrow_mut()[index].claim(ticket, self.is_block);
        if claim.is_some() {
            self.joined = None;
        }
        Ok(claim.unwrap_or(Draw::Dry))
    }

    /// Asks for values, unless this process has asked since the last refill.
    fn request(&mut self, attached: &Attached, requested_at: &mut Option<u64>) {
        let memory = &self.backend.memory;
        let state = &memory.states[attached.index];
        let is_it = memory.table(|table| table.has_tenancy(attached.index, attached.handle));
        if attached.is_in_order && is_it && self.joined.is_none() {
            let ticket = memory.turns.borrow_mut()[attached.index].join(self.want);
            self.joined = Some((attached.index, ticket));
            self.above = self.last(attached);
            self.backend.world().reach("a session draws in turn");
        } else if !attached.is_in_order && *requested_at != Some(state.refills.get()) {
            state.demand.set(state.demand.get() + self.want);
        }
        *requested_at = Some(state.refills.get());
        self.backend.summon(attached.index);
    }

    fn withdraw(&mut self) {
        if let Some((index, ticket)) = self.joined.take() {
            self.backend.memory.turns.borrow_mut()[index].withdraw(ticket);
        }
    }

    fn refuse_or_look_up(&mut self, attached: &Attached) -> Result<(), Refusal> {
        let row = self.backend.tag_row(attached.tag).ok_or(Refusal::Refused)?;
        if (row.key, row.version) == (attached.row.key, attached.row.version) {
            return Err(Refusal::Refused);
        }
        self.attached = None;
        Ok(())
    }

    fn last(&self, attached: &Attached) -> Option<i64> {
        self.backend.shared.judge.borrow().last(self.backend.server(), attached.row.key.creation)
    }

    fn judge(&self, attached: &Attached, run: &ValueRun) {
        let Attached { tag, row, .. } = *attached;
        let (backend, creation) = (self.backend, row.key.creation);
        backend.process.tell(|| format!("draws {} to {} of {}", run.first, run.last(), TAGS[tag]));
        let durable = backend.process.server(|server| {
            let wal = &server.directory.wal;
            match wal.entries[..wal.flushed].last()?.rows.get(&Key::Segment(tag))? {
                Row::Segment(durable) if durable.key.creation == creation => Some(durable.definition.max_id),
                _ => None,
            }
        });
        if backend.is_coordinator() && backend.tag_row(tag).is_some_and(|row| row.link.history.is_none()) {
            backend.world().reach("values of a tag without a fleet are drawn");
        }
        let above = if attached.is_in_order { self.above } else { self.last(attached) };
        let drawn = Drawn { creation, max_id: durable, above };
        let broken = backend.shared.judge.borrow_mut().draws(backend.server(), tag, run, &drawn);
        if let Some(broken) = broken {
            backend.world().break_promise(backend.server(), broken);
        }
    }
}

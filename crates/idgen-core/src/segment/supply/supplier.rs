//! What the supply worker does for the attached tags of its database, one request after the other.
//!
//! A request asks the coordinator, which commits and confirms what it grants; raises `max_id` here in a transaction of
//! its own; and installs the values. No transaction is open during a wait for the network. A request whose answer does
//! not come, or whose values cannot be recorded, leaves a gap. The next request is for other values.

use super::requests::{Answer, Asking, Failure, Requests};
use super::stock::{Need, REPORT_EVERY_US, Stock};
use crate::segment::fleet::rows::Server;
use crate::segment::tag::{MAX_STEP, NotLocked, Origin, TagRow};
use crate::segment::{NewRange, NoValues, RingSnapshot};
use std::collections::BTreeMap;

/// A request that is later than this has its turn, although sessions wait for others.
const LATE_US: i64 = 1_000_000;

/// Rows that are older are read again before a report. It must say what this server has received by now.
const CURRENT_US: i64 = 1_000_000;

/// What the supply worker does on its server.
pub trait Supplying: Asking {
    /// As [`lock`](super::super::refill::Filling::lock), and waits for a transaction that has locked the row. `None` if it is gone.
    fn await_lock(&mut self, creation: i64) -> Option<TagRow>;

    /// Writes what a row that is locked has received. Returns its version.
    fn record(&mut self, row: &TagRow) -> Option<i64>;

    /// The coordinator has heard that a tag was detached: its row has no `received` any more, if it has this number.
    fn forget(&mut self, creation: i64, server: i64);

    /// Begins a turn of a ring, if calls have joined it: its number, and how many values they want.
    fn begin_turn(&mut self, ring: &RingSnapshot) -> Option<(u64, u64)>;

    /// The demand that was taken from the ring is demanded again.
    fn restore_demand(&mut self);
}

/// The supply worker between two requests.
#[derive(Debug, Default)]
pub struct Supplier {
    /// The attached tags, by the creation numbers of their rows.
    stocks: BTreeMap<i64, Stock>,
    pub requests: Requests,
    /// When the rows were read last; `None` if they have to be read now.
    read_at_us: Option<i64>,
    /// The count of changes of links when the rows were read last.
    link_changes: u64,
    /// The last request was for waiting sessions.
    has_served_demand: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Due {
    pub creation: i64,
    pub need: Need,
    pub at_us: i64,
    /// The ring of the tag, unless it has none.
    pub ring: Option<RingSnapshot>,
}

#[derive(Debug)]
pub enum Next {
    /// Read the rows first: a report must be that of now.
    Read,
    Serve(Due),
    /// No request is due.
    Sleep,
}

impl Supplier {
    /// True if the tag of a ring is attached, by the rows that were read last.
    pub fn is_attached(&self, ring: &RingSnapshot) -> bool {
        self.stocks.get(&ring.tenant.key.creation).is_some_and(|stock| stock.row.link.is_attached())
    }

    pub fn is_idle(&self) -> bool {
        self.stocks.is_empty()
    }

    /// False if the rows have to be read again.
    pub fn is_current(&self, rings: &[RingSnapshot], link_changes: u64, now_us: i64) -> bool {
        let is_recent = self.has_read_within(REPORT_EVERY_US, now_us) && self.link_changes == link_changes;
        is_recent && rings.iter().all(|ring| self.is_attached(ring))
    }

    fn has_read_within(&self, time_us: i64, now_us: i64) -> bool {
        self.read_at_us.is_some_and(|read_at_us| now_us - read_at_us < time_us)
    }

    /// The rows of attached tags as they are now. Links were changed so often before they were read.
    pub fn update(&mut self, rows: Vec<TagRow>, link_changes: u64, now_us: i64) {
        let mut before = std::mem::take(&mut self.stocks);
        let stocks = rows.into_iter().map(|row| (row.key.creation, before.remove(&row.key.creation), row));
        self.stocks = stocks.map(|(creation, before, row)| (creation, Stock::new(row, before, now_us))).collect();
        (self.read_at_us, self.link_changes) = (Some(now_us), link_changes);
    }

    /// Measures the rate of draws from a ring, and returns it.
    pub fn observe(&mut self, ring: &RingSnapshot, now_us: i64) -> Option<f64> {
        self.stocks.get_mut(&ring.tenant.key.creation).map(|stock| stock.observe(ring, now_us))
    }

    /// All requests, each with the time when it is due: none before the coordinator is tried again.
    pub fn needs(&self, rings: &[RingSnapshot], retry_at_us: Option<i64>, now_us: i64) -> Vec<Due> {
        let by_creation: BTreeMap<i64, &RingSnapshot> =
            rings.iter().map(|ring| (ring.tenant.key.creation, ring)).collect();
        let due = |(&creation, stock): (&i64, &Stock)| {
            let ring = by_creation.get(&creation).copied();
            let (at_us, need) = stock.next(ring, now_us);
            Due { creation, need, at_us: at_us.max(retry_at_us.unwrap_or(at_us)), ring: ring.copied() }
        };
        self.stocks.iter().map(due).collect()
    }

    /// The request to make now: first for waiting sessions, in turn with others that are late.
    pub fn next(&mut self, needs: &[Due], now_us: i64) -> Next {
        let due = needs.iter().filter(|due| due.at_us <= now_us);
        let is_late = |due: &&Due| self.has_served_demand && due.need != Need::Demand && due.at_us + LATE_US <= now_us;
        let late = due.clone().filter(is_late).min_by_key(|due| due.at_us);
        // Among tags that sessions wait for, the one that was asked for longest ago.
        let asked_at_us = |due: &&Due| self.stocks.get(&due.creation).and_then(|stock| stock.asked_at_us);
        let first = late.or_else(|| due.min_by_key(|due| (due.need, asked_at_us(due), due.at_us)));
        match first.copied() {
            None => Next::Sleep,
            Some(Due { need: Need::Report | Need::Leave, .. }) if !self.has_read_within(CURRENT_US, now_us) => {
                self.read_at_us = None;
                Next::Read
            }
            Some(due) => {
                self.has_served_demand = due.need == Need::Demand;
                Next::Serve(due)
            }
        }
    }

    /// Makes a request that needs no ring.
    pub fn tell(&mut self, port: &mut impl Supplying, due: &Due) -> Answer<()> {
        if due.need == Need::Leave { self.leave(port, due.creation) } else { self.report(port, due.creation) }
    }

    /// Reports what this server has received. If the coordinator's tag is another one by now, or was altered, discards the
    /// stock.
    fn report(&mut self, port: &mut impl Supplying, creation: i64) -> Answer<()> {
        let row = &self.stocks.get(&creation).ok_or(Failure::Gone)?.row;
        let received = row.definition.max_id;
        let server = Server { number: row.link.server.ok_or(Failure::Gone)?, received };
        let origin = self.requests.call(port, |port| Ok(port.ask(&row.tag, server, 0)?.0))?;
        if row.link.source.as_ref().is_some_and(|known| *known != origin.source) {
            // The row of this stock is an old one after this.
            self.read_at_us = None;
            receive(port, creation, server.number, received, &origin, row.definition.step)?;
        }
        Ok(())
    }

    /// Tells the coordinator that a tag was detached.
    fn leave(&mut self, port: &mut impl Supplying, creation: i64) -> Answer<()> {
        let row = &self.stocks.get(&creation).ok_or(Failure::Gone)?.row;
        // Since then, the row may have values of its own.
        let (Some(number), Some(received)) = (row.link.server, row.link.received) else { return Err(Failure::Gone) };
        // Its last report counts.
        self.requests.call(port, |port| {
            port.ask_to_leave(&row.tag, Server { number, received })?;
            port.confirm()
        })?;
        // The row is not listed after this.
        self.read_at_us = None;
        port.transaction(|port| port.forget(creation, number)).map_err(Failure::Tag)
    }

    pub fn fetch(&mut self, port: &mut impl Supplying, creation: i64, ring: &RingSnapshot) -> Answer<()> {
        let began_us = port.now_us();
        let row = row_of(port, creation)?;
        let stock = self.stocks.get_mut(&creation).ok_or(Failure::Gone)?;
        stock.row = row;
        let turn = port.begin_turn(ring);
        let count = turn.map_or_else(|| stock.wanted(ring), |(_, wanted)| wanted.min(MAX_STEP as u64));
        if turn.is_some() || count == 0 {
            // A turn brings nothing to the ring, and sessions may have asked since it was read.
            port.restore_demand();
        }
        if count == 0 {
            return Ok(());
        }
        stock.asked_at_us = Some(port.now_us());
        let definition = stock.row.definition;
        let number = stock.row.link.server.ok_or(Failure::Gone)?;
        let server = Server { number, received: definition.max_id };
        let (range, origin) = self.requests.take_values(port, &stock.row.tag, server, count)?;
        let version = receive(port, creation, number, range.last(), &origin, count as i64)?;
        // Also if they are skipped: a report below it and one above it would look like a loss of grants.
        stock.row.definition.max_id = range.last();
        if port.was_cancelled() {
            return Err(Failure::Tag(NoValues::Skipped(range)));
        }
        let (low_water, turn) = (stock.low_water(), turn.map(|(number, _)| number));
        port.install(ring.tenant.key, NewRange { range, version, is_attached: true, low_water, turn, began_us });
        Ok(())
    }

    /// Notes the outcome of a request. True for an answer after which no failure of the tag is left, and for the first
    /// failure in a row. `None` if the tag is not attached any more.
    pub fn conclude(&mut self, port: &mut impl Asking, due: &Due, answer: &Answer<()>) -> Option<bool> {
        let stock = self.stocks.get_mut(&due.creation)?;
        let (now_us, jitter) = (port.now_us(), port.random_fraction());
        let Err(failure) = answer else { return Some(stock.succeed(due.need, now_us, jitter)) };
        match failure {
            Failure::Coordinator(_) => {}
            Failure::Gone => self.read_at_us = None,
            Failure::Exhausted(_) | Failure::Tag(_) => stock.refused = Some(due.need),
        }
        Some(stock.fail(now_us, jitter))
    }

    pub fn tag(&self, creation: i64) -> Option<&str> {
        self.stocks.get(&creation).map(|stock| stock.row.tag.as_str())
    }
}

/// The row of a tag as it is now. Nothing is asked for while another transaction holds its lock: the values could not
/// be recorded.
fn row_of(port: &mut impl Supplying, creation: i64) -> Answer<TagRow> {
    match port.transaction(|port| port.lock(creation)).map_err(Failure::Tag)? {
        Ok(row) if row.link.is_attached() && row.link.received.is_none() => Ok(row),
        Err(NotLocked::Busy) => Err(Failure::Tag(NoValues::Busy)),
        _ => Err(Failure::Gone),
    }
}

/// Records in the row, durably, the last value received and where it comes from. Returns the version of the row.
fn receive(
    port: &mut impl Supplying,
    creation: i64,
    server: i64,
    last: i64,
    origin: &Origin,
    count: i64,
) -> Answer<i64> {
    let version = port.transaction(|port| {
        port.require_durability();
        let mut row = port.await_lock(creation)?;
        if row.receive(server, last, origin, count) { port.record(&row) } else { None }
    });
    version.map_err(Failure::Tag)?.ok_or(Failure::Gone)
}

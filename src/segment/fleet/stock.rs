//! The stock of attached tags: what their rings hold, how fast it is drawn, which request is due, and making it.
//!
//! A request asks the coordinator, which commits and confirms what it grants; raises `max_id` here in a transaction of
//! its own; and installs the values. No transaction is open during a wait for the network. A request whose answer does
//! not come, or whose values cannot be recorded, leaves a gap. The next request is for other values.

use super::SupplyWorker;
use super::requests::{Failure, LONGEST_PAUSE, Server};
use crate::pg::xact::{self, Durability};
use crate::pg::{session, system_clock};
use crate::segment::refill;
use crate::segment::state::{NewRange, RingSnapshot, in_tenancy, install, ring_state};
use crate::segment::store::{self, NotLocked, Origin, StoredTag};
use crate::segment::workers;
use idgen_core::coordinator::link::retry_pause;
use idgen_core::segment::RingHandle;
use idgen_core::segment::supply::Supply;
use idgen_core::segment::tag::{MAX_STEP, TagDefinition};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// From one report to the next. After a change of its history the coordinator grants nothing until all have reported.
pub const REPORT_EVERY: Duration = Duration::from_secs(10);

/// From one request for a stock that runs low to the next. Waiting sessions are served at once.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// What a request is for, the most urgent first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// Sessions wait.
    Demand,
    /// Few values are left.
    LowWater,
    Report,
    /// The tag was detached, and may be attached again.
    Leave,
}

/// An attached tag, as the supply worker follows it.
pub struct Stock {
    pub row: StoredTag,
    /// The rate of draws, and the tenancy of the ring in which it was measured last.
    supply: Option<(RingHandle, Supply)>,
    /// When values were asked for last.
    pub asked_at: Option<Instant>,
    report_at: Instant,
    retry_at: Instant,
    /// Requests that have failed in a row.
    failures: u32,
    /// The need whose request failed because of the tag.
    pub refused: Option<Need>,
}

impl Stock {
    /// With the row as it is now; `before` is the stock with an earlier one.
    pub fn new(row: StoredTag, before: Option<Self>) -> Self {
        if let Some(before) = before {
            return Self { row, ..before };
        }
        let now = Instant::now();
        Self { row, supply: None, asked_at: None, report_at: now, retry_at: now, failures: 0, refused: None }
    }

    fn reserve(&self) -> Duration {
        Duration::from_micros(self.row.link.reserve_us.unwrap_or_default().max(0) as u64)
    }

    fn limits(&self) -> RangeInclusive<i64> {
        self.row.definition.min_step..=self.row.definition.max_step
    }

    /// Measures the rate of draws.
    pub fn observe(&mut self, ring: &RingSnapshot) {
        let (handle, now_us) = (ring.tenant.handle, system_clock::boot_us());
        let reserve = self.reserve();
        let (known, mut supply) = self.supply.take().unwrap_or_else(|| (handle, Supply::new(ring.position, now_us)));
        match known == handle {
            true => supply.sample(ring.position, now_us, reserve, ring.remaining.count == 0),
            // What the ring held was discarded, not drawn.
            false => supply.restart(ring.position, now_us),
        }
        ring_state(ring.index).rate.store(supply.rate().to_bits(), Relaxed);
        self.supply = Some((handle, supply));
    }

    /// A request is due when fewer values are left; `None` if only waiting sessions make one due.
    fn low_water(&self) -> Option<u64> {
        self.supply.as_ref()?.1.low_water(self.reserve(), self.limits())
    }

    /// How many values to ask for; 0 for none.
    fn wanted(&self, ring: &RingSnapshot) -> u64 {
        let wanted = |supply: &Supply| supply.wanted(ring.remaining.count, self.reserve(), ring.demand, self.limits());
        self.supply.as_ref().map_or(0, |(_, supply)| wanted(supply))
    }

    /// What a request for the tag says of this server.
    fn server<'a>(&'a self, name: &'a str, received: i64) -> Result<Server<'a>, Failure> {
        Ok(Server { tag: &self.row.tag, number: self.row.link.server.ok_or(Failure::Gone)?, name, received })
    }

    /// When the next request is due, and which one.
    pub fn next(&self, ring: Option<&RingSnapshot>) -> (Instant, Need) {
        if self.row.link.received.is_some() {
            return (self.retry_at, Need::Leave);
        }
        let report = (self.report_at.max(self.retry_at), Need::Report);
        let values = ring.and_then(|ring| {
            if ring.turn_due > 0 || ring.has_room && ring.demand > 0 {
                return Some((self.retry_at, Need::Demand));
            }
            let ask_at = self.asked_at.map_or(self.retry_at, |asked_at| self.retry_at.max(asked_at + ASK_EVERY));
            self.low_water()
                .filter(|low_water| ring.has_room && ring.remaining.count < *low_water)
                .map(|_| (ask_at, Need::LowWater))
        });
        values.filter(|(at, _)| *at <= report.0 || *at <= Instant::now()).unwrap_or(report)
    }

    /// The coordinator has answered. True if no earlier failure of the tag is left.
    pub fn succeed(&mut self, need: Need) -> bool {
        let pause = match need {
            // The coordinator does not know a tag that was attached again since.
            Need::Leave => Duration::ZERO,
            // A request for values reports, too.
            _ => REPORT_EVERY.mul_f64(0.8 + 0.2 * session::random_fraction()),
        };
        self.report_at = Instant::now() + pause;
        // A report succeeds also while values are refused.
        let is_cleared = need != Need::Report || self.refused.is_none_or(|refused| refused == need);
        if is_cleared {
            (self.failures, self.refused) = (0, None);
        }
        is_cleared
    }

    /// A request has failed. True if the one before had not.
    pub fn fail(&mut self) -> bool {
        self.retry_at = Instant::now() + retry_pause(self.failures, LONGEST_PAUSE, session::random_fraction());
        self.failures += 1;
        self.failures == 1
    }
}

impl SupplyWorker {
    /// Reports what this server has received. If the coordinator's tag is another one by now, or was altered, discards the
    /// stock.
    pub fn report(&mut self, creation: i64) -> Result<(), Failure> {
        let stock = self.stocks.get(&creation).ok_or(Failure::Gone)?;
        let TagDefinition { max_id, step, .. } = stock.row.definition;
        let server = stock.server(&self.name, max_id)?;
        let origin = self.requests.report(server)?;
        if stock.row.link.source.as_ref().is_some_and(|known| *known != origin.source) {
            // The row of this stock is an old one after this.
            self.read_at = None;
            receive(creation, server.number, max_id, &origin, step)?;
        }
        Ok(())
    }

    /// Tells the coordinator that a tag was detached.
    pub fn leave(&mut self, creation: i64) -> Result<(), Failure> {
        let stock = self.stocks.get(&creation).ok_or(Failure::Gone)?;
        // Since then, the row may have values of its own.
        let server = stock.server(&self.name, stock.row.link.received.ok_or(Failure::Gone)?)?;
        self.requests.leave(server)?;
        // The row is not listed after this.
        self.read_at = None;
        workers::in_transaction(|| store::leave(creation, server.number)).map_err(Failure::Tag)
    }

    /// Fetches values for a ring.
    pub fn fetch(&mut self, creation: i64, ring: &RingSnapshot) -> Result<(), Failure> {
        let began = Instant::now();
        let row = row_of(creation)?;
        let TagDefinition { min_step, max_step, max_id, .. } = row.definition;
        let stock = self.stocks.get_mut(&creation).ok_or(Failure::Gone)?;
        stock.row = row;
        // A turn, if calls have joined it: its number, and how many values they want.
        let turn = in_tenancy(ring.index, ring.tenant.handle, |segments| segments.turns[ring.index].begin()).flatten();
        let count = turn.map_or_else(|| stock.wanted(ring), |(_, wanted)| wanted.min(MAX_STEP as u64));
        if turn.is_some() || count == 0 {
            // A turn brings nothing to the ring, and sessions may have asked since it was read.
            workers::restore_demand();
        }
        if count == 0 {
            return Ok(());
        }
        stock.asked_at = Some(Instant::now());
        let server = stock.server(&self.name, max_id)?;
        let (range, origin) = self.requests.take_values(server, count)?;
        let step = (count as i64).clamp(min_step, max_step);
        let version = receive(creation, server.number, range.last(), &origin, step)?;
        if workers::was_cancelled() {
            return Err(Failure::Tag(refill::skipped(&range)));
        }
        stock.row.definition.max_id = range.last();
        let low_water = stock.low_water();
        let turn = turn.map(|(number, _)| number);
        install(ring.tenant.key, NewRange { range, version, is_attached: true, low_water, turn, began });
        Ok(())
    }
}

/// The row of a tag as it is now. Nothing is asked for while another transaction holds its lock: the values could not
/// be recorded.
fn row_of(creation: i64) -> Result<StoredTag, Failure> {
    let lock = || store::SEGMENT.find().map(|_| store::lock(creation));
    match workers::in_transaction(lock).map_err(Failure::Tag)? {
        Some(Ok(row)) if row.link.is_attached() && row.link.received.is_none() => Ok(row),
        Some(Err(NotLocked::Busy)) => Err(Failure::Tag(refill::BUSY.to_owned())),
        _ => Err(Failure::Gone),
    }
}

/// Records in the row, durably, the last value received and where it comes from. Returns the version of the row.
fn receive(creation: i64, server: i64, last: i64, origin: &Origin, step: i64) -> Result<i64, Failure> {
    let record = || {
        xact::require_durability(Durability::Failover);
        store::receive(creation, server, last, origin, step)
    };
    workers::in_transaction(record).map_err(Failure::Tag)?.ok_or(Failure::Gone)
}

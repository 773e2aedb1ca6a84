//! What both workers do on their server, for the procedures of the core.

use super::transaction::{Transaction, guarded};
use super::{Backend, TAGS};
use idgen_core::segment::refill::{Filling, Refilling};
use idgen_core::segment::tag::{NotLocked, TagRow};
use idgen_core::segment::{NewRange, NoValues, RingTenant, TagKey};

/// A worker, with what only its kind has.
pub struct Port<'a, W> {
    pub backend: &'a Backend<'a>,
    /// The running one.
    pub transaction: Option<Transaction<'a>>,
    was_canceled: bool,
    pub work: W,
}

impl<'a, W> Port<'a, W> {
    pub fn new(backend: &'a Backend<'a>, work: W) -> Self {
        Self { backend, transaction: None, was_canceled: false, work }
    }

    pub fn running(&mut self) -> &mut Transaction<'a> {
        self.transaction.as_mut().expect("a procedure begins it")
    }
}

impl<W> Filling for Port<'_, W> {
    fn now_us(&mut self) -> i64 {
        self.backend.now_us()
    }

    fn transaction<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> Result<R, NoValues> {
        self.transaction = Some(Transaction::new(self.backend));
        self.was_canceled = false;
        let result = guarded(|| work(self)).map_err(|raised| NoValues::Raised(raised.0.to_owned()));
        let transaction = self.transaction.take();
        let result = result?;
        self.was_canceled = !transaction.is_none_or(Transaction::commit);
        Ok(result)
    }

    fn require_durability(&mut self) {
        self.running().is_durable = true;
    }

    fn was_cancelled(&mut self) -> bool {
        self.was_canceled
    }

    fn lock(&mut self, creation: i64) -> Result<TagRow, NotLocked> {
        self.backend.process.check_interrupts();
        let transaction = self.running();
        let tag = transaction.lock_creation(creation)?;
        transaction.tag(tag).ok_or(NotLocked::Gone)
    }

    fn install(&mut self, key: TagKey, new: NewRange) {
        self.backend.install(key, &new);
    }
}

/// A ring gets no values.
pub fn note(backend: &Backend, missing: &NoValues) {
    let goal = match missing {
        NoValues::Unreported { .. } => "a coordinator waits before it draws",
        NoValues::Skipped(_) => "a wait for the standby is canceled",
        NoValues::NotAskedFor(_) => "values were not asked for",
        NoValues::Withheld { .. } => "values are withheld",
        NoValues::Busy | NoValues::BeyondBound { .. } | NoValues::Raised(_) => return,
    };
    backend.world().reach(goal);
}

pub fn index_of(row: &TagRow) -> usize {
    TAGS.iter().position(|name| *name == row.tag).expect("a tag of this world")
}

/// The refill worker's ring.
pub struct Refill {
    pub index: usize,
    pub tenant: RingTenant,
}

impl<'a> Refilling for Port<'a, Refill> {
    type Rows = Transaction<'a>;

    fn rows(&mut self) -> &mut Transaction<'a> {
        self.running()
    }

    fn has_room(&mut self) -> bool {
        self.backend.memory.rings[self.work.index].has_room()
    }

    fn low_water(&mut self, count: u64) -> u64 {
        count / self.backend.shared.low_water_part.get()
    }

    fn raise(&mut self, row: &TagRow) {
        let (tag, mut new) = (index_of(row), row.clone());
        // The history may have been written since the row was read.
        let now = self.running().tag(tag).expect("it is locked");
        let range = (now.definition.max_id, row.definition.max_id);
        self.backend.shared.judge.borrow_mut().draws_own_range(tag, range);
        new.link = now.link;
        new.definition.max_id = now.definition.max_id.max(row.definition.max_id);
        self.running().write(tag, new, true);
    }

    fn exhaust(&mut self, version: i64) {
        let (index, key) = (self.work.index, self.work.tenant.key);
        let memory = &self.backend.memory;
        let is_concerned = |tenant: &RingTenant| tenant.key == key && tenant.version <= version;
        if memory.table(|table| table.tenants[index].as_ref().is_some_and(is_concerned)) {
            memory.states[index].exhausted.set(true);
        }
    }

    fn evict(&mut self) {
        let Refill { index, tenant } = self.work;
        self.backend.memory.table(|table| table.has_tenancy(index, tenant.handle).then(|| table.end(index)));
    }
}

//! The servers of this scene, as they share a coordinator: its address, its locks, and what the judge knows.

use super::database::{Transaction, pool_index};
use super::judge::{Judge, Note};
use super::member::Member;
use crate::world::disk::{Entry, Signal};
use crate::world::place;
use crate::world::process::Process;
use crate::world::rows::Key;
use crate::world::server::Phase;
use idgen_core::worker::Refusal;
use idgen_core::worker::granting::{self, Request};
use idgen_core::worker::holding::{self, HeldRows, Lock, Renewal};
use idgen_core::worker::lease::WorkerLease;
use idgen_core::worker::recording::HistoryStore;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

pub struct Coordination {
    pub members: RefCell<Vec<Member>>,
    /// The server that keepers reach.
    pub address: Cell<usize>,
    pub is_synchronous: Cell<bool>,
    /// The setting `idgen.worker_max_lead` of coordinators.
    pub max_lead_us: Cell<i64>,
    pub network: Network,
    pub judged: RefCell<Judge>,
    /// The number of the last start of each coordinator, and its clock then.
    starts: RefCell<Vec<(u64, i64)>>,
    /// When each coordinator began to write, at its start or its promotion.
    began: RefCell<Vec<i64>>,
    /// With the process that holds it, and whether others may share it.
    locks: RefCell<Vec<(Key, u64, bool)>>,
}

/// What befalls requests.
#[derive(Default)]
pub struct Network {
    /// Keepers do not reach the coordinator.
    pub is_cut: Cell<bool>,
    /// One in so many requests, and one in so many answers, is lost; 0 for none.
    pub loses_once_in: Cell<u32>,
    pub delay: Cell<Duration>,
}

impl Coordination {
    pub fn new(coordinators: usize) -> Self {
        Self {
            members: RefCell::default(),
            address: Cell::new(0),
            is_synchronous: Cell::new(false),
            max_lead_us: Cell::new(0),
            network: Network::default(),
            judged: RefCell::default(),
            starts: RefCell::new(vec![(0, 0); coordinators]),
            began: RefCell::new(vec![0; coordinators]),
            locks: RefCell::default(),
        }
    }

    pub fn start_number(&self, coordinator: usize) -> u64 {
        self.starts.borrow()[coordinator].0
    }

    pub fn started_us(&self, coordinator: usize) -> i64 {
        self.starts.borrow()[coordinator].1
    }

    pub fn begins_to_write(&self, coordinator: usize, now_us: i64) {
        self.began.borrow_mut()[coordinator] = now_us;
    }

    /// How long a coordinator has been writing.
    pub fn writing_us(&self, coordinator: usize, now_us: i64) -> i64 {
        now_us - self.began.borrow()[coordinator]
    }

    pub fn is_locked(&self, key: Key, by_another_than: u64) -> bool {
        self.locks.borrow().iter().any(|(of, by, _)| *of == key && *by != by_another_than)
    }

    pub fn try_lock(&self, key: Key, by: u64, is_shared: bool) -> bool {
        let mut locks = self.locks.borrow_mut();
        let is_free = !locks.iter().any(|(of, other, shared)| *of == key && *other != by && !(*shared && is_shared));
        if is_free {
            locks.push((key, by, is_shared));
        }
        is_free
    }

    pub fn unlock(&self, key: Key, by: u64) {
        let mut locks = self.locks.borrow_mut();
        if let Some(index) = locks.iter().rposition(|(of, other, _)| *of == key && *other == by) {
            locks.remove(index);
        }
    }

    pub fn judge(&self, process: &Process, entry: Rc<Entry>, notes: Vec<Note>, is_unaware: bool) {
        notes.iter().for_each(|note| process.tell(|| format!("{note:?}")));
        let broken = self.judged.borrow_mut().committed(&entry, notes, is_unaware);
        if let Some(broken) = broken {
            process.world.break_promise(process.server, broken);
        }
    }
}

/// What the postmaster of a coordinator does before it lets sessions in.
pub fn start_up(process: &Process, coordination: &Coordination) {
    if !place::begin(process) {
        return process.change(|server| server.phase = Phase::Stopped);
    }
    let now_us = process.world.now_us.get();
    let wall_us = process.server(|server| server.wall_us(now_us));
    coordination.starts.borrow_mut()[process.server] = (process.world.identity(), wall_us);
    process.step();
    match process.server(|server| server.directory.signal) {
        Some(Signal::Standby) => process.change(|server| server.follow()),
        Some(Signal::Archive) => {
            process.change(|server| server.follow());
            process.step();
            process.change(|server| server.promote());
        }
        Some(Signal::Backup) => {
            process.change(|server| server.follow());
            process.step();
            process.change(|server| server.begin_to_write());
        }
        None => process.change(|server| server.begin_to_write()),
    }
    if process.server(|server| server.phase == Phase::Running) {
        coordination.begins_to_write(process.server, process.world.now_us.get());
        process.tell(|| "coordinates".to_owned());
    }
}

/// A grant, and the ttl of the pool.
pub type Acquired = (WorkerLease, Duration);

pub fn acquire(
    process: &Process,
    coordination: &Rc<Coordination>,
    pool: &str,
    owner: &str,
    (reached_us, prefer): (i64, Option<u32>),
) -> Result<Acquired, Refusal> {
    let mut transaction = Transaction::begin(process, coordination);
    let ttl_us = transaction.pool(pool_index(pool)).ok_or(Refusal::UnknownPool)?.ttl_us;
    let request = Request {
        owner: Some(owner),
        ttl_us: Some(ttl_us),
        ttl_limits_us: 0..=i64::MAX,
        reached_us: Some(reached_us),
        prefer: prefer.map(|worker_id| worker_id as i32),
    };
    let (grant, _) = granting::acquire(&mut transaction, pool, &request)?;
    let identity = transaction.identity();
    let coordinator = super::link::coordinator_id(identity);
    transaction.commit(true);
    let not_before_us = grant.rectangle.not_before_us;
    let lease = WorkerLease {
        worker_id: grant.worker_id as u32,
        token: grant.token,
        coordinator,
        rectangle: idgen_core::worker::Rectangle { not_before_us, not_after_us: not_before_us },
        last_not_after_us: grant.rectangle.not_after_us,
    };
    Ok((lease, Duration::from_micros(ttl_us as u64)))
}

pub fn renew(
    process: &Process,
    coordination: &Rc<Coordination>,
    pool: &str,
    lease: &WorkerLease,
    reached_us: i64,
) -> Result<(i64, Duration), Refusal> {
    let mut transaction = Transaction::begin(process, coordination);
    let ttl_us = transaction.pool(pool_index(pool)).map_or(0, |pool| pool.ttl_us);
    let last_us = lease.last_not_after_us;
    let had_clock = transaction.now_us() >= transaction.started_us();
    let shows_loss = transaction
        .held(pool, lease.token, Lock::Nothing)
        .is_some_and(|held| held.rectangle.not_after_us < last_us && held.acquired_us < transaction.started_us());
    let renewal = holding::renew(&mut transaction, pool, lease.token, last_us, Some(reached_us));
    // A copy grants nothing, and the token may have ended since it was read.
    let is_heard = !matches!(renewal, Err(Refusal::Copied | Refusal::Stale { .. }));
    let end_us = renewal.map(|renewal| match renewal {
        Renewal::Until(end_us) => end_us,
        Renewal::Ended { has_lost_grants } => {
            if has_lost_grants {
                process.world.reach("a holder shows that the coordinator was set back");
            }
            last_us
        }
    });
    // During the renewal, the clock may have been set back.
    let has_clock = had_clock && transaction.now_us() >= transaction.started_us();
    if end_us.is_ok() {
        transaction.commit(true);
    }
    // Whether or not the coordinator has noted it.
    if shows_loss && has_clock && is_heard {
        coordination.judged.borrow_mut().is_unaware = false;
    }
    Ok((end_us?, Duration::from_micros(ttl_us as u64)))
}

/// A role leases a worker id, and says in its renewal that it was told a later end.
pub fn lie(process: &Process, coordination: &Rc<Coordination>, pool: &str) {
    let now_us = Transaction::begin(process, coordination).now_us();
    if let Ok((lease, _)) = acquire(process, coordination, pool, "a role", (now_us, None)) {
        let last_not_after_us = lease.last_not_after_us + 1_000_000;
        let _ = renew(process, coordination, pool, &WorkerLease { last_not_after_us, ..lease }, now_us);
    }
}

pub fn confirm(process: &Process, coordination: &Rc<Coordination>, pool: &str, token: i64) -> Result<i64, Refusal> {
    let end_us = holding::confirm(&mut Transaction::begin(process, coordination), pool, token)?;
    coordination.judged.borrow_mut().confirmed(token, end_us);
    Ok(end_us)
}

pub fn holds(process: &Process, coordination: &Rc<Coordination>, pool: &str, lease: &WorkerLease) -> bool {
    let mut transaction = Transaction::begin(process, coordination);
    let epoch = transaction.read().map_or(0, |history| history.epoch);
    transaction.workers(pool_index(pool)).iter().any(|record| {
        let is_token = record.row.token == Some(lease.token) && record.row.epoch == epoch;
        is_token && record.rectangle.not_after_us == lease.last_not_after_us
    })
}

pub fn release(
    process: &Process,
    coordination: &Rc<Coordination>,
    pool: &str,
    token: i64,
    last: Option<(i64, i64)>,
) -> Result<(), Refusal> {
    let mut transaction = Transaction::begin(process, coordination);
    holding::release(&mut transaction, pool, token, last.map(|last| last.0), last.map(|last| last.1))?;
    transaction.commit(false);
    Ok(())
}

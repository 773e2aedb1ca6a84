//! What clients and operators do in their sessions. A client uses a token long after it was told, with pauses. A commit waits
//! for the disk if what it has done requires that.

use super::acquirer::{Call, UNDEFINED};
use super::judge::Note;
use super::locks::{Lock, Mode};
use super::row::{By, OneRow};
use super::transaction::{Memory, Transaction};
use super::{LEASES, Leases, Leasing, MOST_SESSIONS};
use crate::world::effects::Canceled;
use crate::world::process::Process;
use crate::world::rows::{Key, Row};
use crate::world::server::Phase;
use crate::world::stage::Stage;
use idgen_core::lease::{self, FIRST_SHARED, LeaseDefinition};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::time::Duration;

/// The most transactions of one session.
const TRANSACTIONS: u32 = 8;

impl Leases {
    pub(super) fn connect(&mut self, stage: &mut Stage) {
        let sessions = stage.processes.iter().filter(|process| process.name == "session").count();
        if sessions < MOST_SESSIONS {
            self.spawn(stage, "session", work);
        }
    }

    /// Lets a session wait for each lease that nobody got yet.
    pub(super) fn want(&mut self, stage: &mut Stage) {
        if !stage.processes.iter().any(|process| process.name == "waiter") {
            self.spawn(stage, "waiter", |process, leasing| {
                for name in 0..LEASES {
                    let transact =
                        |transaction: Transaction| acquire(transaction, vec![name], false, false, 60_000_000);
                    if run(process, leasing, &Memory::default(), transact).is_some() {
                        leasing.served.borrow_mut().push(name);
                    }
                }
            });
        }
    }

    /// Changes the definition of a lease by force.
    pub(super) fn define(&mut self, stage: &mut Stage) {
        if !stage.processes.iter().any(|process| process.name == "operator") {
            self.spawn(stage, "operator", |process, leasing| {
                run(process, leasing, &Memory::default(), define);
            });
        }
    }

    fn spawn(&self, stage: &mut Stage, name: &'static str, work: fn(&Process, &Rc<Leasing>)) {
        if stage.server(self.primary, |server| server.phase == Phase::Running) {
            let leasing = self.leasing.clone();
            stage.world.spawn(self.primary, name, Box::new(move |process: &Process| work(process, &leasing)));
        }
    }
}

/// The end of a session ends what is bound to it.
struct Session<'a>(&'a Process<'a>, &'a Leasing);

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let Self(process, leasing) = self;
        leasing.locks.unlock_session(process.id);
        let (now_us, process_id) = (process.world.now_us.get(), process.id);
        leasing.judged.borrow_mut().happened(None, now_us, Note::Ended { process: process_id });
        process.world.signal(process.server);
    }
}

fn work(process: &Process, leasing: &Rc<Leasing>) {
    let world = process.world;
    let _session = Session(process, leasing);
    let memory = Memory::default();
    for _ in 0..1 + world.below(TRANSACTIONS) {
        run(process, leasing, &memory, |transaction| transact(transaction, leasing));
        process.sleep(Duration::from_micros(world.one_of(&[0, 1000, 100_000, 1_000_000])));
    }
}

/// Runs a transaction. `None` too if a statement fails.
fn run<T>(
    process: &Process,
    leasing: &Rc<Leasing>,
    memory: &Memory,
    transact: impl FnOnce(Transaction) -> Option<T>,
) -> Option<T> {
    let transaction = Transaction::begin(process, leasing, memory);
    match catch_unwind(AssertUnwindSafe(|| transact(transaction))) {
        Ok(outcome) => outcome,
        Err(reason) if reason.is::<Canceled>() => {
            process.tell(|| "a statement fails".to_owned());
            None
        }
        Err(reason) => resume_unwind(reason),
    }
}

fn transact(transaction: Transaction, leasing: &Leasing) -> Option<()> {
    let world = transaction.process.world;
    let name = world.below(LEASES as u32) as usize;
    let timeout_us = world.one_of(&[20_000_000, 60_000_000, 500_000, 0]);
    let known: Vec<(usize, i64)> = leasing.tokens.borrow().iter().rev().take(6).copied().collect();
    // Rarely an older one.
    let token = |transaction: Transaction, then: fn(Transaction, usize, i64) -> Option<()>| match &known[..] {
        [] => None,
        known => {
            let (name, token) = known[(world.below(6).min(world.below(6)) as usize).min(known.len() - 1)];
            then(transaction, name, token)
        }
    };
    match world.below(16) {
        0..=3 => acquire(transaction, vec![name], false, false, timeout_us),
        4..=5 => acquire(transaction, vec![name], true, false, timeout_us),
        6 => acquire(transaction, vec![name], world.once_in(2), true, timeout_us),
        7 => acquire(transaction, (0..LEASES).collect(), world.once_in(3), false, timeout_us),
        8..=9 => token(transaction, extend),
        10..=11 => token(transaction, release),
        12..=14 => token(transaction, write),
        _ => revoke(transaction, name),
    }
}

fn acquire(transaction: Transaction, names: Vec<usize>, shared: bool, binds: bool, timeout_us: i64) -> Option<()> {
    let since = transaction.sent();
    let until_us = since.at_us + timeout_us;
    let mut call = Call {
        transaction: &transaction,
        names,
        wants_shared: shared,
        binds,
        until_us,
        since,
        defined: None,
        precedes_in: Vec::new(),
    };
    let granted = lease::acquire(&mut call)?;
    let world = transaction.process.world;
    if granted.len() > 1 {
        world.reach("several leases are acquired at once");
    }
    // In a transaction block.
    if world.once_in(4) {
        transaction.process.sleep(Duration::from_micros(world.one_of(&[1000, 3_000_000])));
        if world.once_in(3) {
            return None;
        }
    }
    transaction.commit(false);
    Some(())
}

fn one_row<'t, 'a>(transaction: &'t Transaction<'a>, name: usize, by: By) -> OneRow<'t, 'a> {
    OneRow { transaction, name, by, since: transaction.sent() }
}

fn extend(transaction: Transaction, name: usize, token: i64) -> Option<()> {
    let world = transaction.process.world;
    let ttl_us = world.one_of(&[None, None, Some(500_000), Some(10_000_000)]);
    let times = i32::from(world.once_in(3));
    let extended = lease::extend(&one_row(&transaction, name, By::Token(token)), token, ttl_us, times);
    refused_if_none(&transaction, extended)?;
    if world.once_in(4) {
        transaction.process.sleep(Duration::from_micros(world.one_of(&[1000, 3_000_000])));
    }
    transaction.commit(false);
    Some(())
}

fn release(transaction: Transaction, name: usize, token: i64) -> Option<()> {
    let released = lease::release(&one_row(&transaction, name, By::Token(token)), token);
    refused_if_none(&transaction, released)?;
    transaction.commit(false);
    Some(())
}

/// Writes in a transaction that has fenced. The client may be paused at any time.
fn write(transaction: Transaction, name: usize, token: i64) -> Option<()> {
    let (process, world) = (transaction.process, transaction.process.world);
    let slot = lease::fence(&one_row(&transaction, name, By::Token(token)), token);
    let slot = refused_if_none(&transaction, slot)?;
    transaction.effects.borrow_mut().fence(&name.to_string(), token, slot >= FIRST_SHARED);
    process.sleep(Duration::from_micros(world.one_of(&[0, 10_000, 2_000_000, 20_000_000])));
    if world.once_in(4) {
        lease::extend(&one_row(&transaction, name, By::Token(token)), token, None, 0)?;
    }
    transaction.set(Key::Written(name), Some(Row::Token(token)));
    world.reach("a fenced transaction has written");
    if world.once_in(4) {
        lease::release(&one_row(&transaction, name, By::Token(token)), token);
    }
    transaction.commit(world.once_in(2));
    Some(())
}

fn refused_if_none<T>(transaction: &Transaction, found: Option<T>) -> Option<T> {
    if found.is_none() {
        transaction.process.world.reach("a holder whose term is over is refused");
    }
    found
}

fn revoke(transaction: Transaction, name: usize) -> Option<()> {
    let rows: Vec<i32> = transaction.rows(name).into_keys().collect();
    let slot = *rows.get(transaction.process.world.below(rows.len().max(1) as u32) as usize)?;
    lease::revoke(&one_row(&transaction, name, By::Slot(slot)))?;
    transaction.process.world.reach("a term is revoked");
    transaction.commit(false);
    Some(())
}

fn define(transaction: Transaction) -> Option<()> {
    let world = transaction.process.world;
    let name = world.below(LEASES as u32) as usize;
    let before = transaction.definition(name).unwrap_or(UNDEFINED);
    let definition = LeaseDefinition {
        slots: world.one_of(&[before.slots, 1, 1, 2, 3]),
        ttl_us: world.one_of(&[before.ttl_us, 500_000, 3_000_000, 10_000_000]),
        lock_delay_us: world.one_of(&[before.lock_delay_us, 0, 1_000_000, 5_000_000]),
    };
    transaction.wait_for_grants(name);
    transaction.lock(Lock::Definition(name), Mode::Exclusive);
    transaction.wait_for_grants(name);
    if transaction.leasing.judged.borrow().held(name, world.now_us.get()) > definition.slots as usize {
        world.reach("more hold a lease than its new slots");
    }
    transaction.set(Key::LeaseDefinition(name), Some(Row::LeaseDefinition(definition)));
    transaction.note(Note::Defined { name, definition });
    transaction.commit(true);
    Some(())
}

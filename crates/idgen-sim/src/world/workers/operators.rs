//! What operators do in the coordinator's database.

use super::coordinator::{self, Coordination};
use super::database::{POOLS, Transaction};
use super::judge::Note;
use super::{COORDINATORS, MOST_WORKER_IDS, NAMES, Workers};
use crate::world::place;
use crate::world::process::Process;
use crate::world::rows::{Key, Row, WorkerRecord};
use crate::world::run::Act;
use crate::world::server::{Phase, Server};
use crate::world::stage::Stage;
use idgen_core::history::HistoryState;
use idgen_core::worker::Rectangle;
use idgen_core::worker::granting::PoolDefinition;
use idgen_core::worker::recording;
use idgen_core::worker::search::WorkerRow;
use std::ops::RangeInclusive;
use std::rc::Rc;

pub fn acts() -> Vec<Act<Workers>> {
    vec![
        |workers, stage| {
            let ttl_us = one_ttl_us(stage);
            workers.operate(stage, move |transaction, pool| alter(transaction, pool, None, Some(ttl_us)));
        },
        |workers, stage| {
            let last = stage.world.one_of(&[7, 3, 0]);
            workers.operate(stage, move |transaction, pool| alter(transaction, pool, Some(0..=last), None));
        },
        |workers, stage| workers.operate(stage, move_pool),
        |workers, stage| workers.coordination.max_lead_us.set(stage.world.one_of(&[60_000_000, 5_000_000, 0])),
        Workers::correct,
        Workers::drop_extension,
        Workers::keep_history,
        Workers::lie,
    ]
}

fn one_ttl_us(stage: &Stage) -> i64 {
    stage.world.one_of(&[10_000_000, 30_000_000, 3_000_000])
}

impl Workers {
    /// The pool that the coordinator has. There is one at a time, so that none grants a worker id of another.
    pub(super) fn pool(&self, stage: &Stage) -> usize {
        let has =
            |pool: &usize| stage.server(self.primary, |server| server.directory.rows().contains_key(&Key::Pool(*pool)));
        (0..POOLS.len()).find(has).unwrap_or(0)
    }

    fn has_pool(&self, stage: &Stage) -> bool {
        let pool = self.pool(stage);
        stage.server(self.primary, |server| server.directory.rows().contains_key(&Key::Pool(pool)))
    }

    /// Runs a transaction of an operator, which works with the pool that the coordinator has.
    fn operate(&self, stage: &mut Stage, work: impl FnOnce(&mut Transaction, usize) + 'static) {
        let is_busy = stage.processes.iter().any(|process| process.name == "operator");
        if self.phase(stage, self.primary) != Phase::Running || is_busy {
            return;
        }
        let (coordination, pool) = (self.coordination.clone(), self.pool(stage));
        let operator = move |process: &Process| {
            let mut transaction = Transaction::begin(process, &coordination);
            work(&mut transaction, pool);
            transaction.commit(true);
        };
        stage.world.spawn(self.primary, "operator", Box::new(operator));
    }

    /// Defines a pool if there is none.
    pub(super) fn keep_pool(&mut self, stage: &mut Stage) {
        if !self.has_pool(stage) {
            let ttl_us = one_ttl_us(stage);
            self.operate(stage, move |transaction, pool| {
                if transaction.pool(0).is_none() && transaction.pool(1).is_none() {
                    define(transaction, pool, PoolDefinition { range: 0..=MOST_WORKER_IDS - 1, ttl_us });
                }
            });
        }
    }

    /// For a worker id for each server.
    pub(super) fn widen_pool(&mut self, stage: &mut Stage) {
        let pool = Key::Pool(self.pool(stage));
        let is_narrow = stage.server(self.primary, |server| {
            matches!(server.directory.rows().get(&pool), Some(Row::Pool(pool)) if *pool.range.end() < MOST_WORKER_IDS - 1)
        });
        if is_narrow {
            self.operate(stage, |transaction, pool| alter(transaction, pool, Some(0..=MOST_WORKER_IDS - 1), None));
        }
    }

    /// Until then, rectangles may be forgotten.
    pub(super) fn forgotten_until_us(&self, stage: &Stage) -> i64 {
        stage.server(self.primary, |server| match server.directory.rows().get(&Key::WorkerHistory) {
            Some(Row::WorkerHistory(history)) => history.forgotten_until_us().unwrap_or(0),
            _ => 0,
        })
    }

    /// What the coordinator makes of the history in its data; `None` without one.
    pub(super) fn history_state(&self, stage: &Stage) -> Option<HistoryState> {
        stage.server(self.primary, |server| match server.directory.rows().get(&Key::WorkerHistory) {
            Some(Row::WorkerHistory(history)) => Some(place::identity(&server.directory).state_of(&history.identity)),
            _ => None,
        })
    }

    /// Begins a history in a coordinator that is a copy.
    pub(super) fn keep_history(&mut self, stage: &mut Stage) {
        if self.history_state(stage) == Some(HistoryState::Copied) {
            stage.world.reach("a copy of the coordinator begins a history");
            self.operate(stage, |transaction, _| {
                recording::begin_another(transaction, None);
            });
        }
    }

    fn lie(&mut self, stage: &mut Stage) {
        if self.phase(stage, self.primary) == Phase::Running && self.has_pool(stage) {
            let (coordination, pool) = (self.coordination.clone(), POOLS[self.pool(stage)]);
            let role = move |process: &Process| coordinator::lie(process, &coordination, pool);
            stage.world.spawn(self.primary, "role", Box::new(role));
        }
    }

    /// Corrects the end of a worker id whose last holder is known to have stopped.
    fn correct(&mut self, stage: &mut Stage) {
        let is_running = |owner: &str| {
            (COORDINATORS..NAMES.len()).any(|index| {
                let is_it = |server: &Server| {
                    server.directory.identity.to_string() == owner && server.phase != Phase::Stopped && !server.is_void
                };
                stage.server(index, |server| is_it(server))
            })
        };
        let pool = self.pool(stage);
        let rows = stage.server(self.primary, |server| server.directory.rows());
        let stopped = (0..MOST_WORKER_IDS).find_map(|worker_id| match rows.get(&Key::Worker(pool, worker_id)) {
            Some(Row::Worker(record)) => {
                let owner = record.row.owner.as_deref()?;
                (!is_running(owner)).then_some((worker_id, record.row.token?, owner.to_owned()))
            }
            _ => None,
        });
        let Some((worker_id, token, owner)) = stopped else { return };
        let coordination = self.coordination.clone();
        stage.world.reach("the record of a worker id is corrected");
        stage.world.tell(self.primary, || format!("worker id {worker_id} of {owner} is corrected"));
        self.operate(stage, move |transaction, pool| correct(transaction, &coordination, pool, (worker_id, token)));
    }

    /// The extension is dropped, and created again. The label stays.
    fn drop_extension(&mut self, stage: &mut Stage) {
        // With pools of its own, a copy is a second coordinator. And without a label, nothing else tells of grants that a cold
        // backup has forgotten.
        let has_label = stage.server(self.primary, |server| server.directory.rows().contains_key(&Key::WorkerLabel));
        let is_excepted = match self.history_state(stage) {
            Some(HistoryState::Copied) => true,
            Some(HistoryState::Interrupted) => !has_label,
            Some(HistoryState::Own) | None => false,
        };
        if self.phase(stage, self.primary) != Phase::Running || is_excepted {
            return;
        }
        stage.world.tell(self.primary, || "the extension is dropped".to_owned());
        stage.world.reach("the coordinator's extension is dropped");
        stage.end_processes(self.primary);
        self.operate(stage, |transaction, _| {
            for pool in 0..POOLS.len() {
                transaction.delete(Key::Pool(pool));
                (0..MOST_WORKER_IDS).for_each(|worker_id| transaction.delete(Key::Worker(pool, worker_id)));
            }
            transaction.delete(Key::WorkerHistory);
            transaction.note(Note::Dropped);
        });
    }
}

fn define(transaction: &mut Transaction, pool: usize, definition: PoolDefinition) {
    recording::begin(transaction);
    let range = definition.range.clone();
    transaction.set(Key::Pool(pool), Row::Pool(definition));
    add_rows(transaction, pool, range);
}

fn add_rows(transaction: &mut Transaction, pool: usize, range: RangeInclusive<i32>) {
    for worker_id in range {
        if transaction.worker(pool, worker_id).is_none() {
            let row = WorkerRow { worker_id, token: None, owner: None, not_after_us: None, epoch: 0 };
            let rectangle = Rectangle { not_before_us: i64::MIN, not_after_us: i64::MIN };
            transaction
                .set(Key::Worker(pool, worker_id), Row::Worker(WorkerRecord { row, rectangle, acquired_us: None }));
        }
    }
}

/// As the function `worker_pool_alter`, by force.
fn alter(transaction: &mut Transaction, pool: usize, range: Option<RangeInclusive<i32>>, ttl_us: Option<i64>) {
    transaction.lock_row(Key::Pool(pool), false);
    let Some(before) = transaction.pool(pool) else { return };
    let range = range.unwrap_or(before.range);
    end_tokens(transaction, pool, &range);
    transaction.set(
        Key::Pool(pool),
        Row::Pool(PoolDefinition { range: range.clone(), ttl_us: ttl_us.unwrap_or(before.ttl_us) }),
    );
    add_rows(transaction, pool, range);
}

fn end_tokens(transaction: &mut Transaction, pool: usize, range: &RangeInclusive<i32>) {
    for worker_id in (0..MOST_WORKER_IDS).filter(|worker_id| !range.contains(worker_id)) {
        transaction.lock_row(Key::Worker(pool, worker_id), false);
        if let Some(mut record) = transaction.worker(pool, worker_id) {
            record.row.token = None;
            transaction.set(Key::Worker(pool, worker_id), Row::Worker(record));
        }
    }
}

/// As the function `worker_move`, to a pool that the same transaction defines.
fn move_pool(transaction: &mut Transaction, from: usize) {
    let to = 1 - from;
    transaction.lock_row(Key::Pool(from), false);
    let Some(definition) = transaction.pool(from) else { return };
    transaction.set(Key::Pool(to), Row::Pool(definition.clone()));
    for worker_id in 0..MOST_WORKER_IDS {
        transaction.lock_row(Key::Worker(from, worker_id), false);
        if let Some(record) = transaction.worker(from, worker_id).filter(|record| record.acquired_us.is_some()) {
            transaction.set(Key::Worker(to, worker_id), Row::Worker(record));
        }
        transaction.delete(Key::Worker(from, worker_id));
    }
    add_rows(transaction, to, definition.range);
    transaction.delete(Key::Pool(from));
}

fn correct(
    transaction: &mut Transaction,
    coordination: &Rc<Coordination>,
    pool: usize,
    (worker_id, token): (i32, i64),
) {
    transaction.lock_row(Key::Pool(pool), false);
    transaction.lock_row(Key::Worker(pool, worker_id), false);
    let of_token = |record: &WorkerRecord| record.row.token == Some(token);
    let Some(mut record) = transaction.worker(pool, worker_id).filter(of_token) else { return };
    let used_until_us = coordination.judged.borrow().used_until_us(token).unwrap_or(record.rectangle.not_before_us);
    record.rectangle.not_before_us = record.rectangle.not_before_us.min(used_until_us);
    record.rectangle.not_after_us = used_until_us;
    (record.row.token, record.row.not_after_us) = (None, Some(used_until_us));
    transaction.set(Key::Worker(pool, worker_id), Row::Worker(record));
    transaction.note(Note::Released { token, used_until_us });
}

//! Statements by which operators change tags and their attachments.

use super::super::rows::Key;
use super::transaction::{Raised, Transaction, UNKNOWN, guarded, raise};
use super::{Backend, COORDINATORS, TAGS};
use idgen_core::segment::TagKey;
use idgen_core::segment::fleet::rows;
use idgen_core::segment::tag::{Link, TagDefinition, TagRow};

/// Values of a fleet are above this. Below are those that servers draw from rows of their own, before they attach.
pub const FLEET: i64 = 10_000_000_000;
/// Each row that a server creates for itself has so many.
const OWN: i64 = 1_000_000;
/// Each server that draws from a row of its own later gets so many values that the fleet never has.
const REGION: i64 = 10_000_000_000;

const DEFINITION: TagDefinition = TagDefinition {
    max_id: -1,
    step: 5,
    min_step: 1,
    max_step: 1000,
    target_us: 1_000_000,
    stride: 1,
    residue: 0,
    upper_bound: i64::MAX,
};

fn new_row(backend: &Backend, tag: usize, definition: TagDefinition) -> TagRow {
    let creation = backend.world().identity() as i64;
    let (key, tag) = (TagKey { database: 5, creation }, TAGS[tag].to_owned());
    TagRow { key, tag, version: 1, created_here: false, definition, link: Link::default() }
}

/// Runs a statement in a transaction of its own.
fn run(backend: &Backend, name: &str, work: impl FnOnce(&mut Transaction)) {
    let mut transaction = Transaction::new(backend);
    match guarded(|| work(&mut transaction)) {
        Ok(()) => drop(transaction.commit()),
        Err(Raised(reason)) => backend.process.tell(|| format!("cannot {name}: {reason}")),
    }
}

/// Changes a row that is locked.
fn alter(backend: &Backend, name: &str, tag: usize, change: impl FnOnce(&mut TagRow)) {
    run(backend, name, |transaction| {
        transaction.await_lock(tag);
        let mut row = transaction.tag(tag).unwrap_or_else(|| raise(UNKNOWN));
        change(&mut row);
        row.definition.check().unwrap_or_else(|_| raise(Raised("out of range")));
        backend.process.tell(|| {
            let TagDefinition { max_id, min_step, max_step, upper_bound, .. } = row.definition;
            format!("{name} {}: {max_id} of {upper_bound}, {min_step} to {max_step} a step, {:?}", TAGS[tag], row.link)
        });
        transaction.write(tag, row, false);
    });
}

/// Creates a tag, unless it exists.
fn create(backend: &Backend, tag: usize, definition: TagDefinition) {
    run(backend, "create", |transaction| {
        transaction.await_lock(tag);
        if transaction.tag(tag).is_none() {
            backend.process.tell(|| format!("creates {} above {}", TAGS[tag], definition.max_id));
            transaction.write(tag, new_row(backend, tag, definition), false);
        }
    });
}

/// At a server, with values that no other server has.
pub fn create_own(backend: &Backend, tag: usize) {
    let (stride, residue) = (16, backend.server() as i64);
    let max_id = OWN * backend.world().identity() as i64;
    create(backend, tag, TagDefinition { max_id, stride, residue, upper_bound: max_id + OWN - 1, ..DEFINITION });
}

pub fn attach(backend: &Backend, tag: usize) {
    let number = backend.world().identity() as i64;
    let reserve_us = backend.world().one_of(&[2_000_000, 10_000_000, 600_000_000]);
    run(backend, "attach", |transaction| {
        transaction.await_lock(tag);
        let row = transaction.tag(tag).unwrap_or_else(|| new_row(backend, tag, DEFINITION));
        let mut row = transaction.write(tag, row, false);
        if row.link.source.is_some() && !row.link.is_attached() {
            backend.world().reach("a server returns");
        }
        row.attach(number, reserve_us);
        backend.process.tell(|| format!("attaches {} with {}: {:?}", TAGS[tag], row.definition.max_id, row.link));
        transaction.write(tag, row, false);
    });
}

pub fn detach(backend: &Backend, tag: usize) {
    alter(backend, "detach", tag, |row| match row.link.is_attached() {
        true => row.detach(),
        false => raise(Raised("it is not attached")),
    });
    backend.summon_worker(true, false);
}

/// A detached tag gets values that the fleet never has.
pub fn draw_from_own_row(backend: &Backend, tag: usize) {
    let first = REGION * backend.world().identity() as i64;
    alter(backend, "alter", tag, |row| match row.is_detached() && row.definition.max_id < first {
        true => (row.definition.max_id, row.definition.upper_bound) = (first, first + REGION - 1),
        false => raise(Raised("it is not detached")),
    });
    backend.world().reach("a detached server draws from its own row");
}

/// Drops the tag of a server, which tells the coordinator nothing.
pub fn drop_here(backend: &Backend, tag: usize) {
    run(backend, "drop", |transaction| {
        transaction.await_lock(tag);
        transaction.delete(tag);
    });
}

/// Settings of a server.
pub fn alter_step(backend: &Backend, tag: usize) {
    let (least, most) = backend.world().one_of(&[(1, 1000), (1, 1), (1, 10), (20, 50)]);
    alter(backend, "alter", tag, |row| {
        let step = row.definition.step.min(most).max(least);
        (row.definition.step, row.definition.min_step, row.definition.max_step) = (step, least, most);
    });
}

/// At the coordinator: another stride, more values, or a gap.
pub fn alter_shared(backend: &Backend, tag: usize) {
    let kind = backend.world().below(3);
    alter(backend, "alter", tag, |row| {
        let TagDefinition { max_id, upper_bound, stride, residue, .. } = &mut row.definition;
        match kind {
            0 => *max_id = (*max_id + 100).min(*upper_bound),
            1 => (*stride, *residue) = if *stride == 1 { (3, 2) } else { (1, 0) },
            _ if *upper_bound == i64::MAX => *upper_bound = *max_id + 50,
            _ => *upper_bound = i64::MAX,
        }
    });
}

pub fn raise_bound(backend: &Backend, tag: usize) {
    alter(backend, "alter", tag, |row| row.definition.upper_bound = i64::MAX);
}

/// The operator of the coordinator gives servers up that have not reported.
pub fn resume(backend: &Backend, tag: usize) {
    let highest = backend.shared.judge.borrow().highest(tag);
    run(backend, "resume", |transaction| {
        if transaction.tag(tag).is_some() && rows::resume(transaction, TAGS[tag], highest).is_err() {
            raise(Raised("the upper bound is lower"));
        }
        backend.process.tell(|| format!("resumes {} above {highest}", TAGS[tag]));
    });
}

/// Drops the coordinator's tag, and creates it again.
pub fn drop_and_create(backend: &Backend, tag: usize) {
    // Values of its ring may still be drawn.
    let mut max_id = FLEET;
    run(backend, "drop", |transaction| {
        transaction.await_lock(tag);
        max_id = transaction.tag(tag).unwrap_or_else(|| raise(UNKNOWN)).definition.max_id;
        transaction.delete(tag);
        backend.process.tell(|| format!("drops {}", TAGS[tag]));
        backend.world().reach("a tag is created again");
    });
    backend.process.step();
    create_again(backend, tag, max_id);
}

/// Creates a coordinator's tag that was dropped. The coordinator knows the servers that have values of it, or the operator
/// begins above all values that were drawn, and above this one.
pub fn create_again(backend: &Backend, tag: usize, above: i64) {
    let servers = COORDINATORS..backend.shared.memories.borrow().len();
    let number = |server: usize| super::tag_row(backend.world(), server, tag)?.link.server;
    let numbers: Vec<i64> = servers.filter_map(number).collect();
    run(backend, "create", |transaction| {
        transaction.await_lock(tag);
        let is_known = |number: &i64| transaction.read(Key::Report(tag, *number)).is_some();
        let are_known = !numbers.is_empty() && numbers.iter().all(is_known);
        let max_id = if are_known { FLEET } else { above.max(backend.shared.judge.borrow().highest_used(tag)) };
        if transaction.tag(tag).is_none() {
            backend.process.tell(|| format!("creates {} above {max_id}", TAGS[tag]));
            transaction.write(tag, new_row(backend, tag, TagDefinition { max_id, ..DEFINITION }), false);
        }
    });
}

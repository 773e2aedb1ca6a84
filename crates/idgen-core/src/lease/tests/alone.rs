//! A model of grants that do not lock the definition, beside grants that do and changes of the definition: every order of
//! their steps. A step is what the lock manager, a row or a commit makes atomic.

use std::collections::HashSet;

/// What a process waits for, writes and releases is in the steps of [`World::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Process {
    /// A grant of the only row, slot 0.
    Alone,
    /// A grant under the lock of the definition: of slot 1, which has no row, if the definition has it.
    Ordered,
    /// Defines this many slots, whoever holds them.
    Define(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// By process: the next step; `None` once it has ended.
    steps: Vec<Option<u8>>,
    /// The committed definition.
    slots: usize,
    /// How many changes PostgreSQL has told of, and the definition after them, which can be older than the committed one.
    told: (u8, usize),
    /// The same as the lone grant has read it.
    known: (u8, usize),
    /// The committed holders of slots 0 and 1.
    is_held: [bool; 2],
    /// Slot 1 is written, and not committed.
    is_written: bool,
    /// Slot 0's row is locked for a grant, and by how many changes of the definition its key is shared.
    is_locked: bool,
    shares: u8,
    /// The lock of the definition: a grant shares it, or a process has it.
    is_shared: bool,
    changed_by: Option<usize>,
}

/// Rules of the protocol, which a control leaves out.
#[derive(Clone, Copy)]
struct Rules {
    define_shares_the_row: bool,
    alone_looks_again: bool,
}

impl World {
    /// The state after the next step of a process; `None` if it waits.
    fn step(&self, index: usize, process: Process, rules: Rules) -> Option<World> {
        let mut next = self.clone();
        let step = self.steps[index]?;
        next.steps[index] = Some(step + 1);
        let ends = |mut world: World| {
            world.steps[index] = None;
            Some(world)
        };
        match (process, step) {
            (Process::Alone, 0) => next.known = self.told,
            // A definition of one slot, and one row, which is free.
            (Process::Alone, 1) if self.known.1 > 1 || self.is_held != [false, false] => return ends(next),
            (Process::Alone, 1) => {}
            (Process::Alone, 2) if self.shares > 0 => return ends(next),
            (Process::Alone, 2) => next.is_locked = true,
            (Process::Alone, 3) if rules.alone_looks_again && self.told != self.known => {
                next.is_locked = false;
                return ends(next);
            }
            (Process::Alone, 3) => {}
            (Process::Alone, _) => {
                next.is_locked = false;
                next.grant(0);
                return ends(next);
            }
            (Process::Ordered, 0) if self.changed_by.is_some() => return None,
            (Process::Ordered, 0) => next.is_shared = true,
            (Process::Ordered, 1) => {
                next.is_shared = false;
                let taken = self.is_held.iter().filter(|is_held| **is_held).count();
                if self.slots < 2 || taken >= self.slots {
                    return ends(next);
                }
                next.is_written = true;
            }
            (Process::Ordered, _) => {
                next.is_written = false;
                next.grant(1);
                return ends(next);
            }
            (Process::Define(_), 0) if self.is_shared || self.changed_by.is_some() => return None,
            (Process::Define(_), 0) => next.changed_by = Some(index),
            // Waits for grants that are written and not committed, and for the one that has locked the row.
            (Process::Define(_), 1) if self.is_written => return None,
            (Process::Define(_), 1) if !rules.define_shares_the_row => {}
            (Process::Define(_), 1) if self.is_locked => return None,
            (Process::Define(_), 1) => next.shares += 1,
            (Process::Define(slots), 2) => next.slots = slots,
            (Process::Define(slots), 3) => next.told = (self.told.0 + 1, slots),
            (Process::Define(_), _) => {
                next.changed_by = None;
                next.shares -= u8::from(rules.define_shares_the_row);
                return ends(next);
            }
        }
        Some(next)
    }

    /// Commits a grant. L2: there are not more holders than slots.
    fn grant(&mut self, slot: usize) {
        self.is_held[slot] = true;
        let holders = self.is_held.iter().filter(|is_held| **is_held).count();
        assert!(holders <= self.slots, "{holders} holders of {} slots", self.slots);
    }
}

/// Tries every order. Returns how many states there are.
fn explore(rules: Rules) -> usize {
    let processes = [Process::Alone, Process::Define(2), Process::Ordered, Process::Define(1)];
    let first = World {
        steps: vec![Some(0); processes.len()],
        slots: 1,
        told: (0, 1),
        known: (0, 1),
        is_held: [false, false],
        is_written: false,
        is_locked: false,
        shares: 0,
        is_shared: false,
        changed_by: None,
    };
    let (mut seen, mut open) = (HashSet::new(), vec![first]);
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        let next: Vec<World> =
            processes.iter().enumerate().filter_map(|(index, process)| world.step(index, *process, rules)).collect();
        assert!(!next.is_empty() || world.steps.iter().all(Option::is_none), "all wait: {world:?}");
        open.extend(next);
    }
    seen.len()
}

const ALL: Rules = Rules { define_shares_the_row: true, alone_looks_again: true };

#[test]
fn grant_of_the_only_row_needs_no_lock_of_the_definition() {
    assert!(explore(ALL) > 100);
}

#[test]
#[should_panic(expected = "2 holders of 1 slots")]
fn grant_needs_a_change_of_the_definition_to_share_its_row() {
    explore(Rules { define_shares_the_row: false, ..ALL });
}

#[test]
#[should_panic(expected = "2 holders of 1 slots")]
fn grant_needs_a_second_look_at_the_definition() {
    explore(Rules { alone_looks_again: false, ..ALL });
}

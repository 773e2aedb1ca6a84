//! Requests in turns: the values of a tag of a fleet in one line, over all servers.
//!
//! A value that was asked for before a call began may be lower than one that another server has drawn before the call.
//! So each request is a turn, and a call draws only what was brought by a turn that has begun after the call. The values
//! of a turn that nobody has drawn are discarded when the next one brings its own.

use crate::sync::{AtomicU64, Ordering};

/// The turns of one ring.
#[derive(Debug)]
pub struct Turns {
    /// How many have begun.
    begun: AtomicU64,
    /// The last one that has brought values.
    brought: AtomicU64,
    /// How many values the calls lack that wait since an even or an odd turn has begun.
    lacking: [AtomicU64; 2],
}

/// A turn that has begun, and the values to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    pub number: u64,
    pub lacking: u64,
}

/// Values that a call lacks, as they are counted.
#[derive(Clone, Copy, Debug)]
pub struct Lack {
    side: usize,
    count: u64,
}

impl Turns {
    #[allow(clippy::new_without_default, reason = "turns are made in place, in shared memory")]
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { begun: zero(), brought: zero(), lacking: [zero(), zero()] }
    }

    /// A call begins. It may draw once `is_open` says so of the result.
    pub fn enter(&self) -> u64 {
        // Sequentially consistent, as all accesses that `begin` relies on.
        self.begun.load(Ordering::SeqCst)
    }

    /// True if a call that has entered so may draw what the ring has.
    pub fn is_open(&self, entered: u64) -> bool {
        // Acquire: the values of earlier turns are gone from the ring.
        self.brought.load(Ordering::Acquire) > entered
    }

    /// A call that has entered waits for so many values.
    pub fn lack(&self, count: u64) -> Lack {
        let side = (self.begun.load(Ordering::SeqCst) % 2) as usize;
        self.lacking[side].fetch_add(count, Ordering::SeqCst);
        Lack { side, count }
    }

    /// The call looks at the ring now, or waits no more.
    pub fn look(&self, lack: Lack) {
        self.lacking[lack.side].fetch_sub(lack.count, Ordering::SeqCst);
    }

    /// The values that calls lack, except those that waited before the last turn has begun: they look again when it ends,
    /// whether it brings values or not.
    pub fn lacking(&self) -> u64 {
        self.lacking[(self.begun.load(Ordering::SeqCst) % 2) as usize].load(Ordering::SeqCst)
    }

    /// Begins a turn. Only one process does so.
    pub fn begin(&self) -> Turn {
        let begun = self.begun.load(Ordering::SeqCst);
        // Before the turn begins: each call that is counted has entered before, and may draw its values.
        let lacking = self.lacking();
        self.begun.store(begun + 1, Ordering::SeqCst);
        Turn { number: begun + 1, lacking }
    }

    /// The ring has the values of a turn, and no earlier ones.
    pub fn bring(&self, turn: u64) {
        // Release: see `is_open`.
        self.brought.store(turn, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_may_draw_from_the_next_turn_that_brings_values() {
        let turns = Turns::new();
        let early = turns.enter();
        assert!(!turns.is_open(early));
        let turn = turns.begin();
        let late = turns.enter();
        turns.bring(turn.number);
        assert!(turns.is_open(early) && !turns.is_open(late));
        // One that fails brings nothing.
        turns.begin();
        assert!(!turns.is_open(late));
        turns.bring(turns.begin().number);
        assert!(turns.is_open(late));
    }

    #[test]
    fn each_turn_asks_for_what_calls_lack_since_the_last_one() {
        let turns = Turns::new();
        let first = turns.lack(2);
        assert_eq!((turns.lacking(), turns.begin()), (2, Turn { number: 1, lacking: 2 }));
        let second = turns.lack(3);
        assert_eq!(turns.lacking(), 3);
        turns.look(first);
        assert_eq!(turns.begin(), Turn { number: 2, lacking: 3 });
        // Not served: it looks, and waits again.
        turns.look(second);
        let again = turns.lack(3);
        assert_eq!(turns.begin().lacking, 3);
        turns.look(again);
        assert_eq!([turns.begin().lacking, turns.begin().lacking], [0, 0]);
    }
}

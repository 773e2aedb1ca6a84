//! How the head of a queue waits: what it does after an attempt that has granted nothing.
//!
//! Fences share the lock of a row, and PostgreSQL grants it past a stronger request that waits. So fences of overlapping
//! transactions could delay a take-over forever. A take-over that waits for a row therefore takes precedence in its slot, which
//! later fences respect, and gives it up where the slot is no longer what it waits for.

/// What kept an attempt from a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Rows have changed since they were read.
    Changed,
    /// No slot becomes free before this time unless something changes. `None` if the time is not known.
    NoSlot { until_us: Option<i64> },
    /// A slot is free, but other transactions have locked these rows: its own, and those of terms that the grant would end.
    Locked {
        slots: Vec<i32>,
        /// The end of a term in another slot can make a slot free sooner.
        has_other_terms: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Attempt,
    /// Sleep until this time, or until something changes.
    Sleep {
        until_us: Option<i64>,
    },
    /// Take precedence in these slots. Then wait for the transactions that have locked the rows; or sleep.
    Precede {
        slots: Vec<i32>,
        then_sleep: bool,
    },
}

/// While another term can end first, sleep this long before waiting for rows in the lock manager. Only the lock manager
/// detects deadlocks.
const SLEEP_BEFORE_ROWS_US: i64 = 10_000_000;

/// The wait of one call.
#[derive(Debug, Default)]
pub struct Waiting {
    /// When the last wait for rows ended, or the first one would have begun.
    since_us: Option<i64>,
}

impl Waiting {
    /// Precedence is given up in every slot that the step does not name.
    pub fn after(&mut self, obstacle: Obstacle, now_us: i64) -> Step {
        match obstacle {
            Obstacle::Changed => Step::Attempt,
            Obstacle::NoSlot { until_us } => {
                self.since_us = None;
                Step::Sleep { until_us }
            }
            Obstacle::Locked { slots, has_other_terms } => {
                let since_us = *self.since_us.get_or_insert(now_us);
                let then_sleep = has_other_terms && now_us.saturating_sub(since_us) < SLEEP_BEFORE_ROWS_US;
                if !then_sleep {
                    self.since_us = Some(now_us);
                }
                Step::Precede { slots, then_sleep }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked(slots: &[i32], has_other_terms: bool) -> Obstacle {
        Obstacle::Locked { slots: slots.to_vec(), has_other_terms }
    }

    #[test]
    fn rows_are_waited_for_at_once_if_nothing_else_can_make_a_slot_free() {
        let mut waiting = Waiting::default();
        let precede = |slots: &[i32], then_sleep| Step::Precede { slots: slots.to_vec(), then_sleep };
        assert_eq!(waiting.after(locked(&[0], false), 5), precede(&[0], false));
        assert_eq!(waiting.after(Obstacle::Changed, 5), Step::Attempt);
        assert_eq!(waiting.after(locked(&[0, 2], false), 6), precede(&[0, 2], false));
    }

    /// So that a deadlock through them is found.
    #[test]
    fn rows_are_waited_for_in_turn_with_sleep_beside_other_terms() {
        let mut waiting = Waiting::default();
        let mut sleeps = |obstacle, now_us| match waiting.after(obstacle, now_us) {
            Step::Precede { then_sleep, .. } => then_sleep,
            step => panic!("{step:?}"),
        };
        assert!(sleeps(locked(&[1], true), 7));
        assert!(sleeps(locked(&[1], true), 6 + SLEEP_BEFORE_ROWS_US));
        assert!(!sleeps(locked(&[2], true), 7 + SLEEP_BEFORE_ROWS_US));
        assert!(sleeps(locked(&[2], true), 8 + SLEEP_BEFORE_ROWS_US));
        // Where no slot was free in between, the rows are others.
        assert_eq!(waiting.after(Obstacle::NoSlot { until_us: Some(3) }, i64::MAX), Step::Sleep { until_us: Some(3) });
        assert_eq!(waiting.after(locked(&[1], true), i64::MAX), Step::Precede { slots: vec![1], then_sleep: true });
    }
}

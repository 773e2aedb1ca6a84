//! Settled values of a tag: no transaction of the server can commit a row with such a value any more.
//!
//! Values have no time. So the readers of settled values count their readings, and a transaction keeps the count at its
//! first draw: see [`crate::draws`]. A reader looks first where the values of the tag are, then adds its reading to the
//! count. A transaction that has drawn a value up to there has a lower count than that reading. Once all transactions with
//! lower counts have ended, these values are settled.

/// A reading: values up to `value` were drawn before it, or never will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub value: i64,
    pub number: i64,
}

/// What readings have found for one tag. Protected by the lock of the table of rings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settling {
    /// The reading that is settled next. Another one does not replace it: where transactions overlap, the newest reading
    /// always has open ones before it.
    next: Option<Reading>,
    settled: Option<i64>,
}

impl Settling {
    /// The greatest settled value that is known, by a new reading, and the least count of the open transactions. Readings
    /// can arrive in another order than they were made.
    pub fn settle(&mut self, new: Reading, earliest: Option<i64>) -> Option<i64> {
        let is_over = |reading: &Reading| earliest.is_none_or(|since| since >= reading.number);
        let over = [self.next, Some(new)].into_iter().flatten().filter(is_over).map(|reading| reading.value).max();
        self.settled = self.settled.max(over);
        self.next = self.next.filter(|next| !is_over(next)).or(Some(new)).filter(|next| !is_over(next));
        self.settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reading(value: i64, number: i64) -> Reading {
        Reading { value, number }
    }

    #[test]
    fn reading_is_settled_once_all_transactions_before_it_have_ended() {
        let mut settling = Settling::default();
        assert_eq!(settling.settle(reading(10, 1), Some(0)), None);
        // One that has begun to draw after the reading does not count.
        assert_eq!(settling.settle(reading(20, 2), Some(1)), Some(10));
        assert_eq!(settling.settle(reading(30, 3), Some(1)), Some(10));
        assert_eq!(settling.settle(reading(40, 4), Some(2)), Some(20));
        assert_eq!(settling.settle(reading(50, 5), None), Some(50));
    }

    #[test]
    fn late_reading_lowers_nothing() {
        let mut settling = Settling::default();
        assert_eq!(settling.settle(reading(50, 5), None), Some(50));
        assert_eq!(settling.settle(reading(40, 4), None), Some(50));
    }

    /// A transaction of the property: drawn under a count, and open until it has ended.
    #[derive(Clone, Debug)]
    enum Event {
        Draw { transaction: usize },
        End { transaction: usize },
        Read,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => (0usize..4).prop_map(|transaction| Event::Draw { transaction }),
            2 => (0usize..4).prop_map(|transaction| Event::End { transaction }),
            2 => Just(Event::Read),
        ]
    }

    proptest! {
        #[test]
        fn settled_values_are_of_ended_transactions_and_are_reached(events in prop::collection::vec(event(), 1..80)) {
            let (mut settling, mut readings, mut drawn) = (Settling::default(), 0, 0);
            let mut open: [Option<(i64, Vec<i64>)>; 4] = Default::default();
            let earliest = |open: &[Option<(i64, Vec<i64>)>]| open.iter().flatten().map(|(since, _)| *since).min();
            for event in events {
                match event {
                    Event::Draw { transaction } => {
                        drawn += 1;
                        open[transaction].get_or_insert((readings, Vec::new())).1.push(drawn);
                    }
                    Event::End { transaction } => open[transaction] = None,
                    Event::Read => {
                        readings += 1;
                        let settled = settling.settle(reading(drawn, readings), earliest(&open)).unwrap_or(-1);
                        let held = open.iter().flatten().flat_map(|(_, values)| values).min();
                        prop_assert!(held.is_none_or(|held| settled < *held), "{settled} has {held:?} below it");
                        prop_assert!(held.is_some() || settled == drawn);
                    }
                }
            }
            // Each transaction ends, and another one begins before the last has ended.
            open[0].get_or_insert((readings, Vec::new()));
            let before = drawn;
            for turn in 1..4 {
                readings += 1;
                settling.settle(reading(drawn, readings), earliest(&open));
                drawn += 1;
                let next = (readings, vec![drawn]);
                open = [const { None }; 4];
                open[turn] = Some(next);
            }
            readings += 1;
            prop_assert!(settling.settle(reading(drawn, readings), earliest(&open)).is_some_and(|settled| settled >= before));
        }
    }
}

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

/// What a reader has seen of open transactions, between its look at the values and its number.
#[derive(Clone, Copy, Debug)]
pub struct Scan {
    /// How many readings there were before it. It says nothing about later ones: a transaction may have drawn since.
    pub begun: i64,
    /// The least count of the open transactions.
    pub earliest: Option<i64>,
}

/// What readings have found for one tag. It outlives the tag's ring: where tags displace each other, none would ever be
/// settled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settling {
    /// The reading that is settled next. Another one does not replace it: where transactions overlap, the newest reading
    /// always has open ones before it.
    next: Option<Reading>,
    settled: Option<i64>,
}

impl Settling {
    /// The greatest settled value that is known, by a new reading and its scan. Readings can arrive in another order than they
    /// were made.
    pub fn settle(&mut self, new: Reading, scan: Scan) -> Option<i64> {
        let is_over = |reading: &Reading| scan.earliest.is_none_or(|since| since >= reading.number);
        let is_known = |next: &Reading| next.number <= scan.begun && is_over(next);
        let over = [self.next.filter(is_known), Some(new).filter(is_over)];
        self.settled = self.settled.max(over.into_iter().flatten().map(|reading| reading.value).max());
        self.next = self.next.filter(|next| !is_known(next)).or(Some(new).filter(|new| !is_over(new)));
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

    /// By a scan right before the reading.
    fn settle(settling: &mut Settling, new: Reading, earliest: Option<i64>) -> Option<i64> {
        settling.settle(new, Scan { begun: new.number - 1, earliest })
    }

    #[test]
    fn reading_is_settled_once_all_transactions_before_it_have_ended() {
        let mut settling = Settling::default();
        assert_eq!(settle(&mut settling, reading(10, 1), Some(0)), None);
        // One that has begun to draw after the reading does not count.
        assert_eq!(settle(&mut settling, reading(20, 2), Some(1)), Some(10));
        assert_eq!(settle(&mut settling, reading(30, 3), Some(1)), Some(10));
        assert_eq!(settle(&mut settling, reading(40, 4), Some(2)), Some(20));
        assert_eq!(settle(&mut settling, reading(50, 5), None), Some(50));
    }

    #[test]
    fn late_reading_lowers_nothing() {
        let mut settling = Settling::default();
        assert_eq!(settle(&mut settling, reading(50, 5), None), Some(50));
        assert_eq!(settle(&mut settling, reading(40, 4), None), Some(50));
    }

    /// Another reader has made a reading, and a transaction has drawn, since this one's scan.
    #[test]
    fn scan_settles_no_later_reading() {
        let mut settling = Settling::default();
        assert_eq!(settle(&mut settling, reading(20, 1), Some(0)), None);
        let early = Scan { begun: 0, earliest: None };
        assert_eq!(settling.settle(reading(10, 2), early), Some(10));
        assert_eq!(settle(&mut settling, reading(30, 3), Some(0)), Some(10));
        assert_eq!(settle(&mut settling, reading(40, 4), Some(1)), Some(20));
    }

    #[test]
    fn tag_keeps_its_place_until_others_need_it() {
        use crate::segment::TagKey;
        use crate::segment::chains::{Chains, END, TagMap};
        let (mut places, [mut heads, mut nexts]) = ([None; 2], [const { [END; 2] }; 2]);
        let chains = Chains { heads: &mut heads, nexts: &mut nexts };
        let mut tags = TagMap { places: &mut places, chains, count: 0, hand: 0 };
        let key = |creation| TagKey { database: creation as u32, creation };
        let value = |tags: &mut TagMap<Settling>, creation| settle(tags.of(key(creation)), reading(0, 1), Some(0));
        for creation in [1, 2] {
            settle(tags.of(key(creation)), reading(creation, 1), None);
        }
        assert_eq!([1, 2].map(|creation| value(&mut tags, creation)), [Some(1), Some(2)]);
        // It takes the place of 1.
        assert_eq!([3, 2].map(|creation| value(&mut tags, creation)), [None, Some(2)]);
        tags.forget(2);
        assert_eq!([3, 2].map(|creation| value(&mut tags, creation)), [None, None]);
    }

    /// What a transaction or a reader does next. A reader looks at the values, scans, and takes its number, in steps.
    #[derive(Clone, Debug)]
    enum Event {
        Draw { transaction: usize },
        End { transaction: usize },
        Step { reader: usize },
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => (0usize..4).prop_map(|transaction| Event::Draw { transaction }),
            2 => (0usize..4).prop_map(|transaction| Event::End { transaction }),
            4 => (0usize..3).prop_map(|reader| Event::Step { reader }),
        ]
    }

    #[derive(Clone, Copy)]
    enum Reader {
        Idle,
        Looked(i64),
        Scanned(i64, Scan),
    }

    /// The count at the first draw, and the values.
    type Open = Option<(i64, Vec<i64>)>;

    fn earliest(open: &[Open]) -> Option<i64> {
        open.iter().flatten().map(|(since, _)| *since).min()
    }

    proptest! {
        #[test]
        fn settled_values_are_of_ended_transactions(events in prop::collection::vec(event(), 1..120)) {
            let (mut settling, mut readings, mut drawn) = (Settling::default(), 0, 0);
            let mut open: [Open; 4] = Default::default();
            let mut readers = [Reader::Idle; 3];
            for event in events {
                match event {
                    Event::Draw { transaction } => {
                        drawn += 1;
                        open[transaction].get_or_insert((readings, Vec::new())).1.push(drawn);
                    }
                    Event::End { transaction } => open[transaction] = None,
                    Event::Step { reader } => readers[reader] = match readers[reader] {
                        Reader::Idle => Reader::Looked(drawn),
                        Reader::Looked(value) => {
                            Reader::Scanned(value, Scan { begun: readings, earliest: earliest(&open) })
                        }
                        Reader::Scanned(value, scan) => {
                            readings += 1;
                            let settled = settling.settle(reading(value, readings), scan).unwrap_or(-1);
                            let held = open.iter().flatten().flat_map(|(_, values)| values).min();
                            prop_assert!(held.is_none_or(|held| settled < *held), "{settled} has {held:?} below it");
                            Reader::Idle
                        }
                    },
                }
            }
            // Each transaction ends after the next one has begun.
            let before = drawn;
            let mut settled = None;
            for turn in 0..4 {
                open[turn] = Some((readings, Vec::new()));
                (0..4).filter(|other| *other != turn).for_each(|other| open[other] = None);
                readings += 1;
                let scan = Scan { begun: readings - 1, earliest: earliest(&open) };
                settled = settling.settle(reading(before, readings), scan);
            }
            prop_assert_eq!(settled, Some(before));
        }
    }
}

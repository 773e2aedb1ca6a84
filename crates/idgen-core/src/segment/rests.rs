//! What tags have left that have lost their rings to others. A tag that returns goes on there, so that only a restart costs it
//! values, although there are more tags than rings.

use super::chains::Chains;
use super::{TagKey, ValueRun};

/// Values of a tag that has no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    pub key: TagKey,
    /// The version of the row that they come from.
    pub version: i64,
    pub run: ValueRun,
}

/// Protected by the lock of the table of rings.
pub struct Rests<'a> {
    /// Those in use come first.
    pub places: &'a mut [Option<Rest>],
    pub chains: Chains<'a>,
    pub count: usize,
    /// The place that the next rest takes when all are in use.
    pub hand: usize,
}

impl Rests<'_> {
    /// Keeps the rest of a tag that has none. When all places are in use, that of another tag is lost.
    pub fn keep(&mut self, rest: Rest) {
        if self.count == self.places.len() {
            self.remove(self.hand);
            self.hand = (self.hand + 1) % self.places.len();
        }
        self.put(self.count, rest);
        self.count += 1;
    }

    pub fn take(&mut self, key: TagKey) -> Option<Rest> {
        let is_it = |place: usize| self.places[place].is_some_and(|rest| rest.key == key);
        let place = self.chains.find(key.hash(), is_it)?;
        self.remove(place)
    }

    /// Forgets the rests of a database.
    pub fn forget(&mut self, database: u32) {
        // From the last one on: a place that becomes free is filled by one that was looked at.
        for place in (0..self.count).rev() {
            if self.places[place].is_some_and(|rest| rest.key.database == database) {
                self.remove(place);
            }
        }
    }

    /// Empties a place, and moves the last rest there.
    fn remove(&mut self, place: usize) -> Option<Rest> {
        let rest = self.pick(place)?;
        self.count -= 1;
        if let Some(last) = self.pick(self.count) {
            self.put(place, last);
        }
        Some(rest)
    }

    fn put(&mut self, place: usize, rest: Rest) {
        self.places[place] = Some(rest);
        self.chains.insert(rest.key.hash(), place);
    }

    fn pick(&mut self, place: usize) -> Option<Rest> {
        let rest = self.places[place].take()?;
        self.chains.remove(rest.key.hash(), place);
        Some(rest)
    }
}

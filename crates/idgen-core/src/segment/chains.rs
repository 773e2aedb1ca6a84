//! Hash tables over the places of an array: chains of indexes, so that they fit in shared memory.

use super::TagKey;

/// The end of a chain, and the initial value of all entries.
pub const END: u32 = u32::MAX;

pub struct Chains<'a> {
    /// The first place of each chain.
    pub heads: &'a mut [u32],
    /// The place after each place.
    pub nexts: &'a mut [u32],
}

impl Chains<'_> {
    /// How many chains an array needs, so that they stay short.
    pub fn heads_of(places: usize) -> usize {
        places.next_power_of_two()
    }

    pub fn find(&self, hash: u64, is_it: impl Fn(usize) -> bool) -> Option<usize> {
        let next = |place: &usize| Self::after(self.nexts[*place]);
        std::iter::successors(Self::after(self.heads[self.head(hash)]), next).find(|place| is_it(*place))
    }

    /// Adds a place that is in no chain.
    pub fn insert(&mut self, hash: u64, place: usize) {
        let head = self.head(hash);
        self.nexts[place] = self.heads[head];
        self.heads[head] = place as u32;
    }

    /// Removes a place that was inserted under this hash.
    pub fn remove(&mut self, hash: u64, place: usize) {
        let head = self.head(hash);
        let next = self.nexts[place];
        match self.find(hash, |before| self.nexts[before] == place as u32) {
            Some(before) => self.nexts[before] = next,
            None => self.heads[head] = next,
        }
    }

    fn after(link: u32) -> Option<usize> {
        (link != END).then_some(link as usize)
    }

    fn head(&self, hash: u64) -> usize {
        hash as usize & (self.heads.len() - 1)
    }
}

/// A value for each of some tags, which need no ring. Protected by the lock of the table of rings.
pub struct TagMap<'a, T> {
    /// Those in use come first.
    pub places: &'a mut [Option<(TagKey, T)>],
    pub chains: Chains<'a>,
    pub count: usize,
    /// The place whose tag is forgotten next when all are in use: that of the oldest, if none has been taken out.
    pub hand: usize,
}

impl<T: Copy> TagMap<'_, T> {
    /// Adds a tag that is not there, and returns its place. When all are in use, another tag is forgotten.
    pub fn insert(&mut self, key: TagKey, value: T) -> usize {
        let mut place = self.count;
        if place == self.places.len() {
            place = self.hand;
            self.pick(place);
            self.hand = (self.hand + 1) % self.places.len();
        } else {
            self.count += 1;
        }
        self.put(place, (key, value));
        place
    }

    /// The value of a tag, which is added unless it is there.
    pub fn of(&mut self, key: TagKey) -> &mut T
    where
        T: Default,
    {
        let place = self.find(key).unwrap_or_else(|| self.insert(key, T::default()));
        &mut self.places[place].as_mut().expect("the tag is there").1
    }

    pub fn take(&mut self, key: TagKey) -> Option<T> {
        let place = self.find(key)?;
        self.remove(place)
    }

    /// Forgets the tags of a database.
    pub fn forget(&mut self, database: u32) {
        // From the last one on: a place that becomes free is filled by one that was looked at.
        for place in (0..self.count).rev() {
            if self.places[place].is_some_and(|(key, _)| key.database == database) {
                self.remove(place);
            }
        }
    }

    fn find(&self, key: TagKey) -> Option<usize> {
        self.chains.find(key.hash(), |place| self.places[place].is_some_and(|(other, _)| other == key))
    }

    /// Empties a place, and moves the last tag there.
    fn remove(&mut self, place: usize) -> Option<T> {
        let (_, value) = self.pick(place)?;
        self.count -= 1;
        if let Some(last) = self.pick(self.count) {
            self.put(place, last);
        }
        Some(value)
    }

    fn put(&mut self, place: usize, entry: (TagKey, T)) {
        self.places[place] = Some(entry);
        self.chains.insert(entry.0.hash(), place);
    }

    fn pick(&mut self, place: usize) -> Option<(TagKey, T)> {
        let entry = self.places[place].take()?;
        self.chains.remove(entry.0.hash(), place);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_tag_makes_room_for_others() {
        let (mut places, [mut heads, mut nexts]) = ([None; 2], [const { [END; 2] }; 2]);
        let chains = Chains { heads: &mut heads, nexts: &mut nexts };
        let mut tags = TagMap { places: &mut places, chains, count: 0, hand: 0 };
        for creation in 1..=5 {
            let key = |creation| TagKey { database: 1, creation };
            tags.insert(key(creation), creation);
            let found = |creation| tags.find(key(creation)).is_some();
            assert_eq!([creation - 2, creation - 1, creation].map(found), [false, creation > 1, true]);
        }
    }
}

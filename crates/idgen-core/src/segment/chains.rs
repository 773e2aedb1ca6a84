//! A hash table over the places of an array: chains of indexes, so that it fits in shared memory.

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
        let next = |place: &usize| self.after(self.nexts[*place]);
        std::iter::successors(self.after(self.heads[self.head(hash)]), next).find(|place| is_it(*place))
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

    fn after(&self, link: u32) -> Option<usize> {
        (link != END).then_some(link as usize)
    }

    fn head(&self, hash: u64) -> usize {
        hash as usize & (self.heads.len() - 1)
    }
}

//! Reproducible random numbers.

use std::hash::{BuildHasher, RandomState};

/// Random numbers from a seed: the finalizer of SplitMix64 over a counter.
pub struct Random(u64);

impl Random {
    /// Takes the seed from the environment variable `IDGEN_SEED` or from the system, and prints it.
    pub fn new() -> Random {
        let given = std::env::var("IDGEN_SEED").ok();
        let seed = given.map_or_else(|| RandomState::new().hash_one(()), |text| text.parse().expect("a number"));
        println!("IDGEN_SEED={seed}");
        Random(seed)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }
}

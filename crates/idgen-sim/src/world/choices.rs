//! The choices of a run: random ones from a seed, or those of an earlier run, which can be changed to shorten its story.

use fastrand::Rng;

/// Whatever is open in a run is decided here, so a run is the same for the same choices.
pub struct Choices {
    replayed: Vec<u32>,
    made: Vec<u32>,
    /// `None`: what was not recorded is 0, the choice by which nothing happens.
    rng: Option<Rng>,
}

impl Choices {
    pub fn seeded(seed: u64) -> Self {
        Self { replayed: Vec::new(), made: Vec::new(), rng: Some(Rng::with_seed(seed)) }
    }

    pub fn replaying(replayed: Vec<u32>) -> Self {
        Self { replayed, made: Vec::new(), rng: None }
    }

    /// From 0 to `count - 1`. 0 should be the dullest.
    pub fn below(&mut self, count: u32) -> u32 {
        let next = self.replayed.get(self.made.len()).map(|choice| choice % count);
        let choice = next.unwrap_or_else(|| self.rng.as_mut().map_or(0, |rng| rng.u32(0..count)));
        self.made.push(choice);
        choice
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: u32) -> bool {
        self.below(times) == times - 1
    }

    pub fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u32) as usize]
    }

    pub fn into_made(self) -> Vec<u32> {
        self.made
    }
}

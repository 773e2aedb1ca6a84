//! A store of random words, because a call of a strong source costs more than a UUID.

use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Random words of one process, each handed out once. A process has one thread, so loads and stores suffice; the fields are
/// atomics only so that this can be a static.
pub struct RandomWords<const N: usize> {
    words: [AtomicU64; N],
    left: AtomicUsize,
    /// The process that filled the store.
    process: AtomicI32,
}

impl<const N: usize> RandomWords<N> {
    #[allow(clippy::new_without_default, reason = "only a static needs it, and a constant function makes that")]
    pub const fn new() -> Self {
        Self { words: [const { AtomicU64::new(0) }; N], left: AtomicUsize::new(0), process: AtomicI32::new(0) }
    }

    /// The next word. `fill` brings new ones when none is left, or when another process has filled the store: a child
    /// inherits the words of its parent, which must not occur twice. If `fill` unwinds, the store stays empty.
    #[inline]
    pub fn next(&self, process: i32, fill: impl FnOnce() -> [u64; N]) -> u64 {
        if self.left.load(Relaxed) == 0 || self.process.load(Relaxed) != process {
            self.refill(process, fill);
        }
        let left = self.left.load(Relaxed) - 1;
        self.left.store(left, Relaxed);
        self.words[left].load(Relaxed)
    }

    #[cold]
    fn refill(&self, process: i32, fill: impl FnOnce() -> [u64; N]) {
        self.left.store(0, Relaxed);
        for (word, new) in self.words.iter().zip(fill()) {
            word.store(new, Relaxed);
        }
        self.process.store(process, Relaxed);
        self.left.store(N, Relaxed);
    }
}

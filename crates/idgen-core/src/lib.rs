//! The decisions of idgen, without side effects, so that tests need no server.
//!
//! The crate reads no clock, does no I/O and knows no PostgreSQL. Callers pass the time, the rows and the limits, and get
//! a decision as a value. The extension reads settings, clocks and shared memory, calls this crate and acts on the result.
//!
//! Imports between modules: layout from snowflake; clock from generator and coordinator; generator from snowflake and layout; generator and
//! segment from tenancy; segment and worker from history; public_id from text; history, segment and worker from coordinator.
//! The other modules import nothing of each other.

pub mod clock;
pub mod coordinator;
pub mod draws;
pub mod generator;
pub mod history;
pub mod hosts;
pub mod layout;
pub mod lease;
pub mod life;
pub mod lock;
pub mod public_id;
pub mod segment;
pub mod snowflake;
pub mod tenancy;
pub mod text;
pub mod uuid;
pub mod worker;

/// The atomics of the shared state: the real ones, or loom's to explore interleavings.
mod sync {
    #[cfg(loom)]
    pub use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
    #[cfg(not(loom))]
    pub use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
}

#[cfg(test)]
mod tests {
    use crate::clock::{ClockSteps, Mark};
    use crate::generator::Generator;
    use crate::segment::Ring;

    #[test]
    fn hot_words_have_a_pair_of_cache_lines_of_their_own() {
        fn lines<T>() -> (usize, usize) {
            (size_of::<T>(), align_of::<T>())
        }
        let all = [lines::<Generator>(), lines::<ClockSteps>(), lines::<Mark>()];
        assert_eq!(all, [(128, 128); 3]);
        // Its ranges need more lines. Draws read them, and installs are rare.
        assert_eq!(lines::<Ring>(), (512, 128));
    }
}

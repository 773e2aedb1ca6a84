//! The shape of the source code: which modules may import which, what lies in shared memory, and how processes sleep.

mod declarations;
mod hints;
mod imports;
mod layers;
mod shared_memory;
mod sleeps;

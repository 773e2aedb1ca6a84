//! The shape of the source code: which modules may import which, and what lies in shared memory.

mod imports;
mod layers;
mod shared_memory;

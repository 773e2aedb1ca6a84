//! The rows of worker ids: rectangles in `idgen.worker_number`, the history in `idgen.worker_history`, and a label that
//! outlives both.

pub mod history;
pub mod label;
pub mod rectangles;

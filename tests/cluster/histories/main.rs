//! Histories of real servers: every call of a storm is recorded, and the checkers of `idgen_sim::history` judge what the
//! clients saw. Each judge has a control, which it must find guilty: docs/testing.md.

mod appends;
mod controls;
mod everything;
mod ids;
mod leases;
mod locks;
mod public_ids;
mod storm;
mod worker_ids;

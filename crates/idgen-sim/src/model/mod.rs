//! The rules of fencing, worker ids and grants to a fleet, as steps between states.
//!
//! Each room has its rules in a file: an enum, and a function that says which of them a step breaks. Two readers share
//! it. The room's `space` explores every order of steps and faults that the rules in force allow, and looks for a state
//! that breaks a promise. [`trace`] takes the steps from the committed changes of a real server.
//!
//! Times and tokens are `i64` in both: small numbers in a space, microseconds in a trace.

pub mod explore;
pub mod fleet;
pub mod lease;
pub mod page;
pub mod rules;
pub mod trace;
pub mod worker;

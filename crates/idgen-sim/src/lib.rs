//! What idgen promises, written without knowing how it is built. [`history`] judges what servers have answered, and
//! [`model`] explores what the rules allow.

pub mod history;
pub mod model;

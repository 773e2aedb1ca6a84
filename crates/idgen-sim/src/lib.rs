//! What idgen promises, in three forms. [`history`] judges what servers have answered, and [`model`] explores what the rules
//! allow; both are written without knowing how idgen is built. [`world`] runs the decisions of idgen, as they are built, on
//! simulated servers.

pub mod history;
pub mod model;
pub mod world;

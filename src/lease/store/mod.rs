//! The tables `idgen.lease` and `idgen.lease_definition`, and the sequence `idgen.lease_token`: every query of this
//! room.

pub mod definitions;
pub mod slots;
pub mod terms;
pub mod versions;

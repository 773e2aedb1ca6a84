//! Operations on real servers: installing, upgrading, dumping and restoring, databases of every encoding, what others have
//! planted, and what the README shows.

mod encodings;
mod lease_dump;
mod planted_tables;
mod readme;
mod segment_dump;
mod upgrade;

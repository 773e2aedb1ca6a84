//! Operations on real servers: upgrades, dumps, encodings, planted tables, and the README.

mod encodings;
mod lease_dump;
mod planted_tables;
mod readme;
mod segment_dump;
mod upgrade;

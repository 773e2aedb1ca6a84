//! Operations on real servers: upgrades, dumps, encodings, and planted tables.

mod encodings;
mod lease_dump;
mod planted_tables;
mod segment_dump;
mod upgrade;

//! Operations on real servers: upgrades, dumps, encodings, planted tables, what monitoring reads, and examples.

mod encodings;
mod examples;
mod lease_dump;
mod monitoring;
mod pg_upgrade;
mod planted_tables;
mod segment_dump;
mod upgrade;

//! Operations on real servers: upgrades, dumps, encodings, planted tables and wait events.

mod encodings;
mod lease_dump;
mod planted_tables;
mod segment_dump;
mod upgrade;
mod wait_events;

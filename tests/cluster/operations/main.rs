//! Operations on real servers: upgrades, dumps, encodings, planted tables, wait events, and examples.

mod encodings;
mod examples;
mod lease_dump;
mod planted_tables;
mod segment_dump;
mod upgrade;
mod wait_events;

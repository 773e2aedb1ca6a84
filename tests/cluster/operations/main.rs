//! Operations on real servers: upgrades, copies, dumps, templates, encodings, single-user mode, standbys without connections,
//! drops of the extension, planted tables, what monitoring reads, checks, privileges on statistics, and examples.

mod base_backup;
mod checks;
mod closed_standby;
mod dump_options;
mod durable;
mod encodings;
mod extension_drops;
mod installation;
mod monitoring;
mod pg_upgrade;
mod planted_tables;
mod point_in_time;
mod rewind;
mod segment_dump;
mod since_17;
mod single_user;
mod switch_back;
mod template;
mod upgrade;

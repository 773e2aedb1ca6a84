//! Real, throw-away PostgreSQL servers for the tests of idgen.
//!
//! What idgen promises is about crashes, clock steps and promotion, so it cannot be shown inside one transaction of one
//! server: these tests start servers of their own, kill them, move their clocks, and look at what clients saw.
//!
//! # How to write a test
//!
//! A test is a plain `#[test]` in `tests/`. Start a [`Cluster`], talk to it through ordinary [`postgres::Client`]s, and let
//! it go out of scope: the server is stopped and its directory removed. When the test panics the directory is kept, and
//! its path and the end of the server's log are printed with the failure.
//!
//! ```no_run
//! use idgen_testkit::{Cluster, Stop};
//!
//! let cluster = Cluster::builder().conf("idgen.worker_id", "7").fake_clock().start();
//! cluster.execute("CREATE EXTENSION idgen");
//! let before: i64 = cluster.client().query_one("SELECT snowflake_next()", &[]).unwrap().get(0);
//!
//! cluster.stop(Stop::Immediate);
//! cluster.clock().set_offset_ms(-3_600_000);
//! cluster.start_again();
//!
//! let after: i64 = cluster.client().query_one("SELECT snowflake_next()", &[]).unwrap().get(0);
//! assert!(after > before);
//! ```
//!
//! Rules that keep the tests worth having:
//! - Wait for a condition, with a deadline ([`Cluster::wait_for`]), never for an amount of time.
//! - A `Cluster` may be shared between threads (`std::thread::scope`): workers connect and query, and one thread stops,
//!   kills and starts.
//! - How often something random is tried comes from [`rounds`], so that the same test is quick by default and a soak on demand.
//! - What every test does with statements and ids is in [`sql`], [`ids`], [`segment`], [`pooler`], [`grants`] and [`high_water`]: no
//!   test has its own copy.
//! - The programs of the server are those beside `$PG_CONFIG` (or `pg_config`). As root they run as the user `postgres`.

mod builder;
mod clock;
mod cluster;
mod connect;
mod debugger;
pub mod grants;
pub mod high_water;
pub mod ids;
pub mod lease;
pub mod pooler;
mod postmaster;
mod procfs;
mod programs;
mod proxy;
mod rounds;
pub mod segment;
mod settings;
mod signal;
pub mod sql;
mod standby;
mod template;

pub use builder::Builder;
pub use clock::FakeClock;
pub use cluster::Cluster;
pub use debugger::Debugger;
pub use postmaster::Stop;
pub use programs::run;
pub use proxy::Proxy;
pub use rounds::rounds;
pub use signal::{Paused, pause};
pub use standby::StandbyBuilder;

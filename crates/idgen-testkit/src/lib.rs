//! Real, throw-away PostgreSQL servers for the tests of idgen.
//!
//! idgen makes promises about crashes, clock steps and promotion, which one transaction of one server cannot test. The
//! tests start their own servers, kill them, move their clocks, and check what clients saw.
//!
//! # How to write a test
//!
//! A test is a plain `#[test]` in `tests/cluster`. Start a [`Cluster`] and talk to it through ordinary
//! [`postgres::Client`]s. When the cluster goes out of scope, its server is stopped and its directory removed. If the test
//! panics, the directory is kept, and its path and the end of the server's log are printed.
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
//! Rules:
//! - Wait for a condition, with a deadline ([`Cluster::wait_for`]), never for an amount of time.
//! - Write what several sessions do in a fixed order as a [`script`].
//! - Share a `Cluster` between threads with `std::thread::scope`: some threads query while one stops, kills and starts.
//! - Take the number of random attempts from [`rounds`]: the same test is quick by default and a soak on demand.
//! - Use the helpers of [`sql`], [`ids`], [`segment`], [`lease`], [`pooler`], [`dump`], [`grants`], [`high_water`],
//!   [`recorder`] and [`wire`] instead of copies.
//! - End the name of a test in `_smoke` if it depends on PostgreSQL's version: `make smoke` runs only those.
//! - `$PG_CONFIG` (or `pg_config`) selects the server's programs. Under root they run as the user `postgres`.

mod builder;
mod clock;
mod cluster;
mod connect;
mod debugger;
pub mod dump;
mod example;
pub mod grants;
pub mod high_water;
pub mod ids;
pub mod lease;
mod life;
pub mod parallel;
mod pg_upgrade;
pub mod pooler;
mod postmaster;
mod procfs;
mod programs;
mod proxy;
pub mod recorder;
mod resources;
mod rounds;
pub mod script;
pub mod segment;
mod settings;
mod shim;
mod signal;
pub mod sql;
mod standby;
mod template;
pub mod wire;

pub use builder::{Builder, private_dir};
pub use clock::FakeClock;
pub use cluster::Cluster;
pub use debugger::Debugger;
pub use example::Example;
pub use postmaster::Stop;
pub use procfs::is_startup_process;
pub use programs::{chown_to_server, program, run};
pub use proxy::Proxy;
pub use resources::Resources;
pub use rounds::{rounds, seed};
pub use shim::compile_shim;
pub use signal::{Paused, pause, pause_if_running, pause_in_a_wait};
pub use standby::StandbyBuilder;

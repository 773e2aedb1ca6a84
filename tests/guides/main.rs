//! The guides of `docs/guides` with the tools that they are about. `make test-guides` installs the tools and runs them.
//!
//! Python packages, Node packages and programs that Debian does not have are in the directory `IDGEN_GUIDES`.

mod counting;
mod django;
mod django_keys;
mod django_project;
mod frameworks;
mod jdbc;
mod json;
mod keys;
mod logical_replication;
mod monitoring;
mod node;
mod page;
mod partitions;
mod patroni;
mod pgbouncer;
mod sqlalchemy;
mod sqlx;

use std::path::{Path, PathBuf};

/// The directory of the tools that are not packages of the system.
fn tools() -> PathBuf {
    std::env::var_os("IDGEN_GUIDES").expect("make test-guides sets IDGEN_GUIDES").into()
}

/// A file or a directory of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

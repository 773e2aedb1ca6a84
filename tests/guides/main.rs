//! The guides of `docs/guides` with the tools that they are about. `make test-guides` installs the tools and runs them.
//!
//! Python packages, Node packages and programs that Debian does not have are in the directory `IDGEN_GUIDES`.

mod django;
mod frameworks;
mod monitoring;
mod pgbouncer;
mod sqlalchemy;

//! Worker ids on real servers: claims, rectangles of a worker id by id time, the coordinator's history, servers and clients
//! that lease their worker id from a pool.

mod claims;
mod clients;
mod history;
mod keeper;
mod pool;
mod rectangle;

use idgen_testkit::{Builder, Cluster};

const POOL: &str = "servers";

/// A server that is preloaded and has a number of nobody's.
fn builder() -> Builder {
    Cluster::builder().conf("statement_timeout", "1min").conf("fsync", "off")
}

/// A server whose number is leased from there, from its start on.
fn pooled(coordinator: &str) -> Builder {
    builder().conf("idgen.worker_pool", POOL).conf("idgen.coordinator", coordinator)
}

/// Sets where a server leases its worker id, and has it read that.
fn set_pool(cluster: &Cluster, pool: &str, coordinator: &str) {
    cluster.set_conf("idgen.worker_pool", pool);
    cluster.set_conf("idgen.coordinator", coordinator);
    cluster.reload();
}

//! The worker id and the datacenter id of this server: settings, or a leased worker id.
//!
//! Snowflake ids do not depend on the capability that leases worker ids. That one registers a [`NodeSource`].

use crate::settings;
use crate::shmem::Part;
use idgen_core::layout::Node;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering::*};

pub static CURRENT: Part<CurrentNode> = Part::new(c"idgen worker id", |_| CurrentNode(AtomicI64::new(SETTING)));

/// A leased worker id, `SETTING` or `NONE`. Stored under the generators' lock: a process that attaches an id space under
/// that lock knows the worker id it issues under.
pub struct CurrentNode(AtomicI64);

/// The worker id is that of `idgen.worker_id`.
const SETTING: i64 = -1;
/// No worker id: it is not leased yet, or the server had a pool and `idgen.worker_id` is not set.
const NONE: i64 = -2;

impl CurrentNode {
    /// `None` while there is no worker id.
    pub fn get(&self) -> Option<Node> {
        match self.0.load(Acquire) {
            SETTING => Some(settings::node()),
            NONE => None,
            // Stored from a `u32`.
            leased => Some(Node { worker: leased as u32, ..settings::node() }),
        }
    }

    /// True if the worker id is a setting, until a lease replaces it.
    pub fn is_setting(&self) -> bool {
        self.0.load(Acquire) == SETTING
    }

    /// Call this and the other two setters in `publish` of `clock::restrict_times`.
    pub fn set_leased(&self, worker_id: u32) {
        self.0.store(i64::from(worker_id), Release);
    }

    pub fn set_none(&self) {
        self.0.store(NONE, Release);
    }

    pub fn set_to_setting(&self) {
        self.0.store(SETTING, Release);
    }
}

/// The functions of the capability that leases worker ids.
pub struct NodeSource {
    /// Ends the use of a worker id that changed settings no longer allow.
    pub follow_settings: fn(),
    /// Returns the worker id, waits for the first lease, or raises 55000.
    pub wait: fn() -> Node,
}

static SOURCE: OnceLock<NodeSource> = OnceLock::new();

/// While the postmaster preloads libraries.
pub fn lease_from(source: NodeSource) {
    let _ = SOURCE.set(source);
}

/// Call before issuing under a worker id that the session has cached, and repeatedly in a long statement.
pub fn follow_settings() {
    if let Some(source) = SOURCE.get() {
        (source.follow_settings)();
    }
}

/// This server's worker id and datacenter id. Waits for the first lease of a worker id; raises 55000 if there is none.
pub fn require() -> Node {
    SOURCE.get().map_or_else(settings::node, |source| (source.wait)())
}

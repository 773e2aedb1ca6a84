//! The worker id and the datacenter of this server: settings, or a leased worker id.
//!
//! This room does not know who leases worker ids. That capability registers a [`Source`].

use crate::settings;
use crate::shmem::Part;
use idgen_core::layout::Node;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering::*};

pub static CURRENT: Part<CurrentNode> = Part::new(c"idgen worker id", |_| CurrentNode(AtomicI64::new(SETTING)));

/// A leased worker id, or one of the two below. Stored under the generators' lock, so that a process that attaches an id
/// space under that lock knows the worker id it issues under.
pub struct CurrentNode(AtomicI64);

/// The worker id is that of `idgen.worker_id`.
const SETTING: i64 = -1;
/// There is none: it is not leased yet, or the server had a pool and no worker id is set.
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

    /// In `publish` of `clock::confine`, as the other two.
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

/// The capability that leases worker ids, as this one calls it.
pub struct Source {
    /// Ends a worker id that this server must not use any more, by settings that have changed.
    pub follow_settings: fn(),
    /// Returns the worker id, waits for the first lease, or raises 55000.
    pub wait: fn() -> Node,
}

static SOURCE: OnceLock<Source> = OnceLock::new();

/// While the postmaster preloads libraries.
pub fn lease_from(source: Source) {
    let _ = SOURCE.set(source);
}

/// Before ids are issued under a worker id that a session has remembered, or for long.
pub fn follow_settings() {
    if let Some(source) = SOURCE.get() {
        (source.follow_settings)();
    }
}

/// This server's worker id and datacenter. Waits for the first lease of a worker id; raises 55000 if there is none.
pub fn require() -> Node {
    SOURCE.get().map_or_else(settings::node, |source| (source.wait)())
}

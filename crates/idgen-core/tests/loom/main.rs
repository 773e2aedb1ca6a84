//! Explores every interleaving of accesses to the shared state. Runs with `--cfg loom` in RUSTFLAGS.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

mod label;
mod lock;
mod segment;
mod snowflake;

/// Runs `work` in a thread of its own.
fn spawn<S: 'static, T: 'static>(server: &Arc<S>, work: impl FnOnce(&S) -> T + 'static) -> JoinHandle<T> {
    let server = server.clone();
    thread::spawn(move || work(&server))
}

fn assert_rising(ids: &[i64]) {
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
}

fn assert_distinct(mut ids: Vec<i64>) {
    ids.sort_unstable();
    assert_rising(&ids);
}

//! `contrib/monitoring` with the real exporters, as a role that is a member of pg_monitor and nothing else: the metrics
//! say what the views say, the dashboard and the alerts use metrics that exist, and each alert fires when it should.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::repository;

mod alerts;
mod daemon;
mod dashboard;
mod exporters;
mod picture;
mod server;

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

fn file(name: &str) -> PathBuf {
    repository("contrib/monitoring").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A file with other addresses and intervals.
fn changed(name: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(read(name), |text, (from, to)| {
        assert!(text.contains(from), "{name} has no {from}");
        text.replace(from, to)
    })
}

/// Tests a condition until it holds. False if it does not by the deadline.
fn eventually(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + deadline;
    while !condition() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

fn sorted<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    items.sort();
    items
}

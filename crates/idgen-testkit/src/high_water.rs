//! The high-water file of a server, `idgen/clock` in its data directory, read with idgen's own decoder.

use std::path::PathBuf;

use idgen_core::clock::record::{Found, Record};

use crate::cluster::Cluster;

/// The directory of the file.
pub fn directory(cluster: &Cluster) -> PathBuf {
    cluster.data_dir().join("idgen")
}

pub fn file(cluster: &Cluster) -> PathBuf {
    directory(cluster).join("clock")
}

pub fn bytes(cluster: &Cluster) -> Vec<u8> {
    std::fs::read(file(cluster)).expect("the high-water file exists")
}

/// The newest record of the file, which must have one.
pub fn newest_record(cluster: &Cluster) -> Found {
    Record::newest(&bytes(cluster)).expect("the high-water file has a record")
}

/// The mark of the newest record: no id has this time or a later one.
pub fn mark_ms(cluster: &Cluster) -> i64 {
    newest_record(cluster).record.mark_ms
}

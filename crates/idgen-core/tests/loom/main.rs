//! Every interleaving of the shared words: run with `--cfg loom` in RUSTFLAGS.
#![cfg(loom)]

mod segment;
mod snowflake;

fn assert_rising(ids: &[i64]) {
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
}

fn assert_distinct(mut ids: Vec<i64>) {
    ids.sort_unstable();
    assert_rising(&ids);
}

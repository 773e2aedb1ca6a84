//! Settled ids: no transaction of the server can commit a row with such an id any more.
//!
//! A time in milliseconds, by which the draws of open transactions are known, serves all layouts: a transaction that draws
//! in several has the earliest of theirs. See [`crate::draws`].

use crate::layout::Layout;
use crate::snowflake::IdSpace;

/// The greatest settled id. `before_next` reads the space of the layout, and the greatest id below all later ones;
/// `open_ms` reads the earliest draws of the open transactions.
pub fn settled(
    layout: &Layout,
    before_next: impl FnOnce() -> (IdSpace, i64),
    open_ms: impl FnOnce() -> Vec<i64>,
) -> (IdSpace, i64) {
    // In this order: see above.
    let (space, before_next) = before_next();
    // A transaction past the end of the layout has drawn nothing in it.
    let earliest_ms = open_ms().into_iter().filter(|time_ms| *time_ms < layout.ends_at_ms()).min();
    (space, earliest_ms.map_or(before_next, |time_ms| before_next.min(layout.floor(time_ms) - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Node;

    #[test]
    fn settled_ids_end_before_the_earliest_draw() {
        let layout = Layout::parse("time:41 worker:10 sequence:12 epoch:2020-01-01").unwrap();
        let at = |ms: i64| ms - layout.epoch_ms();
        let before_next = at(layout.epoch_ms() + 9) << 22 | 5;
        let space = layout.id_space(Node::default()).unwrap();
        let settled = |open: &[i64]| {
            let open_ms = || open.iter().map(|ms| ms + layout.epoch_ms()).collect();
            settled(&layout, || (space, before_next), open_ms).1
        };
        assert_eq!(settled(&[]), before_next);
        assert_eq!(settled(&[10, 20]), before_next);
        assert_eq!(settled(&[9, 7, 8]), (7 << 22) - 1);
        assert_eq!(settled(&[-5]), -1);
        assert_eq!(settled(&[1 << 41]), before_next);
    }
}

//! What a row of the allocation table says about the values that come next.

/// The part of a row that values are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The highest value that any server may have handed out, or the one below the first.
    pub max_id: i64,
    /// Values are `residue` modulo `stride`.
    pub stride: i64,
    pub residue: i64,
    /// No value is above this.
    pub upper_bound: i64,
}

/// Values from `first` to `last`, each by the stride above the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub first: i64,
    pub last: i64,
    pub count: u64,
}

impl Allocation {
    /// The next `want` values, or as many as there are below the bound; `None` when there are no more.
    pub fn next(&self, want: u64) -> Option<Range> {
        // Wider than a value, so that nothing overflows near the ends.
        let (stride, bound) = (i128::from(self.stride), i128::from(self.upper_bound));
        let above = i128::from(self.max_id) + 1;
        let first = above + (i128::from(self.residue) - above).rem_euclid(stride);
        if first > bound {
            return None;
        }
        let count = i128::from(want).min((bound - first) / stride + 1);
        // Both are between two values, so they are values themselves.
        Some(Range { first: first as i64, last: (first + (count - 1) * stride) as i64, count: count as u64 })
    }
}

//! How large the next range is: as large as what is used up in the time that a range should last.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The most values of one range: a thousand million lasts a while, and cannot overflow anything.
pub const MAX_STEP: i64 = 1_000_000_000;

/// The step after one that was used up in `lifetime`: twice as large if that was shorter than the target, half as large
/// if it was twice as long or longer. In between it stays, so that a steady rate does not make it swing.
///
/// The rule is that of Leaf's segments (Meituan-Dianping).
pub fn next(step: i64, lifetime: Duration, target: Duration, limits: RangeInclusive<i64>) -> i64 {
    let wish = if lifetime < target {
        step.saturating_mul(2)
    } else if lifetime >= target.saturating_mul(2) {
        step / 2
    } else {
        step
    };
    wish.clamp(*limits.start(), *limits.end())
}

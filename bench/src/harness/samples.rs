//! The samples of one measurement: one from each round.

use idgen_bench::three_digits;
use serde::ser::{Serialize, SerializeStruct, Serializer};
use std::fmt;
use std::ops::{Div, Sub};

#[derive(Clone, Debug, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn new(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        assert!(!values.is_empty(), "there are no samples");
        Self(values)
    }

    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
    }

    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    pub fn map(&self, of: impl Fn(f64) -> f64) -> Self {
        Self(self.0.iter().copied().map(of).collect())
    }

    /// Combines samples of the same round: a disturbance in one round affects both.
    fn combine(&self, other: &Self, of: impl Fn(f64, f64) -> f64) -> Self {
        assert_eq!(self.0.len(), other.0.len(), "both have the same rounds");
        Self(self.0.iter().zip(&other.0).map(|(a, b)| of(*a, *b)).collect())
    }
}

impl Div for &Samples {
    type Output = Samples;

    fn div(self, other: Self) -> Samples {
        self.combine(other, |a, b| a / b)
    }
}

impl Sub for &Samples {
    type Output = Samples;

    fn sub(self, other: Self) -> Samples {
        self.combine(other, |a, b| a - b)
    }
}

/// The median, and the range if the samples differ.
impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, min, max] = [self.median(), self.min(), self.max()].map(three_digits);
        write!(f, "{median}")?;
        if min == max { Ok(()) } else { write!(f, " ({min} to {max})") }
    }
}

impl Serialize for Samples {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Samples", 4)?;
        fields.serialize_field("median", &self.median())?;
        fields.serialize_field("min", &self.min())?;
        fields.serialize_field("max", &self.max())?;
        fields.serialize_field("rounds", &self.0)?;
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use super::Samples;

    #[test]
    fn median_is_the_middle_or_the_mean_of_the_middle_two() {
        assert_eq!(Samples::new([3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(Samples::new([4.0, 1.0, 2.0, 3.0]).median(), 2.5);
    }

    #[test]
    fn ratios_are_computed_within_a_round() {
        let ratio = &Samples::new([2.0, 20.0, 6.0]) / &Samples::new([1.0, 10.0, 2.0]);
        assert_eq!(ratio, Samples::new([2.0, 2.0, 3.0]));
    }

    #[test]
    fn median_is_shown_with_the_range_if_samples_differ() {
        assert_eq!(Samples::new([1.0]).to_string(), "1.00");
        assert_eq!(Samples::new([3.0, 1.0, 2.0]).to_string(), "2.00 (1.00 to 3.00)");
    }
}

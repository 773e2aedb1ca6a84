//! Contenders are measured in turn: the speed of a machine changes from one minute to the next.

use super::report::{Row, Table};
use super::samples::Samples;

/// Measures every contender once a round. The order rotates, so that no contender always follows the same one.
/// Returns the measurements of each contender, in the order of `contenders`.
pub fn rounds<C, T>(rounds: usize, contenders: &[C], mut measure: impl FnMut(&C) -> T) -> Vec<Vec<T>> {
    let mut measured: Vec<Vec<T>> = contenders.iter().map(|_| Vec::with_capacity(rounds)).collect();
    for round in 0..rounds {
        for offset in 0..contenders.len() {
            let index = (round + offset) % contenders.len();
            measured[index].push(measure(&contenders[index]));
        }
    }
    measured
}

/// `N` measurements of each contender, by its name.
pub struct Comparison<const N: usize> {
    contenders: Vec<(String, [Samples; N])>,
}

impl<const N: usize> Comparison<N> {
    /// Measures named contenders in [`rounds`].
    pub fn measure<C>(
        rounds: usize,
        contenders: impl IntoIterator<Item = (impl Into<String>, C)>,
        mut measure: impl FnMut(&C) -> [f64; N],
    ) -> Self {
        let (names, contenders): (Vec<_>, Vec<_>) = contenders.into_iter().unzip();
        let measured = self::rounds(rounds, &contenders, |contender| measure(contender));
        let columns = |rounds: Vec<[f64; N]>| {
            std::array::from_fn(|column| Samples::new(rounds.iter().map(|measurements| measurements[column])))
        };
        Self { contenders: names.into_iter().map(Into::into).zip(measured.into_iter().map(columns)).collect() }
    }

    /// The measurements of one contender.
    pub fn of(&self, name: &str) -> &[Samples; N] {
        let found = self.contenders.iter().find(|(known, _)| known == name);
        found.map(|(_, samples)| samples).unwrap_or_else(|| panic!("{name} is not measured"))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &[Samples; N])> {
        self.contenders.iter().map(|(name, samples)| (name.as_str(), samples))
    }

    /// A row for each contender, with cells computed from its measurements.
    pub fn rows(&self, cells: impl Fn(&[Samples; N]) -> Vec<Samples>) -> Vec<Row> {
        self.iter().map(|(name, samples)| Row::new(name, cells(samples))).collect()
    }

    /// A row for each contender and a column for each measurement.
    pub fn table(&self, title: impl Into<String>, how: impl Into<String>, columns: [&str; N]) -> Table {
        Table::new(title, how, columns, self.rows(|samples| samples.to_vec()))
    }
}

/// The rows of comparisons of the same contenders, with a column for each comparison.
pub fn rows_of_all<'a>(comparisons: impl IntoIterator<Item = &'a Comparison<1>>) -> Vec<Row> {
    let mut comparisons = comparisons.into_iter();
    let mut rows = comparisons.next().expect("something is compared").rows(|samples| samples.to_vec());
    for comparison in comparisons {
        for (row, (_, samples)) in rows.iter_mut().zip(comparison.iter()) {
            row.cells.extend_from_slice(samples);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_rotate_the_order_but_not_the_results() {
        let mut order = Vec::new();
        let measured = rounds(2, &["a", "b", "c"], |contender| {
            order.push(*contender);
            (*contender, order.len())
        });
        assert_eq!(order, ["a", "b", "c", "b", "c", "a"]);
        assert_eq!(measured, [[("a", 1), ("a", 6)], [("b", 2), ("b", 4)], [("c", 3), ("c", 5)]]);
    }

    #[test]
    fn comparison_keeps_measurements_by_name_and_column() {
        let mut round = 0.0;
        let compared = Comparison::measure(2, [("a", 10.0), ("b", 20.0)], |value| {
            round += 1.0;
            [*value, round]
        });
        assert_eq!(*compared.of("b"), [Samples::new([20.0, 20.0]), Samples::new([2.0, 3.0])]);
    }

    #[test]
    fn rows_of_all_have_a_column_for_each_comparison() {
        let of = |factor: f64| Comparison::measure(1, [("a", 1.0), ("b", 2.0)], |value| [value * factor]);
        let rows = rows_of_all(&[of(1.0), of(10.0)]);
        assert_eq!(rows[1].name, "b");
        assert_eq!(rows[1].cells, [Samples::new([2.0]), Samples::new([20.0])]);
    }
}

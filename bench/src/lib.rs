//! How the report and the documents write figures.

/// A figure with three digits: the measurements are not precise enough for more.
pub fn three_digits(value: f64) -> String {
    // A ratio to a rate of 0 is not finite.
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let before_point = value.abs().log10().floor() as i32 + 1;
    format!("{value:.*}", (3 - before_point).clamp(0, 6) as usize)
}

#[cfg(test)]
mod tests {
    use super::three_digits;

    #[test]
    fn figures_have_three_digits_and_no_exponent() {
        assert_eq!(
            [0.0, 0.01234, 1.2345, 12.345, 123.45, 12345.0, -5.5].map(three_digits),
            ["0", "0.0123", "1.23", "12.3", "123", "12345", "-5.50"]
        );
        assert_eq!([f64::INFINITY, f64::NAN].map(three_digits), ["inf", "NaN"]);
    }
}

//! The chart of the README: what a row with an id costs.

use crate::data::{Data, TableName};
use crate::theme::{Theme, image};
use std::fmt::Write;

/// A bar: its label, and the row of the report by subject and contender.
struct Bar {
    label: &'static str,
    subject: &'static str,
    contender: &'static str,
    is_idgen: bool,
}

const TABLE: &str = "A call in a loop";
const COLUMN: &str = "CPU ns";

const BARS: [Bar; 7] = [
    Bar { label: "segment_next()", subject: "segments", contender: "segment_next", is_idgen: true },
    Bar { label: "snowflake_next()", subject: "ids", contender: "snowflake_next, `snowflake`", is_idgen: true },
    Bar { label: "uuidv7_next()", subject: "ids", contender: "uuidv7_next", is_idgen: true },
    Bar { label: "nextval(), CACHE 1000", subject: "ids", contender: "nextval, CACHE 1000", is_idgen: false },
    Bar { label: "nextval()", subject: "ids", contender: "nextval", is_idgen: false },
    Bar { label: "gen_random_uuid()", subject: "ids", contender: "gen_random_uuid", is_idgen: false },
    Bar { label: "PL/pgSQL over a sequence", subject: "ids", contender: "PL/pgSQL over a sequence", is_idgen: false },
];

pub fn tables() -> impl Iterator<Item = TableName> {
    BARS.iter().map(|bar| (bar.subject.to_owned(), TABLE.to_owned()))
}

pub fn chart(data: &Data, theme: &Theme) -> Result<String, String> {
    const LEFT: f64 = 200.0;
    const LONGEST: f64 = 430.0;
    const TOP: f64 = 52.0;
    const STEP: f64 = 30.0;
    let nanoseconds = |bar: &Bar| data.table(bar.subject, TABLE)?.value(COLUMN, bar.contender);
    let values = BARS.iter().map(nanoseconds).collect::<Result<Vec<_>, _>>()?;
    let scale = LONGEST / values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let Theme { text, idgen, other, .. } = theme;
    let mut bars = String::new();
    for (index, (bar, ns)) in BARS.iter().zip(values).enumerate() {
        let y = TOP + STEP * index as f64;
        let (colour, weight) = if bar.is_idgen { (idgen, 600) } else { (other, 400) };
        // A bar of no time is still visible.
        let width = (ns * scale).max(1.0);
        writeln!(
            bars,
            "<text x=\"{:.0}\" y=\"{:.0}\" fill=\"{text}\" text-anchor=\"end\" font-weight=\"{weight}\">{}</text>\n\
             <rect x=\"{LEFT:.0}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"20\" rx=\"2\" fill=\"{colour}\"/>\n\
             <text x=\"{:.1}\" y=\"{:.0}\" fill=\"{text}\">{ns:.0}</text>",
            LEFT - 10.0,
            y + 15.0,
            bar.label,
            LEFT + width + 8.0,
            y + 15.0,
        )
        .expect("writing to a string does not fail");
    }
    let height = TOP + STEP * BARS.len() as f64 + 28.0;
    let title = "CPU time of a row with an id, in nanoseconds";
    Ok(image(theme, height, title, &bars, "One row of a loop in one session.", &data.subject("ids")?.machine))
}

#[cfg(test)]
mod tests {
    use super::{BARS, COLUMN, TABLE, chart};
    use crate::data::tests::data_of;
    use crate::theme::THEMES;

    #[test]
    fn report_without_a_contender_is_refused() {
        let data = data_of("segments", TABLE, COLUMN, &[("nextval", 1.0)]);
        let error = chart(&data, &THEMES[0]).unwrap_err();
        assert!(error.contains(BARS[0].contender), "{error}");
    }
}

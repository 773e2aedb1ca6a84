//! The chart of the README: what a row with an id costs, in a loop and in a COPY.

use crate::data::{Data, TableName};
use crate::theme::{Theme, image};
use idgen_bench::three_digits;
use std::fmt::Write;

/// Bars of one scale: a column of tables of the report.
struct Group {
    heading: &'static str,
    table: &'static str,
    column: &'static str,
    bars: &'static [Bar],
}

/// A bar: its label, and the row of the report by subject and contender.
struct Bar {
    label: &'static str,
    subject: &'static str,
    contender: &'static str,
    is_idgen: bool,
}

const fn idgen(label: &'static str, subject: &'static str, contender: &'static str) -> Bar {
    Bar { label, subject, contender, is_idgen: true }
}

const fn other(label: &'static str, contender: &'static str) -> Bar {
    Bar { label, subject: "ids", contender, is_idgen: false }
}

const PGEDGE: &str = "snowflake of pgEdge";

const GROUPS: [Group; 2] = [
    Group {
        heading: "A row of a loop in one session, CPU time in nanoseconds",
        table: "A call in a loop",
        column: "CPU ns",
        bars: &[
            idgen("segment_next()", "segments", "segment_next"),
            idgen("snowflake_next()", "ids", "snowflake_next, `snowflake`"),
            idgen("uuidv7_next()", "ids", "uuidv7_next"),
            other("nextval(), CACHE 1000", "nextval, CACHE 1000"),
            other("nextval()", "nextval"),
            other(PGEDGE, PGEDGE),
            other("gen_random_uuid()", "gen_random_uuid"),
            other("PL/pgSQL over a sequence", "PL/pgSQL over a sequence"),
        ],
    },
    Group {
        heading: "COPY of a million rows with a default, in seconds",
        table: "COPY of 1000000 rows",
        column: "s",
        bars: &[
            idgen("snowflake_next()", "ids", "`snowflake_next()`"),
            idgen("uuidv7_next()", "ids", "`uuidv7_next()`"),
            other("nextval()", "`nextval`"),
            other(PGEDGE, PGEDGE),
        ],
    },
];

pub fn tables() -> impl Iterator<Item = TableName> {
    let of_group =
        |group: &'static Group| group.bars.iter().map(|bar| (bar.subject.to_owned(), group.table.to_owned()));
    GROUPS.iter().flat_map(of_group)
}

const LEFT: f64 = 200.0;
const LONGEST: f64 = 430.0;
const STEP: f64 = 30.0;

pub fn chart(data: &Data, theme: &Theme) -> Result<String, String> {
    let mut body = String::new();
    let mut top = 52.0;
    for group in &GROUPS {
        let muted = theme.muted;
        writeln!(body, "<text x=\"0\" y=\"{top:.0}\" fill=\"{muted}\" font-size=\"12\">{}</text>", group.heading)
            .expect("writing to a string does not fail");
        group.draw(data, theme, top + 12.0, &mut body)?;
        top += STEP * group.bars.len() as f64 + 40.0;
    }
    let title = "What a row with an id costs";
    Ok(image(theme, top + 16.0, title, &body, "Bars of a group have one scale.", &data.subject("ids")?.machine))
}

impl Group {
    fn draw(&self, data: &Data, theme: &Theme, top: f64, body: &mut String) -> Result<(), String> {
        let value = |bar: &Bar| data.table(bar.subject, self.table)?.value(self.column, bar.contender);
        let values = self.bars.iter().map(value).collect::<Result<Vec<_>, _>>()?;
        let scale = LONGEST / values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let Theme { text, idgen, other, .. } = theme;
        let shown = &data.subject("ids")?.machine.idgen;
        for (index, (bar, value)) in self.bars.iter().zip(values).enumerate() {
            // The caption has the version of ids.
            let version = &data.subject(bar.subject)?.machine.idgen;
            let label = if version == shown { bar.label.to_owned() } else { format!("{}, {version}", bar.label) };
            let y = top + STEP * index as f64;
            let (colour, weight) = if bar.is_idgen { (idgen, 600) } else { (other, 400) };
            // A bar of nearly nothing is still visible.
            let width = (value * scale).max(1.0);
            writeln!(
                body,
                "<text x=\"{:.0}\" y=\"{:.0}\" fill=\"{text}\" text-anchor=\"end\" font-weight=\"{weight}\">{}</text>\n\
                 <rect x=\"{LEFT:.0}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"20\" rx=\"2\" fill=\"{colour}\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.0}\" fill=\"{text}\">{}</text>",
                LEFT - 10.0,
                y + 15.0,
                label,
                LEFT + width + 8.0,
                y + 15.0,
                three_digits(value),
            )
            .expect("writing to a string does not fail");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{GROUPS, chart};
    use crate::data::tests::data_of;
    use crate::theme::THEMES;

    #[test]
    fn report_without_a_contender_is_refused() {
        let data = data_of("segments", GROUPS[0].table, GROUPS[0].column, &[("nextval", 1.0)]);
        let error = chart(&data, &THEMES[0]).unwrap_err();
        assert!(error.contains(GROUPS[0].bars[0].contender), "{error}");
    }
}

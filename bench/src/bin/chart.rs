//! Draws the chart of the README from a report of `make bench`, for light and for dark pages.

use clap::Parser;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Draws benchmark-light.svg and benchmark-dark.svg, and writes what they show to benchmark.json
#[derive(Parser)]
struct Options {
    /// A report in JSON, with the subjects ids and segments
    report: PathBuf,
    /// The directory for the charts
    out: PathBuf,
}

const DATA: &str = "benchmark.json";

/// The parts of a report that the chart shows. The bench writes more.
#[derive(Serialize, Deserialize)]
struct Report {
    machine: Machine,
    sections: Vec<Section>,
}

#[derive(Serialize, Deserialize)]
struct Machine {
    cpu: String,
    postgresql: String,
    idgen: String,
}

#[derive(Serialize, Deserialize)]
struct Section {
    title: String,
    tables: Vec<Table>,
}

#[derive(Serialize, Deserialize)]
struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
struct Row {
    name: String,
    cells: Vec<Cell>,
}

#[derive(Serialize, Deserialize)]
struct Cell {
    median: f64,
}

/// A bar: its label, and the row of the report by subject and contender.
struct Bar {
    label: &'static str,
    subject: &'static str,
    contender: &'static str,
    is_idgen: bool,
}

const TABLE: &str = "A call in a loop";
const COLUMN: &str = "CPU ns";

const BARS: [Bar; 6] = [
    Bar { label: "segment_next()", subject: "segments", contender: "segment_next", is_idgen: true },
    Bar { label: "snowflake_next()", subject: "ids", contender: "snowflake_next, `snowflake`", is_idgen: true },
    Bar { label: "nextval(), CACHE 1000", subject: "ids", contender: "nextval, CACHE 1000", is_idgen: false },
    Bar { label: "nextval()", subject: "ids", contender: "nextval", is_idgen: false },
    Bar { label: "gen_random_uuid()", subject: "ids", contender: "gen_random_uuid", is_idgen: false },
    Bar { label: "PL/pgSQL over a sequence", subject: "ids", contender: "PL/pgSQL over a sequence", is_idgen: false },
];

/// The colours of one chart.
struct Theme {
    name: &'static str,
    text: &'static str,
    muted: &'static str,
    idgen: &'static str,
    other: &'static str,
}

const THEMES: [Theme; 2] = [
    Theme { name: "light", text: "#1f2328", muted: "#59636e", idgen: "#0969da", other: "#afb8c1" },
    Theme { name: "dark", text: "#f0f6fc", muted: "#9198a1", idgen: "#4493f8", other: "#4d5560" },
];

fn main() {
    let options = Options::parse();
    let mut report = read(&options.report);
    report.sections.iter_mut().for_each(|section| section.tables.retain(|table| table.title == TABLE));
    let write = |name: &str, text: String| {
        let path = options.out.join(name);
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    };
    for theme in &THEMES {
        write(&file_name(theme), report.chart(theme).unwrap_or_else(|error| panic!("{error}")));
    }
    write(DATA, serde_json::to_string_pretty(&report).expect("a report is valid JSON") + "\n");
}

fn file_name(theme: &Theme) -> String {
    format!("benchmark-{}.svg", theme.name)
}

fn read(report: &Path) -> Report {
    let text = std::fs::read_to_string(report).unwrap_or_else(|error| panic!("{}: {error}", report.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", report.display()))
}

impl Report {
    fn nanoseconds(&self, bar: &Bar) -> Result<f64, String> {
        let section = self.sections.iter().find(|section| section.title == bar.subject);
        let table = section.and_then(|section| section.tables.iter().find(|table| table.title == TABLE));
        let cell = table.and_then(|table| {
            let column = table.columns.iter().position(|column| column == COLUMN)?;
            table.rows.iter().find(|row| row.name == bar.contender)?.cells.get(column)
        });
        let missing = || format!("the report lacks {:?} in {TABLE:?} of {:?}", bar.contender, bar.subject);
        cell.map(|cell| cell.median).ok_or_else(missing)
    }

    fn chart(&self, theme: &Theme) -> Result<String, String> {
        const LEFT: f64 = 200.0;
        const LONGEST: f64 = 430.0;
        const TOP: f64 = 52.0;
        const STEP: f64 = 30.0;
        let values = BARS.iter().map(|bar| self.nanoseconds(bar)).collect::<Result<Vec<_>, _>>()?;
        let scale = LONGEST / values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let height = TOP + STEP * BARS.len() as f64 + 28.0;
        let Theme { text, muted, idgen, other, .. } = theme;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 {height}\" role=\"img\" \
             font-family=\"system-ui, sans-serif\" font-size=\"14\">\n\
             <title>CPU time of a row with an id, in nanoseconds</title>\n\
             <text x=\"0\" y=\"20\" fill=\"{text}\" font-size=\"16\" font-weight=\"600\">CPU time of a row with an id, in \
             nanoseconds: less is better</text>\n"
        );
        for (index, (bar, ns)) in BARS.iter().zip(values).enumerate() {
            let y = TOP + STEP * index as f64;
            let (colour, weight) = if bar.is_idgen { (idgen, 600) } else { (other, 400) };
            // A bar of no time is still visible.
            let width = (ns * scale).max(1.0);
            writeln!(
                svg,
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
        let Machine { cpu, postgresql, idgen: version } = &self.machine;
        let postgresql = postgresql.split(' ').next().unwrap_or_default();
        let caption = format!("One row of a loop in one session. idgen {version}, PostgreSQL {postgresql}, {cpu}.");
        let y = height - 8.0;
        svg +=
            &format!("<text x=\"0\" y=\"{y}\" fill=\"{muted}\" font-size=\"12\">{}</text>\n</svg>\n", escape(&caption));
        Ok(svg)
    }
}

/// The name of a processor comes from the machine.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::{BARS, DATA, THEMES, file_name, read};
    use std::path::Path;

    const IMAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/images");

    #[test]
    fn charts_of_the_documents_are_drawn_from_their_report() {
        let report = read(&Path::new(IMAGES).join(DATA));
        for theme in &THEMES {
            let path = Path::new(IMAGES).join(file_name(theme));
            let drawn = std::fs::read_to_string(&path).expect("the chart is readable");
            assert_eq!(report.chart(theme).unwrap(), drawn, "make chart draws {}", path.display());
        }
    }

    #[test]
    fn report_without_a_contender_is_refused() {
        let mut report = read(&Path::new(IMAGES).join(DATA));
        report.sections.retain(|section| section.title != "segments");
        let error = report.chart(&THEMES[0]).unwrap_err();
        assert!(error.contains(BARS[0].contender), "{error}");
    }
}

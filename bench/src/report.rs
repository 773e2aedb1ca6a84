//! What was measured, as JSON for programs and as Markdown for people.

use crate::machine::Machine;
use crate::samples::Samples;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

#[derive(Serialize)]
pub struct Report {
    pub command: String,
    pub machine: Machine,
    pub sections: Vec<Section>,
}

/// What was measured of one subject.
#[derive(Serialize)]
pub struct Section {
    pub title: &'static str,
    pub figures: Vec<Figure>,
    pub tables: Vec<Table>,
}

/// One thing that the design asks for.
#[derive(Serialize)]
pub struct Figure {
    target: String,
    measured: Samples,
    holds: bool,
}

impl Figure {
    /// The median shall be at most this.
    pub fn at_most(bound: f64, what: impl Into<String>, measured: Samples) -> Self {
        Self { target: format!("{}: at most {bound}", what.into()), holds: measured.median() <= bound, measured }
    }

    /// The median shall be at least this.
    pub fn at_least(bound: f64, what: impl Into<String>, measured: Samples) -> Self {
        Self { target: format!("{}: at least {bound}", what.into()), holds: measured.median() >= bound, measured }
    }
}

#[derive(Serialize)]
pub struct Table {
    pub title: String,
    /// What exactly was done, so that somebody else can do it.
    pub how: String,
    pub columns: Vec<String>,
    pub rows: Vec<Row>,
}

#[derive(Serialize)]
pub struct Row {
    pub name: String,
    pub cells: Vec<Samples>,
}

impl Report {
    /// Writes both forms and returns the Markdown.
    pub fn write(&self, dir: &Path, name: &str) -> String {
        let markdown = self.markdown();
        let json = serde_json::to_string_pretty(self).expect("a report has nothing that JSON cannot say");
        std::fs::create_dir_all(dir).expect("the report's directory can be made");
        std::fs::write(dir.join(name).with_extension("json"), json).expect("the report is writable");
        std::fs::write(dir.join(name).with_extension("md"), &markdown).expect("the report is writable");
        markdown
    }

    fn markdown(&self) -> String {
        let mut text = format!("`{}`\n\n{}\n", self.command, self.machine);
        for section in &self.sections {
            section.render(&mut text).expect("a string takes everything");
        }
        text
    }
}

impl Section {
    fn render(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "\n## {}\n\n| figure | measured | holds |\n| --- | --- | --- |", self.title)?;
        for figure in &self.figures {
            let holds = if figure.holds { "yes" } else { "**no**" };
            writeln!(text, "| {} | {} | {holds} |", figure.target, figure.measured)?;
        }
        for table in &self.tables {
            writeln!(text, "\n### {}\n\n{}\n", table.title, table.how)?;
            writeln!(text, "| | {} |\n|{}", table.columns.join(" | "), " --- |".repeat(table.columns.len() + 1))?;
            for row in &table.rows {
                let cells: Vec<String> = row.cells.iter().map(Samples::to_string).collect();
                writeln!(text, "| {} | {} |", row.name, cells.join(" | "))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Figure, Row, Section, Table};
    use crate::samples::Samples;

    #[test]
    fn a_figure_goes_by_the_median() {
        let measured = || Samples::new([1.0, 2.0, 9.0]);
        assert!(Figure::at_most(2.0, "", measured()).holds);
        assert!(!Figure::at_most(1.9, "", measured()).holds);
        assert!(Figure::at_least(2.0, "", measured()).holds);
        assert!(!Figure::at_least(2.1, "", measured()).holds);
    }

    #[test]
    fn a_section_is_figures_and_tables() {
        let row = Row { name: "a".into(), cells: vec![Samples::new([1.0]), Samples::new([2.0])] };
        let columns = vec!["x".into(), "y".into()];
        let table = Table { title: "t".into(), how: "h".into(), columns, rows: vec![row] };
        let figures = vec![Figure::at_most(1.0, "f", Samples::new([2.0]))];
        let mut text = String::new();
        Section { title: "s", figures, tables: vec![table] }.render(&mut text).unwrap();
        let figures =
            "\n## s\n\n| figure | measured | holds |\n| --- | --- | --- |\n| f: at most 1 | 2.00 | **no** |\n";
        let table = "\n### t\n\nh\n\n| | x | y |\n| --- | --- | --- |\n| a | 1.00 | 2.00 |\n";
        assert_eq!(text, format!("{figures}{table}"));
    }
}

//! The report, as JSON for programs and as Markdown for people.

use super::machine::Machine;
use super::samples::Samples;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

#[derive(Serialize)]
pub struct Report {
    pub command: String,
    pub machine: Machine,
    pub sections: Vec<Section>,
}

/// The results of one subject.
#[derive(Serialize)]
pub struct Section {
    title: &'static str,
    figures: Vec<Figure>,
    tables: Vec<Table>,
}

/// One design target and its measurement.
#[derive(Serialize)]
struct Figure {
    target: String,
    measured: Samples,
    /// Judged by the median.
    holds: bool,
}

#[derive(Serialize)]
pub struct Table {
    title: String,
    /// Enough detail to repeat the measurement.
    how: String,
    columns: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Serialize)]
pub struct Row {
    pub name: String,
    pub cells: Vec<Samples>,
}

impl Report {
    /// Writes both forms.
    pub fn write(&self, dir: &Path, name: &str) {
        let json = serde_json::to_string_pretty(self).expect("a report is valid JSON");
        std::fs::create_dir_all(dir).expect("cannot create the directory of the report");
        std::fs::write(dir.join(name).with_extension("json"), json).expect("cannot write the report");
        std::fs::write(dir.join(name).with_extension("md"), self.markdown()).expect("cannot write the report");
    }

    pub fn markdown(&self) -> String {
        let mut text = format!("`{}`\n\n{}\n", self.command, self.machine);
        for section in &self.sections {
            section.render(&mut text).expect("writing to a string does not fail");
        }
        text
    }
}

impl Section {
    pub fn new(title: &'static str) -> Self {
        Self { title, figures: Vec::new(), tables: Vec::new() }
    }

    /// Adds the target that the median of `what` is at most `bound`.
    pub fn at_most(&mut self, bound: f64, what: impl AsRef<str>, measured: Samples) {
        let (target, holds) = (format!("{}: at most {bound}", what.as_ref()), measured.median() <= bound);
        self.figures.push(Figure { target, measured, holds });
    }

    /// Adds the target that the median of `what` is at least `bound`.
    pub fn at_least(&mut self, bound: f64, what: impl AsRef<str>, measured: Samples) {
        let (target, holds) = (format!("{}: at least {bound}", what.as_ref()), measured.median() >= bound);
        self.figures.push(Figure { target, measured, holds });
    }

    pub fn add(&mut self, table: Table) {
        self.tables.push(table);
    }

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

impl Table {
    pub fn new(
        title: impl Into<String>,
        how: impl Into<String>,
        columns: impl IntoIterator<Item = impl Into<String>>,
        rows: Vec<Row>,
    ) -> Self {
        let columns: Vec<String> = columns.into_iter().map(Into::into).collect();
        assert!(rows.iter().all(|row| row.cells.len() == columns.len()), "every row has a cell for each column");
        Self { title: title.into(), how: how.into(), columns, rows }
    }
}

impl Row {
    pub fn new(name: impl Into<String>, cells: Vec<Samples>) -> Self {
        Self { name: name.into(), cells }
    }
}

#[cfg(test)]
mod tests {
    use super::{Row, Section, Table};
    use crate::harness::samples::Samples;

    #[test]
    fn figure_is_judged_by_the_median() {
        let measured = || Samples::new([1.0, 2.0, 9.0]);
        let mut section = Section::new("s");
        section.at_most(2.0, "", measured());
        section.at_most(1.9, "", measured());
        section.at_least(2.0, "", measured());
        section.at_least(2.1, "", measured());
        let holds: Vec<bool> = section.figures.iter().map(|figure| figure.holds).collect();
        assert_eq!(holds, [true, false, true, false]);
    }

    #[test]
    fn section_shows_figures_before_tables() {
        let row = Row::new("a", vec![Samples::new([1.0]), Samples::new([2.0])]);
        let mut section = Section::new("s");
        section.add(Table::new("t", "h", ["x", "y"], vec![row]));
        section.at_most(1.0, "f", Samples::new([2.0]));
        let mut text = String::new();
        section.render(&mut text).unwrap();
        let figures =
            "\n## s\n\n| figure | measured | holds |\n| --- | --- | --- |\n| f: at most 1 | 2.00 | **no** |\n";
        let table = "\n### t\n\nh\n\n| | x | y |\n| --- | --- | --- |\n| a | 1.00 | 2.00 |\n";
        assert_eq!(text, format!("{figures}{table}"));
    }
}

//! What the documents show of reports. Each subject is as its last report has it, so that one can be measured alone.

use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
pub struct Data {
    pub subjects: Vec<Subject>,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Subject {
    pub title: String,
    pub machine: Machine,
    pub tables: Vec<Table>,
}

/// The parts of a report that the documents show. The bench writes more.
#[derive(Deserialize)]
pub struct Report {
    machine: Machine,
    sections: Vec<Section>,
}

#[derive(Deserialize)]
struct Section {
    title: String,
    tables: Vec<Table>,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Machine {
    pub cpu: String,
    pub postgresql: String,
    pub idgen: String,
    pub load_before: String,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Table {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<Row>,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    pub cells: Vec<Cell>,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Cell {
    pub median: f64,
}

/// The name of a table: its subject and its title.
pub type TableName = (String, String);

impl Data {
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("data is valid JSON") + "\n"
    }

    /// Replaces the subjects that the report has, by those of their tables that are shown.
    pub fn updated(mut self, report: Report, shown: &[TableName]) -> Self {
        let Report { machine, sections } = report;
        for Section { title, mut tables } in sections {
            tables.retain(|table| shown.contains(&(title.clone(), table.title.clone())));
            self.subjects.retain(|subject| subject.title != title);
            self.subjects.push(Subject { title, machine: machine.clone(), tables });
        }
        self.subjects.sort_by(|a, b| a.title.cmp(&b.title));
        self
    }

    pub fn subject(&self, title: &str) -> Result<&Subject, String> {
        let found = self.subjects.iter().find(|subject| subject.title == title);
        found.ok_or_else(|| format!("no report has had the subject {title:?}"))
    }

    pub fn table(&self, subject: &str, title: &str) -> Result<&Table, String> {
        let found = self.subject(subject)?.tables.iter().find(|table| table.title == title);
        found.ok_or_else(|| format!("the report lacks the table {title:?} of {subject:?}"))
    }
}

impl Machine {
    /// Without the name of the package.
    pub fn postgresql(&self) -> &str {
        self.postgresql.split(' ').next().unwrap_or_default()
    }
}

impl Table {
    /// The medians of a column, by the names of the rows.
    pub fn column(&self, name: &str) -> Result<Vec<(&str, f64)>, String> {
        let column = self.columns.iter().position(|column| column == name);
        let column = column.ok_or_else(|| format!("the report lacks the column {name:?} in {:?}", self.title))?;
        let value = |row: &Row| row.cells.get(column).map(|cell| cell.median);
        let missing = |row: &Row| format!("the report lacks a cell of {:?} in {:?}", row.name, self.title);
        self.rows.iter().map(|row| Ok((row.name.as_str(), value(row).ok_or_else(|| missing(row))?))).collect()
    }

    pub fn value(&self, column: &str, row: &str) -> Result<f64, String> {
        let found = self.column(column)?.into_iter().find(|(name, _)| *name == row);
        found.map(|(_, value)| value).ok_or_else(|| format!("the report lacks {row:?} in {:?}", self.title))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Data of one subject with one table of one column.
    pub fn data_of(subject: &str, table: &str, column: &str, rows: &[(&str, f64)]) -> Data {
        let row =
            |(name, median): &(&str, f64)| Row { name: (*name).to_owned(), cells: vec![Cell { median: *median }] };
        let rows = rows.iter().map(row).collect();
        let table = Table { title: table.to_owned(), columns: vec![column.to_owned()], rows };
        Data { subjects: vec![Subject { title: subject.to_owned(), machine: machine("1"), tables: vec![table] }] }
    }

    fn machine(idgen: &str) -> Machine {
        let text = |text: &str| text.to_owned();
        Machine { cpu: text("a <b> & c"), postgresql: text("15.1 (x)"), idgen: text(idgen), load_before: text("0.5") }
    }

    #[test]
    fn report_replaces_its_subjects_and_leaves_the_others() {
        let old = data_of("locks", "t", "c", &[("a", 1.0)]);
        let new = data_of("leases", "t", "c", &[("a", 2.0)]).subjects.remove(0);
        let both = Data { subjects: vec![old.subjects[0].clone(), new] };
        let section =
            |title: &str, of: Data| Section { title: title.to_owned(), tables: of.subjects[0].tables.clone() };
        let sections = vec![section("locks", data_of("locks", "t", "c", &[("a", 3.0)]))];
        let shown = ["leases", "locks"].map(|subject| (subject.to_owned(), "t".to_owned()));
        let updated = both.updated(Report { machine: machine("2"), sections }, &shown);
        let value = |subject| updated.table(subject, "t").unwrap().value("c", "a").unwrap();
        assert_eq!([value("leases"), value("locks")], [2.0, 3.0]);
        assert_eq!(["leases", "locks"].map(|title| updated.subject(title).unwrap().machine.idgen.as_str()), ["1", "2"]);
    }

    #[test]
    fn table_that_is_not_shown_is_left_out() {
        let Data { subjects } = data_of("locks", "t", "c", &[]);
        let sections = vec![Section { title: "locks".to_owned(), tables: subjects[0].tables.clone() }];
        let updated = Data { subjects: Vec::new() }.updated(Report { machine: machine("2"), sections }, &[]);
        assert!(updated.table("locks", "t").is_err());
    }
}

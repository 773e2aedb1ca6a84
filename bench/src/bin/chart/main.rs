//! Draws the charts of the documents from a report of `make bench`, and writes the tables of docs/performance.md.

use clap::Parser;
use data::{Data, Report};
use std::path::{Path, PathBuf};

mod bars;
mod data;
mod growth;
mod tables;
mod theme;

use theme::{THEMES, Theme};

/// Draws the charts of docs/images, writes what the documents show to benchmark.json beside them, and rewrites the
/// tables of performance.md. Subjects that the report does not have stay as they are
#[derive(Parser)]
struct Options {
    /// A report in JSON
    report: PathBuf,
    /// The directory of the documents
    docs: PathBuf,
}

const DATA: &str = "images/benchmark.json";
const PAGE: &str = "performance.md";

/// A chart: the name of its files, and how it is drawn.
type Chart = (&'static str, fn(&Data, &Theme) -> Result<String, String>);

const CHARTS: [Chart; 2] = [("benchmark", bars::chart), ("growth", growth::chart)];

fn main() {
    let Options { report, docs } = Options::parse();
    let (data, page) = (docs.join(DATA), docs.join(PAGE));
    let text = read(&page);
    let known = Data::parse(&read(&data)).unwrap_or_else(|error| panic!("{}: {error}", data.display()));
    let report: Report =
        serde_json::from_str(&read(&report)).unwrap_or_else(|error| panic!("{}: {error}", report.display()));
    let shown: Vec<_> = bars::tables().chain(growth::tables()).chain(tables::named(&text)).collect();
    let known = known.updated(report, &shown);
    // Every file is made before the first is written: an incomplete report changes nothing.
    let made = files(&known, &docs, &text).unwrap_or_else(|error| panic!("{error}"));
    for (path, text) in made.into_iter().chain([(data, known.to_json())]) {
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files that follow from the data: the charts and the page, whose text is `page` now.
fn files(data: &Data, docs: &Path, page: &str) -> Result<Vec<(PathBuf, String)>, String> {
    let mut files = vec![(docs.join(PAGE), tables::rewritten(page, data)?)];
    for (name, draw) in CHARTS {
        for theme in &THEMES {
            files.push((docs.join(format!("images/{name}-{}.svg", theme.name)), draw(data, theme)?));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_and_tables_of_the_documents_are_made_from_their_data() {
        let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"));
        let data = Data::parse(&read(&docs.join(DATA))).unwrap();
        for (path, made) in files(&data, docs, &read(&docs.join(PAGE))).unwrap() {
            assert_eq!(made, read(&path), "make chart writes {}", path.display());
        }
    }
}

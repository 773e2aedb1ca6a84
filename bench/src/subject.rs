//! A subject is measured part by part.

use crate::report::{Figure, Section, Table};
use crate::scale::Scale;
use crate::server::Server;

pub type Part = fn(&Server, &Scale) -> (Vec<Figure>, Vec<Table>);

/// Measures the parts one after the other, each with the name that says how far it has come.
pub fn section(title: &'static str, parts: &[(&str, Part)], server: &Server, scale: &Scale) -> Section {
    let mut section = Section { title, figures: Vec::new(), tables: Vec::new() };
    for (name, part) in parts {
        eprintln!("==> {title}: {name}");
        let (figures, tables) = part(server, scale);
        section.figures.extend(figures);
        section.tables.extend(tables);
    }
    section
}

//! How every subject is measured: on one [`Server`], in rounds that compare contenders, into a report [`Section`].

pub mod comparison;
pub mod loops;
pub mod machine;
pub mod pgbench;
pub mod report;
pub mod samples;
pub mod scale;
pub mod server;
pub mod session;
pub mod source;

use report::Section;
use scale::Scale;
use server::Server;

/// A part of a subject: its name for the progress output, and the function that adds its results to the section.
pub type Part = (&'static str, fn(&Server, &Scale, &mut Section));

/// Measures the parts of a subject one after another.
pub fn measure(title: &'static str, parts: &[Part], server: &Server, scale: &Scale) -> Section {
    let mut section = Section::new(title);
    for (name, part) in parts {
        eprintln!("==> {title}: {name}");
        part(server, scale, &mut section);
    }
    section
}

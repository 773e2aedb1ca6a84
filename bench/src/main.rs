//! Compares idgen with its alternatives on throw-away servers. The results are a report; a missed target is no failure.
//!
//! A subject ([`ids`], [`segments`], [`locks`], [`leases`], [`workers`], [`growth`]) is a list of parts. Each part compares some
//! contenders, and adds figures and tables to a section of the report. [`harness`] has what all subjects share,
//! [`generators`] and [`locking`] what two of them share, and [`peers`] the alternatives to idgen.

use clap::{Parser, ValueEnum};
use harness::report::{Report, Section};
use harness::scale::Scale;
use harness::server::Server;
use std::path::PathBuf;

mod copies;
mod generators;
mod growth;
mod harness;
mod ids;
mod lead;
mod leases;
mod locking;
mod locks;
mod peers;
mod public_ids;
mod segments;
mod workers;

/// Compares idgen with its alternatives on the server of $PG_CONFIG
#[derive(Parser)]
struct Options {
    /// What to measure; everything by default
    subjects: Vec<Subject>,
    /// Only check that everything runs: the figures mean nothing
    #[arg(long)]
    quick: bool,
    /// The library of idgen-bench-noop
    #[arg(long, value_name = "FILE")]
    noop: PathBuf,
    /// The library of pgEdge's snowflake; empty to leave it out
    #[arg(long, value_name = "FILE", default_value = "")]
    pgedge: PathBuf,
    /// The directory for the report, as JSON and as Markdown
    #[arg(long, value_name = "DIRECTORY")]
    out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Subject {
    Ids,
    Segments,
    Locks,
    Leases,
    Workers,
    Growth,
}

impl Subject {
    fn measure(self, server: &Server, scale: &Scale) -> Section {
        match self {
            Subject::Ids => harness::measure("ids", &ids::PARTS, server, scale),
            Subject::Segments => harness::measure("segments", &segments::PARTS, server, scale),
            Subject::Locks => harness::measure("locks", &locks::PARTS, server, scale),
            Subject::Leases => harness::measure("leases", &leases::PARTS, server, scale),
            Subject::Workers => harness::measure("workers", &workers::PARTS, server, scale),
            Subject::Growth => harness::measure("growth", &growth::PARTS, server, scale),
        }
    }
}

fn main() {
    let options = Options::parse();
    let subjects = if options.subjects.is_empty() { Subject::value_variants() } else { &options.subjects };
    let scale = if options.quick { Scale::quick() } else { Scale::full() };
    let server = Server::start(options.noop.clone());
    peers::sql::create(&server);
    peers::pgedge::create(&server, &options.pgedge);
    let mut report = Report { command: command(&options), machine: server.machine(), sections: Vec::new() };
    // A quick run does not overwrite a real report.
    let name = if options.quick { "quick" } else { "report" };
    for subject in subjects {
        report.sections.push(subject.measure(&server, &scale));
        // After each subject: a later one that fails does not lose it.
        report.write(&options.out, name);
    }
    println!("{}", report.markdown());
}

/// The command that makes such a report.
fn command(options: &Options) -> String {
    let names = options.subjects.iter().filter_map(|subject| subject.to_possible_value());
    let mut arguments: Vec<String> = names.map(|value| value.get_name().to_owned()).collect();
    arguments.extend(options.quick.then(|| "--quick".to_owned()));
    match arguments.join(" ") {
        none if none.is_empty() => "make bench".to_owned(),
        arguments => format!("make bench BENCH=\"{arguments}\""),
    }
}

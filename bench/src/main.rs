//! The comparisons that the README quotes, on a throw-away server. It reports: a figure that does not hold fails nothing.
//!
//! A subject is a module with a `measure`, which returns a [`Section`]. What it needs for that is shared: a [`Server`] with
//! sane settings, [`rounds`] that measure all contenders side by side, [`pgbench`], the [`report`], and what one does with
//! whatever makes ids: [`calls`] in a loop, [`loads`] of many sessions, [`inserts`].

use clap::{Parser, ValueEnum};
use report::{Report, Section};
use scale::Scale;
use server::Server;
use std::path::PathBuf;

mod beside;
mod calls;
mod contender;
mod cycles;
mod etcd;
mod fairness;
mod ids;
mod inserts;
mod leases;
mod loads;
mod locks;
mod machine;
mod pgbench;
mod redis;
mod redis_lock;
mod report;
mod rounds;
mod samples;
mod scale;
mod segments;
mod server;
mod subject;
mod workers;

/// Compares idgen with what a user would pick instead.
#[derive(Parser)]
struct Options {
    /// What to measure; without one, everything
    subjects: Vec<Subject>,
    /// Only see that all of it works: the figures mean nothing
    #[arg(long)]
    quick: bool,
    /// The library of idgen-bench-noop
    #[arg(long, value_name = "FILE")]
    noop: PathBuf,
    /// Where the report goes, as JSON and as Markdown
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
}

impl Subject {
    fn measure(self, server: &Server, scale: &Scale) -> Section {
        match self {
            Subject::Ids => ids::measure(server, scale),
            Subject::Segments => segments::measure(server, scale),
            Subject::Locks => locks::measure(server, scale),
            Subject::Leases => leases::measure(server, scale),
            Subject::Workers => workers::measure(server, scale),
        }
    }
}

fn main() {
    let options = Options::parse();
    let subjects = if options.subjects.is_empty() { Subject::value_variants() } else { &options.subjects };
    let scale = if options.quick { Scale::quick() } else { Scale::full() };
    let server = Server::start(&options.noop);
    let report = Report {
        command: command(&options),
        machine: server.machine(),
        sections: subjects.iter().map(|subject| subject.measure(&server, &scale)).collect(),
    };
    // What was measured in earnest stays.
    let name = if options.quick { "quick" } else { "report" };
    println!("{}", report.write(&options.out, name));
}

/// What to type for such a report.
fn command(options: &Options) -> String {
    let names = options.subjects.iter().filter_map(|subject| subject.to_possible_value());
    let mut arguments: Vec<String> = names.map(|value| value.get_name().to_owned()).collect();
    arguments.extend(options.quick.then(|| "--quick".to_owned()));
    match arguments.join(" ") {
        none if none.is_empty() => "make bench".to_owned(),
        arguments => format!("make bench BENCH=\"{arguments}\""),
    }
}

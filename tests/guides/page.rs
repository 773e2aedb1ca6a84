//! The SQL of a guide, and the files of the repository.

use idgen_testkit::sql::execute;
use postgres::Client;

use crate::repository;

pub fn read(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The blocks of this language in a guide.
pub fn blocks(guide: &str, language: &str) -> Vec<String> {
    let page = read(&format!("docs/guides/{guide}"));
    let fence = format!("\n```{language}\n");
    page.split(&*fence).skip(1).map(|rest| rest.split("\n```").next().unwrap_or_default().to_owned()).collect()
}

/// Runs the one SQL block of a guide that begins like this.
pub fn run_block(client: &mut Client, guide: &str, beginning: &str) {
    let blocks = blocks(guide, "sql");
    let found: Vec<_> = blocks.iter().filter(|block| block.starts_with(beginning)).collect();
    let [block] = found[..] else { panic!("{} blocks of {guide} begin with {beginning}", found.len()) };
    execute(client, block);
}

//! The SQL of a guide.

use idgen_testkit::sql::execute;
use postgres::Client;

use crate::repository;

/// The SQL blocks of a guide.
pub fn sql_blocks(guide: &str) -> Vec<String> {
    let path = repository("docs/guides").join(guide);
    let page = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    page.split("\n```sql\n").skip(1).map(|rest| rest.split("\n```").next().unwrap_or_default().to_owned()).collect()
}

/// Runs the one SQL block of a guide that begins like this.
pub fn run_block(client: &mut Client, guide: &str, beginning: &str) {
    let blocks = sql_blocks(guide);
    let found: Vec<_> = blocks.iter().filter(|block| block.starts_with(beginning)).collect();
    let [block] = found[..] else { panic!("{} blocks of {guide} begin with {beginning}", found.len()) };
    execute(client, block);
}

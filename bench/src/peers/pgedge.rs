//! The extension snowflake of pgEdge: ids of a sequence whose values have a time.

use crate::harness::server::Server;
use crate::harness::source::{Contender, Source};
use std::path::Path;

const CONTENDER: Contender = ("snowflake of pgEdge", Source::Expression("pgedge_nextval('seq_pgedge')"));

/// The default of a key.
pub const DEFAULT: (&str, &str) = (CONTENDER.0, "bigint DEFAULT pgedge_nextval('seq_pgedge')");

/// Declares its function alone, as its own script does: the extension is not installed. An empty path leaves it out.
pub fn create(server: &Server, library: &Path) {
    if library.as_os_str().is_empty() {
        return;
    }
    let copy = server.copied(library);
    server.cluster.execute("ALTER DATABASE postgres SET snowflake.node = 1");
    server.cluster.execute(&format!(
        "CREATE SEQUENCE seq_pgedge;
         CREATE FUNCTION pgedge_nextval(regclass) RETURNS bigint LANGUAGE c AS '{}', 'snowflake_nextval'",
        copy.display()
    ));
}

pub fn contender(server: &Server) -> Option<Contender> {
    server.has_function("pgedge_nextval").then_some(CONTENDER)
}

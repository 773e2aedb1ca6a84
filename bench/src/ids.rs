//! Ids: idgen's snowflakes beside what a user of PostgreSQL would take instead.

use crate::report::{Figure, Section, Table};
use crate::scale::Scale;
use crate::server::Server;

mod calls;
mod ceiling;
mod contender;
mod inserts;
mod loads;
mod mark;
mod parallel;

/// Sequences, and the function that is found everywhere where PostgreSQL makes snowflakes: time, a shard's number, and the
/// end of a sequence.
const SETUP: &str = "
CREATE SEQUENCE seq_1;
CREATE SEQUENCE seq_32 CACHE 32;
CREATE SEQUENCE seq_1000 CACHE 1000;
CREATE SEQUENCE seq_plpgsql;
CREATE FUNCTION plpgsql_next() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  epoch_ms CONSTANT bigint := 1577836800000;
  shard CONSTANT bigint := 5;
  now_ms CONSTANT bigint := extract(epoch FROM clock_timestamp()) * 1000;
BEGIN
  RETURN (now_ms - epoch_ms) << 23 | shard << 10 | nextval('seq_plpgsql') % 1024;
END
$$";

type Part = fn(&Server, &Scale) -> (Vec<Figure>, Vec<Table>);

const PARTS: [(&str, Part); 6] = [
    ("calls in a loop", calls::measure),
    ("many clients", loads::measure),
    ("the ceiling of the default layout", ceiling::measure),
    ("inserts", inserts::measure),
    ("parallel plans", parallel::measure),
    ("the mark", mark::measure),
];

pub fn measure(server: &Server, scale: &Scale) -> Section {
    server.cluster.execute(SETUP);
    let mut section = Section { title: "ids", figures: Vec::new(), tables: Vec::new() };
    for (name, part) in PARTS {
        eprintln!("==> ids: {name}");
        let (figures, tables) = part(server, scale);
        section.figures.extend(figures);
        section.tables.extend(tables);
    }
    section
}

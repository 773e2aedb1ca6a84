//! Ids: idgen's snowflakes beside what a user of PostgreSQL would take instead.

use crate::report::Section;
use crate::scale::Scale;
use crate::server::Server;
use crate::subject::{Part, section};

mod calls;
mod ceiling;
mod contender;
mod inserts;
mod leased;
mod loads;
mod mark;
mod parallel;

/// The function that is found everywhere where PostgreSQL makes snowflakes: time, a shard's number, and the end of a
/// sequence.
const SETUP: &str = "
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

const PARTS: [(&str, Part); 7] = [
    ("calls in a loop", calls::measure),
    ("a leased number", leased::measure),
    ("many clients", loads::measure),
    ("the ceiling of the default layout", ceiling::measure),
    ("inserts", inserts::measure),
    ("parallel plans", parallel::measure),
    ("the mark", mark::measure),
];

pub fn measure(server: &Server, scale: &Scale) -> Section {
    server.cluster.execute(SETUP);
    section("ids", &PARTS, server, scale)
}

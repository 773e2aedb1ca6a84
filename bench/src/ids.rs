//! Ids: idgen's snowflakes beside what a user of PostgreSQL would take instead.

use crate::report::Section;
use crate::scale::Scale;
use crate::server::Server;
use contender::Contender;

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

pub fn measure(server: &Server, scale: &Scale) -> Section {
    server.cluster.execute(SETUP);
    let contenders = Contender::all(server);
    let parts = [
        calls::measure(server, scale, &contenders),
        loads::measure(server, scale, &contenders),
        ceiling::measure(server, scale),
        inserts::measure(server, scale),
        parallel::measure(server, scale),
        mark::measure(server, scale),
    ];
    let (figures, tables): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    Section {
        title: "ids",
        figures: figures.into_iter().flatten().collect(),
        tables: tables.into_iter().flatten().collect(),
    }
}

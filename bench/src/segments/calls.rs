//! What one id costs in a loop.

use super::contender::{self, NEXT};
use crate::calls::Calls;
use crate::contender::{NEXTVAL, NOOP};
use crate::report::{Figure, Table};
use crate::scale::Scale;
use crate::server::Server;

const HOW: &str = "The WAL has that of the refill worker in it. The row that counts is updated in a loop in PL/pgSQL, \
                   which commits each id.";

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let calls = Calls::measure(server, scale, &contender::all());
    let next = calls.cpu_of(NEXT);
    let figures = vec![
        Figure::at_most(1.5, "CPU time of segment_next, to the no-op's, in a loop", next.over(calls.cpu_of(NOOP))),
        Figure::at_least(2.0, "CPU time of nextval, to segment_next's, in a loop", calls.cpu_of(NEXTVAL).over(next)),
        Figure::at_most(0.1, "WAL bytes an id of segment_next, in a loop", calls.wal_of(NEXT).clone()),
    ];
    (figures, vec![calls.table(HOW)])
}

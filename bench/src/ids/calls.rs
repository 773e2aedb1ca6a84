//! What one id costs in a loop.

use super::contender::{self, NEXT, NEXT_MANY};
use crate::calls::Calls;
use crate::contender::{NEXTVAL, NOOP, SERIES};
use crate::report::{Figure, Table};
use crate::scale::Scale;
use crate::server::Server;

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let calls = Calls::measure(server, scale, &contender::all(server));
    let next = calls.cpu_of(NEXT);
    let many = calls.cpu_of(SERIES).over(calls.cpu_of(NEXT_MANY));
    let figures = vec![
        Figure::at_most(1.3, "CPU time of snowflake_next, to the no-op's, in a loop", next.over(calls.cpu_of(NOOP))),
        Figure::at_least(2.0, "CPU time of nextval, to snowflake_next's, in a loop", calls.cpu_of(NEXTVAL).over(next)),
        Figure::at_least(0.7, "CPU time of generate_series, to snowflake_next_many's", many),
    ];
    (figures, vec![calls.table("The default layout draws from the lead here.")])
}

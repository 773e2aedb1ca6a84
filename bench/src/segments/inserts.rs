//! Many rows, keyed by values of a segment.

use super::contender::NEXT;
use crate::inserts::{Inserts, Key};
use crate::report::{Figure, Table};
use crate::scale::Scale;
use crate::server::Server;

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let key = Key { name: NEXT, column: "bigint DEFAULT segment_next('bench')" };
    let inserts = Inserts::measure(server, scale, [key]);
    (vec![inserts.figure(NEXT)], vec![inserts.table()])
}

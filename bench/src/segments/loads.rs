//! Many sessions that draw from one tag.

use super::contender::{self, NEXT};
use crate::loads::{BATCH, Loads};
use crate::report::{Figure, Table};
use crate::scale::Scale;
use crate::server::Server;

const HOW: &str = "All draw from one tag.";

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let contenders = contender::all();
    let [many, one] = [BATCH, 1].map(|batch| Loads::measure(server, scale, &contenders, batch));
    (many.figures(NEXT, 1.5), vec![many.table(HOW), one.table(HOW)])
}

//! Many sessions that draw ids.

use super::contender::{self, NEXT};
use crate::loads::{BATCH, Loads};
use crate::report::{Figure, Table};
use crate::scale::Scale;
use crate::server::Server;

const HOW: &str = "The default layout has its lead of a second here.";

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let contenders = contender::all(server);
    let [many, one] = [BATCH, 1].map(|batch| Loads::measure(server, scale, &contenders, batch));
    (many.figures(NEXT, 1.3), vec![many.table(HOW), one.table(HOW)])
}

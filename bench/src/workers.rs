//! Worker ids from a pool: what a fleet costs its coordinator.

use crate::report::Section;
use crate::scale::Scale;
use crate::server::Server;
use crate::subject::{Part, section};

mod fleet;

const PARTS: [(&str, Part); 1] = [("a fleet", fleet::measure)];

pub fn measure(server: &Server, scale: &Scale) -> Section {
    section("workers", &PARTS, server, scale)
}

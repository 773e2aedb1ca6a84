//! Named locks beside PostgreSQL's own advisory locks, whose keys the application hashes itself, and Redis.

use crate::report::Section;
use crate::scale::Scale;
use crate::server::Server;
use crate::subject::{Part, section};

mod calls;
mod hand_off;
mod round_trips;

/// How much more than PostgreSQL's own lock a named one may cost.
const MOST: f64 = 1.15;

const PARTS: [(&str, Part); 3] = [
    ("calls in a loop", calls::measure),
    ("round trips", round_trips::measure),
    ("a contended lock", hand_off::measure),
];

pub fn measure(server: &Server, scale: &Scale) -> Section {
    section("locks", &PARTS, server, scale)
}

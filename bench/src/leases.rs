//! Leases beside the locks that expire of Redis and of etcd, each as durable as the other.

use crate::report::Section;
use crate::scale::Scale;
use crate::server::Server;
use crate::subject::{Part, section};

mod attempts;
mod cycles;
mod hand_off;
mod renewals;
mod take_over;

/// How many clients there are where they do not meet.
const CLIENTS: [u32; 2] = [1, 8];

const PARTS: [(&str, Part); 5] = [
    ("acquire and release", cycles::measure),
    ("renewals", renewals::measure),
    ("losing attempts", attempts::measure),
    ("the end of a holder", take_over::measure),
    ("a contended lease", hand_off::measure),
];

pub fn measure(server: &Server, scale: &Scale) -> Section {
    section("leases", &PARTS, server, scale)
}

//! Segments: small ids from shared memory beside sequences and a table that counts.

use crate::report::Section;
use crate::scale::Scale;
use crate::server::Server;
use crate::subject::{Part, section};
use idgen_testkit::sql::execute;
use postgres::Client;

mod calls;
mod contender;
mod edges;
mod inserts;
mod latency;
mod loads;

/// All tags are as `segment_create` makes them.
const SETUP: &str = "
CREATE TABLE counter (n bigint NOT NULL);
INSERT INTO counter VALUES (0);
SELECT segment_create('bench')";

const PARTS: [(&str, Part); 5] = [
    ("calls in a loop", calls::measure),
    ("many clients", loads::measure),
    ("the edges of ranges", edges::measure),
    ("latency", latency::measure),
    ("inserts", inserts::measure),
];

pub fn measure(server: &Server, scale: &Scale) -> Section {
    server.cluster.execute(SETUP);
    section("segments", &PARTS, server, scale)
}

/// Makes a tag that has not adapted yet, in place of one of the same name.
fn renew(client: &mut Client, tag: &str) {
    execute(client, &format!("SELECT segment_drop(tag) FROM idgen.segment WHERE tag = '{tag}'"));
    execute(client, &format!("SELECT segment_create('{tag}')"));
}

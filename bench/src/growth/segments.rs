//! Ids of many segments.

use super::{Growth, SAME};
use crate::harness::comparison::Comparison;
use crate::harness::report::Section;
use crate::harness::scale::Scale;
use crate::harness::server::{self, Server};
use crate::harness::session::{Cost, Session};
use idgen_testkit::sql::execute;

/// Large ranges: the cost is that of drawing, not of refills.
const STEP: u32 = 1_000_000;

pub fn tags(_: &Server, scale: &Scale, section: &mut Section) {
    let most = *scale.tags.iter().max().expect("there are sizes");
    // The default of idgen.max_segments: the largest sizes are above it.
    let cluster = server::builder().start_with_extension();
    cluster.execute(&format!(
        "SELECT segment_create('tag:' || n, step => {STEP}) FROM generate_series(0, {most} - 1) AS n"
    ));
    // A session for each number of tags: it remembers what it has drawn from.
    let mut sessions: Vec<Session> = scale.tags.iter().map(|_| Session::new(cluster.client())).collect();
    for (session, tags) in sessions.iter_mut().zip(scale.tags) {
        execute(session.client(), &draw(*tags, u64::from(*tags)));
    }
    // At least one call for each tag.
    let calls = (scale.calls / 10).max(most.into());
    let contenders = scale.tags.iter().enumerate().map(|(index, tags)| (tags.to_string(), (index, *tags)));
    let measured = Comparison::measure(3 * scale.rounds, contenders, |&(index, tags)| {
        let mut cost = Cost::default();
        sessions[index].measure(&mut cost, calls, |client| execute(client, &draw(tags, calls)));
        cost.us_per_call()
    });
    let costs = measured.iter().zip(scale.tags).map(|((_, costs), tags)| (*tags, costs.clone()));
    let growth = Growth {
        operation: "segment_next",
        size: "tags",
        reference: scale.tags[0],
        target: SAME,
        how: format!(
            "One session draws from all tags in turn: `{}`. The step is {STEP}, and idgen.max_segments has its default.",
            draw(most, calls)
        ),
    };
    growth.report(&costs.collect::<Vec<_>>(), section);
}

fn draw(tags: u32, calls: u64) -> String {
    format!("SELECT count(segment_next('tag:' || n % {tags})) FROM generate_series(1, {calls}) AS n")
}

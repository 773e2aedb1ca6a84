//! The control of the order: a sequence whose sessions keep values in a cache, as is advised for speed.

use idgen_sim::history::order;
use idgen_testkit::recorder::Draws;
use idgen_testkit::{Cluster, rounds};

use crate::storm::Storm;

#[test]
fn judge_finds_that_values_of_a_cached_sequence_have_no_order() {
    let cluster = Cluster::builder().start();
    cluster.execute("CREATE SEQUENCE s CACHE 32");
    let (draws, storm) = (Draws::<i64>::default(), Storm::new(&cluster));
    let draw = |_| {
        let mut session = storm.connect("postgres").expect("the storm has begun");
        while storm.goes_on() {
            draws.draw(&mut session.client, "SELECT nextval('s')", |row| [row.get(0)]).expect("a sequence");
        }
    };
    storm.run(8, draw, || draws.count(), rounds(5_000, 1_000_000), &[]);
    let verdict = order::judge(&draws.into_draws());
    println!("nextval with CACHE 32: {verdict}");
    assert!(verdict.count(order::ORDER) > 0);
    assert_eq!(verdict.count(order::TWICE), 0);
}

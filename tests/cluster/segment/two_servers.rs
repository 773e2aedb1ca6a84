//! Two independent servers: one issues even values, the other odd ones.

use idgen_testkit::ids::{assert_distinct, last};
use idgen_testkit::sql::{ids, row};
use idgen_testkit::{Cluster, Stop};

#[test]
fn strides_separate_the_values_of_two_servers() {
    let servers: Vec<Cluster> = (0..2)
        .map(|residue| {
            let cluster = Cluster::builder().start_with_extension();
            let sql = "SELECT segment_create('t', step => 50, max_step => 50, stride => 2, residue =>";
            cluster.execute(&format!("{sql} {residue})"));
            cluster
        })
        .collect();
    let drawn = std::thread::scope(|scope| {
        let workers: Vec<_> = servers.iter().map(|server| scope.spawn(|| draw_in_all_ways(server))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    for (residue, drawn) in (0..).zip(&drawn) {
        // All of one residue and none skipped. Values start at 1, so the even ones begin at 2.
        let first = 2 - residue;
        let expected = (first..).step_by(2).take(drawn.len());
        assert_eq!(*drawn, expected.collect::<Vec<_>>(), "residue {residue}");
    }
    // Each keeps its residue after a crash.
    let after: Vec<i64> = (servers.iter())
        .zip(0..)
        .flat_map(|(server, residue)| {
            server.stop(Stop::Immediate);
            server.start_again();
            let after = ids(&mut server.client(), "SELECT segment_next_many('t', 500)");
            assert!(after.iter().all(|value| value % 2 == residue), "residue {residue}");
            after
        })
        .collect();
    assert_distinct([drawn.concat(), after].concat());
}

fn draw_in_all_ways(server: &Cluster) -> Vec<i64> {
    let mut client = server.client();
    let mut drawn = Vec::new();
    for _ in 0..10 {
        drawn.extend(ids(&mut client, "SELECT segment_next('t') FROM generate_series(1, 120)"));
        drawn.extend(ids(&mut client, "SELECT segment_next_many('t', 130)"));
        let block = row(&mut client, "SELECT first_id, last_id, stride FROM segment_reserve('t', 110)");
        let [first, end, stride]: [i64; 3] = [block.get(0), block.get(1), block.get(2)];
        assert_eq!(stride, 2);
        drawn.extend((first..=end).step_by(2));
    }
    assert_eq!(drawn.len(), 3600);
    assert!(last(&drawn) > 0);
    drawn
}

//! The id paths without PostgreSQL: what the core itself costs.

use criterion::{Criterion, criterion_group, criterion_main};
use idgen_core::generator::Generator;
use idgen_core::layout::{Layout, Node};
use idgen_core::snowflake::Bounds;
use idgen_core::table::{FLOORS, Table};
use std::hint::black_box;

/// 2026-01-01.
const NOW_MS: i64 = 1_767_225_600_000;

fn issue(c: &mut Criterion) {
    for (name, want) in [("seconds", 1), ("seconds", 1000), ("snowflake", 1)] {
        let layout = Layout::parse(name).expect("a preset");
        let space = layout.space(Node::default()).expect("worker 0 fits");
        let generators = [Generator::new(), Generator::new()];
        let (mut tenants, mut floors_ms) = ([None, None], [NOW_MS; FLOORS]);
        let mut table = Table { generators: &generators, tenants: &mut tenants, floors_ms: &mut floors_ms };
        let place = table.attach(space, (layout, Node::default()), None);
        let mut now_ms = NOW_MS;
        c.bench_function(&format!("issue {want} in {name}"), |b| {
            b.iter(|| {
                // A clock that moves on, so that no layout runs into its drift.
                now_ms += 1;
                let bounds = Bounds { now_ms, limit_ms: now_ms + 1000, mark_ms: i64::MAX };
                black_box(generators[place.index].issue(place.handle, &space, black_box(want), &bounds))
            })
        });
    }
}

fn parse(c: &mut Criterion) {
    c.bench_function("parse a spec", |b| {
        b.iter(|| Layout::parse(black_box("time:41 worker:10 sequence:12 unit:1ms epoch:2018-08-01")))
    });
}

criterion_group!(benches, issue, parse);
criterion_main!(benches);

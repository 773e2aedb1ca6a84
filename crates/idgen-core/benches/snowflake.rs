//! The cost of issuing an id and parsing a layout, without PostgreSQL.

use criterion::{Criterion, criterion_group, criterion_main};
use idgen_core::generator::{FLOORS, Floor, Generator, GeneratorTable};
use idgen_core::layout::{Layout, Node};
use idgen_core::snowflake::Bounds;
use std::hint::black_box;

/// 2026-01-01.
const NOW_MS: i64 = 1_767_225_600_000;

fn issue(c: &mut Criterion) {
    for (name, want) in [("seconds", 1), ("seconds", 1000), ("snowflake", 1)] {
        let layout = Layout::parse(name).expect("a preset");
        let space = layout.id_space(Node::default()).expect("worker 0 fits");
        let generators = [Generator::new(), Generator::new()];
        let (mut tenants, mut floors) = ([None, None], [const { Floor::new() }; FLOORS]);
        let mut table = GeneratorTable::new(&generators, &mut tenants, &mut floors);
        let attachment = table.attach(space, (layout, Node::default()), None);
        let mut now_ms = NOW_MS;
        c.bench_function(&format!("issue {want} in {name}"), |b| {
            b.iter(|| {
                // The clock moves on, so that ids stay within the drift.
                now_ms += 1;
                let bounds = Bounds { now_ms, limit_ms: now_ms + 1000, ceiling_ms: i64::MAX };
                black_box(generators[attachment.index].issue(attachment.handle, &space, black_box(want), &bounds))
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

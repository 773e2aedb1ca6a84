//! Who makes ids here.

use crate::contender::Contender;

pub const NEXT: &str = "segment_next";

pub fn all() -> Vec<Contender> {
    let mut all: Vec<Contender> = Contender::floors().into();
    all.extend([
        Contender::call(NEXT, "segment_next('bench')"),
        Contender::set("segment_next_many", "segment_next_many('bench', $n)"),
    ]);
    all.extend(Contender::sequences());
    all.push(Contender::counter());
    all
}

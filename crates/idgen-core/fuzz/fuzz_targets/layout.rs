//! Any text as a layout: one that is accepted prints as a spec of the same layout, keeps the rules of bits, and can do
//! all that a layout does without an overflow.

#![no_main]

use idgen_core::layout::{Layout, Node, Parts};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| match Layout::parse(text) {
    Ok(layout) => holds(layout),
    Err(error) => {
        let is_in_text = |word: &String| text.split_whitespace().any(|other| other == word);
        assert!(error.word.as_ref().is_none_or(is_in_text), "{error} names a word that is not there");
    }
});

fn holds(layout: Layout) {
    let spec = layout.to_string();
    assert_eq!(Layout::parse(&spec), Ok(layout), "{spec}");
    assert!(spec.len() <= 130, "{spec} has no room in a record of the high-water file");
    assert_eq!(printed_bits(&spec), layout.bits(), "{spec}");
    assert!(layout.bits() <= 63, "{spec}");
    assert!((1..=1000).contains(&layout.unit_ms()), "{spec}");
    assert!(layout.epoch_ms() >= 0 && layout.ends_at_ms() > layout.epoch_ms(), "{spec}");
    assert!(layout.workers() >= 1 && layout.ids_per_second() >= 2, "{spec}");
    assert!(layout.space(Node::default()).is_ok(), "{spec}: number 0 fits every layout");

    let greatest = ((1u64 << layout.bits()) - 1) as i64;
    for id in [0, greatest / 2, greatest / 3, greatest] {
        reads_back(&layout, id);
    }
    assert!(greatest == i64::MAX || layout.unpack(greatest + 1).is_err(), "{spec}");
    assert!(layout.unpack(-1).is_err(), "{spec}");
    assert_eq!(layout.floor(i64::MIN), 0, "{spec}");
    assert!(layout.ends_at_ms() == i64::MAX || layout.ceil(i64::MAX) == greatest, "{spec}");
}

/// The sum of the bits that a spec names.
fn printed_bits(spec: &str) -> u32 {
    let fields = spec.split(' ').filter(|word| !word.starts_with("unit:") && !word.starts_with("epoch:"));
    let bits = |word: &str| word.split([':', '=']).nth(1).and_then(|bits| bits.parse::<u32>().ok());
    fields.map(|word| bits(word).expect("a field has bits")).sum()
}

/// An id that is taken apart and put together is the same but for the tag, which is the layout's own.
fn reads_back(layout: &Layout, id: i64) {
    let parts = layout.unpack(id).expect("an id of as many bits");
    if parts.time_ms == i64::MAX {
        return; // beyond what milliseconds can say
    }
    let (floor, ceil) = (layout.floor(parts.time_ms), layout.ceil(parts.time_ms));
    assert!((floor..=ceil).contains(&id), "{layout}: {id}");
    let node = Node { datacenter: parts.datacenter.unwrap_or(0), worker: parts.worker.unwrap_or(0) };
    let packed = layout.pack(parts.time_ms, node, parts.sequence).expect("the parts of an id fit");
    let again = layout.unpack(packed).expect("what was packed");
    assert_eq!(Parts { tag: parts.tag, ..again }, parts, "{layout}: {id}");
}

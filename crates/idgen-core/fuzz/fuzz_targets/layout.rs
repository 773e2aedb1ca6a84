//! Any text as a layout. If it is accepted, the layout prints as an equal spec, obeys the rules for bits, and does
//! everything a layout does without overflow.

#![no_main]

use idgen_core::layout::{Layout, Node, Parts};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| match Layout::parse(text) {
    Ok(layout) => check(layout),
    Err(error) => {
        let is_in_text = |word: &String| text.split_whitespace().any(|other| other == word);
        assert!(error.word.as_ref().is_none_or(is_in_text), "{error} names a word that is not in the text");
    }
});

fn check(layout: Layout) {
    let spec = layout.to_string();
    assert_eq!(Layout::parse(&spec), Ok(layout), "{spec}");
    assert!(spec.len() <= 130, "{spec} does not fit a record of the high-water file");
    assert_eq!(printed_bits(&spec), layout.bits(), "{spec}");
    assert!(layout.bits() <= 63, "{spec}");
    assert!((1..=1000).contains(&layout.unit_ms()), "{spec}");
    assert!(layout.epoch_ms() >= 0 && layout.ends_at_ms() > layout.epoch_ms(), "{spec}");
    assert!(layout.workers() >= 1 && layout.ids_per_second() >= 2, "{spec}");
    assert!(layout.id_space(Node::default()).is_ok(), "{spec}: worker 0 fits every layout");

    let largest = ((1u64 << layout.bits()) - 1) as i64;
    for id in [0, largest / 2, largest / 3, largest] {
        reads_back(&layout, id);
    }
    assert!(largest == i64::MAX || layout.unpack(largest + 1).is_err(), "{spec}");
    assert!(layout.unpack(-1).is_err(), "{spec}");
    assert_eq!(layout.floor(i64::MIN), 0, "{spec}");
    assert!(layout.ends_at_ms() == i64::MAX || layout.ceil(i64::MAX) == largest, "{spec}");
}

/// The sum of the bits in a spec.
fn printed_bits(spec: &str) -> u32 {
    let fields = spec.split(' ').filter(|word| !word.starts_with("unit:") && !word.starts_with("epoch:"));
    let bits = |word: &str| word.split([':', '=']).nth(1).and_then(|bits| bits.parse::<u32>().ok());
    fields.map(|word| bits(word).expect("a field has bits")).sum()
}

/// An id that is unpacked and packed again differs in the tag only, which is the layout's own.
fn reads_back(layout: &Layout, id: i64) {
    let parts = layout.unpack(id).expect("an id of the layout's bits");
    if parts.time_ms == i64::MAX {
        return; // later than the last millisecond
    }
    let (floor, ceil) = (layout.floor(parts.time_ms), layout.ceil(parts.time_ms));
    assert!((floor..=ceil).contains(&id), "{layout}: {id}");
    let node = Node { datacenter: Some(parts.datacenter.unwrap_or(0)), worker: parts.worker.unwrap_or(0) };
    let packed = layout.pack(parts.time_ms, node, parts.sequence).expect("the parts of an id fit");
    let again = layout.unpack(packed).expect("a packed id");
    assert_eq!(Parts { tag: parts.tag, ..again }, parts, "{layout}: {id}");
}

//! Any text as an id, in every format: one that is accepted is what the id is written as, and so is every other text of
//! that id.

#![no_main]

use idgen_core::text::{FORMATS, Format};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for (name, format) in FORMATS {
        if let Ok(id) = format.decode(text) {
            assert!(id >= 0, "{name}: {text:?} is {id}");
            assert_eq!(format.encode(id).as_deref(), Ok(text), "{name}: {id}");
            holds(id);
        }
    }
});

fn holds(id: i64) {
    for (name, format) in FORMATS {
        let text = format.encode(id).expect("an id has a text");
        assert_eq!(format.decode(&text), Ok(id), "{name}: {text:?}");
        if let (Format::Fixed { width, .. }, Some(next)) = (format, id.checked_add(1)) {
            let next = format.encode(next).expect("an id has a text");
            assert!(text.len() == width && text < next, "{name}: {text:?} and {next:?} do not sort as their ids");
        }
    }
}

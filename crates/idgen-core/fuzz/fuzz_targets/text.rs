//! Any text as an id, in every format: one that is accepted is what the id is written as, and so is every other text of
//! that id. Texts that differ from those in one character are tried too, for it takes luck to make them up.

#![no_main]

use idgen_core::text::{FORMATS, Format};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for (name, format) in FORMATS {
        if let Some(id) = read(name, format, text) {
            holds(id);
        }
    }
});

/// The id of a text, if it has one.
fn read(name: &str, format: Format, text: &str) -> Option<i64> {
    let id = format.decode(text).ok()?;
    assert!(id >= 0, "{name}: {text:?} is {id}");
    assert_eq!(format.encode(id).as_deref(), Ok(text), "{name}: {id}");
    Some(id)
}

fn holds(id: i64) {
    for (name, format) in FORMATS {
        let text = format.encode(id).expect("an id has a text");
        assert_eq!(read(name, format, &text), Some(id), "{name}: {text:?}");
        let at = id as usize % text.len();
        for other in ' '..='~' {
            read(name, format, &format!("{}{other}{}", &text[..at], &text[at + 1..]));
        }
        if let (Format::Fixed { width, .. }, Some(next)) = (format, id.checked_add(1)) {
            let next = format.encode(next).expect("an id has a text");
            assert!(text.len() == width && text < next, "{name}: {text:?} and {next:?} do not sort as their ids");
        }
    }
}

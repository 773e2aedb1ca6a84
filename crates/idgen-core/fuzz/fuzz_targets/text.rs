//! Any text as an id, in every format. If it is accepted, it is the text that the id is written as. Then the texts of
//! that id in all formats are tried, and texts that differ from them in one character: random input seldom finds those.

#![no_main]

use idgen_core::text::{FORMATS, Format};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for (name, format) in FORMATS {
        if let Some(id) = read(name, format, text) {
            check(id);
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

fn check(id: i64) {
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

//! The layouts that this process has used, by their text: parsed once, attached once.

use super::issue::{self, Attached};
use super::{errors, node};
use crate::pg::call_site::CallSite;
use crate::{error, settings};
use idgen_core::layout::Layout;
use parking_lot::Mutex;
use std::collections::HashMap;

/// More texts than a schema uses. A session that exceeds it starts over, and parses again.
const MOST: usize = 256;

struct Known {
    layout: Layout,
    attached: Option<Attached>,
}

static KNOWN: Mutex<Option<HashMap<String, Known>>> = Mutex::new(None);

/// The layout of a text. Raises 22023.
pub fn parsed(text: &str) -> Layout {
    let known = KNOWN.lock().as_ref().and_then(|map| map.get(text).map(|known| known.layout));
    known.unwrap_or_else(|| {
        let layout = Layout::parse(text).unwrap_or_else(|e| errors::layout(text, &e).raise());
        remember(text, Known { layout, attached: None });
        layout
    })
}

/// The layout of `idgen.layout`.
pub fn default() -> Layout {
    parsed(&settings::layout())
}

/// What a call draws from: the layout that it names, or that of `idgen.layout`.
pub fn of_call(site: &CallSite) -> Attached {
    match site.text() {
        Some(text) => attached(&text),
        None if site.has_text_arg() => error::null_argument("layout").raise(),
        None => attached(&settings::layout()),
    }
}

fn attached(text: &str) -> Attached {
    // Also if the text is known: this session may have read the settings before other processes have.
    node::follow_settings();
    let known = KNOWN.lock().as_ref().and_then(|map| map.get(text).and_then(|known| known.attached));
    known.filter(Attached::is_current).unwrap_or_else(|| {
        let layout = parsed(text);
        let attached = issue::attach(layout);
        remember(text, Known { layout, attached: Some(attached) });
        attached
    })
}

fn remember(text: &str, known: Known) {
    let mut map = KNOWN.lock();
    let map = map.get_or_insert_default();
    if map.len() >= MOST {
        map.clear();
    }
    map.insert(text.to_owned(), known);
}

//! Cache of layouts by their text: each process parses and attaches a layout once.

use super::attach::{AttachedGenerator, attach};
use super::{errors, node};
use crate::pg::call_site::CallSite;
use crate::{error, settings};
use idgen_core::layout::Layout;
use parking_lot::Mutex;
use std::collections::HashMap;

/// More texts than a schema uses. A session that exceeds it empties the cache.
const MAX_KNOWN: usize = 256;

struct Known {
    layout: Layout,
    attached: Option<AttachedGenerator>,
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

/// The generator of a call: of the layout in its argument, or of `idgen.layout`. Raises 22004 for NULL.
pub fn of_call(site: &CallSite) -> AttachedGenerator {
    match site.text() {
        Some(text) => attached(&text),
        None if site.has_text_arg() => error::null_argument("layout").raise(),
        None => attached(&settings::layout()),
    }
}

fn attached(text: &str) -> AttachedGenerator {
    // Also for a known text: the settings may have changed since.
    node::follow_settings();
    let known = KNOWN.lock().as_ref().and_then(|map| map.get(text).and_then(|known| known.attached));
    let is_current = |attached: &AttachedGenerator| attached.generator.is_current(attached.handle);
    known.filter(is_current).unwrap_or_else(|| {
        let layout = parsed(text);
        let attached = attach(layout);
        remember(text, Known { layout, attached: Some(attached) });
        attached
    })
}

fn remember(text: &str, known: Known) {
    let mut map = KNOWN.lock();
    let map = map.get_or_insert_default();
    if map.len() >= MAX_KNOWN {
        map.clear();
    }
    map.insert(text.to_owned(), known);
}

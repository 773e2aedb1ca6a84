//! The layouts this process has met, by their text: parsed once, attached once.

use super::space::{self, Attached};
use crate::call_site::CallSite;
use crate::{error, settings, shmem, worker};
use idgen_core::layout::Layout;
use parking_lot::Mutex;
use std::collections::HashMap;

/// More texts than a schema uses. A session that makes up new ones starts over, and parses again.
const MOST: usize = 256;

struct Known {
    layout: Layout,
    attached: Option<Attached>,
}

static KNOWN: Mutex<Option<HashMap<String, Known>>> = Mutex::new(None);

/// The layout that a text says.
pub fn parsed(text: &str) -> Layout {
    let known = KNOWN.lock().as_ref().and_then(|map| map.get(text).map(|known| known.layout));
    known.unwrap_or_else(|| {
        let layout = Layout::parse(text).unwrap_or_else(|e| error::layout(text, &e).raise());
        remember(text, Known { layout, attached: None });
        layout
    })
}

/// The layout of `idgen.layout`.
pub fn default() -> Layout {
    parsed(&settings::layout())
}

/// The space that a call draws from: in the layout it names, else in that of `idgen.layout`.
pub fn of_call(site: &CallSite) -> Attached {
    match site.text() {
        Some(text) => attached(&text),
        None if site.has_text_arg() => error::null_argument("layout").raise(),
        None => attached(&settings::layout()),
    }
}

/// The space that this server draws from in the layout that a text says.
fn attached(text: &str) -> Attached {
    // Also where it is known: the session may have read that there is a pool before the keeper has.
    if let Some(shared) = shmem::shared() {
        worker::state::end_unset(shared);
    }
    let known = KNOWN.lock().as_ref().and_then(|map| map.get(text).and_then(|known| known.attached));
    known.filter(Attached::is_current).unwrap_or_else(|| {
        let layout = parsed(text);
        let attached = space::attach(layout);
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

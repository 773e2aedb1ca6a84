//! Cache of layouts by their text: each process parses and attaches a layout once.

use super::attach::{AttachedGenerator, attach};
use super::{errors, node};
use crate::args;
use crate::pg::function::CallSite;
use crate::pg::invalidation::TextCache;
use crate::settings;
use idgen_core::layout::Layout;

struct Known {
    layout: Layout,
    attached: Option<AttachedGenerator>,
}

static KNOWN: TextCache<Known> = TextCache::new();

/// The layout of a text. Raises 22023.
pub fn parsed(text: &str) -> Layout {
    let known = KNOWN.read(text, |known| known.layout);
    known.unwrap_or_else(|| {
        let layout = Layout::parse(text).unwrap_or_else(|e| errors::layout(text, &e).raise());
        KNOWN.insert(text, Known { layout, attached: None });
        layout
    })
}

/// The layout of `idgen.layout`.
pub fn default() -> Layout {
    parsed(&settings::layout())
}

/// The generator of a call: of the layout in its argument, or of `idgen.layout`. Raises 22004 for NULL.
pub fn of_call(site: &CallSite) -> AttachedGenerator {
    match site.has_text_arg() {
        true => attach_by_text(&args::required(site.text(), "layout")),
        false => attach_by_text(&settings::layout()),
    }
}

/// The generator of a layout by its text.
pub fn attach_by_text(text: &str) -> AttachedGenerator {
    // Also for a known text: the settings may have changed since.
    node::follow_settings();
    let known = KNOWN.read(text, |known| known.attached).flatten();
    let is_current = |attached: &AttachedGenerator| attached.generator.is_current(attached.handle);
    known.filter(is_current).unwrap_or_else(|| {
        let layout = parsed(text);
        let attached = attach(layout);
        KNOWN.insert(text, Known { layout, attached: Some(attached) });
        attached
    })
}

//! The generator of this server's ids in a layout: found by the text of the layout, or begun. Each process parses and
//! attaches a layout once.

use super::{errors, next, node};
use crate::args;
use crate::clock::{self, GENERATORS};
use crate::error;
use crate::pg::function::CallSite;
use crate::pg::invalidation::TextCache;
use crate::pg::{session, system_clock};
use crate::settings;
use idgen_core::clock::US_PER_MS;
use idgen_core::generator::{Generator, GeneratorHandle};
use idgen_core::layout::{Layout, Node, time_text};
use idgen_core::snowflake::{IdSpace, Issue};
use idgen_core::tenancy::Attachment;

/// The ids of this server in one layout, as this process remembers their generator.
#[derive(Clone, Copy)]
pub struct AttachedGenerator {
    pub clock: &'static clock::State,
    pub generator: &'static Generator,
    pub handle: GeneratorHandle,
    pub space: IdSpace,
    pub layout: Layout,
    /// The worker id and datacenter id of the ids, until the tenancy of the handle ends.
    pub node: Node,
    pub index: usize,
    /// This session was warned that the layout ends.
    is_end_announced: bool,
}

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

/// Raises 55000 without preload or without a worker id, 25006 on a standby, and 22003 if the layout has no id for this
/// worker id and time.
pub fn attach(layout: Layout) -> AttachedGenerator {
    let clock = clock::STATE.require();
    error::refuse_on_standby("generate ids");
    // A generator that the transaction has drawn from may be given to this layout.
    next::leave_generator();
    loop {
        if let Some(attached) = find(clock, layout) {
            return attached;
        }
    }
}

/// Finds the generator of a space under this server's worker id. `None` if the worker id has changed in between.
fn find(clock: &'static clock::State, layout: Layout) -> Option<AttachedGenerator> {
    let node = node::require();
    let space = layout.id_space(node).unwrap_or_else(|e| errors::node_too_large(&layout, e).raise());
    begin(clock, &layout, &space);
    let kept = default().id_space(node).ok();
    GENERATORS.exclusive(|table| {
        // Worker ids change under this lock: what attaches here ends when the worker id does.
        if node::CURRENT.require().get() != Some(node) {
            return None;
        }
        let Attachment { index, handle, is_new } = table.attach(space, (layout, node), kept);
        if is_new {
            next::COUNTERS.require()[index].reset();
        }
        let (generator, is_end_announced) = (&table.generators[index], false);
        Some(AttachedGenerator { clock, generator, handle, space, layout, node, index, is_end_announced })
    })
}

/// Begins ids, unless the clock is outside of the layout's time. So a layout that has ended, or not begun, evicts no working
/// generator, and a clock by which no id is issued moves no mark.
fn begin(clock: &clock::State, layout: &Layout, space: &IdSpace) {
    let bounds = clock.careful_bounds();
    // The clock may have been set back before the epoch. Ids then continue from where they are.
    let answer = space.next(0, 1, &bounds);
    if answer != Issue::BeforeEpoch {
        refuse_outside(layout, answer);
    }
    clock::ensure_begun();
    let free = GENERATORS.shared(|table| table.free_slot(space));
    refuse_outside(layout, space.next(free, 1, &bounds));
}

/// The layouts whose end this session was warned about.
static WARNED: TextCache<()> = TextCache::new();

impl AttachedGenerator {
    /// Warns when the layout ends within a year, once for each session and layout. The leader of a parallel query warns for
    /// its workers.
    #[inline]
    pub fn warn_of_end(&mut self, now_ms: i64) {
        if !self.is_end_announced && self.layout.ends_within_a_year(now_ms) {
            self.is_end_announced = true;
            announce_end(&self.layout);
        }
    }

    /// The length of a tick in microseconds.
    pub fn tick_us(&self) -> i64 {
        i64::from(self.layout.unit_ms()) * US_PER_MS
    }
}

#[cold]
fn announce_end(layout: &Layout) {
    let (text, ends_at) = (layout.to_string(), time_text(layout.ends_at_ms()));
    if !session::is_parallel_worker() && WARNED.read(&text, |()| ()).is_none() {
        WARNED.insert(&text, ());
        errors::layout_ends(&text, &ends_at).warn();
    }
}

/// Raises 22003 if the clock is outside of the layout's time.
pub fn refuse_outside(layout: &Layout, answer: Issue) {
    match answer {
        Issue::BeforeEpoch => errors::before_epoch(layout, system_clock::wall_ms()).raise(),
        Issue::Exhausted => errors::exhausted(layout).raise(),
        Issue::Issued(_) | Issue::Wait { .. } | Issue::Ahead { .. } | Issue::Reserve { .. } => {}
    }
}

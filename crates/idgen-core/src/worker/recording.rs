//! How a coordinator records its history with its grants. An interruption of the history begins an epoch, and so ends all
//! tokens: since the last grant that is known here, others may have been granted. It changes no row of a worker id, because
//! an open transaction may have locked that.

use super::{PoolBounds, Refusal};
use crate::history::{History, HistoryState, Identity};
use std::fmt;

/// The history in a database, within the transaction of a caller, and what it depends on.
pub trait HistoryStore {
    /// What grants from this database.
    fn identity(&self) -> &Identity;
    fn now_us(&self) -> i64;
    /// When this server has started.
    fn started_us(&self) -> i64;
    /// How far past a ttl of this length a rectangle may end, by the settings.
    fn max_lead_us(&self, ttl_us: i64) -> i64;
    /// How long this server has been writing, since its start or its promotion.
    fn writing_us(&self) -> i64;
    /// The database has a row of a worker id.
    fn has_rows(&mut self) -> bool;
    /// `None` before the first pool.
    fn read(&mut self) -> Option<History>;
    /// One transaction at a time changes the row.
    fn lock(&mut self);
    /// Writes the row; one that another transaction has written by then, only if `replaces`.
    fn write(&mut self, history: &History, replaces: bool);
    /// The label of this server, over all of its databases. `None` if none of them has granted worker ids.
    fn read_label(&mut self) -> Option<Label>;
    /// Another database may write the same label.
    fn lock_label(&mut self);
    fn write_label(&mut self, label: Option<Label>);
    /// The longest ttl of the pools; 0 without one.
    fn longest_ttl_us(&mut self) -> i64;
}

/// What outlives a history when its database or the extension is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The end of the wait after the last interruption; `i64::MIN` if there was none.
    pub until_us: i64,
    /// As in [`History`].
    pub longest_us: i64,
}

impl Label {
    const NONE: Self = Self { until_us: i64::MIN, longest_us: 0 };

    pub fn parse(text: &str) -> Self {
        let mut numbers = text.split(' ').map(|number| number.parse().ok());
        let mut next = |default| numbers.next().flatten().unwrap_or(default);
        Self { until_us: next(Self::NONE.until_us), longest_us: next(Self::NONE.longest_us) }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.until_us, self.longest_us)
    }
}

/// The bounds of the rectangles of a pool with this ttl, for which the history [is sufficient](is_sufficient).
pub fn bounds(store: &impl HistoryStore, history: &History, ttl_us: i64) -> PoolBounds {
    PoolBounds {
        now_us: store.now_us(),
        ttl_us,
        max_lead_us: store.max_lead_us(ttl_us),
        floor_us: history.forgotten_until_us(),
    }
}

/// With the definition of a pool: a copy, a failover or a restore before its first grant ends the history too.
pub fn begin(store: &mut impl HistoryStore) {
    if store.read().is_none() {
        let begun = begun(store);
        // Waits for another transaction that defines the first pool, and then keeps what its row has by then.
        store.write(&begun, false);
        // Before the first grant, which may be lost with its label, and the row be dropped.
        if begun.since_us.is_some() {
            raise_label(store, &begun);
        }
    }
}

/// False if the history is interrupted, which nothing has recorded yet: no token is current.
pub fn is_own(store: &impl HistoryStore, history: &History) -> Result<bool, Refusal> {
    match store.identity().state_of(&history.identity) {
        HistoryState::Own => Ok(true),
        HistoryState::Interrupted => Ok(false),
        HistoryState::Copied => Err(Refusal::Copied),
    }
}

/// True if a history allows grants and renewals in a pool with this ttl as it is: nothing has to be recorded before them.
pub fn is_sufficient(store: &impl HistoryStore, history: &History, ttl_us: i64) -> Result<bool, Refusal> {
    // A row of an earlier release has the identity in another form.
    let is_current = is_own(store, history)? && history.identity == store.identity().to_string();
    Ok(is_current && history.longest_us >= longest_of(store, ttl_us))
}

/// For a grant or a renewal in a pool with this ttl. Records an interruption, or longer rectangles before one is granted, and
/// then keeps the history locked: the caller must wait for no row after it.
pub fn for_grant(store: &mut impl HistoryStore, ttl_us: i64) -> Result<History, Refusal> {
    if let Some(history) = store.read()
        && is_sufficient(store, &history, ttl_us)?
    {
        return Ok(history);
    }
    // The next transaction reads the new row after it gets the lock.
    store.lock();
    let history = match store.read() {
        Some(history) if is_sufficient(store, &history, ttl_us)? => return Ok(history),
        Some(history) if is_own(store, &history)? => History { identity: store.identity().to_string(), ..history },
        Some(history) => interrupted(store, history, 0),
        None => begun(store),
    };
    let longest_us = longest_of(store, ttl_us);
    let history = with_longest(store, history, longest_us);
    write_for_grants(store, &history);
    Ok(history)
}

/// A holder says that it was told a later end than this database knows: the database was set back, and nothing else has shown
/// it. Ends the history. False if that cannot be: the data of a running server are not replaced, so it has every renewal of a
/// term that has begun since its start. Nor while the clock is before that start: it was set back, and new terms look older.
/// Nor if the history has been interrupted since it was read.
pub fn note_lost_grants(store: &mut impl HistoryStore, known: Option<&History>, acquired_us: i64) -> bool {
    if acquired_us >= store.started_us() || store.now_us() < store.started_us() {
        return false;
    }
    store.lock();
    let history = store.read();
    // Another holder may have ended it during the wait.
    let is_known = history.as_ref().map(|history| history.epoch) == known.map(|known| known.epoch);
    if is_known {
        let history = history.unwrap_or_else(|| begun(store));
        let history = interrupted(store, history, 0);
        write_for_grants(store, &history);
    }
    is_known
}

/// Begins a new history, also in a copy. Returns the time from which worker ids are granted without a wait. `stated_us`
/// replaces the time of the interruption where the clock was wrong.
pub fn begin_another(store: &mut impl HistoryStore, stated_us: Option<i64>) -> i64 {
    store.lock();
    let longest_ttl_us = store.longest_ttl_us();
    let longest_us = longest_of(store, longest_ttl_us);
    let history = store.read().unwrap_or_else(|| begun(store));
    let mut history = interrupted(store, history, longest_us);
    if stated_us.is_some() {
        // Corrects the label too, and drops longer rectangles of the past.
        (history.since_us, history.longest_us) = (stated_us, longest_us);
        store.lock_label();
        store.write_label(None);
    }
    write_for_grants(store, &history);
    history.forgotten_until_us().expect("it was interrupted")
}

fn interrupted(store: &mut impl HistoryStore, history: History, longest_us: i64) -> History {
    with_longest(store, history, longest_us).interrupted(store.identity(), store.now_us())
}

/// The history of a database that has no row. Grants may be forgotten: the row is written with the first pool. What a new
/// database has forgotten ended with a promotion or a restore, which the first server never had.
fn begun(store: &mut impl HistoryStore) -> History {
    let (label, now_us, identity) = (store.read_label(), store.now_us(), store.identity().clone());
    let since_us = match label {
        Some(label) => Some(now_us.max(label.until_us)),
        None if store.has_rows() => Some(now_us),
        None if identity.timeline == 1 && !identity.place.has_followed_other_wal() => None,
        None => Some(now_us - store.writing_us()),
    };
    let longest_us = label.map_or(0, |label| label.longest_us);
    History { identity: identity.to_string(), since_us, longest_us, epoch: 0 }
}

fn write_for_grants(store: &mut impl HistoryStore, history: &History) {
    raise_label(store, history);
    store.write(history, true);
}

fn raise_label(store: &mut impl HistoryStore, history: &History) {
    store.lock_label();
    let label = store.read_label().unwrap_or(Label::NONE);
    store.write_label(Some(Label {
        until_us: label.until_us.max(history.forgotten_until_us().unwrap_or(i64::MIN)),
        longest_us: label.longest_us.max(history.longest_us),
    }));
}

/// With the longest rectangle so far: the row may lack that of a dropped database or extension, which the label has.
fn with_longest(store: &mut impl HistoryStore, history: History, longest_us: i64) -> History {
    let of_label_us = store.read_label().map_or(0, |label| label.longest_us);
    History { longest_us: history.longest_us.max(longest_us).max(of_label_us), ..history }
}

fn longest_of(store: &impl HistoryStore, ttl_us: i64) -> i64 {
    ttl_us.saturating_add(store.max_lead_us(ttl_us))
}

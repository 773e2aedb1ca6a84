//! A cache of this process by text: the generators of layouts, the rings of tags.

use parking_lot::Mutex;
use std::collections::HashMap;

/// Has at most `MAX` texts, more than a session uses: some megabytes. A session that exceeds it forgets them all.
pub struct TextCache<T, const MAX: usize = 16_384>(Mutex<Option<HashMap<String, T>>>);

impl<T, const MAX: usize> TextCache<T, MAX> {
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    pub fn read<R>(&self, text: &str, read: impl FnOnce(&T) -> R) -> Option<R> {
        self.0.lock().as_ref()?.get(text).map(read)
    }

    pub fn insert(&self, text: &str, value: T) {
        let mut map = self.0.lock();
        let map = map.get_or_insert_default();
        if map.len() >= MAX {
            map.clear();
        }
        map.insert(text.to_owned(), value);
    }
}

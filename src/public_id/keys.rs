//! The keys of prefixes, as this process remembers them. PostgreSQL's cache invalidations tell it that a key, a grant or a
//! role has changed.

use super::{errors, store};
use crate::pg::invalidation::{self, TableChanges, TextCache};
use crate::pg::spi;
use idgen_core::public_id::Keyring;
use pgrx::prelude::*;

/// Valid until something changes.
struct KnownPrefix {
    keys: Keyring,
    /// Roles that may use the keys. Setting up a key takes longer than many calls, and calls of two roles can alternate.
    users: Vec<pg_sys::Oid>,
    changes: u64,
}

static CHANGES: TableChanges = TableChanges::of(&store::PUBLIC_KEY);
/// Known prefixes by their text. A key of Blowfish takes 4 kB.
static KNOWN: TextCache<KnownPrefix, 1024> = TextCache::new();

/// Works with the keys of a prefix. Raises 42704 if there is no such prefix, 42501 if the user may not use its keys.
pub fn with<R>(prefix: &str, work: impl Fn(&Keyring) -> R) -> R {
    invalidation::accept();
    let user = spi::user();
    let changes = CHANGES.count();
    let known = KNOWN
        .read(prefix, |known| (known.changes == changes && known.users.contains(&user)).then(|| work(&known.keys)));
    known.flatten().unwrap_or_else(|| {
        let known = look_up(prefix, user);
        let result = work(&known.keys);
        KNOWN.insert(prefix, known);
        result
    })
}

fn look_up(prefix: &str, user: pg_sys::Oid) -> KnownPrefix {
    let changes = CHANGES.follow();
    let found = store::read_keys(prefix);
    let keys = Keyring::new(prefix, &found.live).unwrap_or_else(|| errors::unknown(prefix).raise());
    if !found.may_use {
        errors::may_not_use(prefix, &spi::user_name()).raise();
    }
    let others = KNOWN.read(prefix, |known| (known.changes == changes).then(|| known.users.clone())).flatten();
    let mut users = others.unwrap_or_default();
    users.push(user);
    KnownPrefix { keys, users, changes }
}

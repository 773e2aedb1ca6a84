//! The keys of prefixes: every query on the rows of `idgen.public_key`, their trigger, and the keys that this process
//! remembers. PostgreSQL's cache invalidations tell it that a key, a grant or a role has changed.
//!
//! A prefix has a row for each key. All have one owner and the same grantees. The oldest row stays as long as the
//! prefix: its lock guards the prefix. The owner of the database can insert rows that differ. A right counts only if
//! all rows grant it: otherwise a new row would take the prefix over.

use super::errors;
use crate::args::{self, AclTable};
use crate::pg::function::{self, TriggerRow};
use crate::pg::invalidation::{self, TableChanges, TextCache};
use crate::pg::session;
use crate::pg::spi::{self, ExtensionTable, Query, optional, text, unexpected, user, value};
use idgen_core::public_id::{self, Form, KeyState, Keyring, SECRET_BYTES};
use pgrx::prelude::*;
use pgrx::spi::{SpiError, SpiHeapTupleData};

pub static PUBLIC_KEY: ExtensionTable = ExtensionTable::new(c"public_key");

/// The grantees may make and decode texts.
pub static OWNERS: AclTable =
    AclTable { table: &PUBLIC_KEY, key: "prefix", lock_order: "prefix, version", grantees: "users" };

/// Valid until something changes.
struct KnownPrefix {
    keys: Keyring,
    /// Roles that may use the keys. Setting up a key takes longer than many calls, and calls of two roles can alternate.
    users: Vec<pg_sys::Oid>,
    changes: u64,
}

static CHANGES: TableChanges = TableChanges::of(&PUBLIC_KEY);
/// Known prefixes by their text. A key of Blowfish takes 4 kB.
static KNOWN: TextCache<KnownPrefix, 1024> = TextCache::new();

/// Works with the keys of a prefix. Raises 42704 if there is no such prefix, 22023 if none can exist, 42501 if the user
/// may not use its keys.
pub fn with<R>(prefix: &str, work: impl Fn(&Keyring) -> R) -> R {
    invalidation::accept();
    let user = user();
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
    let (live, may_use) = live_keys(prefix);
    let keys = Keyring::new(prefix, &live).unwrap_or_else(|| errors::missing(prefix).raise());
    if !may_use {
        errors::may_not_use(prefix, &spi::role_name(spi::user())).raise();
    }
    let others = KNOWN.read(prefix, |known| (known.changes == changes).then(|| known.users.clone())).flatten();
    let mut users = others.unwrap_or_default();
    users.push(user);
    KnownPrefix { keys, users, changes }
}

static KEYS: Query = Query::new(&PUBLIC_KEY, || {
    format!(
        "SELECT form, secret, version, retired IS NOT NULL, pg_catalog.pg_has_role($2, owner::pg_catalog.oid, 'USAGE'), {} \
         FROM idgen.public_key WHERE prefix OPERATOR(pg_catalog.=) $1 ORDER BY version DESC",
        args::owns_or_has("$2", "users")
    )
});

/// The keys of a prefix that `read` takes, the newest first, and whether it says of all that the current user has the right.
/// As they are now: the transaction's snapshot may still show a key that was dropped.
fn read_keys<K>(prefix: &str, read: impl Fn(&SpiHeapTupleData) -> Option<(K, bool)>) -> (Vec<K>, bool) {
    let rows = KEYS.read_latest(&[prefix.into(), user().into()], read);
    let (keys, rights): (_, Vec<_>) = rows.into_iter().flatten().unzip();
    (keys, !rights.contains(&false))
}

/// The keys of a prefix that are not retired, and whether the current user may use them.
fn live_keys(prefix: &str) -> (Vec<(Form, [u8; SECRET_BYTES])>, bool) {
    read_keys(prefix, |row| {
        let secret = optional::<Vec<u8>>(row, 2)?.try_into().unwrap_or_else(|_| unexpected(SpiError::InvalidPosition));
        Some(((form(row), secret), value(row, 6)))
    })
}

fn form(row: &SpiHeapTupleData) -> Form {
    Form::named(&text(row, 1)).unwrap_or_else(|| unexpected(SpiError::InvalidPosition))
}

/// The keys of a prefix, retired ones too, and whether the current user may alter them. No keys if there is no such prefix.
pub fn find(prefix: &str) -> (Vec<KeyState>, bool) {
    read_keys(prefix, |row| {
        Some((KeyState { version: value(row, 3), form: form(row), is_retired: value(row, 4) }, value(row, 5)))
    })
}

static LOCK: Query = PUBLIC_KEY.query(
    "SELECT version FROM idgen.public_key \
     WHERE prefix OPERATOR(pg_catalog.=) $1 ORDER BY version FOR NO KEY UPDATE",
);

/// Locks a prefix against changes until the transaction ends. False if it does not exist.
pub fn lock(prefix: &str) -> bool {
    PUBLIC_KEY.refuse_during_recovery();
    !LOCK.write_losable(&[prefix.into()], |row| optional::<i32>(row, 1)).is_empty()
}

// The statement makes the secret: as a parameter, it could be logged.
static INSERT: Query = PUBLIC_KEY.query(
    "INSERT INTO idgen.public_key (prefix, version, form, secret, owner) \
     SELECT $1, 1, $2, idgen.public_key_secret(), $3 \
     WHERE NOT EXISTS (SELECT FROM idgen.public_key WHERE prefix OPERATOR(pg_catalog.=) $1) \
     ON CONFLICT DO NOTHING RETURNING version",
);

/// Creates a prefix. False if it exists.
pub fn insert(prefix: &str, form: Form, owner: pg_sys::Oid) -> bool {
    PUBLIC_KEY.write(&INSERT, &[prefix.into(), form.name().into(), owner.into()]) > 0
}

static INSERT_NEXT: Query = PUBLIC_KEY.query(
    "INSERT INTO idgen.public_key (prefix, version, form, secret, owner, users) \
     SELECT prefix, $2, $3, idgen.public_key_secret(), owner, users FROM idgen.public_key \
     WHERE prefix OPERATOR(pg_catalog.=) $1 ORDER BY version LIMIT 1",
);

/// Adds a key to a prefix that the transaction has locked.
pub fn insert_next(prefix: &str, version: i32, form: Form) {
    PUBLIC_KEY.write(&INSERT_NEXT, &[prefix.into(), version.into(), form.name().into()]);
}

static RETIRE: Query = PUBLIC_KEY.query(
    "UPDATE idgen.public_key SET secret = NULL, retired = pg_catalog.now() \
     WHERE prefix OPERATOR(pg_catalog.=) $1 AND version OPERATOR(pg_catalog.=) $2",
);

/// Removes the secret of a key. The row stays, so that the version and the form are not used again.
pub fn retire(prefix: &str, version: i32) {
    PUBLIC_KEY.write(&RETIRE, &[prefix.into(), version.into()]);
}

static DELETE: Query = PUBLIC_KEY.query("DELETE FROM idgen.public_key WHERE prefix OPERATOR(pg_catalog.=) $1");

pub fn delete(prefix: &str) {
    PUBLIC_KEY.write(&DELETE, &[prefix.into()]);
}

static SET_OWNER: Query = PUBLIC_KEY
    .query("UPDATE idgen.public_key SET owner = $2::pg_catalog.regrole WHERE prefix OPERATOR(pg_catalog.=) $1");

pub fn set_owner(prefix: &str, owner: pg_sys::Oid) {
    PUBLIC_KEY.write(&SET_OWNER, &[prefix.into(), owner.into()]);
}

// Always: also for rows that a restore or a subscription writes.
/// Runs after each row is written.
#[pg_extern(sql = false)]
fn public_key_row(fcinfo: pg_sys::FunctionCallInfo) -> TriggerRow {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    let (table, _) = unsafe { function::trigger_of_table(fcinfo, "idgen.public_key_row", &PUBLIC_KEY) };
    invalidation::announce(table);
    TriggerRow::from(None)
}

/// A new secret. The statements that insert a row call it, as the owner of the table.
#[pg_extern(sql = false)]
fn public_key_secret() -> Vec<u8> {
    session::random_bytes::<{ public_id::SECRET_BYTES }>().to_vec()
}

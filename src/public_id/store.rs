//! The table `idgen.public_key`: every query on its rows. A prefix has a row for each key. All have one owner and the same
//! grantees. The row of version 1 stays as long as the prefix: its lock guards the prefix.

use crate::grants;
use crate::pg::spi::{self, ExtensionTable, Query, optional, text, unexpected, user, value};
use idgen_core::public_id::{Form, KeyState, SECRET_BYTES};
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::spi::{SpiError, SpiHeapTupleData};

/// One row for each key of a prefix.
pub static PUBLIC_KEY: ExtensionTable = ExtensionTable::new(c"public_key");

/// The keys of a prefix that are not retired, the newest first; none if there is no such prefix.
pub struct LiveKeys {
    pub live: Vec<(Form, [u8; SECRET_BYTES])>,
    /// The current user may use them.
    pub may_use: bool,
}

static SECRETS: Query = Query::new(&PUBLIC_KEY, || {
    format!(
        "SELECT form, secret, {} FROM idgen.public_key \
         WHERE prefix OPERATOR(pg_catalog.=) $1 AND secret IS NOT NULL ORDER BY version DESC",
        grants::owns_or_has("$2", "users")
    )
});

/// As they are now. The transaction's snapshot may still show a key that was dropped.
pub fn read_keys(prefix: &str) -> LiveKeys {
    let rows = SECRETS.read_latest(&[prefix.into(), user().into()], |row| {
        let secret = value::<Vec<u8>>(row, 2).try_into().unwrap_or_else(|_| unexpected(SpiError::InvalidPosition));
        ((form(row, 1), secret), value::<bool>(row, 3))
    });
    let may_use = rows.first().is_some_and(|(_, may_use)| *may_use);
    LiveKeys { live: rows.into_iter().map(|(key, _)| key).collect(), may_use }
}

fn form(row: &SpiHeapTupleData, column: usize) -> Form {
    Form::named(&text(row, column)).unwrap_or_else(|| unexpected(SpiError::InvalidPosition))
}

/// The keys of a prefix, retired ones too, and whether the current user may alter them.
pub struct Prefix {
    pub keys: Vec<KeyState>,
    pub may_alter: bool,
}

static STATES: Query = Query::new(&PUBLIC_KEY, || {
    "SELECT version, form, retired IS NOT NULL, pg_catalog.pg_has_role($2, owner::pg_catalog.oid, 'USAGE') \
     FROM idgen.public_key WHERE prefix OPERATOR(pg_catalog.=) $1 ORDER BY version DESC"
        .to_owned()
});

pub fn find(prefix: &str) -> Option<Prefix> {
    let rows = STATES.read_latest(&[prefix.into(), user().into()], |row| {
        (KeyState { version: value(row, 1), form: form(row, 2), is_retired: value(row, 3) }, value::<bool>(row, 4))
    });
    let may_alter = rows.first()?.1;
    Some(Prefix { keys: rows.into_iter().map(|(key, _)| key).collect(), may_alter })
}

static LOCK: Query = Query::new(&PUBLIC_KEY, || {
    "SELECT version FROM idgen.public_key \
     WHERE prefix OPERATOR(pg_catalog.=) $1 AND version OPERATOR(pg_catalog.=) 1 FOR NO KEY UPDATE"
        .to_owned()
});

/// Locks a prefix against changes until the transaction ends. False if it does not exist.
pub fn lock(prefix: &str) -> bool {
    refuse_during_recovery();
    !spi::as_read_committed(|| LOCK.write_latest(&[prefix.into()], |row| optional::<i32>(row, 1))).is_empty()
}

// The statement makes the secret: as a parameter, it could be logged.
static INSERT: Query = Query::new(&PUBLIC_KEY, || {
    "INSERT INTO idgen.public_key (prefix, version, form, secret, owner) \
     VALUES ($1, 1, $2, idgen.public_key_secret(), $3) ON CONFLICT (prefix, version) DO NOTHING RETURNING version"
        .to_owned()
});

/// Creates a prefix. False if it exists.
pub fn insert(prefix: &str, form: Form, owner: pg_sys::Oid) -> bool {
    write(&INSERT, &[prefix.into(), form.name().into(), owner.into()]) > 0
}

static INSERT_NEXT: Query = Query::new(&PUBLIC_KEY, || {
    "INSERT INTO idgen.public_key (prefix, version, form, secret, owner, users) \
     SELECT prefix, $2, $3, idgen.public_key_secret(), owner, users FROM idgen.public_key \
     WHERE prefix OPERATOR(pg_catalog.=) $1 AND version OPERATOR(pg_catalog.=) 1"
        .to_owned()
});

/// Adds a key to a prefix that the transaction has locked.
pub fn insert_next(prefix: &str, version: i32, form: Form) {
    write(&INSERT_NEXT, &[prefix.into(), version.into(), form.name().into()]);
}

static RETIRE: Query = Query::new(&PUBLIC_KEY, || {
    "UPDATE idgen.public_key SET secret = NULL, retired = pg_catalog.now() \
     WHERE prefix OPERATOR(pg_catalog.=) $1 AND version OPERATOR(pg_catalog.=) $2"
        .to_owned()
});

/// Removes the secret of a key. The row stays, so that the version and the form are not used again.
pub fn retire(prefix: &str, version: i32) {
    write(&RETIRE, &[prefix.into(), version.into()]);
}

static DELETE: Query =
    Query::new(&PUBLIC_KEY, || "DELETE FROM idgen.public_key WHERE prefix OPERATOR(pg_catalog.=) $1".to_owned());

pub fn delete(prefix: &str) {
    write(&DELETE, &[prefix.into()]);
}

static SET_OWNER: Query = Query::new(&PUBLIC_KEY, || {
    "UPDATE idgen.public_key SET owner = $2::pg_catalog.regrole WHERE prefix OPERATOR(pg_catalog.=) $1".to_owned()
});

pub fn set_owner(prefix: &str, owner: pg_sys::Oid) {
    write(&SET_OWNER, &[prefix.into(), owner.into()]);
}

static ADD_USER: Query = Query::new(&PUBLIC_KEY, || {
    "UPDATE idgen.public_key SET users = pg_catalog.array_append(users, $2::pg_catalog.oid::pg_catalog.regrole) \
     WHERE prefix OPERATOR(pg_catalog.=) $1 \
     AND $2::pg_catalog.oid OPERATOR(pg_catalog.<>) ALL (users::pg_catalog.oid[])"
        .to_owned()
});
static REMOVE_USER: Query = Query::new(&PUBLIC_KEY, || {
    "UPDATE idgen.public_key SET users = pg_catalog.array_remove(users, $2::pg_catalog.oid::pg_catalog.regrole) \
     WHERE prefix OPERATOR(pg_catalog.=) $1 \
     AND $2::pg_catalog.oid OPERATOR(pg_catalog.=) ANY (users::pg_catalog.oid[])"
        .to_owned()
});

/// Grants a role the use of the keys, or revokes it; 0 is PUBLIC.
pub fn set_user(prefix: &str, role: pg_sys::Oid, may_use: bool) {
    let query = if may_use { &ADD_USER } else { &REMOVE_USER };
    // As a bigint: pgrx passes the OID 0 as NULL.
    write(query, &[prefix.into(), i64::from(role.to_u32()).into()]);
}

static REASSIGN: Query = Query::new(&PUBLIC_KEY, || {
    "UPDATE idgen.public_key SET owner = $2::pg_catalog.regrole \
     WHERE owner::pg_catalog.oid OPERATOR(pg_catalog.=) ANY ($1)"
        .to_owned()
});
static DELETE_OWNED: Query = Query::new(&PUBLIC_KEY, || {
    "DELETE FROM idgen.public_key WHERE owner::pg_catalog.oid OPERATOR(pg_catalog.=) ANY ($1)".to_owned()
});
static REMOVE_USERS: Query = Query::new(&PUBLIC_KEY, || {
    format!(
        "UPDATE idgen.public_key SET users = {} WHERE users::pg_catalog.oid[] OPERATOR(pg_catalog.&&) $1",
        grants::without("$1", "users")
    )
});

/// Makes another role the owner of all prefixes of these roles.
pub fn reassign(owners: &[pg_sys::Oid], heir: pg_sys::Oid) {
    block_rotations();
    spi::as_read_committed(|| write(&REASSIGN, &[owners.to_vec().into(), heir.into()]));
}

/// Drops all prefixes of these roles, and revokes what was granted to them.
pub fn drop_owned(owners: &[pg_sys::Oid]) {
    block_rotations();
    spi::as_read_committed(|| {
        write(&DELETE_OWNED, &[owners.to_vec().into()]);
        write(&REMOVE_USERS, &[owners.to_vec().into()]);
    });
}

/// Waits for all other writers, and blocks them until the transaction ends. A rotation that commits during a statement
/// would add a row that the statement does not see, and that would keep the old owner.
fn block_rotations() {
    PUBLIC_KEY.lock(pg_sys::ShareRowExclusiveLock);
}

/// Changes the newest version of rows. Returns how many rows the query returns.
fn write(query: &Query, args: &[DatumWithOid]) -> usize {
    refuse_during_recovery();
    query.write_latest(args, |_| ()).len()
}

fn refuse_during_recovery() {
    // Otherwise PostgreSQL's error would be about the transaction id.
    // SAFETY: a C string literal.
    unsafe { pg_sys::PreventCommandDuringRecovery(c"a write to idgen.public_key".as_ptr()) };
}

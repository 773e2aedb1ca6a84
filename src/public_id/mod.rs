//! Public ids: the SQL functions that make texts of ids and read them back, and those that define, rotate, drop and
//! grant the keys of a prefix.
//!
//! The functions of texts need neither shared memory nor a worker id, so they work without preload and on a standby.
//! They are STABLE: a rotation changes what `public_id` returns. All are STRICT, so that they keep the NULL of an outer
//! join. Users have no privileges on secrets: the functions of keys check theirs.

use crate::args;
use crate::pg::datum::{AsciiText, Text};
use crate::pg::{shared_objects, spi};
use idgen_core::public_id::{self, Form, KeyState, PublicIdError, RotationError};
use pgrx::prelude::*;

mod errors;
mod keys;

/// The text of an id, by the newest key of the prefix. Raises 42704 if there is no such prefix, 22023 if none can exist,
/// 42501 without the privilege, 22003 for a negative id.
#[pg_extern(sql = false)]
fn public_id(prefix: Text, id: i64) -> String {
    keys::with(&prefix, |keys| keys.encode(id)).unwrap_or_else(|e| errors::number(e, &prefix, id).raise())
}

/// The id of a text, by the key that made it. Raises 22023 for a text that is none of this prefix; else as `public_id`.
#[pg_extern(sql = false)]
fn public_id_decode(prefix: Text, text: Text) -> i64 {
    decode(&prefix, &text).unwrap_or_else(|e| errors::text(e, &prefix, &text).raise())
}

/// As `public_id_decode`; NULL for a text that is none of this prefix.
#[pg_extern(sql = false)]
fn public_id_try_decode(prefix: Text, text: AsciiText) -> Option<i64> {
    // Also checks the prefix and the privilege if the text is none.
    decode(&prefix, text.0.unwrap_or_default()).ok()
}

fn decode(prefix: &str, text: &str) -> Result<i64, PublicIdError> {
    keys::with(prefix, |keys| keys.decode(text))
}

/// The number that the short form writes as text. Raises 55000 unless the newest key has that form; else as `public_id`.
#[pg_extern(sql = false)]
fn id_mask(prefix: Text, id: i64) -> i64 {
    keys::with(&prefix, |keys| keys.mask(id)).unwrap_or_else(|e| errors::number(e, &prefix, id).raise())
}

/// The id of a masked number. Raises 55000 unless the prefix has a key of the short form; else as `public_id`.
#[pg_extern(sql = false)]
fn id_unmask(prefix: Text, masked: i64) -> i64 {
    keys::with(&prefix, |keys| keys.unmask(masked)).unwrap_or_else(|e| errors::number(e, &prefix, masked).raise())
}

/// Creates a prefix that the caller owns, with its first key. Raises 42710 if it exists, 22023 for an invalid prefix or
/// form, 22004 for NULL.
#[pg_extern(sql = false)]
fn public_id_define(prefix: Option<Text>, form: Option<Text>) {
    let prefix = args::required(prefix.as_deref(), "prefix");
    if !public_id::is_valid_prefix(prefix) {
        errors::prefix(prefix).raise();
    }
    let form = named(args::required(form.as_deref(), "form"));
    if !keys::insert(prefix, form, spi::user()) {
        errors::exists(prefix).raise();
    }
}

fn named(form: &str) -> Form {
    Form::named(form).unwrap_or_else(|| errors::unknown_form(form).raise())
}

/// Adds a key to a prefix, and returns its version. Texts of older keys go on decoding. NULL keeps the form. Raises 55000
/// for a second key of the short form, 54000 after the last version, 42704 if there is no such prefix, 42501 unless the caller is a member of its owner,
/// 22023 for an unknown form, 22004 for another NULL.
#[pg_extern(sql = false)]
fn public_id_rotate(prefix: Option<Text>, form: Option<Text>) -> i32 {
    let prefix = args::required(prefix.as_deref(), "prefix");
    let form = form.as_deref().map(named);
    let keys = lock_owned(prefix);
    let (version, form) = public_id::next_key(&keys, form).unwrap_or_else(|error| raise_rotation_error(error, prefix));
    keys::insert_next(prefix, version, form);
    version
}

/// Removes the secret of an older key, whose texts no longer decode. Raises 55000 for the newest key, 42704 if there is no
/// such prefix or key, 42501 as `public_id_rotate`, 22004 for NULL.
#[pg_extern(sql = false)]
fn public_id_retire(prefix: Option<Text>, version: Option<i32>) {
    let prefix = args::required(prefix.as_deref(), "prefix");
    let version = args::required(version, "version");
    let keys = lock_owned(prefix);
    if public_id::retire(&keys, version).unwrap_or_else(|error| raise_rotation_error(error, prefix)) {
        keys::retire(prefix, version);
    }
}

fn raise_rotation_error(error: RotationError, prefix: &str) -> ! {
    match error {
        RotationError::SecondShortKey(short) => errors::second_short_key(prefix, short).raise(),
        RotationError::Newest(version) => errors::newest_key(prefix, version).raise(),
        RotationError::UnknownVersion(version) => errors::unknown_key(prefix, version).raise(),
        RotationError::NoMoreVersions => errors::no_more_versions(prefix).raise(),
    }
}

/// Drops a prefix with all keys: no text of it can be decoded any more. Errors as `public_id_rotate`.
#[pg_extern(sql = false)]
fn public_id_drop(prefix: Option<Text>) {
    let prefix = args::required(prefix.as_deref(), "prefix");
    lock_owned(prefix);
    keys::delete(prefix);
}

/// Makes another role the owner. Raises 42501 unless the caller is a member of both owners, 42704 if there is no such
/// prefix or role, 22004 for NULL.
#[pg_extern(sql = false)]
fn public_id_alter(prefix: Option<Text>, owner: Option<Text>) {
    let (prefix, owner) = (args::required(prefix.as_deref(), "prefix"), args::required(owner.as_deref(), "owner"));
    lock_owned(prefix);
    keys::set_owner(prefix, args::new_owner(owner));
}

/// Lets a role, or `public`, make and decode texts. Raises 42704 if there is no such prefix or role, 42501 unless the
/// caller is a member of the owner, 22004 for NULL.
#[pg_extern(sql = false)]
fn public_id_grant(prefix: Option<Text>, role: Option<Text>) {
    set_user(prefix, role, true);
}

/// Revokes what `public_id_grant` granted. Errors as `public_id_grant`.
#[pg_extern(sql = false)]
fn public_id_revoke(prefix: Option<Text>, role: Option<Text>) {
    set_user(prefix, role, false);
}

fn set_user(prefix: Option<Text>, role: Option<Text>, may_use: bool) {
    let (prefix, role) = (args::required(prefix.as_deref(), "prefix"), args::required(role.as_deref(), "role"));
    lock_owned(prefix);
    keys::OWNERS.set_grantee(prefix, args::grantee(role), may_use);
}

/// Locks a prefix that the current user may alter, and returns its keys.
fn lock_owned(prefix: &str) -> Vec<KeyState> {
    loop {
        // A role that is not the owner neither waits for the lock nor holds it.
        owned_keys(prefix);
        if keys::lock(prefix) {
            // Read again: the wait may have been for a rotation or a change of owner.
            return owned_keys(prefix);
        }
        // Dropped during the wait. The prefix may have been defined again.
    }
}

fn owned_keys(prefix: &str) -> Vec<KeyState> {
    let (keys, may_alter) = keys::find(prefix);
    if keys.is_empty() {
        errors::missing(prefix).raise();
    }
    if !may_alter {
        errors::not_owner(prefix).raise();
    }
    keys
}

/// While the postmaster preloads libraries.
pub fn init() {
    shared_objects::follow_owners_of(shared_objects::OwnedRows {
        exist: || keys::PUBLIC_KEY.find().is_some(),
        reassign: |owners, heir| keys::OWNERS.reassign(owners, heir),
        drop: |owners| keys::OWNERS.drop_owned(owners),
    });
}

//! Defining, rotating, dropping and granting the keys of a prefix. Users have no privileges on secrets: these functions
//! check theirs.

use super::{errors, store};
use crate::args;
use crate::pg::datum::Text;
use crate::pg::{session, spi};
use idgen_core::public_id::{self, Form, KeyState, RotationError};
use pgrx::prelude::*;

/// Creates a prefix that the caller owns, with its first key. Raises 42710 if it exists, 22023 for an invalid prefix or
/// form, 22004 for NULL.
#[pg_extern(sql = false)]
fn public_id_define(prefix: Option<Text>, form: Option<Text>) {
    let prefix = args::required(prefix.as_deref(), "prefix");
    if !public_id::is_valid_prefix(prefix) {
        errors::prefix(prefix).raise();
    }
    let form = named(args::required(form.as_deref(), "form"));
    if !store::insert(prefix, form, spi::user()) {
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
    store::insert_next(prefix, version, form);
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
        store::retire(prefix, version);
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
    store::delete(prefix);
}

/// Makes another role the owner. Raises 42501 unless the caller is a member of both owners, 42704 if there is no such
/// prefix or role, 22004 for NULL.
#[pg_extern(sql = false)]
fn public_id_alter(prefix: Option<Text>, owner: Option<Text>) {
    let (prefix, owner) = (args::required(prefix.as_deref(), "prefix"), args::required(owner.as_deref(), "owner"));
    lock_owned(prefix);
    store::set_owner(prefix, args::new_owner(owner));
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
    store::OWNERS.set_grantee(prefix, args::grantee(role), may_use);
}

/// Locks a prefix that the current user may alter, and returns its keys.
fn lock_owned(prefix: &str) -> Vec<KeyState> {
    loop {
        // A role that is not the owner neither waits for the lock nor holds it.
        owned_keys(prefix);
        if store::lock(prefix) {
            // Read again: the wait may have been for a rotation or a change of owner.
            return owned_keys(prefix);
        }
        // Dropped during the wait. The prefix may have been defined again.
    }
}

fn owned_keys(prefix: &str) -> Vec<KeyState> {
    let found = store::find(prefix).unwrap_or_else(|| errors::unknown(prefix).raise());
    if !found.may_alter {
        errors::not_owner(prefix).raise();
    }
    found.keys
}

/// A new secret. The statements that insert a row call it, as the owner of the table.
#[pg_extern(sql = false)]
fn public_key_secret() -> Vec<u8> {
    session::random_bytes::<{ public_id::SECRET_BYTES }>().to_vec()
}

//! Public ids: the SQL functions that make texts of ids, and read them back. They need neither shared memory nor a worker
//! id, so they work without preload and on a standby.
//!
//! A prefix has its keys in `idgen.public_key`. The functions are STABLE: a rotation changes what `public_id` returns. All
//! are STRICT, so that they keep the NULL of an outer join.

use crate::pg::datum::{AsciiText, Text};
use crate::pg::shared_objects;
use idgen_core::public_id::PublicIdError;
use pgrx::prelude::*;

mod define;
mod errors;
mod keys;
mod store;
mod trigger;

/// The text of an id, by the newest key of the prefix. Raises 42704 if there is no such prefix, 42501 without the
/// privilege, 22003 for a negative id.
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

/// While the postmaster preloads libraries.
pub fn init() {
    shared_objects::follow_owners_of(shared_objects::OwnedRows {
        exist: || store::PUBLIC_KEY.find().is_some(),
        reassign: |owners, heir| store::OWNERS.reassign(owners, heir),
        drop: |owners| store::OWNERS.drop_owned(owners),
    });
}

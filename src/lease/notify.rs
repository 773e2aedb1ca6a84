//! Notifications about leases that are defined with `notify`, on the channel `idgen_lease`. Like every NOTIFY, they are sent
//! when the transaction commits.

use super::definitions;
use super::store::Granted;
use super::sweep::Deleted;
use crate::pg::effects::notify;
use serde_json::Value;
use std::ffi::CStr;

const CHANNEL: &CStr = c"idgen_lease";

/// A payload has less than 8,000 bytes. JSON escapes a character with at most 6 bytes, and a name has at most 255.
const OWNER_CHARACTERS: usize = 1000;

/// A term has begun.
pub fn granted(name: &str, granted: &Granted) {
    if is_watched(name) {
        send(name, granted.slot, "granted", granted.owner.as_deref());
    }
}

/// The slot and owner of a token whose term is about to be released, if its end is to be told. The row may go with it.
pub fn about_to_release(name: &str, token: i64) -> Option<(i32, Option<String>)> {
    is_watched(name).then(|| definitions::slot_and_owner(name, token)).flatten()
}

/// A term was released, with what [`about_to_release`] has returned.
pub fn released(name: &str, (slot, owner): (i32, Option<String>)) {
    send(name, slot, "released", owner.as_deref());
}

/// A term was revoked.
pub fn revoked(name: &str, slot: i32) {
    if is_watched(name)
        && let Some((_, owner)) = definitions::depth_and_owner(name, slot)
    {
        send(name, slot, "revoked", owner.as_deref());
    }
}

/// A slot is about to be taken over or freed. If its term was not released, it has expired.
pub fn expired(name: &str, slot: i32) {
    if is_watched(name)
        && let Some((1.., owner)) = definitions::depth_and_owner(name, slot)
    {
        send(name, slot, "expired", owner.as_deref());
    }
}

/// The row of a term that has expired, or was released, was deleted.
pub fn deleted(row: &Deleted) {
    if row.depth > 0 && is_watched(&row.name) {
        send(&row.name, row.slot, "expired", row.owner.as_deref());
    }
}

fn send(name: &str, slot: i32, event: &str, owner: Option<&str>) {
    let owner = owner.map(|owner| owner.chars().take(OWNER_CHARACTERS).collect::<String>());
    let [name, owner] = [Value::from(name), Value::from(owner)];
    notify(CHANNEL, &format!(r#"{{"name": {name}, "slot": {slot}, "event": "{event}", "owner": {owner}}}"#));
}

fn is_watched(name: &str) -> bool {
    definitions::of(name).notify
}

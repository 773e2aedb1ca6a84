//! The errors of leases.

use crate::args::{duration_text, numbers_text};
use crate::pg::ereport::{errors, quoted};
use crate::place;
use idgen_core::lease::MAX_SLOTS;

errors! {
    fn holders_unknown() {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "cannot acquire a lease: WAL of this server was reset or lost";
        detail: "A holder from before that may be forgotten.";
        hint: "{}", place::wal_lost_hint();
    }

    fn slots_out_of_range(slots: i32) {
        ERRCODE_INVALID_PARAMETER_VALUE: "invalid number of slots \"{slots}\"";
        detail: "It must be 1 to {MAX_SLOTS}.";
    }

    fn lengths_differ(names: usize, tokens: usize) {
        ERRCODE_INVALID_PARAMETER_VALUE: "names and tokens differ in length";
        detail: "There are {names} names and {tokens} tokens.";
    }

    fn named_twice(name: &str) {
        ERRCODE_INVALID_PARAMETER_VALUE: "lease \"{name}\" is named twice";
        detail: "A call acquires one term of each lease.";
    }

    fn not_held_before_commit(name: &str) {
        ERRCODE_WARNING: "lease \"{name}\" is not held until this transaction commits";
        detail: "A rollback or a crash before the commit undoes the acquisition, and renewals in other sessions do \
            not see it.";
        hint: "Acquire the lease in a transaction of its own, and commit before the work begins.";
    }

    fn acquired_in_open_transaction(name: &str, slot: i32, process: i32) {
        ERRCODE_WARNING: "slot {slot} of lease \"{name}\" was acquired by an open transaction";
        detail: "The transaction of process {process} has not committed, so the term cannot be revoked yet.";
        hint: "To end it, run SELECT pg_terminate_backend({process});";
    }

    fn stale(name: &str, token: i64, state: String) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "lease \"{name}\" is not held under token {token}";
        detail: "{}", state;
        hint: "Stop the work that the lease protects. To continue, acquire the lease again.";
    }

    fn not_the_holders_role(name: &str, role: &str) {
        ERRCODE_INSUFFICIENT_PRIVILEGE: "permission denied for lease \"{name}\"";
        detail: "It was acquired by role \"{role}\".";
    }

    fn snapshot_too_old(name: &str) {
        ERRCODE_T_R_SERIALIZATION_FAILURE: "could not serialize access: lease \"{name}\" may have had another holder \
            since this snapshot was taken";
        detail: "The snapshot does not show what that holder has written.";
        hint: "Acquire the lease in a transaction of its own, before the one that works under it.";
    }

    fn used_by_acquiring_statement(name: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "cannot work under lease \"{name}\" in the statement that has \
            acquired it";
        detail: "The statement's snapshot may not show what the last holder has written.";
        hint: "Acquire the lease in a statement of its own, before the one that fences by it or writes.";
    }

    fn no_boot_id(error: &std::io::Error) {
        ERRCODE_IO_ERROR: "could not read /proc/sys/kernel/random/boot_id: {error}";
        detail: "Leases need it to tell times of different boots of the machine apart.";
    }

    fn prepared() {
        ERRCODE_FEATURE_NOT_SUPPORTED: "cannot PREPARE a transaction that has acquired, renewed or revoked a \
            lease";
        hint: "Acquire, renew and revoke leases in a transaction of their own.";
    }

    fn bound_too_late(name: &str) {
        ERRCODE_FEATURE_NOT_SUPPORTED: "lease \"{name}\" is already held and not bound to this session";
        detail: "A lease can be bound only when it is first acquired.";
        hint: "Omit bind_session, or release the lease and acquire it without the token.";
    }

    fn in_use(name: &str, slot: i32) {
        ERRCODE_OBJECT_IN_USE: "lease \"{name}\" is held";
        detail: "Its slot {slot} has a holder.";
        hint: "Wait until it is released, or run SELECT lease_revoke({}, {slot});", quoted(name);
    }

    fn unknown(name: &str) {
        ERRCODE_UNDEFINED_OBJECT: "lease \"{name}\" does not exist";
    }

    fn undefined(name: &str) {
        ERRCODE_UNDEFINED_OBJECT: "lease \"{name}\" is not defined";
        hint: "Define it with SELECT lease_define({});", quoted(name);
    }

    fn not_definer(name: &str) {
        ERRCODE_INSUFFICIENT_PRIVILEGE: "must be definer of lease \"{name}\"";
        detail: "Only members of the role that defined it may do this, or a superuser if it is not defined.";
    }

    fn held_by_another_role(name: &str, slot: i32, role: &str) {
        ERRCODE_INSUFFICIENT_PRIVILEGE: "permission denied to define lease \"{name}\"";
        detail: "Its slot {slot} is held by role \"{role}\", and the current role is not a member of it.";
        hint: "Define a name before it is used. Wait until it is released, or ask a superuser to define it.";
    }

    fn guard_usage(detail: &str) {
        ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED: "lease_guard() must be called by a BEFORE trigger with the name of \
            a lease";
        detail: "{}", detail;
        hint: "Use CREATE TRIGGER ... BEFORE INSERT OR UPDATE OR DELETE ON ... FOR EACH ROW EXECUTE FUNCTION \
            lease_guard('name'); and another trigger BEFORE TRUNCATE ON ... FOR EACH STATEMENT.";
    }

    fn cannot_share(name: &str, slots: i32) {
        ERRCODE_INVALID_PARAMETER_VALUE: "cannot share lease \"{name}\" with {slots} slots";
        detail: "Only a lease with one slot can be shared.";
        hint: "Omit shared, or define another lease with one slot.";
    }

    fn not_fenced(name: &str, table: &str, has_fenced_shared: bool) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "table \"{table}\" can be written only under lease \"{name}\"";
        detail: "{}", match has_fenced_shared {
            true => "This transaction has fenced a shared lease, and the guard of this table requires an exclusive lease.",
            false => "This transaction did not call lease_fence(), or rolled it back, or released the lease.",
        };
        hint: "In this transaction, before the write, run SELECT lease_fence({}, <the token that you acquired>);", quoted(name);
    }

    fn lock_delay_out_of_range(longest_us: i64) {
        ERRCODE_INVALID_PARAMETER_VALUE: "lock_delay is out of range";
        detail: "It must be 0 to {}, which is idgen.lease_max_ttl.", duration_text(longest_us);
    }

    fn excludes_holders(name: &str, old_slots: i32, slots: i32, held: &[i32]) {
        ERRCODE_OBJECT_IN_USE: "lease \"{name}\" has holders outside of its new slots";
        detail: "Its slots are 0 to {}, and would be 0 to {}. Holders are in {}.", old_slots - 1, slots - 1,
            numbers_text(held);
    }

    fn other_mode(name: &str, is_shared: bool) {
        ERRCODE_INVALID_PARAMETER_VALUE: "the term of lease \"{name}\" is {}", if is_shared { "shared" } else { "exclusive" };
        detail: "A term keeps its mode.";
        hint: "With this token, use shared => {is_shared}. For the other mode, release the lease first.";
    }
}

/// For [`excludes_holders`].
pub fn hint_to_keep_or_force(name: &str) -> String {
    format!(
        "To keep the settings that you do not name, use SELECT lease_alter({}, ...); to insist, add force => true.",
        quoted(name)
    )
}

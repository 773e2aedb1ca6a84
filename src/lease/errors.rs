//! The errors of leases.

use crate::pg::ereport::{Report, quoted};
use crate::place;
use idgen_core::lease::{LeaseDefinition, MAX_SLOTS};
use pgrx::PgSqlErrorCode::*;
use std::ops::RangeInclusive;
use std::time::Duration;

pub fn holders_unknown() -> Report {
    let message = "cannot acquire a lease: WAL of this server was reset or lost";
    Report::new(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, message)
        .detail("A holder from before that may be forgotten.")
        .hint(place::wal_lost_hint())
}

pub fn ttl_out_of_range(limits: RangeInclusive<i64>) -> Report {
    let text = |us: &i64| format!("{:?}", Duration::from_micros(*us as u64));
    Report::new(ERRCODE_INVALID_PARAMETER_VALUE, "ttl is out of range")
        .detail(format!("It must be {} to {}.", text(limits.start()), text(limits.end())))
        .hint("The limits are idgen.lease_min_ttl and idgen.lease_max_ttl.")
}

pub fn lock_delay_out_of_range(longest_us: i64) -> Report {
    let longest = Duration::from_micros(longest_us as u64);
    Report::new(ERRCODE_INVALID_PARAMETER_VALUE, "lock_delay is out of range")
        .detail(format!("It must be 0 to {longest:?}, which is idgen.lease_max_ttl."))
}

pub fn slots_out_of_range(slots: i32) -> Report {
    Report::new(ERRCODE_INVALID_PARAMETER_VALUE, format!("invalid number of slots \"{slots}\""))
        .detail(format!("It must be 1 to {MAX_SLOTS}."))
}

pub fn first_slot_out_of_range(first_slot: i32, slots: i32) -> Report {
    Report::new(ERRCODE_INVALID_PARAMETER_VALUE, format!("invalid first slot \"{first_slot}\"")).detail(format!(
        "With {slots} slots it must be 0 to {}: the highest slot is {}.",
        MAX_SLOTS - slots,
        MAX_SLOTS - 1
    ))
}

pub fn excludes_holders(name: &str, old: &LeaseDefinition, new: &LeaseDefinition, held: &[i32]) -> Report {
    const MOST: usize = 10;
    let slots: Vec<String> = held.iter().take(MOST).map(i32::to_string).collect();
    let more = if held.len() > MOST { format!(" and {} more", held.len() - MOST) } else { String::new() };
    Report::new(ERRCODE_OBJECT_IN_USE, format!("lease \"{name}\" has holders outside of its new slots"))
        .detail(format!("{} Holders are in {}{more}.", ranges(old, new), slots.join(", ")))
}

pub fn moves_first_slot(name: &str, old: &LeaseDefinition, new: &LeaseDefinition) -> Report {
    let message = format!("lease \"{name}\" is defined with another first slot");
    Report::new(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, message).detail(ranges(old, new))
}

/// For the two errors above.
pub fn hint_to_keep_or_force(name: &str) -> String {
    format!(
        "To keep the settings that you do not name, use SELECT lease_alter({}, ...); to insist, add force => true.",
        quoted(name)
    )
}

fn ranges(old: &LeaseDefinition, new: &LeaseDefinition) -> String {
    let range = |of: &LeaseDefinition| format!("{} to {}", of.first_slot, of.first_slot + of.slots - 1);
    format!("Its slots are {}, and would be {}.", range(old), range(new))
}

pub fn lengths_differ(names: usize, tokens: usize) -> Report {
    Report::new(ERRCODE_INVALID_PARAMETER_VALUE, "names and tokens differ in length")
        .detail(format!("There are {names} names and {tokens} tokens."))
}

pub fn not_held_before_commit(name: &str) -> Report {
    Report::new(ERRCODE_WARNING, format!("lease \"{name}\" is not held until this transaction commits"))
        .detail("A rollback or a crash before the commit undoes the acquisition, and renewals in other sessions do not see it.")
        .hint("Acquire the lease in a transaction of its own, and commit before the work begins.")
}

pub fn acquired_in_open_transaction(name: &str, slot: i32, process: i32) -> Report {
    let message = format!("slot {slot} of lease \"{name}\" was acquired by an open transaction");
    Report::new(ERRCODE_WARNING, message)
        .detail(format!("The transaction of process {process} has not committed, so the term cannot be revoked yet."))
        .hint(format!("To end it, run SELECT pg_terminate_backend({process});"))
}

pub fn stale(name: &str, token: i64, state: String) -> Report {
    Report::new(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, format!("lease \"{name}\" is not held under token {token}"))
        .detail(state)
        .hint("Stop the work that the lease protects. To continue, acquire the lease again.")
}

pub fn not_the_holders_role(name: &str, role: &str) -> Report {
    Report::new(ERRCODE_INSUFFICIENT_PRIVILEGE, format!("permission denied for lease \"{name}\""))
        .detail(format!("It was acquired by role \"{role}\"."))
}

pub fn snapshot_too_old(name: &str) -> Report {
    Report::new(
        ERRCODE_T_R_SERIALIZATION_FAILURE,
        format!(
            "could not serialize access: lease \"{name}\" may have had another holder since this transaction began"
        ),
    )
    .detail("The transaction's snapshot does not show what that holder has written.")
    .hint("Acquire the lease in a transaction of its own, before the one that works under it.")
}

pub fn fenced_by_acquiring_statement(name: &str) -> Report {
    Report::new(
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("cannot fence by lease \"{name}\" in the statement that has acquired it"),
    )
    .detail("The statement's snapshot may not show what the last holder has written.")
    .hint("Acquire the lease in a statement of its own, before the one that works under it; or use READ COMMITTED.")
}

pub fn no_boot_id(error: &std::io::Error) -> Report {
    Report::new(ERRCODE_IO_ERROR, format!("could not read /proc/sys/kernel/random/boot_id: {error}"))
        .detail("Leases need it to tell times of different boots of the machine apart.")
}

pub fn prepared() -> Report {
    Report::new(ERRCODE_FEATURE_NOT_SUPPORTED, "cannot PREPARE a transaction that has acquired or renewed a lease")
        .hint("Acquire leases in a transaction of their own.")
}

pub fn bound_too_late(name: &str) -> Report {
    Report::new(
        ERRCODE_FEATURE_NOT_SUPPORTED,
        format!("lease \"{name}\" is already held and not bound to this session"),
    )
    .detail("A lease can be bound only when it is first acquired.")
    .hint("Omit bind_session, or release the lease and acquire it without the token.")
}

pub fn in_use(name: &str, slot: i32) -> Report {
    Report::new(ERRCODE_OBJECT_IN_USE, format!("lease \"{name}\" is held"))
        .detail(format!("Its slot {slot} has a holder."))
        .hint(format!("Wait until it is released, or run SELECT lease_revoke({}, {slot});", quoted(name)))
}

pub fn unknown(name: &str) -> Report {
    Report::new(ERRCODE_UNDEFINED_OBJECT, format!("lease \"{name}\" does not exist"))
}

pub fn undefined(name: &str) -> Report {
    Report::new(ERRCODE_UNDEFINED_OBJECT, format!("lease \"{name}\" is not defined"))
        .hint(format!("Define it with SELECT lease_define({});", quoted(name)))
}

pub fn not_definer(name: &str) -> Report {
    Report::new(ERRCODE_INSUFFICIENT_PRIVILEGE, format!("must be definer of lease \"{name}\""))
        .detail("Only members of the role that defined it may do this, or a superuser if it is not defined.")
}

pub fn held_by_another_role(name: &str, slot: i32, role: &str) -> Report {
    Report::new(ERRCODE_INSUFFICIENT_PRIVILEGE, format!("permission denied to define lease \"{name}\""))
        .detail(format!("Its slot {slot} is held by role \"{role}\", and the current role is not a member of it."))
        .hint("Define a name before it is used. Wait until it is released, or ask a superuser to define it.")
}

pub fn guard_usage(detail: &str) -> Report {
    Report::new(
        ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
        "lease_guard() must be called by a BEFORE trigger with the name of a lease",
    )
    .detail(detail)
    .hint(
        "Use CREATE TRIGGER ... BEFORE INSERT OR UPDATE OR DELETE ON ... FOR EACH ROW EXECUTE FUNCTION lease_guard('name'); \
         and another trigger BEFORE TRUNCATE ON ... FOR EACH STATEMENT.",
    )
}

pub fn lock_row_usage() -> Report {
    Report::new(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED, "idgen.lease_lock_row() must be called by idgen itself")
        .hint("Do not call it. To acquire a lease, use lease_acquire().")
}

pub fn definition_trigger_only() -> Report {
    Report::new(
        ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
        "idgen.lease_definition_changed() must be called by the trigger of idgen.lease_definition",
    )
    .hint("Do not call it, and do not create a trigger with it.")
}

pub fn cannot_share(name: &str, slots: i32) -> Report {
    Report::new(ERRCODE_INVALID_PARAMETER_VALUE, format!("cannot share lease \"{name}\" with {slots} slots"))
        .detail("Only a lease with one slot can be shared.")
        .hint("Omit shared, or define another lease with one slot.")
}

pub fn mode_differs(name: &str, is_shared: bool) -> Report {
    let (mode, argument) = if is_shared { ("shared", "true") } else { ("exclusive", "false") };
    Report::new(ERRCODE_INVALID_PARAMETER_VALUE, format!("the term of lease \"{name}\" is {mode}"))
        .detail("A term keeps its mode.")
        .hint(format!("With this token, use shared => {argument}. For the other mode, release the lease first."))
}

pub fn not_fenced(name: &str, table: &str, has_shared_fence: bool) -> Report {
    Report::new(
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("table \"{table}\" can be written only under lease \"{name}\""),
    )
    .detail(if has_shared_fence {
        "This transaction fenced with a shared lease. The guard of this table accepts only an exclusive one."
    } else {
        "This transaction has no fence: lease_fence() was not called or was rolled back, or the lease was released."
    })
    .hint(format!("In this transaction, before the write, run SELECT lease_fence({}, <token>);", quoted(name)))
}

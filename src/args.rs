//! Arguments that several capabilities take: checks of them, and the roles that own and are granted rows. A column `owner`
//! has the owner, and a column of type `regrole[]` the grantees, among which 0 is PUBLIC.

use crate::error::first_of;
use crate::pg::datum::{self, c_string, stored_len};
use crate::pg::ereport::errors;
use crate::pg::spi::{ExtensionTable, Query, text, user};
use idgen_core::lock::{MAX_NAME_BYTES, MAX_OWNER_BYTES, NameHash, is_valid_name};
use parking_lot::Mutex;
use pgrx::datum::{DatumWithOid, Interval, TimestampWithTimeZone};
use pgrx::pg_sys;
use std::ops::{Deref, RangeInclusive};
use std::time::Duration;

errors! {
    fn null(name: &str) {
        ERRCODE_NULL_VALUE_NOT_ALLOWED: "{name} must not be null";
    }

    fn name_length(name: &str, bytes: usize) {
        ERRCODE_INVALID_PARAMETER_VALUE: "invalid name \"{name}\"";
        detail: "A name has 1 to {MAX_NAME_BYTES} bytes, and this has {bytes}.";
    }

    fn owner_length(bytes: usize) {
        ERRCODE_INVALID_PARAMETER_VALUE: "owner is too long";
        detail: "It has at most {MAX_OWNER_BYTES} bytes, and this has {bytes}.";
    }

    fn negative_count(count: i32) {
        ERRCODE_INVALID_PARAMETER_VALUE: "count must not be negative: \"{count}\"";
    }

    fn timeout_out_of_range() {
        ERRCODE_INVALID_PARAMETER_VALUE: "timeout is out of range";
        detail: "It must be 0 to 24 days.";
    }

    fn ttl_out_of_range(limits: RangeInclusive<i64>) {
        ERRCODE_INVALID_PARAMETER_VALUE: "ttl is out of range";
        detail: "It must be {} to {}.", duration_text(*limits.start()), duration_text(*limits.end());
        hint: "The limits are idgen.lease_min_ttl and idgen.lease_max_ttl.";
    }

    fn not_finite(name: &str) {
        ERRCODE_DATETIME_FIELD_OVERFLOW: "{name} must be finite";
    }

    fn unknown_role(name: &str) {
        ERRCODE_UNDEFINED_OBJECT: "role \"{name}\" does not exist";
    }

    fn cannot_set_role(name: &str) {
        ERRCODE_INSUFFICIENT_PRIVILEGE: "must be able to SET ROLE \"{name}\"";
    }
}

/// Raises 22004 if the argument is NULL.
pub fn required<T>(value: Option<T>, name: &str) -> T {
    value.unwrap_or_else(|| null(name).raise())
}

/// A name of a lock or a lease, in the argument called so: not NULL, 1 to 255 bytes.
pub fn name<'a>(name: Option<&'a str>, argument: &str) -> &'a str {
    let name = required(name, argument);
    if !is_valid_name(name) {
        name_length(name, name.len()).raise();
    }
    name
}

/// As [`name`], for one that a table stores under a constraint on its bytes there.
pub fn stored_name<'a>(text: Option<&'a str>, argument: &str) -> &'a str {
    let name = name(text, argument);
    let bytes = stored_len(name);
    if bytes > MAX_NAME_BYTES {
        name_length(name, bytes).raise();
    }
    name
}

/// What a holder calls itself. Errors show it to others, several of them at once, so it is limited.
pub fn owner<T: Deref<Target = str>>(owner: Option<T>) -> Option<T> {
    if let Some(bytes) = owner.as_deref().map(str::len).filter(|bytes| *bytes > MAX_OWNER_BYTES) {
        owner_length(bytes).raise();
    }
    owner
}

/// The hash of a name. A call needs it several times, the next call is often for the same name, and hashing one costs as much as
/// acquiring its lock.
pub fn name_hash(name: &str) -> NameHash {
    static LAST: Mutex<(String, NameHash)> = Mutex::new((String::new(), NameHash { key: 0, check: 0 }));
    let (last, hash) = &mut *LAST.lock();
    if last != name {
        *hash = NameHash::of(name);
        name.clone_into(last);
    }
    *hash
}

/// How many rows a set has: not NULL, not negative.
pub fn count(count: Option<i32>) -> u64 {
    let count = required(count, "count");
    u64::try_from(count).unwrap_or_else(|_| negative_count(count).raise())
}

/// Raises 22004 for NULL, 22023 if negative or longer than PostgreSQL can wait.
pub fn timeout(timeout: Option<Interval>) -> Duration {
    let longest = Duration::from_millis(i32::MAX as u64);
    let given = u64::try_from(required(timeout, "timeout").as_micros()).map(Duration::from_micros);
    given.ok().filter(|given| *given <= longest).unwrap_or_else(|| timeout_out_of_range().raise())
}

/// A ttl in microseconds. Raises 22023 unless it is within the limits that are set, which are these.
pub fn ttl_us(ttl: Interval, limits: RangeInclusive<i64>) -> i64 {
    let given = i64::try_from(ttl.as_micros()).ok().filter(|given| limits.contains(given));
    given.unwrap_or_else(|| ttl_out_of_range(limits).raise())
}

/// Microseconds since 1970. Raises 22008 if the time is infinite.
pub fn finite_us(time: TimestampWithTimeZone, name: &str) -> i64 {
    match datum::to_us(time) {
        i64::MIN | i64::MAX => not_finite(name).raise(),
        us => us,
    }
}

pub fn duration_text(us: i64) -> String {
    format!("{:?}", Duration::from_micros(us as u64))
}

/// The first ten numbers, and how many more there are.
pub fn numbers_text(numbers: &[i32]) -> String {
    first_of(numbers, 10)
}

/// The OID of a role. Raises an error of its own: pgrx cannot pass on PostgreSQL's text in every encoding.
fn role(name: &str) -> pg_sys::Oid {
    // SAFETY: a C string; reads system caches.
    let role = unsafe { pg_sys::get_role_oid(c_string(name).as_ptr(), true) };
    if role == pg_sys::InvalidOid {
        unknown_role(name).raise();
    }
    role
}

/// The OID of a grantee; 0 for `public`.
pub fn grantee(name: &str) -> pg_sys::Oid {
    if name == "public" { pg_sys::InvalidOid } else { role(name) }
}

/// A role that the current user may make the owner: as for PostgreSQL's own objects, one that the user can set.
pub fn new_owner(name: &str) -> pg_sys::Oid {
    // Before version 16, a member can.
    #[cfg(feature = "pg15")]
    use pg_sys::is_member_of_role as member_can_set_role;
    #[cfg(not(feature = "pg15"))]
    use pg_sys::member_can_set_role;
    let role = role(name);
    // SAFETY: reads system caches.
    if !unsafe { member_can_set_role(user(), role) } {
        cannot_set_role(name).raise();
    }
    role
}

/// SQL that is true if the role of this parameter is a member of the owner or of a grantee, or PUBLIC is one.
pub fn owns_or_has(role: &str, grantees: &str) -> String {
    format!(
        "(pg_catalog.pg_has_role({role}, owner::pg_catalog.oid, 'USAGE') \
         OR EXISTS (SELECT FROM pg_catalog.unnest({grantees}::pg_catalog.oid[]) AS granted (role) \
                    WHERE granted.role OPERATOR(pg_catalog.=) 0::pg_catalog.oid \
                       OR pg_catalog.pg_has_role({role}, granted.role, 'USAGE')))"
    )
}

/// A table of rows that roles own and grant, and the statements that change the roles. They are rare: no plan is kept.
pub struct AclTable {
    pub table: &'static ExtensionTable,
    /// The column that names what is owned. It may have several rows.
    pub key: &'static str,
    /// The order in which all writers lock rows.
    pub lock_order: &'static str,
    pub grantees: &'static str,
}

/// True if an owner is among the roles of the first parameter.
const IS_OWNED: &str = "owner::pg_catalog.oid OPERATOR(pg_catalog.=) ANY ($1)";

impl AclTable {
    /// Grants a role what the owner may grant, or revokes it; 0 is PUBLIC.
    pub fn set_grantee(&self, key: &str, role: pg_sys::Oid, is_granted: bool) {
        let Self { key: column, grantees, .. } = self;
        let (change, lacks) = match is_granted {
            true => ("array_append", "NOT"),
            false => ("array_remove", ""),
        };
        let change = format!(
            "SET {grantees} = pg_catalog.{change}({grantees}, $2::pg_catalog.oid::pg_catalog.regrole) \
             WHERE {column} OPERATOR(pg_catalog.=) $1 \
               AND {lacks} COALESCE($2::pg_catalog.oid OPERATOR(pg_catalog.=) ANY ({grantees}::pg_catalog.oid[]), false)"
        );
        // As a bigint: pgrx passes the OID 0 as NULL.
        self.write(
            format!("UPDATE {} {change}", self.table.full_name()),
            &[key.into(), i64::from(role.to_u32()).into()],
        );
    }

    /// Makes another role the owner of all rows of these roles. False if there are none.
    pub fn reassign(&self, owners: &[pg_sys::Oid], heir: pg_sys::Oid) -> bool {
        let keys = self.lock(IS_OWNED, owners);
        let is_any = !keys.is_empty();
        let update = format!("UPDATE {} SET owner = $3::pg_catalog.regrole", self.table.full_name());
        self.write(
            format!("{update} WHERE {} AND {IS_OWNED}", self.is_listed()),
            &[owners.to_vec().into(), keys.into(), heir.into()],
        );
        is_any
    }

    /// Deletes all rows of these roles, and revokes what was granted to them. False if there are none.
    pub fn drop_owned(&self, owners: &[pg_sys::Oid]) -> bool {
        let Self { grantees, .. } = self;
        let (table, is_listed) = (self.table.full_name(), self.is_listed());
        let is_granted = format!("{grantees}::pg_catalog.oid[] OPERATOR(pg_catalog.&&) $1");
        let keys = self.lock(&format!("({IS_OWNED} OR {is_granted})"), owners);
        let delete = format!("DELETE FROM {table} WHERE {is_listed} AND {IS_OWNED}");
        let revoke = format!(
            "UPDATE {table} SET {grantees} = ARRAY( \
                 SELECT granted.role FROM pg_catalog.unnest({grantees}) WITH ORDINALITY AS granted (role, place) \
                 WHERE granted.role::pg_catalog.oid OPERATOR(pg_catalog.<>) ALL ($1) ORDER BY granted.place) \
             WHERE {is_listed} AND {is_granted}"
        );
        for sql in [delete, revoke] {
            self.write(sql, &[owners.to_vec().into(), keys.clone().into()]);
        }
        !keys.is_empty()
    }

    /// Locks all rows of the keys of which a row meets the condition, after waiting for transactions that change them. One
    /// that adds a row to a key has locked the rows before it. So the statements that follow see all rows of these keys.
    fn lock(&self, condition: &str, roles: &[pg_sys::Oid]) -> Vec<String> {
        let Self { key, lock_order, .. } = self;
        let table = self.table.full_name();
        let lock = format!(
            "SELECT {key} FROM {table} WHERE {key} OPERATOR(pg_catalog.=) ANY (ARRAY( \
                 SELECT {key} FROM {table} WHERE {condition})) ORDER BY {lock_order} FOR NO KEY UPDATE"
        );
        let mut keys = Query::once(self.table, lock).write_latest(&[roles.to_vec().into()], |row| text(row, 1));
        keys.dedup();
        keys
    }

    fn write(&self, sql: String, args: &[DatumWithOid]) {
        self.table.write(&Query::once(self.table, sql), args);
    }

    fn is_listed(&self) -> String {
        format!("{} OPERATOR(pg_catalog.=) ANY ($2)", self.key)
    }
}

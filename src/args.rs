//! Arguments that several capabilities take: checks of them, and the roles that own and are granted rows. A column `owner`
//! has the owner, and a column of type `regrole[]` the grantees, among which 0 is PUBLIC.

use crate::pg::datum::{c_string, stored_len};
use crate::pg::ereport::errors;
use crate::pg::spi::{ExtensionTable, Query, text, user};
use idgen_core::lock::{MAX_NAME_BYTES, is_valid_name};
use pgrx::datum::Interval;
use pgrx::pg_sys;
use std::time::Duration;

errors! {
    fn null(name: &str) {
        ERRCODE_NULL_VALUE_NOT_ALLOWED: "{name} must not be null";
    }

    fn name_length(name: &str, bytes: usize) {
        ERRCODE_INVALID_PARAMETER_VALUE: "invalid name \"{name}\"";
        detail: "A name has 1 to {MAX_NAME_BYTES} bytes, and this has {bytes}.";
    }

    fn negative_count(count: i32) {
        ERRCODE_INVALID_PARAMETER_VALUE: "count must not be negative: \"{count}\"";
    }

    fn timeout_out_of_range() {
        ERRCODE_INVALID_PARAMETER_VALUE: "timeout is out of range";
        detail: "It must be 0 to 24 days.";
    }

    fn unknown_role(name: &str) {
        ERRCODE_UNDEFINED_OBJECT: "role \"{name}\" does not exist";
    }

    fn not_a_member(name: &str) {
        ERRCODE_INSUFFICIENT_PRIVILEGE: "must be member of role \"{name}\"";
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

/// A role that the current user may make the owner: as for PostgreSQL's own objects, one that the user is a member of.
pub fn new_owner(name: &str) -> pg_sys::Oid {
    let role = role(name);
    // SAFETY: reads system caches.
    if !unsafe { pg_sys::is_member_of_role(user(), role) } {
        not_a_member(name).raise();
    }
    role
}

/// SQL that is true if the role of this parameter is a member of the owner or of a grantee, or PUBLIC is one.
pub fn owns_or_has(role: &str, grantees: &str) -> String {
    format!(
        "(pg_catalog.pg_has_role({role}, owner::pg_catalog.oid, 'USAGE') \
         OR 0::pg_catalog.oid OPERATOR(pg_catalog.=) ANY ({grantees}::pg_catalog.oid[]) \
         OR EXISTS (SELECT FROM pg_catalog.unnest({grantees}::pg_catalog.oid[]) AS granted (role) \
                    WHERE pg_catalog.pg_has_role({role}, granted.role, 'USAGE')))"
    )
}

/// The names in the queries of a [`GrantedTable`].
pub trait GrantedColumns {
    /// With its schema.
    const TABLE: &str;
    /// The column that names what is owned. It may have several rows.
    const KEY: &str;
    /// The order in which all writers lock rows.
    const LOCK_ORDER: &str = Self::KEY;
    const GRANTEES: &str;
}

/// A table of rows that roles own and grant, and the queries that change the roles.
pub struct GrantedTable {
    table: &'static ExtensionTable,
    add_grantee: Query,
    remove_grantee: Query,
    lock_owned: Query,
    lock_owned_and_granted: Query,
    reassign: Query,
    delete_owned: Query,
    remove_grantees: Query,
}

impl GrantedTable {
    pub const fn new<C: GrantedColumns>(table: &'static ExtensionTable) -> Self {
        Self {
            table,
            add_grantee: Query::new(table, set_grantee::<C, true>),
            remove_grantee: Query::new(table, set_grantee::<C, false>),
            lock_owned: Query::new(table, || lock_keys_with::<C>(IS_OWNED.to_owned())),
            lock_owned_and_granted: Query::new(table, || {
                lock_keys_with::<C>(format!("({IS_OWNED} OR {})", is_granted::<C>()))
            }),
            reassign: Query::new(table, || {
                let is_listed = is_listed::<C>();
                format!("UPDATE {} SET owner = $3::pg_catalog.regrole WHERE {is_listed} AND {IS_OWNED}", C::TABLE)
            }),
            delete_owned: Query::new(table, || {
                format!("DELETE FROM {} WHERE {} AND {IS_OWNED}", C::TABLE, is_listed::<C>())
            }),
            remove_grantees: Query::new(table, remove_grantees::<C>),
        }
    }

    /// Grants a role what the owner may grant, or revokes it; 0 is PUBLIC.
    pub fn set_grantee(&self, key: &str, role: pg_sys::Oid, is_granted: bool) {
        let query = if is_granted { &self.add_grantee } else { &self.remove_grantee };
        // As a bigint: pgrx passes the OID 0 as NULL.
        self.table.write(query, &[key.into(), i64::from(role.to_u32()).into()]);
    }

    /// Makes another role the owner of all rows of these roles. False if there are none.
    pub fn reassign(&self, owners: &[pg_sys::Oid], heir: pg_sys::Oid) -> bool {
        let keys = lock(&self.lock_owned, owners);
        let is_any = !keys.is_empty();
        self.table.write(&self.reassign, &[owners.to_vec().into(), keys.into(), heir.into()]);
        is_any
    }

    /// Deletes all rows of these roles, and revokes what was granted to them. False if there are none.
    pub fn drop_owned(&self, owners: &[pg_sys::Oid]) -> bool {
        let keys = lock(&self.lock_owned_and_granted, owners);
        for query in [&self.delete_owned, &self.remove_grantees] {
            self.table.write(query, &[owners.to_vec().into(), keys.clone().into()]);
        }
        !keys.is_empty()
    }
}

/// Locks all rows of the keys that the query finds, after waiting for transactions that change them. One that adds a row
/// to a key has locked the rows before it. So the statements that follow see all rows of these keys.
fn lock(query: &Query, roles: &[pg_sys::Oid]) -> Vec<String> {
    let mut keys = query.write_latest(&[roles.to_vec().into()], |row| text(row, 1));
    keys.dedup();
    keys
}

fn lock_keys_with<C: GrantedColumns>(condition: String) -> String {
    let (table, key, order) = (C::TABLE, C::KEY, C::LOCK_ORDER);
    format!(
        "SELECT {key} FROM {table} WHERE {key} OPERATOR(pg_catalog.=) ANY (ARRAY( \
             SELECT {key} FROM {table} WHERE {condition})) ORDER BY {order} FOR NO KEY UPDATE"
    )
}

fn is_listed<C: GrantedColumns>() -> String {
    format!("{} OPERATOR(pg_catalog.=) ANY ($2)", C::KEY)
}

fn is_granted<C: GrantedColumns>() -> String {
    format!("{}::pg_catalog.oid[] OPERATOR(pg_catalog.&&) $1", C::GRANTEES)
}

/// True if an owner is among the roles of the first parameter.
const IS_OWNED: &str = "owner::pg_catalog.oid OPERATOR(pg_catalog.=) ANY ($1)";

fn set_grantee<C: GrantedColumns, const ADDS: bool>() -> String {
    let (table, key, grantees) = (C::TABLE, C::KEY, C::GRANTEES);
    let (change, changes) = if ADDS {
        ("array_append", "OPERATOR(pg_catalog.<>) ALL")
    } else {
        ("array_remove", "OPERATOR(pg_catalog.=) ANY")
    };
    format!(
        "UPDATE {table} SET {grantees} = pg_catalog.{change}({grantees}, $2::pg_catalog.oid::pg_catalog.regrole) \
         WHERE {key} OPERATOR(pg_catalog.=) $1 AND $2::pg_catalog.oid {changes} ({grantees}::pg_catalog.oid[])"
    )
}

fn remove_grantees<C: GrantedColumns>() -> String {
    let (table, grantees) = (C::TABLE, C::GRANTEES);
    format!(
        "UPDATE {table} SET {grantees} = ARRAY( \
             SELECT granted.role FROM pg_catalog.unnest({grantees}) WITH ORDINALITY AS granted (role, place) \
             WHERE granted.role::pg_catalog.oid OPERATOR(pg_catalog.<>) ALL ($1) ORDER BY granted.place) \
         WHERE {} AND {}",
        is_listed::<C>(),
        is_granted::<C>()
    )
}

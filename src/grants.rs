//! Rows that roles own and grant: the roles in arguments, and SQL on columns of roles. A column `owner` has the owner, and
//! a column of type `regrole[]` the grantees, among which 0 is PUBLIC.

use crate::pg::datum::c_string;
use crate::pg::ereport::Report;
use crate::pg::spi;
use pgrx::prelude::*;

/// The OID of a role. Raises an error of its own: pgrx cannot pass on PostgreSQL's text in every encoding.
fn role(name: &str) -> pg_sys::Oid {
    // SAFETY: a C string; reads system caches.
    let role = unsafe { pg_sys::get_role_oid(c_string(name).as_ptr(), true) };
    if role == pg_sys::InvalidOid {
        Report::new(PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT, format!("role \"{name}\" does not exist")).raise();
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
    if !unsafe { pg_sys::is_member_of_role(spi::user(), role) } {
        let message = format!("must be member of role \"{name}\"");
        Report::new(PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE, message).raise();
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

/// SQL for the grantees without those in the array of this parameter.
pub fn without(roles: &str, grantees: &str) -> String {
    format!(
        "ARRAY(SELECT granted.role FROM pg_catalog.unnest({grantees}) WITH ORDINALITY AS granted (role, place) \
         WHERE granted.role::pg_catalog.oid OPERATOR(pg_catalog.<>) ALL ({roles}) ORDER BY granted.place)"
    )
}

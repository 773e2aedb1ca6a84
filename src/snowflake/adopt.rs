//! The part of `snowflake_adopt` that SQL cannot do: running expressions of a table with the rights of its owner.

use super::errors;
use crate::pg::datum::Text;
use crate::pg::spi;
use pgrx::prelude::*;

/// Runs a query as the owner of a relation, and returns the first column of its first row as text; NULL without a row. Only
/// for roles that have the rights of the owner: they can run any function like this, in an expression index. STRICT.
#[pg_extern(sql = false)]
fn snowflake_adopt_as_owner(relation: pg_sys::Oid, query: Text) -> Option<Text<'static>> {
    // SAFETY: reads system caches.
    let Some(owner) = owner(relation).filter(|owner| unsafe { pg_sys::has_privs_of_role(spi::user(), *owner) }) else {
        errors::not_owner_of_relation().raise();
    };
    spi::run_restricted(owner, &query).map(Text::from)
}

/// `None` without such a relation. It need not be locked.
fn owner(relation: pg_sys::Oid) -> Option<pg_sys::Oid> {
    let cache = pg_sys::SysCacheIdentifier::RELOID as _;
    // SAFETY: the tuple is a row of pg_class, and is released after it is read.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(cache, relation.into());
        if tuple.is_null() {
            return None;
        }
        let owner = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_class>()).relowner;
        pg_sys::ReleaseSysCache(tuple);
        Some(owner)
    }
}

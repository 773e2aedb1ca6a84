//! The extension of this library: its name, and its functions as a user has to write them.

use super::datum;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::ptr::null_mut;

/// The extension, and the schema of its tables.
pub const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_NAME"), "\0").as_bytes()) {
    Ok(name) => name,
    Err(_) => unreachable!(),
};

/// How the functions begin that CREATE EXTENSION puts into a schema of the user's choice.
const FUNCTIONS: [&str; 8] = ["snowflake_", "uuidv7_", "segment_", "public_id", "id_", "lock_", "lease_", "worker_"];

/// More schemas than a search path has. A HINT names a later one, which is right as well.
const LONGEST_PATH: usize = 64;

/// A text with calls of these functions that can be typed: with their schema, unless the search path has it.
pub fn with_schema(text: String) -> String {
    match hidden_schema() {
        Some(schema) => qualified(&text, &schema),
        None => text,
    }
}

/// The schema as an identifier of SQL. `None` if its name can be left out, or there is no extension.
fn hidden_schema() -> Option<String> {
    // SAFETY: reads catalogs, which needs a transaction. The tuple is read before the scan ends; the key and the name outlive
    // the scan. The identifier is copied at once.
    unsafe {
        if !pg_sys::IsTransactionState() {
            return None;
        }
        let mut key = pg_sys::ScanKeyData::default();
        let (column, equal) = (pg_sys::Anum_pg_extension_extname as i16, pg_sys::BTEqualStrategyNumber as u16);
        pg_sys::ScanKeyInit(&mut key, column, equal, pg_sys::F_NAMEEQ.into(), NAME.as_ptr().into());
        let table = pg_sys::table_open(pg_sys::ExtensionRelationId, pg_sys::AccessShareLock as i32);
        let index = pg_sys::Oid::from_u32(pg_sys::ExtensionNameIndexId);
        let scan = pg_sys::systable_beginscan(table, index, true, null_mut(), 1, &mut key);
        let tuple = Some(pg_sys::systable_getnext(scan)).filter(|tuple| !tuple.is_null());
        let schema =
            tuple.map(|tuple| (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_extension>()).extnamespace);
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(table, pg_sys::AccessShareLock as i32);
        // Unlike the list of the path, this creates no temporary schema.
        let mut path = [pg_sys::InvalidOid; LONGEST_PATH];
        let schemas = pg_sys::fetch_search_path_array(path.as_mut_ptr(), LONGEST_PATH as i32);
        let is_hidden = |schema: &_| !path.iter().take(schemas as usize).any(|other| other == schema);
        let name = schema.filter(is_hidden).map(|schema| pg_sys::get_namespace_name(schema));
        name.filter(|name| !name.is_null()).map(|name| datum::name(CStr::from_ptr(pg_sys::quote_identifier(name))))
    }
}

/// Leaves literals as they are: a name can look like a call.
fn qualified(text: &str, schema: &str) -> String {
    let mut result = String::with_capacity(text.len() + schema.len() + 1);
    let (mut before, mut is_literal) = (' ', false);
    for (at, letter) in text.char_indices() {
        // An apostrophe follows a letter, a literal does not.
        is_literal ^= letter == '\'' && (is_literal || !before.is_alphanumeric());
        let begins_word = letter.is_ascii_lowercase() && !(before.is_alphanumeric() || "_.".contains(before));
        if begins_word && !is_literal && is_call(&text[at..]) {
            result.extend([schema, "."]);
        }
        result.push(letter);
        before = letter;
    }
    result
}

/// True if a call of one of the functions begins here.
fn is_call(text: &str) -> bool {
    let name = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_')).next().unwrap_or_default();
    text[name.len()..].starts_with('(') && FUNCTIONS.iter().any(|function| name.starts_with(function))
}

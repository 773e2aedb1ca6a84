//! The rows of a trigger that fires for any table: what a trigger in PL/pgSQL does with NEW and OLD, without knowing the
//! columns.

use super::datum;
use super::spi::unexpected;
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::ptr::null_mut;

/// A trigger that fires, for each row or for a statement.
#[derive(Clone, Copy)]
pub struct Fired<'a>(&'a pg_sys::TriggerData);

/// When and why a trigger fires.
pub enum Moment {
    BeforeInsertOrUpdate { new: pg_sys::HeapTuple },
    AfterUpdate { old: pg_sys::HeapTuple, new: pg_sys::HeapTuple },
    AfterDelete { old: pg_sys::HeapTuple },
    BeforeTruncate,
}

/// A column of a key, with its value in a row.
struct KeyPart {
    name: CString,
    kind: pg_sys::Oid,
    value: pg_sys::Datum,
}

impl<'a> Fired<'a> {
    pub fn of(trigger: &'a PgTrigger) -> Self {
        Self(trigger.trigger_data())
    }

    /// `None` for another trigger.
    pub fn moment(self) -> Option<Moment> {
        let pg_sys::TriggerData { tg_event, tg_trigtuple: row, tg_newtuple: new, .. } = *self.0;
        let is_of_row = tg_event & pg_sys::TRIGGER_EVENT_ROW != 0;
        let is_before = tg_event & pg_sys::TRIGGER_EVENT_TIMINGMASK == pg_sys::TRIGGER_EVENT_BEFORE;
        let is_after = tg_event & pg_sys::TRIGGER_EVENT_TIMINGMASK == pg_sys::TRIGGER_EVENT_AFTER;
        match tg_event & pg_sys::TRIGGER_EVENT_OPMASK {
            pg_sys::TRIGGER_EVENT_INSERT if is_before && is_of_row => Some(Moment::BeforeInsertOrUpdate { new: row }),
            pg_sys::TRIGGER_EVENT_UPDATE if is_before && is_of_row => Some(Moment::BeforeInsertOrUpdate { new }),
            pg_sys::TRIGGER_EVENT_UPDATE if is_after && is_of_row => Some(Moment::AfterUpdate { old: row, new }),
            pg_sys::TRIGGER_EVENT_DELETE if is_after && is_of_row => Some(Moment::AfterDelete { old: row }),
            pg_sys::TRIGGER_EVENT_TRUNCATE if is_before => Some(Moment::BeforeTruncate),
            _ => None,
        }
    }

    /// The number of a column of type bigint that has this name, and is not generated.
    pub fn bigint_column(self, name: &CStr) -> Option<i32> {
        // SAFETY: the description of an open table, and a C string. A table without constraints has no generated columns.
        unsafe {
            let number = pg_sys::SPI_fnumber(self.columns(), name.as_ptr());
            let is_bigint = number > 0 && pg_sys::SPI_gettypeid(self.columns(), number) == pg_sys::INT8OID;
            let is_generated = || pg_sys::get_attgenerated((*self.relation()).rd_id, number as i16) != 0;
            let may_be_generated = !(*self.columns()).constr.is_null();
            (is_bigint && !(may_be_generated && is_generated())).then_some(number)
        }
    }

    /// The row with another value in a column of type bigint.
    pub fn with_bigint(self, row: pg_sys::HeapTuple, mut column: i32, value: i64) -> pg_sys::HeapTuple {
        let (mut value, mut is_null) = (value.into(), false);
        // Pointers to constants from PostgreSQL 17 on.
        let (column, value, is_null) = (&raw mut column, &raw mut value, &raw mut is_null);
        // SAFETY: a row of the table and a number of its columns, with one value, of its type.
        unsafe { pg_sys::heap_modify_tuple_by_cols(row, self.columns(), 1, column, value, is_null) }
    }

    pub fn table_name(self) -> String {
        // SAFETY: an open table has a name.
        datum::name(unsafe { CStr::from_ptr((*(*self.relation()).rd_rel).relname.data.as_ptr()) })
    }

    /// The primary key of the table. Older versions of PostgreSQL do not tell one that is deferrable.
    pub fn key(self) -> Option<Key<'a>> {
        let kind = pg_sys::IndexAttrBitmapKind::INDEX_ATTR_BITMAP_PRIMARY_KEY;
        // SAFETY: an open table; the set is a copy in the memory of the call.
        let set = unsafe { pg_sys::RelationGetIndexAttrBitmap(self.relation(), kind) };
        // SAFETY: as above.
        let next = |member: &i32| unsafe { Some(pg_sys::bms_next_member(set, *member)).filter(|next| *next >= 0) };
        let columns: Vec<i32> = std::iter::successors(next(&-1), next)
            .map(|member| member + pg_sys::FirstLowInvalidHeapAttributeNumber)
            .collect();
        (!columns.is_empty()).then_some(Key { fired: self, columns })
    }

    /// A table in the schema of the trigger's table, or of the partitioned table that this is a part of; quoted. No search path
    /// applies: it can be another role's.
    fn sibling(self, table: &CStr) -> CString {
        // SAFETY: an open relation, and those that it is a part of. A list that is not null has an element. A relation has a
        // schema, and the names are C strings.
        unsafe {
            let mut root = (*self.relation()).rd_id;
            while pg_sys::get_rel_relispartition(root) {
                let ancestors = pg_sys::get_partition_ancestors(root);
                root = match ancestors.as_ref() {
                    Some(all) => pg_sys::list_nth_oid(ancestors, all.length - 1),
                    // A partition that is being detached is left out there. Its triggers fire until that has ended.
                    None => pg_sys::get_partition_parent(root, true),
                };
            }
            let schema = pg_sys::get_namespace_name(pg_sys::get_rel_namespace(root));
            CStr::from_ptr(pg_sys::quote_qualified_identifier(schema, table.as_ptr())).to_owned()
        }
    }

    fn relation(self) -> pg_sys::Relation {
        self.0.tg_relation
    }

    fn columns(self) -> pg_sys::TupleDesc {
        // SAFETY: the relation of a trigger is open while it fires.
        unsafe { (*self.relation()).rd_att }
    }
}

/// The primary key of the table of a trigger. No column of it is NULL.
pub struct Key<'a> {
    fired: Fired<'a>,
    columns: Vec<i32>,
}

impl Key<'_> {
    /// True if it differs between the rows. By the bytes: equal values of different bytes count as different.
    pub fn differs(&self, old: pg_sys::HeapTuple, new: pg_sys::HeapTuple) -> bool {
        self.columns.iter().any(|&number| {
            let [old, new] = [old, new].map(|row| self.part(row, number));
            let (mut length, mut by_value) = (0, false);
            // SAFETY: both values have this type.
            unsafe {
                pg_sys::get_typlenbyval(old.kind, &mut length, &mut by_value);
                !pg_sys::datum_image_eq(old.value, new.value, by_value, length.into())
            }
        })
    }

    /// Inserts that of a row into a table of the same schema, in columns of the same names, and a bigint into another column,
    /// with the rights of the user. False if that inserts no row.
    pub fn insert(&self, row: pg_sys::HeapTuple, table: &CStr, column: &CStr, number: i64) -> bool {
        let mut parts: Vec<KeyPart> = self.columns.iter().map(|&column| self.part(row, column)).collect();
        parts.push(KeyPart { name: column.to_owned(), kind: pg_sys::INT8OID, value: number.into() });
        insert(&self.fired.sibling(table), &parts) == 1
    }

    fn part(&self, row: pg_sys::HeapTuple, number: i32) -> KeyPart {
        let columns = self.fired.columns();
        let mut is_null = false;
        // SAFETY: a row of the table, and a number of its columns.
        unsafe {
            let name = CStr::from_ptr(pg_sys::SPI_fname(columns, number)).to_owned();
            let kind = pg_sys::SPI_gettypeid(columns, number);
            KeyPart { name, kind, value: pg_sys::SPI_getbinval(row, columns, number, &mut is_null) }
        }
    }
}

/// Plans of this process, by their text and the types of their parameters: one for each table with such a trigger. PostgreSQL
/// plans again what has changed.
static PLANS: Mutex<Option<HashMap<Statement, usize>>> = Mutex::new(None);

type Statement = (CString, Vec<pg_sys::Oid>);

/// Returns how many rows were inserted.
fn insert(table: &CStr, parts: &[KeyPart]) -> u64 {
    // SAFETY: a C string; the result is copied at once.
    let quoted = |name: &CStr| unsafe { CStr::from_ptr(pg_sys::quote_identifier(name.as_ptr())) }.to_bytes().to_vec();
    let names: Vec<Vec<u8>> = parts.iter().map(|part| quoted(&part.name)).collect();
    let numbers: Vec<String> = (1..=parts.len()).map(|number| format!("${number}")).collect();
    let values = numbers.join(", ").into_bytes();
    let sql =
        [b"INSERT INTO ", table.to_bytes(), b" (", &names.join(&b", "[..]), b") VALUES (", &values, b")"].concat();
    let statement: Statement =
        (CString::new(sql).expect("made of C strings"), parts.iter().map(|part| part.kind).collect());
    let mut values: Vec<_> = parts.iter().map(|part| part.value).collect();
    Spi::connect(|_| {
        let kept = PLANS.lock().as_ref().and_then(|plans| plans.get(&statement).copied());
        // SAFETY: connected to SPI; as many values, of its types, as the statement has parameters. A plan that is kept is
        // never freed.
        unsafe {
            let plan = kept.map_or_else(|| prepare(statement), |plan| plan as pg_sys::SPIPlanPtr);
            let status = pg_sys::SPI_execute_plan(plan, values.as_mut_ptr(), null_mut(), false, 0);
            Spi::check_status(status).unwrap_or_else(unexpected);
            pg_sys::SPI_processed
        }
    })
}

/// # Safety
/// Connected to SPI.
unsafe fn prepare(statement: Statement) -> pg_sys::SPIPlanPtr {
    let (sql, mut types) = statement.clone();
    // SAFETY: a C string, and as many types as are said.
    let plan = unsafe { pg_sys::SPI_prepare(sql.as_ptr(), types.len() as i32, types.as_mut_ptr()) };
    // SAFETY: PostgreSQL raises what it cannot plan.
    unsafe { pg_sys::SPI_keepplan(plan) };
    PLANS.lock().get_or_insert_default().insert(statement, plan as usize);
    plan
}

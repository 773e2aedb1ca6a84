//! Datums of texts, rows, times and UUIDs, to and from Rust. A time is in milliseconds or microseconds since 1970.
//!
//! A text is converted from the encoding of the database to UTF-8 on entry: an argument, or a row of a query. It is
//! converted back on exit: a result, or an argument of a query. Everything in between is UTF-8.

use parking_lot::Mutex;
use pgrx::PgMemoryContexts;
use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::{Array, Datum, DatumWithOid, Interval, UnboxDatum, Uuid as Bytes};
use pgrx::fcinfo::pg_getarg;
use pgrx::impl_sql_translatable;
use pgrx::pgrx_sql_entity_graph::metadata::*;
use pgrx::prelude::*;
use pgrx::varlena::varlena_to_byte_slice;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::ops::Deref;

const UTF8: i32 = pg_sys::pg_enc::PG_UTF8 as i32;
/// The database has no encoding, and PostgreSQL converts nothing.
const SQL_ASCII: i32 = pg_sys::pg_enc::PG_SQL_ASCII as i32;

unsafe extern "C-unwind" {
    /// Linked without pgrx's guard, which costs more than the function: it returns a variable and cannot fail. Do not cache
    /// the result in the postmaster: it has no database, and its children inherit the cache.
    #[link_name = "GetDatabaseEncoding"]
    safe fn encoding() -> i32;

    /// Linked without pgrx's guard, which costs more than the function: with these flags it raises nothing for a small size.
    fn palloc_extended(size: pg_sys::Size, flags: i32) -> *mut c_void;
}

/// True if texts of this database are UTF-8, or pass as it because PostgreSQL converts nothing.
#[inline]
pub(super) fn needs_no_conversion() -> bool {
    matches!(encoding(), UTF8 | SQL_ASCII)
}

/// A text of the database as UTF-8. Raises 22021 for invalid bytes, which a database without an encoding can have.
pub fn decoded(bytes: &[u8]) -> Cow<'_, str> {
    // ASCII is part of every server encoding, and some encodings cannot be converted.
    if encoding() == UTF8 || bytes.is_ascii() {
        // SAFETY: ASCII, or UTF-8 because PostgreSQL validates every text of a database with this encoding.
        return Cow::Borrowed(unsafe { std::str::from_utf8_unchecked(bytes) });
    }
    // SAFETY: reads `len` bytes. The result is these bytes, then valid UTF-8, or a C string in the memory of this call.
    let converted = unsafe {
        let converted = pg_sys::pg_server_to_any(bytes.as_ptr().cast(), bytes.len() as i32, UTF8).cast_const();
        if converted.cast() == bytes.as_ptr() {
            return String::from_utf8_lossy(bytes);
        }
        CStr::from_ptr(converted)
    };
    Cow::Owned(converted.to_string_lossy().into_owned())
}

/// As [`decoded`], for display: in a database without an encoding, invalid bytes are replaced. The name of a role can have
/// some. So is everything other than ASCII outside of a transaction, in which PostgreSQL converts nothing.
fn decoded_lossy(bytes: &[u8]) -> Cow<'_, str> {
    // SAFETY: reads this process's own state.
    let can_convert = !needs_no_conversion() && unsafe { pg_sys::IsTransactionState() };
    if !can_convert { String::from_utf8_lossy(bytes) } else { decoded(bytes) }
}

/// The name of an object of PostgreSQL.
pub fn name(name: &CStr) -> String {
    decoded_lossy(name.to_bytes()).into_owned()
}

/// A text in the encoding of the database. If that encoding lacks a character, all other than ASCII are escaped as in E''.
fn encoded(text: &str) -> Cow<'_, [u8]> {
    if text.is_ascii() || needs_no_conversion() {
        return Cow::Borrowed(text.as_bytes());
    }
    convert(text).map_or_else(|| Cow::Owned(escaped(text).into_bytes()), Cow::Owned)
}

/// The length in bytes as UTF-8 or in the encoding of the database, whichever is greater: EUC_JP has characters of three
/// bytes that UTF-8 has with two. CHECK constraints see the latter.
pub fn stored_len(text: &str) -> usize {
    text.len().max(encoded(text).len())
}

/// `None` if the encoding of the database lacks a character.
fn convert(text: &str) -> Option<Vec<u8>> {
    let encoding = encoding();
    // PostgreSQL's bound: a conversion makes a text at most four times as long.
    let mut buffer = vec![0u8; text.len() * 4 + 1];
    // SAFETY: reads `length` bytes, writes at most `room`, and raises nothing for characters that it cannot convert.
    let read = unsafe {
        let converter = pg_sys::FindDefaultConversionProc(UTF8, encoding);
        if converter == pg_sys::InvalidOid {
            return None;
        }
        let (source, room) = (text.as_ptr().cast_mut(), buffer.len() as i32);
        let length = text.len() as i32;
        pg_sys::pg_do_encoding_conversion_buf(
            converter,
            UTF8,
            encoding,
            source,
            length,
            buffer.as_mut_ptr(),
            room,
            true,
        )
    };
    if read != text.len() as i32 {
        return None;
    }
    buffer.truncate(buffer.iter().position(|byte| *byte == 0)?);
    Some(buffer)
}

/// With every character other than ASCII as an escape of E''.
pub fn escaped(text: &str) -> String {
    let escape = |c: char| match c.is_ascii() {
        true => c.to_string(),
        false => c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04X}")).collect(),
    };
    text.chars().map(escape).collect()
}

/// As [`encoded`], as a C string for PostgreSQL's functions. Empty if the text has a NUL, which no text of PostgreSQL has.
pub fn c_string(text: &str) -> CString {
    CString::new(encoded(text)).unwrap_or_default()
}

/// The arguments of a query, each text in the encoding of the database.
pub fn arguments<'a>(args: &[DatumWithOid<'a>]) -> Vec<DatumWithOid<'a>> {
    let converted = |arg: &DatumWithOid| {
        let datum = arg.datum().map(|datum| datum.sans_lifetime())?;
        // SAFETY: this process made the texts, and arrays of them, from UTF-8.
        unsafe {
            match arg.oid() {
                _ if needs_no_conversion() => Some(datum),
                pg_sys::TEXTOID => {
                    let text = varlena_to_byte_slice(datum.cast_mut_ptr());
                    Text::from(std::str::from_utf8_unchecked(text)).into_datum()
                }
                pg_sys::TEXTARRAYOID => {
                    let texts = Array::<&str>::from_datum(datum, false)?;
                    texts.iter().map(|text| text.map(Text::from)).collect::<Vec<_>>().into_datum()
                }
                _ => Some(datum),
            }
        }
    };
    // SAFETY: a datum of this type, which lives as long as its source or as the call.
    args.iter().map(|arg| unsafe { DatumWithOid::new(converted(arg), arg.oid()) }).collect()
}

/// A `text` of SQL: an argument, a column, or a result.
pub struct Text<'a>(Cow<'a, str>);

impl_sql_translatable!(Text<'_>, "text");

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text))
    }
}

impl From<Text<'_>> for String {
    fn from(text: Text) -> Self {
        text.0.into_owned()
    }
}

// SAFETY: the bytes of the argument, which live as long as the call.
unsafe impl<'fcx> ArgAbi<'fcx> for Text<'fcx> {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: by the caller, the argument is a text, whose bytes are those of a bytea.
        Self(decoded(unsafe { <&[u8]>::unbox_arg_unchecked(arg) }))
    }
}

/// A `text` argument of which only ASCII counts; `None` if it has other characters. Nothing is converted, so bytes that the
/// database's encoding lacks in UTF-8 are no error.
pub struct AsciiText<'a>(pub Option<&'a str>);

impl_sql_translatable!(AsciiText<'_>, "text");

// SAFETY: the bytes of the argument, which live as long as the call.
unsafe impl<'fcx> ArgAbi<'fcx> for AsciiText<'fcx> {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: as for `Text`.
        let bytes = unsafe { <&[u8]>::unbox_arg_unchecked(arg) };
        Self(str::from_utf8(bytes).ok().filter(|text| text.is_ascii()))
    }
}

// SAFETY: the text borrows from the array of which it is an element, or owns its characters.
unsafe impl UnboxDatum for Text<'_> {
    type As<'src>
        = Text<'src>
    where
        Self: 'src;

    unsafe fn unbox<'src>(datum: Datum<'src>) -> Text<'src>
    where
        Self: 'src,
    {
        // SAFETY: by the caller, the datum is a text, and lives as long as 'src.
        Text(decoded(unsafe { varlena_to_byte_slice(datum.sans_lifetime().cast_mut_ptr()) }))
    }
}

impl FromDatum for Text<'_> {
    unsafe fn from_polymorphic_datum(datum: pg_sys::Datum, is_null: bool, typoid: pg_sys::Oid) -> Option<Self> {
        // SAFETY: by the caller, the datum is a text, whose bytes are those of a bytea.
        let bytes = unsafe { <&[u8]>::from_polymorphic_datum(datum, is_null, typoid) }?;
        Some(Self(Cow::Owned(decoded_lossy(bytes).into_owned())))
    }
}

// SAFETY: the datum is a text in memory of the call.
unsafe impl BoxRet for Text<'_> {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: as above.
        unsafe { fcinfo.return_optional_datum(self.into_datum()) }
    }
}

impl IntoDatum for Text<'_> {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        encoded(&self.0).as_ref().into_datum()
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::TEXTOID
    }
}

/// A text argument of a call; `None` if it is NULL.
///
/// # Safety
/// `fcinfo` is that of the running call, and the argument exists and is a text.
pub unsafe fn text_arg<'a>(fcinfo: pg_sys::FunctionCallInfo, arg: usize) -> Option<Cow<'a, str>> {
    // SAFETY: by the above. A text has the format of a bytea, and lives as long as the call.
    unsafe { pg_getarg::<&[u8]>(fcinfo, arg) }.map(decoded)
}

/// A row that a function returns, or a set of: its OUT parameters, in their order. Another type than the declaration has is
/// an error, not a wrong read.
pub struct Composite<const N: usize>(pub [DatumWithOid<'static>; N]);

// SAFETY: the type of functions with OUT parameters. The declarations are in the files of `sql/`.
unsafe impl<const N: usize> SqlTranslatable for Composite<N> {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(Composite);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("record"));
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> = Ok(ReturnsRef::One(SqlMappingRef::literal("record")));
}

// SAFETY: a function that returns a record must return a composite datum in the memory context of the call.
unsafe impl<const N: usize> BoxRet for Composite<N> {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: the running call of a function that returns a record; an older declaration has fewer columns.
        unsafe {
            let row_type = row_type(fcinfo.as_mut_ptr(), &self.0);
            let columns = self.0.map(|column| column.datum().map(|datum| datum.sans_lifetime()));
            let mut values = columns.map(|column| column.unwrap_or(pg_sys::Datum::null()));
            let mut nulls = columns.map(|column| column.is_none());
            let row = pg_sys::heap_form_tuple(row_type, values.as_mut_ptr(), nulls.as_mut_ptr());
            fcinfo.return_raw_datum(pg_sys::HeapTupleHeaderGetDatum((*row).t_data))
        }
    }
}

/// The type of the function's OUT parameters, which have the types of these columns. The process keeps it: they are those of the
/// function as long as it exists, and to find them costs as much as a scan of an index.
///
/// # Safety
/// `fcinfo` is that of the running call of a function with OUT parameters.
unsafe fn row_type(fcinfo: pg_sys::FunctionCallInfo, columns: &[DatumWithOid]) -> pg_sys::TupleDesc {
    static KNOWN: Mutex<BTreeMap<(u32, usize), usize>> = Mutex::new(BTreeMap::new());
    // SAFETY: by the above; stores the type in a local, and in memory that lives as long as the process.
    unsafe {
        // An update of the extension can give a function another symbol.
        let called = &*(*fcinfo).flinfo;
        let function = (called.fn_oid.to_u32(), called.fn_addr.map_or(0, |symbol| symbol as usize));
        let known = KNOWN.lock().get(&function).copied();
        let find = || {
            let mut row_type: pg_sys::TupleDesc = std::ptr::null_mut();
            pg_sys::get_call_result_type(fcinfo, std::ptr::null_mut(), &mut row_type);
            for number in 1..=(*row_type).natts {
                let (declared, column) = (pg_sys::SPI_gettypeid(row_type, number), columns.get(number as usize - 1));
                assert!(column.is_some_and(|column| column.oid() == declared), "column {number} has another type");
            }
            let kept = PgMemoryContexts::TopMemoryContext.switch_to(|_| pg_sys::CreateTupleDescCopy(row_type));
            let kept = pg_sys::BlessTupleDesc(kept);
            KNOWN.lock().insert(function, kept as usize);
            kept
        };
        known.map_or_else(find, |known| known as pg_sys::TupleDesc)
    }
}

/// The epoch of PostgreSQL's timestamps, 2000-01-01, in milliseconds since 1970.
const POSTGRES_EPOCH_MS: i64 = 946_684_800_000;

/// Rounded down. `-infinity` and `infinity` are `i64::MIN` and `i64::MAX`.
pub fn to_ms(ts: TimestampWithTimeZone) -> i64 {
    match pg_sys::TimestampTz::from(ts) {
        infinite @ (i64::MIN | i64::MAX) => infinite,
        us => us.div_euclid(1000) + POSTGRES_EPOCH_MS,
    }
}

/// `None` if out of range for a timestamp.
pub fn from_ms(ms: i64) -> Option<TimestampWithTimeZone> {
    let us = ms.checked_sub(POSTGRES_EPOCH_MS)?.checked_mul(1000)?;
    TimestampWithTimeZone::try_from(us).ok()
}

/// `-infinity` and `infinity` are `i64::MIN` and `i64::MAX`, as is a time out of range for an `i64`.
pub fn to_us(ts: TimestampWithTimeZone) -> i64 {
    match pg_sys::TimestampTz::from(ts) {
        infinite @ (i64::MIN | i64::MAX) => infinite,
        us => us.saturating_add(POSTGRES_EPOCH_MS * 1000),
    }
}

/// `None` for the infinities of [`to_us`], and if out of range for a timestamp.
pub fn from_us(us: i64) -> Option<TimestampWithTimeZone> {
    if matches!(us, i64::MIN | i64::MAX) {
        return None;
    }
    TimestampWithTimeZone::try_from(us.checked_sub(POSTGRES_EPOCH_MS * 1000)?).ok()
}

/// `infinity` if out of range for a timestamp.
pub fn from_ms_or_infinity(ms: i64) -> TimestampWithTimeZone {
    from_ms(ms).unwrap_or_else(TimestampWithTimeZone::positive_infinity)
}

/// `infinity` for what is later than a timestamp can say.
pub fn from_us_or_infinity(us: i64) -> TimestampWithTimeZone {
    from_us(us).unwrap_or_else(TimestampWithTimeZone::positive_infinity)
}

/// As PostgreSQL writes it in its log, without parts of a second.
pub fn text_to_second(ts: TimestampWithTimeZone) -> String {
    let us = pg_sys::TimestampTz::from(ts);
    // SAFETY: a text of PostgreSQL's, which is copied at once.
    unsafe { name(CStr::from_ptr(pg_sys::timestamptz_to_str(us - us.rem_euclid(1_000_000)))) }
}

/// Of a time as PostgreSQL stores it.
pub fn since_1970_us(us: pg_sys::TimestampTz) -> i64 {
    us + POSTGRES_EPOCH_MS * 1000
}

/// `None` for what an interval cannot say.
pub fn interval_of_us(us: i64) -> Option<Interval> {
    Interval::new(0, 0, us).ok()
}

/// A `uuid` of SQL: an argument or a result. The number sorts as PostgreSQL sorts the 16 bytes.
pub struct Uuid(pub u128);

impl_sql_translatable!(Uuid, "uuid");

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Bytes::from_bytes(self.0.to_be_bytes()).fmt(f)
    }
}

// SAFETY: a uuid is passed as a pointer to 16 bytes, which pgrx copies.
unsafe impl<'fcx> ArgAbi<'fcx> for Uuid {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: by the caller, the argument is a uuid.
        Self(u128::from_be_bytes(*unsafe { Bytes::unbox_arg_unchecked(arg) }.as_bytes()))
    }
}

// SAFETY: the datum points to 16 bytes in memory of the call.
unsafe impl BoxRet for Uuid {
    #[inline]
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        let bytes = self.0.to_be_bytes();
        // SAFETY: the size is valid. The first function returns null if there is no memory, and the second one raises that.
        unsafe {
            let mut memory = palloc_extended(bytes.len(), pg_sys::MCXT_ALLOC_NO_OOM as i32).cast::<[u8; 16]>();
            if memory.is_null() {
                memory = pg_sys::palloc(bytes.len()).cast();
            }
            memory.write(bytes);
            fcinfo.return_raw_datum(pg_sys::Datum::from(memory))
        }
    }
}

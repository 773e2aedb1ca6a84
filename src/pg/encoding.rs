//! Texts between the encoding of the database and UTF-8, which is what Rust has. Arguments and rows are converted where they
//! come in, results and arguments of queries where they go out; everything between is UTF-8.

use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::{Array, Datum, DatumWithOid, UnboxDatum};
use pgrx::impl_sql_translatable;
use pgrx::prelude::*;
use pgrx::varlena::varlena_to_byte_slice;
use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::ops::Deref;

const UTF8: i32 = pg_sys::pg_enc::PG_UTF8 as i32;

const NONE: i32 = pg_sys::pg_enc::PG_SQL_ASCII as i32;

unsafe extern "C-unwind" {
    /// PostgreSQL's own. Linked without pgrx's guard, which costs more than the function: it returns a variable and cannot
    /// fail. Not to be kept: the postmaster, from which processes inherit, has no database.
    #[link_name = "GetDatabaseEncoding"]
    safe fn encoding() -> i32;
}

/// Are all texts of this database UTF-8, or taken for it because PostgreSQL converts nothing?
#[inline]
fn is_as_rust_has_it() -> bool {
    matches!(encoding(), UTF8 | NONE)
}

/// A text of the database as UTF-8. Raises 22021 where it is none, as it can be in a database without an encoding.
pub fn decoded(bytes: &[u8]) -> Cow<'_, str> {
    // Encodings of a server have ASCII in common, and not all can be converted.
    if encoding() == UTF8 || bytes.is_ascii() {
        // SAFETY: ASCII, or PostgreSQL lets no other bytes into a database of this encoding.
        return Cow::Borrowed(unsafe { std::str::from_utf8_unchecked(bytes) });
    }
    // SAFETY: reads as many bytes as there are. The result is these bytes, which are UTF-8 then, or a C string of this call.
    let converted = unsafe {
        let converted = pg_sys::pg_server_to_any(bytes.as_ptr().cast(), bytes.len() as i32, UTF8).cast_const();
        if converted.cast() == bytes.as_ptr() {
            return String::from_utf8_lossy(bytes);
        }
        CStr::from_ptr(converted)
    };
    Cow::Owned(converted.to_string_lossy().into_owned())
}

/// The same for people: without an encoding, what is no text is replaced and not refused. A role's name can be such.
fn readable(bytes: &[u8]) -> Cow<'_, str> {
    if is_as_rust_has_it() { String::from_utf8_lossy(bytes) } else { decoded(bytes) }
}

/// A name of PostgreSQL's.
pub fn name(name: &CStr) -> String {
    readable(name.to_bytes()).into_owned()
}

/// A text in the encoding of the database. Characters that this cannot express are escaped, as PostgreSQL reads them in E''.
pub fn encoded(text: &str) -> Cow<'_, [u8]> {
    if text.is_ascii() || is_as_rust_has_it() {
        return Cow::Borrowed(text.as_bytes());
    }
    convert(text).map_or_else(|| Cow::Owned(escaped(text).into_bytes()), Cow::Owned)
}

/// `None` where the encoding of the database has no such characters.
fn convert(text: &str) -> Option<Vec<u8>> {
    let encoding = encoding();
    // PostgreSQL's bound: no character becomes longer than four bytes of any encoding for each of its own.
    let mut buffer = vec![0u8; text.len() * 4 + 1];
    // SAFETY: reads as many bytes as there are, writes no more than there is room for, and raises nothing for characters
    // that it cannot convert.
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

/// A text for a message. pgrx takes messages as UTF-8 and hands them on as they are, so in a database of another encoding they
/// are in ASCII.
pub fn for_message(text: String) -> String {
    if text.is_ascii() || is_as_rust_has_it() { text } else { escaped(&text) }
}

/// As PostgreSQL reads it in E''.
fn escaped(text: &str) -> String {
    let escape = |c: char| match c.is_ascii() {
        true => c.to_string(),
        false => c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04X}")).collect(),
    };
    text.chars().map(escape).collect()
}

/// The same as a C string, for PostgreSQL's own functions. Nothing after a NUL, which no text of PostgreSQL has.
pub fn c_string(text: &str) -> CString {
    CString::new(encoded(text)).unwrap_or_default()
}

/// The arguments of a query, each text in the encoding of the database.
pub fn arguments<'a>(args: &[DatumWithOid<'a>]) -> Vec<DatumWithOid<'a>> {
    let converted = |arg: &DatumWithOid| {
        let datum = arg.datum().map(|datum| datum.sans_lifetime())?;
        // SAFETY: texts, and arrays of them, were made from UTF-8 in this process.
        unsafe {
            match arg.oid() {
                _ if is_as_rust_has_it() => Some(datum),
                pg_sys::TEXTOID => Text::from(utf8(datum)).into_datum(),
                pg_sys::TEXTARRAYOID => {
                    let texts = Array::<&str>::from_datum(datum, false)?;
                    texts.iter().map(|text| text.map(Text::from)).collect::<Vec<_>>().into_datum()
                }
                _ => Some(datum),
            }
        }
    };
    // SAFETY: a datum of the type said, which lives as long as the one it was made from, or as the call.
    args.iter().map(|arg| unsafe { DatumWithOid::new(converted(arg), arg.oid()) }).collect()
}

/// # Safety
/// The datum is a text that was made from a `&str`.
unsafe fn utf8<'a>(datum: pg_sys::Datum) -> &'a str {
    // SAFETY: by the above.
    unsafe { std::str::from_utf8_unchecked(varlena_to_byte_slice(datum.cast_mut_ptr())) }
}

/// A `text` of SQL: an argument, a column of a row, or a result.
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

// SAFETY: the text borrows from the array that it is an element of, or owns its characters.
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
        Some(Self(Cow::Owned(readable(bytes).into_owned())))
    }
}

// SAFETY: the datum is a text in memory of the call.
unsafe impl BoxRet for Text<'_> {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        match self.into_datum() {
            // SAFETY: as above.
            Some(text) => unsafe { fcinfo.return_raw_datum(text) },
            None => fcinfo.return_null(),
        }
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

//! The result of a query.

use super::error::{Error, on_one_line, string};
use pq_sys::*;
use std::ffi::c_int;
use std::ptr::NonNull;

/// The columns of a row, as text; `None` for NULL.
pub type Row = Vec<Option<String>>;

pub struct QueryResult(NonNull<PGresult>);

impl QueryResult {
    /// `None` after the last result of a query.
    ///
    /// # Safety
    /// Null, or a result that nothing else frees.
    pub unsafe fn new(raw: *mut PGresult) -> Option<Self> {
        NonNull::new(raw).map(Self)
    }

    /// The first row, if there is one.
    pub fn row(&self) -> Result<Option<Row>, Error> {
        let raw = self.0.as_ptr();
        // SAFETY: a live result; row and columns are in its range.
        unsafe {
            match PQresultStatus(raw) {
                ExecStatusType::PGRES_TUPLES_OK if PQntuples(raw) > 0 => {
                    let value = |column| (PQgetisnull(raw, 0, column) == 0).then(|| string(PQgetvalue(raw, 0, column)));
                    Ok(Some((0..PQnfields(raw)).map(value).collect()))
                }
                ExecStatusType::PGRES_TUPLES_OK | ExecStatusType::PGRES_COMMAND_OK => Ok(None),
                _ => Err(self.error()),
            }
        }
    }

    fn field(&self, code: u8) -> String {
        // SAFETY: a string of the result, or null, copied at once.
        unsafe { string(PQresultErrorField(self.0.as_ptr(), c_int::from(code))) }
    }

    fn error(&self) -> Error {
        let [sqlstate, primary, detail, hint] = [b'C', b'M', b'D', b'H'].map(|code| self.field(code));
        let message = [format!("{primary}."), detail, hint].join(" ");
        Error { sqlstate: Some(sqlstate), message: on_one_line(&message) }
    }
}

impl Drop for QueryResult {
    fn drop(&mut self) {
        // SAFETY: this is the only owner.
        unsafe { PQclear(self.0.as_ptr()) };
    }
}

//! The options of a connection string, with those of its service file and the environment.

use super::error::{Error, c_string, string};
use super::raw::RawConnection;
use super::resolver::Resolver;
use super::timeout::Timeout;
use idgen_core::hosts::{Host, HostLists, connect_timeout};
use pq_sys::*;
use std::ffi::{CStr, CString};
use std::ptr::null_mut;
use std::time::Duration;

/// Without the text: it can hold a password.
pub const INVALID_CONNECTION_STRING: &str = "the connection string is invalid";

pub struct Options {
    pub lists: HostLists,
    pub connect_timeout: Option<Duration>,
    /// The default of `target_session_attrs`: passes over servers that are read-only, as standbys are.
    pub session_default: CString,
}

/// Not a valid value of `channel_binding`.
const REFUSED: &CStr = c"only parsed";

impl Options {
    /// libpq merges the service file and the environment only into the options of a connection. So this begins one with
    /// an invalid option, which libpq refuses before it looks up a name or opens a socket.
    pub fn of(conninfo: &CStr) -> Result<Self, Error> {
        require_valid(conninfo)?;
        let raw = RawConnection::start(&[(c"dbname", conninfo), (c"channel_binding", REFUSED)])?;
        let error = raw.error();
        if !error.message.contains(REFUSED.to_str().expect("ASCII")) {
            return Err(error);
        }
        let [host, hostaddr, port, timeout, attributes] =
            values(&raw, [c"host", c"hostaddr", c"port", c"connect_timeout", c"target_session_attrs"]);
        let connect_timeout = connect_timeout(&timeout).map_err(|_| {
            Error::new(format!("invalid integer value \"{timeout}\" for connection option \"connect_timeout\""))
        })?;
        // "any" is libpq's default.
        let session_default = if attributes == "any" { c"read-write".to_owned() } else { c_string(&attributes) };
        Ok(Self { lists: HostLists { host, hostaddr, port }, connect_timeout, session_default })
    }

    /// The hosts at each of their addresses, in the order of the lists, and an error for each host without one.
    pub fn addresses(&self, resolver: &mut Resolver, timeout: Timeout) -> Result<(Vec<Host>, Vec<Error>), Error> {
        let targets = self.lists.hosts();
        let names: Vec<&str> = targets.iter().filter_map(Host::name).collect();
        let found = resolver.look_up(&names, names.len() < targets.len(), timeout)?;
        let (mut addresses, mut errors) = (Vec::new(), Vec::new());
        for target in &targets {
            match target.name().and_then(|name| found.get(name)) {
                None => addresses.push(target.clone()),
                Some(Ok(found)) => addresses.extend(found.iter().map(|address| target.at(address.clone()))),
                Some(Err(message)) => errors.push(Error::new(message)),
            }
        }
        Ok((addresses, errors))
    }
}

fn values<const N: usize>(raw: &RawConnection, keywords: [&CStr; N]) -> [String; N] {
    let mut values = [const { String::new() }; N];
    // SAFETY: an array of options that ends with one without a keyword, freed below.
    unsafe {
        let options = PQconninfo(raw.as_ptr());
        let mut option = options;
        while !option.is_null() && !(*option).keyword.is_null() {
            let keyword = CStr::from_ptr((*option).keyword);
            if let Some(index) = keywords.iter().position(|wanted| *wanted == keyword) {
                values[index] = string((*option).val);
            }
            option = option.add(1);
        }
        PQconninfoFree(options);
    }
    values
}

/// Hides libpq's message about a connection string that it cannot parse: it may quote part of a password.
fn require_valid(conninfo: &CStr) -> Result<(), Error> {
    // SAFETY: a C string; null: returns no message. Null options may be freed.
    let is_valid = unsafe {
        let options = PQconninfoParse(conninfo.as_ptr(), null_mut());
        PQconninfoFree(options);
        !options.is_null()
    };
    match is_valid {
        true => Ok(()),
        false => Err(Error::new(INVALID_CONNECTION_STRING)),
    }
}

//! What a connection string says, with what a service file and the environment add.

use super::connection::{Raw, start};
use super::{Patience, Resolver, Trouble, c_string, string};
use idgen_core::worker::targets::{Lists, Target, connect_timeout};
use pq_sys::*;
use std::ffi::{CStr, CString};
use std::ptr::null_mut;
use std::time::Duration;

pub struct Options {
    pub lists: Lists,
    pub connect_timeout: Option<Duration>,
    /// `target_session_attrs` where the connection string has none: a standby grants nothing, so it is passed over.
    pub session_default: CString,
}

/// No channel binding is called so.
const REFUSED: &CStr = c"only parsed";

impl Options {
    /// libpq tells options that include the service file and the environment only of a connection. This one is refused because
    /// of an option of its own, before libpq looks up a name or opens a socket.
    pub fn of(conninfo: &CStr) -> Result<Self, Trouble> {
        refuse_nonsense(conninfo)?;
        let raw = start(&[(c"dbname", conninfo), (c"channel_binding", REFUSED)])?;
        let trouble = raw.trouble();
        if !trouble.message.contains(REFUSED.to_str().expect("ASCII")) {
            return Err(trouble);
        }
        let [host, hostaddr, port, timeout, attributes] =
            values(&raw, [c"host", c"hostaddr", c"port", c"connect_timeout", c"target_session_attrs"]);
        let connect_timeout = connect_timeout(&timeout).map_err(|_| {
            Trouble::new(format!("invalid integer value \"{timeout}\" for connection option \"connect_timeout\""))
        })?;
        // "any" is libpq's default.
        let session_default = if attributes == "any" { c"read-write".to_owned() } else { c_string(&attributes) };
        Ok(Self { lists: Lists { host, hostaddr, port }, connect_timeout, session_default })
    }

    /// The targets at all their addresses, in the order of the lists, and what is wrong with the others.
    pub fn addresses(
        &self,
        resolver: &mut Resolver,
        patience: Patience,
    ) -> Result<(Vec<Target>, Vec<Trouble>), Trouble> {
        let targets = self.lists.targets();
        let names: Vec<&str> = targets.iter().filter_map(Target::name).collect();
        let found = resolver.look_up(&names, names.len() < targets.len(), patience)?;
        let (mut addresses, mut troubles) = (Vec::new(), Vec::new());
        for target in &targets {
            match target.name().and_then(|name| found.get(name)) {
                None => addresses.push(target.clone()),
                Some(Ok(found)) => addresses.extend(found.iter().map(|address| target.at(address.clone()))),
                Some(Err(message)) => troubles.push(Trouble::new(message)),
            }
        }
        Ok((addresses, troubles))
    }
}

fn values<const N: usize>(raw: &Raw, keywords: [&CStr; N]) -> [String; N] {
    let mut values = [const { String::new() }; N];
    // SAFETY: an array of options that ends with one without a keyword, freed after.
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

/// libpq's message about a connection string that it cannot parse may quote a part of a password.
fn refuse_nonsense(conninfo: &CStr) -> Result<(), Trouble> {
    // SAFETY: a C string; null: the message is not wanted. The options are freed, null or not.
    let is_understood = unsafe {
        let options = PQconninfoParse(conninfo.as_ptr(), null_mut());
        PQconninfoFree(options);
        !options.is_null()
    };
    match is_understood {
        true => Ok(()),
        false => Err(Trouble::new("idgen.coordinator is no connection string that libpq understands")),
    }
}

//! The settings of one server, in a file of their own so that a change replaces the old value.

use std::path::Path;

use crate::programs::chown_to_server;

const FILE: &str = "testkit.conf";

#[derive(Clone)]
pub(crate) struct Settings(Vec<(String, String)>);

impl Settings {
    /// The defaults of every server of the kit.
    pub(crate) fn new() -> Settings {
        let mut settings = Settings(Vec::new());
        for (name, value) in [
            ("listen_addresses", ""),
            ("shared_buffers", "32MB"),
            ("max_connections", "150"),
            ("logging_collector", "off"),
            ("log_line_prefix", "%m [%p] "),
            ("timezone", "UTC"),
            ("log_timezone", "UTC"),
            // Any server can become the primary of a standby.
            ("wal_level", "replica"),
            ("max_wal_senders", "10"),
            ("max_replication_slots", "10"),
            ("hot_standby", "on"),
        ] {
            settings.set(name, value);
        }
        settings
    }

    /// The last value of a name wins.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.0.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.0.push((name.to_owned(), value.to_owned()));
    }

    #[cfg(test)]
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Includes the file of settings in the postgresql.conf of a data directory.
    pub(crate) fn include_in(data: &Path) {
        let main = data.join("postgresql.conf");
        let text = std::fs::read_to_string(&main).expect("postgresql.conf is readable");
        std::fs::write(&main, format!("{text}\ninclude '{FILE}'\n")).expect("postgresql.conf is writable");
    }

    pub(crate) fn write(&self, data: &Path) {
        let file = data.join(FILE);
        std::fs::write(&file, self.render()).expect("the data directory is writable");
        chown_to_server(&file);
    }

    fn render(&self) -> String {
        let quoted = |value: &str| value.replace('\\', "\\\\").replace('\'', "''");
        self.0.iter().map(|(name, value)| format!("{name} = '{}'\n", quoted(value))).collect()
    }
}

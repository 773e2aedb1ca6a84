//! A client that speaks the wire protocol, for messages that no driver sends.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::Cluster;
use crate::sql::PATIENCE;

/// A session that speaks the wire protocol.
pub struct Session(UnixStream);

impl Session {
    pub fn open(cluster: &Cluster) -> Session {
        let socket = cluster.data_dir().with_file_name(".s.PGSQL.5432");
        let stream = UnixStream::connect(&socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        let mut session = Session(stream);
        let mut startup = 196_608i32.to_be_bytes().to_vec();
        startup.extend(b"user\0postgres\0database\0postgres\0\0");
        session.send(None, &startup);
        session.read_to(b'Z');
        session
    }

    fn send(&mut self, kind: Option<u8>, body: &[u8]) {
        let length = i32::try_from(body.len() + 4).expect("short").to_be_bytes();
        let message = [kind.as_slice(), &length, body].concat();
        self.0.write_all(&message).expect("sent");
    }

    /// Sends Parse, Bind, Execute and Flush, but no Sync.
    pub fn execute_without_sync(&mut self, sql: &str) {
        self.fetch_without_sync(sql, 0);
    }

    /// The same for at most so many rows; 0 is all of them.
    pub fn fetch_without_sync(&mut self, sql: &str, rows: i32) {
        self.send(Some(b'P'), format!("\0{sql}\0\0\0").as_bytes());
        self.send(Some(b'B'), &[0; 8]);
        self.send(Some(b'E'), &[&[0], rows.to_be_bytes().as_slice()].concat());
        self.send(Some(b'H'), &[]);
    }

    /// Runs a statement, and after its answer one that fails, in one pipeline. That undoes what is not committed by then.
    pub fn execute_before_an_error(&mut self, sql: &str) {
        self.execute_without_sync(sql);
        let (kind, body) = self.read_to(b'C');
        assert_eq!(kind, b'C', "{sql}: {body}");
        self.execute_without_sync("SELECT 1 / 0");
        assert_eq!(self.read_to(b'C').0, b'E');
        self.sync();
    }

    /// Ends the pipeline, and waits until the server is ready.
    pub fn sync(&mut self) {
        self.send(Some(b'S'), &[]);
        while self.read_to(b'Z').0 != b'Z' {}
    }

    /// Reads up to a message of this kind or an error, and returns its kind and body.
    pub fn read_to(&mut self, kind: u8) -> (u8, String) {
        loop {
            let mut header = [0; 5];
            self.0.read_exact(&mut header).expect("a message");
            let length = i32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
            let mut body = vec![0; length - 4];
            self.0.read_exact(&mut body).expect("its body");
            if header[0] == kind || header[0] == b'E' {
                return (header[0], String::from_utf8_lossy(&body).into_owned());
            }
        }
    }
}

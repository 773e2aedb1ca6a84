//! A client that sends several statements before it asks for their end, as a pipeline does.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use idgen_testkit::Cluster;
use idgen_testkit::sql::{PATIENCE, value};

use super::builder;

/// A session by the protocol itself.
struct Session(UnixStream);

impl Session {
    fn open(cluster: &Cluster) -> Session {
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

    /// Parses, binds and executes, and asks for the answer, but not for the end of the transaction.
    fn execute_without_end(&mut self, sql: &str) {
        self.send(Some(b'P'), format!("\0{sql}\0\0\0").as_bytes());
        self.send(Some(b'B'), &[0; 8]);
        self.send(Some(b'E'), &[0; 5]);
        self.send(Some(b'H'), &[]);
    }

    /// Reads messages up to one of this kind, and returns its body; an error's instead, if one comes before.
    fn read_to(&mut self, kind: u8) -> (u8, String) {
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

/// It is told and committed before the transaction's end is asked for, so that no later statement takes it back.
#[test]
fn a_rectangle_that_a_pipeline_was_told_stays_granted() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('p', 4, '10 s')");
    let mut session = Session::open(&cluster);
    session.execute_without_end("SELECT worker_acquire('p', 'pipeline', '10 s')");
    let (kind, told) = session.read_to(b'C');
    assert_eq!(kind, b'C', "{told}");
    // A statement that fails rolls back what is not committed.
    session.execute_without_end("SELECT 1 / 0");
    assert_eq!(session.read_to(b'C').0, b'E');
    session.send(Some(b'S'), &[]);
    session.read_to(b'Z');
    let held = "SELECT count(*) = 1 FROM idgen.workers WHERE owner = 'pipeline' AND state = 'held'";
    assert!(value::<bool>(&mut cluster.client(), held), "a rectangle was told that a rollback took back");
}

/// Behind another statement it is in that one's transaction.
#[test]
fn a_pipeline_is_granted_nothing_behind_another_statement() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('p', 4, '10 s')");
    let mut session = Session::open(&cluster);
    session.execute_without_end("SELECT 1");
    assert_eq!(session.read_to(b'C').0, b'C');
    session.execute_without_end("SELECT worker_acquire('p', 'pipeline', '10 s')");
    let (kind, error) = session.read_to(b'C');
    assert!(kind == b'E' && error.contains("25001"), "{error}");
}

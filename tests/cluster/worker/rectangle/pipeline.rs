//! A client that pipelines statements: it sends several before it sends Sync.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use idgen_testkit::Cluster;
use idgen_testkit::sql::{PATIENCE, value};

use super::builder;

/// A session that speaks the wire protocol.
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

    /// Sends Parse, Bind, Execute and Flush, but no Sync.
    fn execute_without_sync(&mut self, sql: &str) {
        self.send(Some(b'P'), format!("\0{sql}\0\0\0").as_bytes());
        self.send(Some(b'B'), &[0; 8]);
        self.send(Some(b'E'), &[0; 5]);
        self.send(Some(b'H'), &[]);
    }

    /// Reads up to a message of this kind or an error, and returns its kind and body.
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

/// The grant is committed before its result is sent, so that no later statement can roll it back.
#[test]
fn rectangle_granted_in_a_pipeline_survives_a_later_error() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('p', 4, '10 s')");
    let mut session = Session::open(&cluster);
    session.execute_without_sync("SELECT worker_acquire('p', 'pipeline', '10 s')");
    let (kind, body) = session.read_to(b'C');
    assert_eq!(kind, b'C', "{body}");
    // A statement that fails rolls back what is not committed.
    session.execute_without_sync("SELECT 1 / 0");
    assert_eq!(session.read_to(b'C').0, b'E');
    session.send(Some(b'S'), &[]);
    session.read_to(b'Z');
    let held = "SELECT count(*) = 1 FROM idgen.workers WHERE owner = 'pipeline' AND state = 'held'";
    assert!(value::<bool>(&mut cluster.client(), held), "a rollback took back a rectangle that the client knows");
}

/// After another statement, the call runs in the transaction of that one.
#[test]
fn pipeline_is_granted_nothing_after_another_statement() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('p', 4, '10 s')");
    let mut session = Session::open(&cluster);
    session.execute_without_sync("SELECT 1");
    assert_eq!(session.read_to(b'C').0, b'C');
    session.execute_without_sync("SELECT worker_acquire('p', 'pipeline', '10 s')");
    let (kind, error) = session.read_to(b'C');
    assert!(kind == b'E' && error.contains("25001"), "{error}");
}

//! etcd as a single node, reached through gRPC, and a lock on it: a key that exists only once, under a lease.

mod messages;

use super::Process;
use crate::harness::server::Server;
use crate::locking::{Lock, TTL_S};
use idgen_testkit::sql::PATIENCE;
use messages::{
    Compare, Delete, LeaseGrant, LeaseGranted, LeaseRevoke, LeaseRevoked, Operation, Put, TARGET_CREATION,
    TARGET_VALUE, Transaction, TransactionResult,
};
use prost::Message;
use std::path::PathBuf;
use std::process::Command;
use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// etcd requires a host and a port even for a socket. It creates a file of that name in its working directory.
const CLIENTS: &str = "unix://clients:0";
const PEERS: &str = "unix://peers:0";

pub struct Etcd {
    _process: Process,
    socket: PathBuf,
    pub version: String,
}

impl Etcd {
    /// Starts it, on a socket only. Returns `None` if it is not installed.
    pub fn start(server: &Server) -> Option<Self> {
        let dir = server.dir().join("etcd");
        std::fs::create_dir_all(&dir).expect("cannot create the directory of etcd");
        let process = Process::start("etcd", |command| {
            command.current_dir(&dir).args(["--name=bench", "--data-dir=data"]);
            command.args([format!("--listen-client-urls={CLIENTS}"), format!("--advertise-client-urls={CLIENTS}")]);
            command.args([format!("--listen-peer-urls={PEERS}"), format!("--initial-advertise-peer-urls={PEERS}")]);
            command.arg(format!("--initial-cluster=bench={PEERS}"));
        })?;
        let socket = dir.join(CLIENTS.trim_start_matches("unix://"));
        let etcd = Self { _process: process, socket, version: version() };
        // Requests fail until the node has elected itself.
        let answers = || etcd.try_connect().and_then(|mut connection| connection.try_grant()).is_ok();
        server.cluster.wait_for(PATIENCE, "etcd to take connections", answers);
        Some(etcd)
    }

    fn try_connect(&self) -> Result<Connection, Status> {
        let runtime = Builder::new_current_thread().enable_all().build().expect("cannot build a tokio runtime");
        let url = format!("unix://{}", self.socket.display());
        let endpoint = Endpoint::from_shared(url).expect("the path of the socket is a valid URL");
        let channel = runtime.block_on(endpoint.connect()).map_err(|error| Status::from_error(error.into()))?;
        Ok(Connection { runtime, grpc: Grpc::new(channel) })
    }
}

fn version() -> String {
    let output = Command::new("etcd").arg("--version").output().expect("cannot run etcd");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().find_map(|line| line.strip_prefix("etcd Version: ")).expect("etcd prints no version").to_owned()
}

/// The connection of one client, with a runtime for its thread.
struct Connection {
    runtime: Runtime,
    grpc: Grpc<Channel>,
}

impl Connection {
    fn call<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let Self { runtime, grpc } = self;
        runtime.block_on(async {
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            let codec = ProstCodec::<Q, A>::default();
            let answer = grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await?;
            Ok(answer.into_inner())
        })
    }

    fn try_grant(&mut self) -> Result<LeaseGranted, Status> {
        self.call("/etcdserverpb.Lease/LeaseGrant", LeaseGrant { ttl_s: TTL_S.into() })
    }

    fn grant(&mut self) -> i64 {
        self.try_grant().expect("LeaseGrant failed").id
    }

    /// Revokes a lease, which deletes its keys.
    fn revoke(&mut self, id: i64) {
        let LeaseRevoked {} =
            self.call("/etcdserverpb.Lease/LeaseRevoke", LeaseRevoke { id }).expect("LeaseRevoke failed");
    }

    /// Whether the comparison held, and so the operation was done.
    fn transact(&mut self, compare: Compare, operation: Operation) -> bool {
        let transaction = Transaction { compare: vec![compare], success: vec![operation] };
        let result: TransactionResult = self.call("/etcdserverpb.KV/Txn", transaction).expect("Txn failed");
        result.succeeded
    }
}

/// Which etcd lease the key of a lock belongs to.
#[derive(Clone, Copy, PartialEq)]
pub enum Leasing {
    /// A lease for each lock, granted and revoked with it: every lock has the full ttl.
    Each,
    /// One lease for all locks of the client, which a real client would have to keep alive.
    Once,
}

pub struct EtcdLock {
    connection: Connection,
    name: Vec<u8>,
    token: u64,
    lease: i64,
    leasing: Leasing,
}

impl EtcdLock {
    pub fn connect(etcd: &Etcd, client: u32, leasing: Leasing) -> Self {
        let mut connection = etcd.try_connect().expect("cannot connect to etcd");
        let lease = connection.grant();
        Self { connection, name: format!("bench:{client}").into(), token: 0, lease, leasing }
    }
}

impl Lock for EtcdLock {
    fn acquire(&mut self) {
        self.token += 1;
        if self.leasing == Leasing::Each {
            self.lease = self.connection.grant();
        }
        let (key, value) = (self.name.clone(), self.token.to_string().into());
        let is_absent = Compare { target: TARGET_CREATION, key: key.clone(), creation: Some(0), value: None };
        let put = Operation { put: Some(Put { key, value, lease: self.lease }), delete: None };
        assert!(self.connection.transact(is_absent, put), "the lock is free");
    }

    fn release(&mut self) {
        if self.leasing == Leasing::Each {
            return self.connection.revoke(self.lease);
        }
        let (key, value) = (self.name.clone(), self.token.to_string().into());
        let is_held = Compare { target: TARGET_VALUE, key: key.clone(), creation: None, value: Some(value) };
        let delete = Operation { put: None, delete: Some(Delete { key }) };
        assert!(self.connection.transact(is_held, delete), "the lock is held");
    }
}

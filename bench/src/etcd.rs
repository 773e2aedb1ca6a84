//! An etcd of our own: a single node, spoken to by its own protocol, gRPC.

use crate::beside::Beside;
use crate::server::Server;
use idgen_testkit::sql::PATIENCE;
use messages::{LeaseGrant, LeaseGranted};
use prost::Message;
use std::path::PathBuf;
use std::process::Command;
use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

pub mod lock;
mod messages;

/// etcd wants a host and a port of a socket too, and makes a file of that name where it runs.
const CLIENTS: &str = "unix://clients:0";
const PEERS: &str = "unix://peers:0";

pub struct Etcd {
    _process: Beside,
    socket: PathBuf,
    pub version: String,
}

impl Etcd {
    /// Starts it, reached through a socket only. `None`, and a word about it, where it is not installed.
    pub fn start(server: &Server) -> Option<Self> {
        let dir = server.dir().join("etcd");
        std::fs::create_dir_all(&dir).expect("the directory of etcd can be made");
        let process = Beside::start("etcd", |command| {
            command.current_dir(&dir).args(["--name=bench", "--data-dir=data"]);
            command.args([format!("--listen-client-urls={CLIENTS}"), format!("--advertise-client-urls={CLIENTS}")]);
            command.args([format!("--listen-peer-urls={PEERS}"), format!("--initial-advertise-peer-urls={PEERS}")]);
            command.arg(format!("--initial-cluster=bench={PEERS}"));
        })?;
        // From here on it is stopped, whatever happens.
        let socket = dir.join(CLIENTS.trim_start_matches("unix://"));
        let etcd = Self { _process: process, socket, version: version() };
        // It answers once it has elected itself.
        let answers = || etcd.try_connect().and_then(|mut connection| connection.try_grant()).is_ok();
        server.cluster.wait_for(PATIENCE, "etcd to take connections", answers);
        Some(etcd)
    }

    pub fn connect(&self) -> Connection {
        self.try_connect().expect("etcd takes connections")
    }

    fn try_connect(&self) -> Result<Connection, Status> {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a thread can wait for a socket");
        let endpoint =
            Endpoint::from_shared(format!("unix://{}", self.socket.display())).expect("a path is an address");
        let channel = runtime.block_on(endpoint.connect()).map_err(|error| Status::from_error(error.into()))?;
        Ok(Connection { runtime, grpc: Grpc::new(channel) })
    }
}

fn version() -> String {
    let output = Command::new("etcd").arg("--version").output().expect("etcd can be run");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().find_map(|line| line.strip_prefix("etcd Version: ")).expect("etcd tells its version").to_owned()
}

/// One client's, used by its thread alone.
pub struct Connection {
    runtime: Runtime,
    grpc: Grpc<Channel>,
}

impl Connection {
    fn call<Q, A>(&mut self, path: &'static str, question: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let Self { runtime, grpc } = self;
        runtime.block_on(async {
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            let codec = ProstCodec::<Q, A>::default();
            grpc.unary(Request::new(question), PathAndQuery::from_static(path), codec)
                .await
                .map(|answer| answer.into_inner())
        })
    }

    fn try_grant(&mut self) -> Result<LeaseGranted, Status> {
        self.call("/etcdserverpb.Lease/LeaseGrant", LeaseGrant { ttl_s: crate::cycles::TTL_S.into() })
    }
}

//! What is said to etcd and what it answers, as far as locks need it. The numbers of the fields are the protocol's.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrant {
    #[prost(int64, tag = "1")]
    pub ttl_s: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseGranted {
    #[prost(int64, tag = "2")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseRevoke {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseRevoked {}

/// Done if every comparison holds, at once and all of it; else nothing is.
#[derive(Clone, PartialEq, Message)]
pub struct Transaction {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<Operation>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TransactionDone {
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
}

/// With the key's revision of creation, or its value: equal, which is 0 and goes without saying.
#[derive(Clone, PartialEq, Message)]
pub struct Compare {
    #[prost(int32, tag = "2")]
    pub target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    #[prost(int64, optional, tag = "5")]
    pub creation: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "7")]
    pub value: Option<Vec<u8>>,
}

/// Numbers of targets.
pub const CREATION: i32 = 1;
pub const VALUE: i32 = 3;

/// One of them.
#[derive(Clone, PartialEq, Message)]
pub struct Operation {
    #[prost(message, optional, tag = "2")]
    pub put: Option<Put>,
    #[prost(message, optional, tag = "3")]
    pub delete: Option<Delete>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Put {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

//! The messages of etcd's protocol that a lock needs. The tags are the field numbers of etcd's `rpc.proto`.

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

/// Performs the operations atomically if every comparison holds, and nothing otherwise.
#[derive(Clone, PartialEq, Message)]
pub struct Transaction {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<Operation>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TransactionResult {
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
}

/// Compares the key's creation revision, or its value. The operator is the default, 0: equal.
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

/// Values of `target`.
pub const TARGET_CREATION: i32 = 1;
pub const TARGET_VALUE: i32 = 3;

/// One of its fields is set.
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

//! A key that is put where none is, under a lease of etcd.

use super::messages::{
    CREATION, Compare, Delete, LeaseRevoke, LeaseRevoked, Operation, Put, Transaction, TransactionDone, VALUE,
};
use super::{Connection, Etcd};
use crate::cycles::Lock;

pub struct EtcdLock {
    connection: Connection,
    name: Vec<u8>,
    token: u64,
    lease: i64,
    leasing: Leasing,
}

/// Where the key's lease is from.
#[derive(Clone, Copy, PartialEq)]
pub enum Leasing {
    /// Granted for each lock, which has its full time then, and revoked with it.
    Each,
    /// Granted once, for all locks of the client: it has to be kept alive beside.
    Once,
}

impl EtcdLock {
    pub fn connect(etcd: &Etcd, client: u32, leasing: Leasing) -> Self {
        let mut connection = etcd.connect();
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
        let absent = Compare { target: CREATION, key: key.clone(), creation: Some(0), value: None };
        let put = Operation { put: Some(Put { key, value, lease: self.lease }), delete: None };
        assert!(self.connection.transact(absent, put), "nobody else has the name");
    }

    fn release(&mut self) {
        if self.leasing == Leasing::Each {
            return self.connection.revoke(self.lease);
        }
        let (key, value) = (self.name.clone(), self.token.to_string().into());
        let own = Compare { target: VALUE, key: key.clone(), creation: None, value: Some(value) };
        let delete = Operation { put: None, delete: Some(Delete { key }) };
        assert!(self.connection.transact(own, delete), "it is still held");
    }
}

impl Connection {
    fn grant(&mut self) -> i64 {
        self.try_grant().expect("etcd grants a lease").id
    }

    /// With all keys that hang on it.
    fn revoke(&mut self, id: i64) {
        let LeaseRevoked {} =
            self.call("/etcdserverpb.Lease/LeaseRevoke", LeaseRevoke { id }).expect("etcd revokes a lease");
    }

    fn transact(&mut self, compare: Compare, operation: Operation) -> bool {
        let transaction = Transaction { compare: vec![compare], success: vec![operation] };
        let done: TransactionDone = self.call("/etcdserverpb.KV/Txn", transaction).expect("etcd does a transaction");
        done.succeeded
    }
}

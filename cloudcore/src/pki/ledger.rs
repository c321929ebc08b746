//! Where the PKI keeps what must outlive the process: the seam to the store.
//!
//! Three spaces of sealed records, and the Node object that an enrolment makes in the same commit.

use std::error::Error;
use std::fmt;
use std::pin::Pin;

use proto::object::{Key, Uid};
use proto::value::Value;

use crate::store::{CommitError, Lane, Op, Store};

/// CA keys and certificates.
pub const CAS: &str = "ca";
/// Join tokens, their secrets hashed.
pub const TOKENS: &str = "join-token";
/// Enrolments.
pub const ENROLMENTS: &str = "enrolment";

/// What a ledger answers when it is done.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, LedgerError>> + Send + 'a>>;

/// A store as the PKI sees it.
pub trait Ledger: Send + Sync + 'static {
    /// Every record of a space, with its id.
    fn records(&self, space: &'static str) -> Reply<'_, Vec<(String, Vec<u8>)>>;

    /// The identity of the Node with this name.
    fn node(&self, name: &str) -> Option<Uid>;

    /// Makes all of these writes or none, durably.
    fn commit(&self, writes: Vec<Write>) -> Reply<'_, ()>;
}

/// One write of a commit.
#[derive(Clone, PartialEq)]
pub enum Write {
    Put {
        space: &'static str,
        id: String,
        bytes: Vec<u8>,
    },
    Delete {
        space: &'static str,
        id: String,
    },
    /// Writes nothing: fails with [`LedgerError::Changed`] unless the record is as given, or absent.
    Expect {
        space: &'static str,
        id: String,
        bytes: Option<Vec<u8>>,
    },
    /// A Node object, complete with its uid; fails with [`LedgerError::NodeExists`] when the name is taken.
    CreateNode {
        name: String,
        value: Value,
    },
}

/// Without the bytes, which are secrets.
impl fmt::Debug for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put { space, id, .. } => write!(f, "Put({space}/{id})"),
            Self::Delete { space, id } => write!(f, "Delete({space}/{id})"),
            Self::Expect { space, id, .. } => write!(f, "Expect({space}/{id})"),
            Self::CreateNode { name, .. } => write!(f, "CreateNode({name})"),
        }
    }
}

/// Why the ledger did not do it.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("a node of this name exists")]
    NodeExists,
    #[error("another cloud core changed the record first")]
    Changed,
    #[error("store failed")]
    Store(#[source] Box<dyn Error + Send + Sync>),
}

/// The real one.
impl Ledger for Store {
    fn records(&self, space: &'static str) -> Reply<'_, Vec<(String, Vec<u8>)>> {
        let records = Self::records(self, space);
        Box::pin(async { Ok(records.into_iter().map(|(id, bytes)| (id, bytes.to_vec())).collect()) })
    }

    fn node(&self, name: &str) -> Option<Uid> {
        self.get(&Key::new("Node", "", name)).map(|node| node.uid)
    }

    fn commit(&self, writes: Vec<Write>) -> Reply<'_, ()> {
        let op = |write| match write {
            Write::Put { space, id, bytes } => Op::PutRecord { space, id, bytes },
            Write::Delete { space, id } => Op::DeleteRecord { space, id },
            Write::Expect { space, id, bytes } => Op::ExpectRecord { space, id, bytes },
            Write::CreateNode { name, value } => Op::Create { key: Key::new("Node", "", name), value },
        };
        let ops = writes.into_iter().map(op).collect();
        Box::pin(async move {
            // Joining and revoking must get through while the API is busy.
            match Self::commit(self, Lane::Control, ops).await {
                Ok(_) => Ok(()),
                // Nothing but a Node is created here.
                Err(CommitError::Exists(_)) => Err(LedgerError::NodeExists),
                Err(CommitError::Record { .. }) => Err(LedgerError::Changed),
                Err(error) => Err(LedgerError::Store(Box::new(error))),
            }
        })
    }
}

/// A ledger that forgets everything when the process ends: for tests.
pub mod memory {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::{Ledger, LedgerError, Reply, Uid, Value, Write};

    /// Records and nodes in maps.
    #[derive(Debug, Default)]
    pub struct Memory {
        inner: Mutex<Inner>,
    }

    #[derive(Debug, Default, Clone)]
    struct Inner {
        records: BTreeMap<(&'static str, String), Vec<u8>>,
        nodes: BTreeMap<String, Value>,
        full: bool,
    }

    impl Memory {
        pub fn node_value(&self, name: &str) -> Option<Value> {
            self.lock().nodes.get(name).cloned()
        }

        pub fn delete_node(&self, name: &str) {
            self.lock().nodes.remove(name);
        }

        fn lock(&self) -> MutexGuard<'_, Inner> {
            self.inner.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// From now on every commit fails.
        pub fn fill(&self) {
            self.lock().full = true;
        }
    }

    impl Ledger for Memory {
        fn records(&self, space: &'static str) -> Reply<'_, Vec<(String, Vec<u8>)>> {
            let inner = self.lock();
            let of = |((at, id), bytes): (&(&'static str, String), &Vec<u8>)| {
                (*at == space).then(|| (id.clone(), bytes.clone()))
            };
            let found = inner.records.iter().filter_map(of).collect();
            Box::pin(async { Ok(found) })
        }

        fn node(&self, name: &str) -> Option<Uid> {
            Uid::of(self.lock().nodes.get(name)?)
        }

        fn commit(&self, writes: Vec<Write>) -> Reply<'_, ()> {
            Box::pin(async move {
                let mut inner = self.lock();
                if inner.full {
                    return Err(LedgerError::Store("disk full".into()));
                }
                let mut next = inner.clone();
                for write in writes {
                    match write {
                        Write::Put { space, id, bytes } => drop(next.records.insert((space, id), bytes)),
                        Write::Delete { space, id } => drop(next.records.remove(&(space, id))),
                        Write::Expect { space, id, bytes } => {
                            if next.records.get(&(space, id)) != bytes.as_ref() {
                                return Err(LedgerError::Changed);
                            }
                        }
                        Write::CreateNode { name, value } => {
                            if next.nodes.insert(name, value).is_some() {
                                return Err(LedgerError::NodeExists);
                            }
                        }
                    }
                }
                *inner = next;
                Ok(())
            })
        }
    }
}

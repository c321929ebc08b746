//! The Kubernetes-compatible API: one engine for every kind, with kinds described by data.
//!
//! A request goes path → kind data → decode → default → admit → validate → store → encode, whatever it is about.
//! `server` speaks HTTPS, `front` knows who asks for what, `engine` does it; `schema`, `codec`, `patch`, `defaults` and
//! `validate` are pure and know nothing of HTTP.
//!
//! What is deliberately absent: managed fields are not tracked (field managers are accepted and forgotten), so
//! server-side apply is refused; protobuf is read but never written, since every client also takes JSON.

pub mod auth;
pub mod body;
pub mod codec;
pub mod defaults;
pub mod discovery;
mod engine;
mod front;
pub mod kinds;
pub mod media;
pub mod pages;
pub mod patch;
pub mod path;
pub mod query;
pub mod quote;
#[cfg(test)]
mod replay;
pub mod schema;
pub mod seams;
pub mod server;
pub mod status;
pub mod strategy;
pub mod table;
pub mod validate;
mod yaml;

use std::fmt;
use std::sync::Arc;

use tokio::sync::{Mutex, Semaphore};

use self::auth::Authenticate;
use self::discovery::Documents;
use self::pages::Page;
use self::seams::{Logs, Sessions};
use crate::store::{CommitError, Store};

pub use self::server::{Listener, serve};

/// What clients can hold at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections. One more waits in the kernel's queue until another ends.
    pub connections: usize,
    /// Requests at work, watches and logs not counted. One more is answered 429.
    pub requests: usize,
    /// Watches, and logs that are being read. One more is answered 429.
    pub watches: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 4096, requests: 512, watches: 8192 }
    }
}

/// The API over one store.
pub struct Api {
    store: Store,
    authority: Arc<dyn Authenticate>,
    logs: Arc<dyn Logs>,
    sessions: Arc<dyn Sessions>,
    pages: Vec<Page>,
    documents: Documents,
    connections_max: usize,
    requests: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    /// Held while a service is given an address, until it is stored.
    services: Mutex<()>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api")
            .field("pages", &self.pages)
            .finish_non_exhaustive()
    }
}

impl Api {
    /// Makes the standing namespaces that are missing, and the documents that describe what is served. `pages` are
    /// routes of other parts of the cloud core.
    pub async fn new(
        store: Store,
        authority: Arc<dyn Authenticate>,
        logs: Arc<dyn Logs>,
        sessions: Arc<dyn Sessions>,
        pages: Vec<Page>,
        limits: Limits,
    ) -> Result<Arc<Self>, CommitError> {
        engine::ensure_namespaces(&store).await?;
        Ok(Arc::new(Self {
            store,
            authority,
            logs,
            sessions,
            pages,
            documents: Documents::of_kinds(),
            connections_max: limits.connections,
            requests: Arc::new(Semaphore::new(limits.requests)),
            watches: Arc::new(Semaphore::new(limits.watches)),
            services: Mutex::new(()),
        }))
    }
}

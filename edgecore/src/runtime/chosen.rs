//! The runtime of this node: one type for all of them, so that what uses it is in the program once.

use std::path::Path;
use std::time::Duration;

use proto::object::Uid;
use tokio::sync::mpsc;

use super::containerd::Containerd;
use super::embedded::Embedded;
use super::fake::Fake;
use super::{
    Container, Event, Executed, Image, Named, Network, RegistryAuth, Runtime, RuntimeError, Sandbox, Seen, Version,
};

/// Whichever was chosen.
#[derive(Debug)]
pub enum Chosen {
    Containerd(Box<Containerd>),
    Embedded(Box<Embedded>),
    Fake(Box<Fake>),
}

impl Chosen {
    /// As the configuration has it; container ids of the embedded runtime begin with another word.
    pub fn configured(&self) -> &'static str {
        match self {
            Self::Containerd(_) => "containerd",
            Self::Embedded(_) => "embedded",
            Self::Fake(_) => "fake",
        }
    }
}

/// Asks whichever it is.
macro_rules! ask {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match $self {
            Self::Containerd(runtime) => runtime.$method($($argument),*),
            Self::Embedded(runtime) => runtime.$method($($argument),*),
            Self::Fake(runtime) => runtime.$method($($argument),*),
        }
    };
    ($self:ident.$method:ident($($argument:expr),*).await) => {
        match $self {
            Self::Containerd(runtime) => Box::pin(runtime.$method($($argument),*)).await,
            Self::Embedded(runtime) => Box::pin(runtime.$method($($argument),*)).await,
            Self::Fake(runtime) => Box::pin(runtime.$method($($argument),*)).await,
        }
    };
}

impl Runtime for Chosen {
    fn name(&self) -> &'static str {
        ask!(self.name())
    }

    async fn version(&self) -> Result<Version, RuntimeError> {
        ask!(self.version().await)
    }

    fn trouble(&self, error: &RuntimeError) -> String {
        ask!(self.trouble(error))
    }

    async fn list(&self) -> Result<Vec<Seen>, RuntimeError> {
        ask!(self.list().await)
    }

    async fn list_pod(&self, pod: Uid) -> Result<Vec<Seen>, RuntimeError> {
        ask!(self.list_pod(pod).await)
    }

    fn subscribe(&self) -> mpsc::Receiver<Event> {
        ask!(self.subscribe())
    }

    async fn prepare(&self, sandbox: &Sandbox) -> Result<Network, RuntimeError> {
        ask!(self.prepare(sandbox).await)
    }

    async fn create(&self, sandbox: &Sandbox, container: &Container) -> Result<String, RuntimeError> {
        ask!(self.create(sandbox, container).await)
    }

    async fn start(&self, id: &str) -> Result<(), RuntimeError> {
        ask!(self.start(id).await)
    }

    async fn signal(&self, id: &str, signal: u32) -> Result<(), RuntimeError> {
        ask!(self.signal(id, signal).await)
    }

    async fn stop(&self, id: &str) -> Result<(), RuntimeError> {
        ask!(self.stop(id).await)
    }

    async fn remove(&self, id: &str) -> Result<(), RuntimeError> {
        ask!(self.remove(id).await)
    }

    async fn release(&self, pod: Uid) -> Result<(), RuntimeError> {
        ask!(self.release(pod).await)
    }

    async fn exec(&self, id: &str, command: &[String], limit: Duration) -> Result<Executed, RuntimeError> {
        ask!(self.exec(id, command, limit).await)
    }

    async fn image(&self, name: &str) -> Result<Option<Image>, RuntimeError> {
        ask!(self.image(name).await)
    }

    async fn pull(&self, name: &str, auth: &[RegistryAuth]) -> Result<Image, RuntimeError> {
        ask!(self.pull(name, auth).await)
    }

    async fn import(&self, archive: &Path) -> Result<Vec<String>, RuntimeError> {
        ask!(self.import(archive).await)
    }

    async fn images(&self) -> Result<Vec<Named>, RuntimeError> {
        ask!(self.images().await)
    }

    async fn remove_image(&self, name: &str) -> Result<bool, RuntimeError> {
        ask!(self.remove_image(name).await)
    }
}

//! The connection to containerd: a namespace on every call, a deadline on every call, one reading of every refusal.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::diff_client::DiffClient;
use containerd_client::services::v1::events_client::EventsClient;
use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::introspection_client::IntrospectionClient;
use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::tasks_client::TasksClient;
use containerd_client::services::v1::version_client::VersionClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::codegen::Service;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Response, Status};

use crate::runtime::RuntimeError;

/// For calls that touch containerd's own database only.
pub(super) const QUICK: Duration = Duration::from_secs(10);
/// For calls that start or end processes, or wait for a shim.
pub(super) const PROCESS: Duration = Duration::from_secs(60);
/// For unpacking one layer on a slow card.
pub(super) const UNPACK: Duration = Duration::from_secs(30 * 60);

/// Cheap to clone; connects when used, and again after a break.
#[derive(Debug, Clone)]
pub(super) struct Client {
    channel: Channel,
    namespace: MetadataValue<Ascii>,
}

impl Client {
    /// Fails when the namespace is no text for a header.
    pub(super) fn new(socket: PathBuf, namespace: &str) -> Result<Self, RuntimeError> {
        let namespace = namespace.parse().map_err(|_| RuntimeError::Invalid {
            action: "connecting to containerd",
            reason: format!("the namespace {namespace:?} is not plain text"),
        })?;
        // The URI is never used: the connector knows where to go.
        let channel = Endpoint::from_static("http://containerd").connect_with_connector_lazy(Connector { socket });
        Ok(Self { channel, namespace })
    }

    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request
            .metadata_mut()
            .insert("containerd-namespace", self.namespace.clone());
        request
    }

    /// A request whose effects a lease keeps from the garbage collector.
    pub(super) fn leased<T>(&self, lease: &str, message: T) -> Request<T> {
        let mut request = self.request(message);
        let lease = lease.parse().expect("lease names are plain text");
        request.metadata_mut().insert("containerd-lease", lease);
        request
    }

    pub(super) fn containers(&self) -> ContainersClient<Channel> {
        ContainersClient::new(self.channel.clone())
    }

    pub(super) fn content(&self) -> ContentClient<Channel> {
        ContentClient::new(self.channel.clone())
    }

    pub(super) fn diff(&self) -> DiffClient<Channel> {
        DiffClient::new(self.channel.clone())
    }

    pub(super) fn events(&self) -> EventsClient<Channel> {
        EventsClient::new(self.channel.clone())
    }

    pub(super) fn images(&self) -> ImagesClient<Channel> {
        ImagesClient::new(self.channel.clone())
    }

    pub(super) fn leases(&self) -> LeasesClient<Channel> {
        LeasesClient::new(self.channel.clone())
    }

    pub(super) fn snapshots(&self) -> SnapshotsClient<Channel> {
        SnapshotsClient::new(self.channel.clone())
    }

    pub(super) fn tasks(&self) -> TasksClient<Channel> {
        TasksClient::new(self.channel.clone())
    }

    pub(super) fn introspection(&self) -> IntrospectionClient<Channel> {
        IntrospectionClient::new(self.channel.clone())
    }

    pub(super) fn version(&self) -> VersionClient<Channel> {
        VersionClient::new(self.channel.clone())
    }
}

/// Awaits an answer for so long. Boxed: the callers' futures hold many of these, and each is kilobytes.
pub(super) fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<Response<T>, Status>> + Send,
) -> impl Future<Output = Result<T, Refusal>> + Send {
    let answer = tokio::time::timeout(limit, Box::pin(answer));
    async move {
        match answer.await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(Refusal::Status(status)),
            Err(_) => Err(Refusal::Late(limit)),
        }
    }
}

/// Why a call had no answer, before it is known what that means for the caller.
#[derive(Debug)]
pub(super) enum Refusal {
    Late(Duration),
    Status(Status),
}

impl Refusal {
    pub(super) fn is(&self, code: Code) -> bool {
        matches!(self, Self::Status(status) if status.code() == code)
    }

    /// What it means for whoever asked for `action`; `what` names what was looked for.
    pub(super) fn error(self, action: &'static str, what: &str) -> RuntimeError {
        let status = match self {
            Self::Late(limit) => return RuntimeError::Timeout { action, limit },
            Self::Status(status) => status,
        };
        match status.code() {
            Code::NotFound => RuntimeError::Missing { action, what: what.to_owned() },
            // containerd itself answers "unavailable" when a shim or a lock is; a broken transport has a source.
            Code::Unavailable | Code::Unknown if std::error::Error::source(&status).is_some() => {
                RuntimeError::Unreachable { action, source: Box::new(status) }
            }
            _ if status.message().contains("no space left on device") => RuntimeError::DiskFull { action },
            _ => RuntimeError::Failed { action, reason: status.message().to_owned() },
        }
    }
}

/// Reads of an answer that more than one caller needs.
pub(super) trait Answer<T> {
    fn or_error(self, action: &'static str, what: &str) -> Result<T, RuntimeError>;
    /// `None` when it is not there.
    fn optional(self) -> Result<Option<T>, Refusal>;
    /// Whether it was made now; `false` when it was there.
    fn made(self) -> Result<bool, Refusal>;
}

impl<T> Answer<T> for Result<T, Refusal> {
    fn or_error(self, action: &'static str, what: &str) -> Result<T, RuntimeError> {
        self.map_err(|refusal| refusal.error(action, what))
    }

    fn optional(self) -> Result<Option<T>, Refusal> {
        match self {
            Err(refusal) if refusal.is(Code::NotFound) => Ok(None),
            other => other.map(Some),
        }
    }

    fn made(self) -> Result<bool, Refusal> {
        match self {
            Err(refusal) if refusal.is(Code::AlreadyExists) => Ok(false),
            other => other.map(|_| true),
        }
    }
}

#[derive(Debug, Clone)]
struct Connector {
    socket: PathBuf,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let socket = self.socket.clone();
        Box::pin(async move {
            let connected = UnixStream::connect(&socket).await;
            // Whoever reads it should know where containerd was looked for.
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", socket.display()));
            connected.map(TokioIo::new).map_err(named)
        })
    }
}

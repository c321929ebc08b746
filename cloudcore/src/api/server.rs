//! HTTPS on one port: accepts, shakes hands, serves HTTP/1.1 or HTTP/2 as the client chose, and stops in an orderly way.
//!
//! Everything a stranger can hold is bounded: connections (at the limit no further one is accepted), the time for the
//! handshake and for the head of a request, streams per connection. Requests and watches are bounded by the engine.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::Api;

/// Streams of one HTTP/2 connection at once; one more is refused by the protocol.
pub const STREAMS_MAX: u32 = 250;
/// A client has this long to shake hands, and to send the head of a request.
const HANDSHAKE: Duration = Duration::from_secs(10);
const HEAD: Duration = Duration::from_secs(30);
/// An HTTP/2 client that says nothing is asked this often whether it is there, and has this long to answer.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_ANSWER: Duration = Duration::from_secs(20);
/// Requests in flight have this long to end once the process stops.
const DRAIN: Duration = Duration::from_secs(10);
/// Wait after an accept that failed for want of something (file descriptors).
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Where to listen.
#[derive(Debug)]
pub struct Listener {
    pub socket: TcpListener,
    /// Client certificates are to be asked for and may be absent; ALPN has to offer `h2` and `http/1.1`.
    pub tls: Arc<rustls::ServerConfig>,
}

/// The far end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    pub address: SocketAddr,
    /// The client's certificates, its own first; none when it sent none.
    pub chain: Arc<[CertificateDer<'static>]>,
}

/// Serves until `stop`, then lets what is in flight end.
pub async fn serve(listener: Listener, api: Arc<Api>, stop: CancellationToken) {
    let acceptor = TlsAcceptor::from(listener.tls);
    let places = Arc::new(Semaphore::new(api.connections_max));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let place = Arc::clone(&places)
                .acquire_owned()
                .await
                .expect("the semaphore is never closed");
            (place, listener.socket.accept().await)
        };
        let (place, accepted) = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(ended) = connections.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    warn!(%error, "a connection's task panicked");
                }
                continue;
            }
            next = next => next,
        };
        match accepted {
            Ok((socket, address)) => {
                let connection = Connection {
                    acceptor: acceptor.clone(),
                    api: Arc::clone(&api),
                    stop: stop.clone(),
                };
                connections.spawn(connection.run(socket, address, place));
            }
            Err(error) => {
                warn!(%error, "accepting a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
    drop(listener.socket);
    let drained = timeout(DRAIN, async { while connections.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        warn!(left = connections.len(), "requests were cut off at the stop");
    }
    connections.shutdown().await;
}

struct Connection {
    acceptor: TlsAcceptor,
    api: Arc<Api>,
    stop: CancellationToken,
}

impl Connection {
    async fn run(self, socket: TcpStream, address: SocketAddr, _place: OwnedSemaphorePermit) {
        // Answers are small and waited for.
        let _ = socket.set_nodelay(true);
        let shaken = tokio::select! {
            shaken = timeout(HANDSHAKE, self.acceptor.accept(socket)) => shaken,
            () = self.stop.cancelled() => return,
        };
        let stream = match shaken {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return debug!(%address, %error, "TLS handshake"),
            Err(_) => return debug!(%address, "TLS handshake took too long"),
        };
        let (_, session) = stream.get_ref();
        let http2 = session.alpn_protocol() == Some(b"h2");
        let certificates = session.peer_certificates().unwrap_or_default();
        let peer = Peer { address, chain: certificates.iter().cloned().collect() };
        let service = service_fn(|request| {
            let (api, peer, stop) = (Arc::clone(&self.api), peer.clone(), self.stop.clone());
            async move { Ok::<_, Infallible>(api.answer(request, peer, stop).await) }
        });
        let stream = TokioIo::new(stream);
        let ended = if http2 {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS_MAX)
                .keep_alive_interval(PING_EVERY)
                .keep_alive_timeout(PING_ANSWER)
                .serve_connection(stream, service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = self.stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        } else {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .serve_connection(stream, service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = self.stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        };
        if let Err(error) = ended {
            debug!(%address, %error, "a connection broke");
        }
    }
}

//! Logs of a node's pods, through its session's connection: the node opens nothing and needs no address.
//!
//! The hub opens a tunnel with a [`LogRequest`]; the node answers with one frame, empty or saying why not, and then the
//! bytes of the log.

use std::sync::Arc;

use daemon::carrier::Tunnel;
use daemon::framing::FrameReader;
use hyper::body::Bytes;
use proto::tunnel::{LogRequest, TunnelRequest};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Shared;
use crate::api::body::{BoxFuture, Cut};
use crate::api::seams::{LogOptions, LogStream, Logs, LogsError};
use crate::store::Stored;

/// Pieces of a log that wait for a reader who is slower than the node.
const PIECES_MAX: usize = 4;

/// Bytes of a piece.
const PIECE: usize = 16 * 1024;

/// The logs of all nodes.
#[derive(Debug)]
pub struct NodeLogs {
    pub(super) shared: Arc<Shared>,
    /// One task for each open log.
    pub(super) tasks: tokio::sync::Mutex<JoinSet<()>>,
}

impl Logs for NodeLogs {
    fn open(&self, pod: Arc<Stored>, options: LogOptions) -> BoxFuture<'_, Result<LogStream, LogsError>> {
        Box::pin(async move {
            let node = pod.node().unwrap_or_default().to_owned();
            let unreachable = |why: String| LogsError::Unreachable { node: node.clone(), why };
            let connection = self.shared.connected.of(&node);
            let connection = connection.ok_or_else(|| unreachable("it has no session".to_owned()))?;
            let request = TunnelRequest::Logs(LogRequest {
                pod: pod.uid,
                container: options.container,
                follow: options.follow,
                previous: options.previous,
                timestamps: options.timestamps,
                tail_lines: options.tail_lines,
                limit_bytes: options.limit_bytes,
                since_s: options.since_s,
                since: options.since,
            });
            let tunnel = Tunnel::open(&connection, &request.encode()).await;
            let tunnel = tunnel.map_err(|error| unreachable(format!("{error}")))?;
            let mut answer = FrameReader::new(tunnel.receive);
            match answer.read().await {
                Ok(Some(why)) if why.is_empty() => {}
                Ok(Some(why)) => return Err(LogsError::Refused(String::from_utf8_lossy(&why).into_owned())),
                Ok(None) => return Err(unreachable("it closed the tunnel without an answer".to_owned())),
                Err(error) => return Err(unreachable(format!("{error}"))),
            }
            let (sender, stream) = mpsc::channel(PIECES_MAX);
            let mut receive = answer.into_inner();
            let mut tasks = self.tasks.lock().await;
            while tasks.try_join_next().is_some() {}
            tasks.spawn(async move {
                // Kept open: closing it would tell the node that nobody reads any more.
                let _send = tunnel.send;
                let mut piece = vec![0; PIECE];
                loop {
                    tokio::select! {
                        read = receive.read(&mut piece) => match read {
                            Ok(Some(bytes)) if bytes > 0 => {
                                if sender.send(Ok(Bytes::copy_from_slice(&piece[..bytes]))).await.is_err() {
                                    return;
                                }
                            }
                            Ok(_) => return,
                            Err(error) => {
                                // The session ended, or the node could not read on.
                                tracing::debug!(node, "a log was cut off: {error}");
                                // Nobody has to be there any more.
                                let _ = sender.send(Err(Cut)).await;
                                return;
                            }
                        },
                        () = sender.closed() => return,
                    }
                }
            });
            Ok(stream)
        })
    }
}

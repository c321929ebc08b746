//! Serves the tunnels that the cloud opens: logs of pods.

use std::sync::Arc;

use daemon::carrier::Tunnel;
use daemon::framing::FrameWriter;
use proto::object::Kind;
use proto::tunnel::{LogRequest, TunnelRequest};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clock::NodeClock;
use crate::link::quic::Tunnels;
use crate::pods::{Clock as _, Folders, logs};
use crate::runtime::{Runtime, Seen, State};
use crate::store::NodeStore;

/// Connections whose tunnels wait to be taken.
pub const CONNECTIONS_MAX: usize = 4;

/// Pieces of a log that wait for the link.
const PIECES_MAX: usize = 4;

/// How a log ends that cannot be read to its end.
const CUT: quinn::VarInt = quinn::VarInt::from_u32(1);

/// Serves tunnels.
#[derive(Debug)]
pub struct Server<R> {
    pub store: NodeStore,
    pub folders: Folders,
    pub runtime: Arc<R>,
    pub clock: NodeClock,
}

impl<R: Runtime> Server<R> {
    /// Runs until stopped.
    pub async fn run(self, mut connections: mpsc::Receiver<Tunnels>, stop: CancellationToken) -> anyhow::Result<()> {
        let server = Arc::new(self);
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                connection = connections.recv() => match connection {
                    Some(tunnels) => {
                        tasks.spawn(Arc::clone(&server).connection(tunnels));
                    }
                    None => stop.cancelled().await,
                },
                Some(_) = tasks.join_next() => {}
            }
        }
    }

    async fn connection(self: Arc<Self>, tunnels: Tunnels) {
        let mut open = JoinSet::new();
        while let Ok((header, tunnel)) = tunnels.accept().await {
            while open.try_join_next().is_some() {}
            let server = Arc::clone(&self);
            open.spawn(async move {
                if let Err(error) = server.tunnel(&header, tunnel).await {
                    tracing::debug!("a tunnel ended: {error:#}");
                }
            });
        }
    }

    async fn tunnel(&self, header: &[u8], tunnel: Tunnel) -> anyhow::Result<()> {
        let mut writer = FrameWriter::new(tunnel.send);
        match TunnelRequest::decode(header) {
            Ok(TunnelRequest::Logs(request)) => self.logs(request, writer, tunnel.receive).await,
            Err(error) => Ok(writer.write(format!("{error}").as_bytes()).await?),
        }
    }

    async fn logs(
        &self,
        request: LogRequest,
        mut writer: FrameWriter<quinn::SendStream>,
        mut receive: quinn::RecvStream,
    ) -> anyhow::Result<()> {
        let pods = self.store.entries(Kind::from("Pod")).await.list;
        let Some(pod) = pods.iter().find(|pod| pod.uid == request.pod) else {
            return Ok(writer.write(b"the pod is not on this node (yet, or any more)").await?);
        };
        let named = ["initContainers", "containers"]
            .iter()
            .flat_map(|list| pod.value.list_at(&["spec", list]))
            .any(|container| container.text_at(&["name"]) == Some(request.container.as_str()));
        if !named {
            let why = format!("container {} is not valid for pod {}", request.container, pod.key.name);
            return Ok(writer.write(why.as_bytes()).await?);
        }
        let folder = self
            .folders
            .pod_logs(&pod.key.namespace, &pod.key.name, pod.uid)
            .join(&request.container);
        let why = |error| format!("container {} of pod {}: {error}", request.container, pod.key.name);
        let attempt = match logs::attempt(&folder, request.previous).await {
            Ok(attempt) => attempt,
            Err(error) => return Ok(writer.write(why(error).as_bytes()).await?),
        };
        let options = options(&request, self.clock.wall().ms);
        let (out, mut pieces) = mpsc::channel(PIECES_MAX);
        let (ended, is_alive) = tokio::sync::watch::channel(true);
        let mut reading = std::pin::pin!(logs::stream(&folder, attempt, options, move || *is_alive.borrow(), out));
        let mut watching = std::pin::pin!(self.until_ended(&request, attempt, ended));
        let mut given_up = std::pin::pin!(async move {
            // The cloud sends nothing: whatever comes is the end.
            let mut nothing = [0; 1];
            let _ = receive.read(&mut nothing).await;
        });
        // Each is asked until it has answered, and not again: the reading, and who tells it that nothing more is written.
        let (mut is_read, mut is_watched) = (false, !request.follow);
        // Whether there is a log shows with its first piece, or with the end of the reading.
        let mut next = loop {
            tokio::select! {
                biased;
                piece = pieces.recv() => break piece,
                read = &mut reading, if !is_read => {
                    if let Err(error) = read {
                        return Ok(writer.write(why(error).as_bytes()).await?);
                    }
                    is_read = true;
                }
                () = &mut watching, if !is_watched => is_watched = true,
                // The cloud gave up.
                () = &mut given_up => return Ok(()),
            }
        };
        writer.write(b"").await?;
        let mut out = Out(Some(writer.into_inner()));
        while let Some(piece) = next {
            out.write(&piece).await?;
            next = loop {
                tokio::select! {
                    piece = pieces.recv() => break piece,
                    read = &mut reading, if !is_read => {
                        is_read = true;
                        // Dropped without its end: nobody is to take it for the whole.
                        read?;
                    }
                    () = &mut watching, if !is_watched => is_watched = true,
                    () = &mut given_up => return Ok(()),
                }
            };
        }
        if !is_read {
            reading.await?;
        }
        out.finish()
    }

    /// Watches for the end of the attempt that is being read: the next one's log is another.
    async fn until_ended(&self, request: &LogRequest, attempt: u32, ended: tokio::sync::watch::Sender<bool>) {
        let mut events = self.runtime.subscribe();
        loop {
            let listed = self.runtime.list_pod(request.pod).await;
            if let Ok(seen) = &listed {
                let is_read =
                    |seen: &&Seen| seen.labels.container == request.container && seen.labels.attempt == attempt;
                let read = seen.iter().find(is_read);
                if !read.is_some_and(|seen| matches!(seen.state, State::Created | State::Running { .. })) {
                    ended.send_replace(false);
                    return;
                }
            }
            tokio::select! {
                event = events.recv() => if event.is_none() {
                    ended.send_replace(false);
                    return;
                },
                // What goes while it is listed fails the listing, and may have had its last event.
                () = tokio::time::sleep(logs::FOLLOW_INTERVAL), if listed.is_err() => {}
            }
        }
    }
}

/// A log on its way. What ends without having been finished, for whatever reason, ends with an error over there.
struct Out(Option<quinn::SendStream>);

impl Out {
    async fn write(&mut self, piece: &[u8]) -> anyhow::Result<()> {
        match &mut self.0 {
            Some(stream) => Ok(stream.write_all(piece).await?),
            None => Ok(()),
        }
    }

    fn finish(mut self) -> anyhow::Result<()> {
        match self.0.take() {
            Some(mut stream) => Ok(stream.finish()?),
            None => Ok(()),
        }
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        if let Some(stream) = &mut self.0 {
            // It may be gone with its connection.
            let _ = stream.reset(CUT);
        }
    }
}

fn options(request: &LogRequest, now_ms: i64) -> logs::Options {
    let since_s = request.since_s.and_then(|seconds| i64::try_from(seconds).ok());
    let young = since_s.map(|seconds| now_ms.div_euclid(1000).saturating_sub(seconds));
    logs::Options {
        follow: request.follow,
        timestamps: request.timestamps,
        tail: request
            .tail_lines
            .map(|lines| usize::try_from(lines).unwrap_or(usize::MAX)),
        since: young.or_else(|| proto::time::parse_rfc3339(request.since.as_deref()?)),
        bytes_max: request.limit_bytes,
    }
}

//! A connection between the two cores over QUIC: one stream of frames, and further streams for tunnels.
//!
//! The side that dials opens the first stream, which carries the session. The hub opens every later one, a tunnel:
//! its first frame is the header, then the bytes flow as they are. Limits and timers of the transport stand here for
//! both sides, because they only work when they fit together.

use std::sync::Arc;
use std::time::Duration;

use proto::time::Mono;
use quinn::{
    AckFrequencyConfig, Connection, ConnectionError, IdleTimeout, RecvStream, SendStream, TransportConfig, VarInt,
};

use crate::framing::{FrameReader, FrameWriter, FramingError};

/// The protocol both sides name in the handshake (ALPN).
pub const ALPN: &[u8] = b"edgehold/1";

/// How often a node says that it lives, when nothing else does: on a link where bytes cost nothing much.
pub const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// The same on a metered link.
pub const KEEP_ALIVE_METERED: Duration = Duration::from_secs(300);

/// The longest keep-alive a node may be configured with; the hub's own idle timeout must exceed it.
pub const KEEP_ALIVE_MAX: Duration = KEEP_ALIVE_METERED;

/// What the hub would wait at most. The shorter of both sides' offers counts, and the node's is its
/// [`idle`] time, so this bounds only what a node may ask for.
pub const IDLE_MAX: Duration = Duration::from_secs(2 * KEEP_ALIVE_MAX.as_secs());

/// Tunnels open at one time on one connection.
pub const TUNNELS_MAX: u32 = 16;

/// How long opening a connection or its first stream may take.
pub const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// How long the other side may keep back an acknowledgement, and for how many datagrams, so that it rides on what the
/// session answers anyway: a report is acknowledged once it is durable, some milliseconds later. A datagram that is lost
/// is sent again this much later.
const ACK_DELAY: Duration = Duration::from_millis(100);
const ACK_DATAGRAMS: u32 = 10;

const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
const SEND_WINDOW_BYTES: u64 = 256 * 1024;

/// How long nothing may be heard from the other side before it counts as gone: one keep-alive, and a third of one in
/// which it may be lost and sent again.
pub fn idle(keep_alive: Duration) -> Duration {
    keep_alive + keep_alive / 3
}

/// The transport of a node that says it lives every `keep_alive`.
pub fn node_transport(keep_alive: Duration, metered: bool) -> Arc<TransportConfig> {
    let keep_alive = keep_alive.min(KEEP_ALIVE_MAX);
    let mut transport = transport(idle(keep_alive));
    transport.keep_alive_interval(Some(keep_alive));
    transport.max_concurrent_bidi_streams(VarInt::from_u32(TUNNELS_MAX));
    if metered {
        // Probing costs 6 KB in each direction per connection.
        transport.mtu_discovery_config(None);
    }
    Arc::new(transport)
}

/// The transport of the hub: nodes say when they live, it never asks.
pub fn hub_transport() -> Arc<TransportConfig> {
    let mut transport = transport(IDLE_MAX);
    transport.keep_alive_interval(None);
    transport.max_concurrent_bidi_streams(VarInt::from_u32(1));
    // The hub's own probes would be paid for by the node.
    transport.mtu_discovery_config(None);
    Arc::new(transport)
}

fn transport(idle: Duration) -> TransportConfig {
    let mut acks = AckFrequencyConfig::default();
    acks.max_ack_delay(Some(ACK_DELAY))
        .ack_eliciting_threshold(VarInt::from_u32(ACK_DATAGRAMS));
    let mut transport = TransportConfig::default();
    transport
        .ack_frequency_config(Some(acks))
        .max_idle_timeout(IdleTimeout::try_from(idle).ok())
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
        .send_window(SEND_WINDOW_BYTES)
        // A connection keeps a buffer for all datagrams that it hands to the kernel at once: 13 KB, which a hub has once
        // for each of its nodes, and which is of use to somebody who sends megabytes.
        .enable_segmentation_offload(false)
        .datagram_receive_buffer_size(None);
    transport
}

/// How long the peer has been silent, from the count of datagrams received.
///
/// QUIC's own idle timer starts anew when this side speaks, so on a dead path it ends up to a keep-alive later than
/// the silence does. Asked whenever the connection did something, and when its own answer would run out, this tells a
/// node in time that its path is dead, and wakes nobody for it while there is something to hear.
#[derive(Debug, Clone, Copy)]
pub struct Silence {
    received: u64,
    heard: Mono,
}

impl Silence {
    pub fn new(now: Mono) -> Self {
        Self { received: 0, heard: now }
    }

    /// How long nothing was received, as far as this was asked.
    pub fn lasted(&mut self, now: Mono, received: u64) -> Duration {
        if received != self.received {
            self.received = received;
            self.heard = now;
        }
        now.since(self.heard)
    }
}

/// Datagrams received on a connection so far.
pub fn received(connection: &Connection) -> u64 {
    connection.stats().udp_rx.datagrams
}

/// Why one side closed a connection. Only ever appended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloseCode(pub u32);

impl CloseCode {
    /// The session is over and nothing is wrong.
    pub const DONE: Self = Self(0);
    /// A frame longer than the limit.
    pub const OVERSIZE: Self = Self(1);
    /// A frame that is none, or came out of turn.
    pub const PROTOCOL: Self = Self(2);
    /// The enrolment was revoked: there is no point in dialling again with this key.
    pub const REVOKED: Self = Self(3);
    /// Another connection of the same node took over.
    pub const REPLACED: Self = Self(4);
    /// Two machines hold this key.
    pub const DUPLICATE: Self = Self(5);
    /// The process stops; dial again.
    pub const SHUTDOWN: Self = Self(6);
    /// Too much to do; dial again later.
    pub const BUSY: Self = Self(7);
    /// The first stream did not come in time.
    pub const SILENT: Self = Self(8);
}

/// Why nothing more comes or goes.
#[derive(Debug, thiserror::Error)]
pub enum CarrierError {
    #[error("peer closed the connection with code {}", .0.0)]
    Closed(CloseCode),
    #[error("cannot carry a frame")]
    Frame(#[source] FramingError),
    #[error("connection lost")]
    Lost(#[source] ConnectionError),
}

impl CarrierError {
    fn of(error: ConnectionError) -> Self {
        match error {
            ConnectionError::ApplicationClosed(close) => Self::Closed(CloseCode(
                u32::try_from(close.error_code.into_inner()).unwrap_or(u32::MAX),
            )),
            other => Self::Lost(other),
        }
    }

    /// The code with which the peer closed the connection, if it did.
    pub fn code(&self) -> Option<CloseCode> {
        match self {
            Self::Closed(code) => Some(*code),
            Self::Frame(_) | Self::Lost(_) => None,
        }
    }
}

impl From<ConnectionError> for CarrierError {
    fn from(error: ConnectionError) -> Self {
        Self::of(error)
    }
}

/// The session's stream of frames on one connection.
#[derive(Debug)]
pub struct Carrier {
    connection: Connection,
    writer: FrameWriter<SendStream>,
    reader: FrameReader<RecvStream>,
}

impl Carrier {
    /// The session of a connection this side dialled. The peer learns of the stream with the first frame.
    pub async fn open(connection: Connection) -> Result<Self, CarrierError> {
        let streams = connection.open_bi().await?;
        Ok(Self::new(connection, streams))
    }

    /// The session of a connection the peer dialled; waits for its first frame.
    pub async fn accept(connection: Connection) -> Result<Self, CarrierError> {
        let streams = connection.accept_bi().await?;
        Ok(Self::new(connection, streams))
    }

    fn new(connection: Connection, (send, receive): (SendStream, RecvStream)) -> Self {
        Self {
            connection,
            writer: FrameWriter::new(send),
            reader: FrameReader::new(receive),
        }
    }

    /// Sends one frame; waits while the peer reads slower than this side writes. When this is abandoned, the frame is
    /// either not begun, or finished by the next call.
    pub async fn send(&mut self, frame: &[u8]) -> Result<(), CarrierError> {
        let sent = self.writer.write(frame).await;
        sent.map_err(|error| explain(&self.connection, error))
    }

    /// The next frame; `None` when the peer finished its stream. May be abandoned and called again.
    pub async fn recv(&mut self) -> Result<Option<Vec<u8>>, CarrierError> {
        let read = self.reader.read().await;
        read.map_err(|error| explain(&self.connection, error))
    }

    /// Closes the connection; what was not yet delivered is lost.
    pub fn close(&self, code: CloseCode) {
        close(&self.connection, code);
    }

    /// The connection, for tunnels and addresses.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

/// Closes a connection with a code of ours.
pub fn close(connection: &Connection, code: CloseCode) {
    connection.close(VarInt::from_u32(code.0), b"");
}

/// The peer's reason if it closed the connection, else what went wrong here. A frame over the limit ends the connection.
fn explain(connection: &Connection, error: FramingError) -> CarrierError {
    match (&error, connection.close_reason()) {
        (FramingError::Oversize(_), None) => {
            close(connection, CloseCode::OVERSIZE);
            CarrierError::Frame(error)
        }
        (FramingError::Torn, None) => {
            close(connection, CloseCode::PROTOCOL);
            CarrierError::Frame(error)
        }
        (FramingError::Oversize(_), Some(_)) | (FramingError::Io(_), None) => CarrierError::Frame(error),
        (FramingError::Io(_) | FramingError::Torn, Some(reason)) => CarrierError::of(reason),
    }
}

/// A stream of plain bytes beside the session: logs, a terminal, a port.
#[derive(Debug)]
pub struct Tunnel {
    pub send: SendStream,
    pub receive: RecvStream,
}

impl Tunnel {
    /// Opens a tunnel and says what it is for; waits while [`TUNNELS_MAX`] are open.
    pub async fn open(connection: &Connection, header: &[u8]) -> Result<Self, CarrierError> {
        let (send, receive) = connection.open_bi().await?;
        let mut writer = FrameWriter::new(send);
        let written = writer.write(header).await;
        written.map_err(|error| explain(connection, error))?;
        let send = writer.into_inner();
        Ok(Self { send, receive })
    }

    /// The next tunnel the peer opens, with its header. To be called in a loop of its own: a peer that opens a stream
    /// and sends no header holds it up until `CONNECT_WAIT`, when that stream alone is dropped.
    pub async fn accept(connection: &Connection) -> Result<(Vec<u8>, Self), CarrierError> {
        loop {
            let (send, receive) = connection.accept_bi().await?;
            let mut reader = FrameReader::new(receive);
            match tokio::time::timeout(CONNECT_WAIT, reader.read()).await {
                Ok(Ok(Some(header))) => {
                    let receive = reader.into_inner();
                    return Ok((header, Self { send, receive }));
                }
                Ok(Err(error)) => return Err(explain(connection, error)),
                Ok(Ok(None)) | Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fit_together() {
        for keep_alive in [KEEP_ALIVE, KEEP_ALIVE_METERED, Duration::from_millis(300)] {
            let idle = idle(keep_alive);
            assert!(idle < 2 * keep_alive, "a dead path is seen too late");
            assert!(keep_alive < idle, "a connection dies between two beats");
            assert!(idle < IDLE_MAX, "the hub gives up before the node");
        }
    }

    #[test]
    fn silence_counts_from_the_last_datagram_seen() {
        let mut silence = Silence::new(Mono(0));
        let mut check = |now, received, lasted| {
            assert_eq!(silence.lasted(Mono(now), received), Duration::from_millis(lasted));
        };
        check(10, 0, 10);
        check(20, 5, 0);
        check(30, 5, 10);
        check(90, 5, 70);
        check(100, 6, 0);
    }
}

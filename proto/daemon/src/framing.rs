//! Frames on a stream of bytes: a length of two bytes, big endian, then the frame.
//!
//! Reading and writing may be abandoned at any await (in a `select!`) and taken up again: what was read or written so
//! far is kept here, not in the future.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The largest frame. The length field could say more; what does is refused before it is read.
pub const FRAME_BYTES_MAX: usize = 16 * 1024;

const PREFIX_BYTES: usize = 2;

/// Why a frame did not come or go.
#[derive(Debug, thiserror::Error)]
pub enum FramingError {
    #[error("frame of {0} bytes exceeds the limit of {FRAME_BYTES_MAX}")]
    Oversize(usize),
    #[error("stream ended inside a frame")]
    Torn,
    #[error("cannot read or write the stream")]
    Io(#[source] io::Error),
}

/// Takes frames from a stream. Between frames it holds no memory beyond itself.
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: R,
    prefix: [u8; PREFIX_BYTES],
    body: Vec<u8>,
    filled: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub fn new(stream: R) -> Self {
        Self {
            stream,
            prefix: [0; PREFIX_BYTES],
            body: Vec::new(),
            filled: 0,
        }
    }

    /// The next frame; `None` when the stream ended between two frames.
    pub async fn read(&mut self) -> Result<Option<Vec<u8>>, FramingError> {
        loop {
            let room = match self.filled {
                ..PREFIX_BYTES => &mut self.prefix[self.filled..],
                _ => &mut self.body[self.filled - PREFIX_BYTES..],
            };
            if !room.is_empty() {
                let read = self.stream.read(room).await.map_err(FramingError::Io)?;
                match (read, self.filled) {
                    (0, 0) => return Ok(None),
                    (0, _) => return Err(FramingError::Torn),
                    _ => self.filled += read,
                }
                if self.filled == PREFIX_BYTES {
                    let length = usize::from(u16::from_be_bytes(self.prefix));
                    if length > FRAME_BYTES_MAX {
                        return Err(FramingError::Oversize(length));
                    }
                    self.body = vec![0; length];
                }
            }
            if self.filled >= PREFIX_BYTES && self.filled == PREFIX_BYTES + self.body.len() {
                self.filled = 0;
                tracing::trace!(bytes = self.body.len(), "frame received");
                return Ok(Some(std::mem::take(&mut self.body)));
            }
        }
    }

    /// The stream, for what follows the frames on it. Whatever was read of an unfinished frame is lost.
    pub fn into_inner(self) -> R {
        self.stream
    }
}

/// Puts frames on a stream.
#[derive(Debug)]
pub struct FrameWriter<W> {
    stream: W,
    pending: Vec<u8>,
    written: usize,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    pub fn new(stream: W) -> Self {
        Self { stream, pending: Vec::new(), written: 0 }
    }

    /// Writes one frame. When this is abandoned, the frame is either not begun, or finished by the next call.
    pub async fn write(&mut self, frame: &[u8]) -> Result<(), FramingError> {
        let length = u16::try_from(frame.len())
            .ok()
            .filter(|_| frame.len() <= FRAME_BYTES_MAX)
            .ok_or(FramingError::Oversize(frame.len()))?;
        self.flush().await?;
        self.pending.reserve_exact(PREFIX_BYTES + frame.len());
        self.pending.extend_from_slice(&length.to_be_bytes());
        self.pending.extend_from_slice(frame);
        tracing::trace!(bytes = frame.len(), "frame sent");
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), FramingError> {
        while self.written < self.pending.len() {
            let written = self.stream.write(&self.pending[self.written..]).await;
            match written.map_err(FramingError::Io)? {
                0 => return Err(FramingError::Io(io::ErrorKind::WriteZero.into())),
                some => self.written += some,
            }
        }
        // An idle connection holds no buffer.
        self.pending = Vec::new();
        self.written = 0;
        Ok(())
    }

    pub fn get_mut(&mut self) -> &mut W {
        &mut self.stream
    }

    /// The stream, for what follows the frames on it.
    pub fn into_inner(self) -> W {
        self.stream
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::duplex;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn frames_come_as_they_went() {
        let (near, far) = duplex(64 * 1024);
        let (mut writer, mut reader) = (FrameWriter::new(near), FrameReader::new(far));
        for frame in [vec![], vec![7; 1], vec![1; FRAME_BYTES_MAX]] {
            writer.write(&frame).await.unwrap();
            assert_eq!(reader.read().await.unwrap(), Some(frame));
        }
        drop(writer);
        assert!(reader.read().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn the_limit_holds_on_both_sides() {
        let (near, far) = duplex(64);
        let mut writer = FrameWriter::new(near);
        let long = vec![0; FRAME_BYTES_MAX + 1];
        assert!(matches!(writer.write(&long).await, Err(FramingError::Oversize(16_385))));
        writer.get_mut().write_all(&[0x40, 0x01]).await.unwrap();
        assert!(matches!(
            FrameReader::new(far).read().await,
            Err(FramingError::Oversize(16_385))
        ));
    }

    #[tokio::test]
    async fn an_end_inside_a_frame_is_an_error() {
        for torn in [&[0u8][..], &[0, 2], &[0, 2, 9]] {
            let (mut near, far) = duplex(64);
            near.write_all(torn).await.unwrap();
            drop(near);
            assert!(matches!(FrameReader::new(far).read().await, Err(FramingError::Torn)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn abandoned_calls_lose_nothing() {
        const WAIT: Duration = Duration::from_millis(1);
        // A pipe of three bytes: both sides are abandoned in the middle of frames, again and again.
        let (near, far) = duplex(3);
        let (mut writer, mut reader) = (FrameWriter::new(near), FrameReader::new(far));
        assert!(timeout(WAIT, writer.write(b"first")).await.is_err());
        assert!(timeout(WAIT, reader.read()).await.is_err());
        assert!(timeout(WAIT, writer.write(b"second")).await.is_err());
        let mut read = Vec::new();
        let write = async { writer.write(b"third").await.unwrap() };
        let take = async {
            while read.len() < 2 {
                read.push(reader.read().await.unwrap().unwrap());
            }
        };
        tokio::join!(write, take);
        // The second call was abandoned before it began.
        assert_eq!(read, [b"first".to_vec(), b"third".to_vec()]);
    }
}

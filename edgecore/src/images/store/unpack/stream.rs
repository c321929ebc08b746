//! A layer's bytes: as they were sent, and as they are inside; both are digested on the way.
//!
//! What it is packed with is seen by its first bytes, not believed from the manifest: gzip (of one or more members),
//! zstd (of one or more frames), or nothing.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ring::digest;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// What a zstd frame may ask to be remembered: what `zstd --ultra -22` asks for.
pub(super) const WINDOW_BYTES_MAX: u64 = 128 * 1024 * 1024;

const BUFFER_BYTES: usize = 64 * 1024;

/// Counts and digests what is read through it.
pub(super) struct Digesting<R> {
    inner: R,
    state: Rc<RefCell<State>>,
    bytes_max: u64,
}

struct State {
    context: digest::Context,
    bytes: u64,
}

/// The digest of what was read so far, also after the reader is gone.
#[derive(Clone)]
pub(super) struct Seal(Rc<RefCell<State>>);

impl Seal {
    pub(super) fn digest(&self) -> String {
        let digest = self.0.borrow().context.clone().finish();
        digest.as_ref().iter().fold("sha256:".to_owned(), |mut text, byte| {
            text.push_str(&format!("{byte:02x}"));
            text
        })
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal").field("bytes", &self.0.borrow().bytes).finish()
    }
}

impl<R> fmt::Debug for Digesting<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Digesting")
            .field("bytes", &self.state.borrow().bytes)
            .finish_non_exhaustive()
    }
}

impl<R: Read> Digesting<R> {
    /// More than `bytes_max` bytes are an error.
    pub(super) fn new(inner: R, bytes_max: u64) -> (Self, Seal) {
        let context = digest::Context::new(&digest::SHA256);
        let state = Rc::new(RefCell::new(State { context, bytes: 0 }));
        (Self { inner, state: state.clone(), bytes_max }, Seal(state))
    }
}

impl<R: Read> Read for Digesting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let mut state = self.state.borrow_mut();
        state.context.update(&buffer[..count]);
        state.bytes += u64::try_from(count).expect("a buffer");
        if state.bytes > self.bytes_max {
            let reason = format!("it is larger than {} bytes when unpacked", self.bytes_max);
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        Ok(count)
    }
}

/// What is inside of what `sent` brings.
pub(super) fn unpacked<'a>(sent: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut sent = BufReader::with_capacity(BUFFER_BYTES, sent);
    let start = sent.fill_buf()?;
    Ok(if start.starts_with(&[0x1f, 0x8b]) {
        Box::new(MultiGzDecoder::new(sent))
    } else if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) || is_skippable(start) {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW_BYTES_MAX);
        Box::new(Frames { decoder, sent })
    } else {
        Box::new(sent)
    })
}

/// A zstd frame that holds nothing of the content.
fn is_skippable(start: &[u8]) -> bool {
    matches!(start, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// The frames of a zstd stream, one after the other.
struct Frames<R> {
    decoder: FrameDecoder,
    sent: R,
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if self.decoder.is_finished() {
                if self.sent.fill_buf()?.is_empty() {
                    return Ok(0);
                }
                match self.decoder.reset(&mut self.sent) {
                    Ok(()) => {}
                    Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                        length, ..
                    })) => {
                        let mut skipped = self.sent.by_ref().take(u64::from(length));
                        if io::copy(&mut skipped, &mut io::sink())? < u64::from(length) {
                            return Err(io::ErrorKind::UnexpectedEof.into());
                        }
                    }
                    Err(error) => return Err(damaged(error)),
                }
                continue;
            }
            self.decoder
                .decode_blocks(&mut self.sent, BlockDecodingStrategy::UptoBlocks(1))
                .map_err(damaged)?;
        }
    }
}

fn damaged(error: FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

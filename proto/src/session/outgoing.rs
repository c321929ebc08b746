//! Filling frames: items are packed together up to the limit, and a body too large for one frame goes in chunks, one to a
//! frame, so that smaller things overtake it.

use crate::frame::{Body, FRAME_MAX};

/// Room for the items of a frame; the rest is for what stands around them.
const ROOM: usize = FRAME_MAX - 64;

/// What an item takes beside its body and key, at most.
const ITEM: usize = 48;

/// Largest body that travels whole.
pub(super) const WHOLE_MAX: usize = 8 * 1024;

/// Bytes of a chunk: half a frame, so that there is room for small items beside it.
pub(super) const CHUNK: usize = 8 * 1024;

/// The items of the next frame.
#[derive(Debug)]
pub(super) struct Packing<I> {
    pub(super) items: Vec<I>,
    size: usize,
}

impl<I> Default for Packing<I> {
    fn default() -> Self {
        Self { items: Vec::new(), size: 0 }
    }
}

impl<I> Packing<I> {
    /// Whether an item of this many bytes still fits.
    pub(super) fn fits(&self, bytes: usize) -> bool {
        self.size + bytes + ITEM <= ROOM
    }

    /// Whether the next item may well not fit: a chunk would not.
    pub(super) fn is_filled(&self) -> bool {
        !self.fits(CHUNK)
    }

    /// Adds an item that was found to fit.
    pub(super) fn push(&mut self, item: I, bytes: usize) {
        debug_assert!(self.fits(bytes), "the frame was asked whether the item fits");
        self.size += bytes + ITEM;
        self.items.push(item);
    }
}

/// A body on its way out in chunks, and what closes it.
#[derive(Debug)]
pub(super) struct Large<C> {
    bytes: Vec<u8>,
    offset: usize,
    patch: bool,
    /// What the sender needs to make the closing item.
    pub(super) closing: C,
}

impl<C> Large<C> {
    /// Takes a body that is too large to go whole.
    pub(super) fn new(body: Body, closing: C) -> Self {
        let (bytes, patch) = match body {
            Body::Full(bytes) => (bytes, false),
            Body::Patch(bytes) => (bytes, true),
            Body::Like { .. } | Body::FullChunks | Body::PatchChunks => {
                unreachable!("only whole bodies against their own base are cut into chunks")
            }
        };
        Self { bytes, offset: 0, patch, closing }
    }

    /// The next chunk; `None` when all went.
    pub(super) fn chunk(&mut self) -> Option<Vec<u8>> {
        let rest = &self.bytes[self.offset..];
        let chunk = &rest[..rest.len().min(CHUNK)];
        self.offset += chunk.len();
        (!chunk.is_empty()).then(|| chunk.to_vec())
    }

    /// Takes back the last chunk, which found no room in its frame.
    pub(super) fn put_back(&mut self, bytes: usize) {
        self.offset -= bytes;
    }

    pub(super) fn body(&self) -> Body {
        if self.patch {
            Body::PatchChunks
        } else {
            Body::FullChunks
        }
    }
}

//! The cloud core's allocator, the same with every C library.
//!
//! What a connected node takes is small pieces and many of them. musl's own allocator rounds them up to steps, and QUIC's two
//! largest fall just above one: a fifth of all that a node takes. dlmalloc has no steps. What is large (a list, a body, QUIC's
//! buffer for what comes in) is the C library's, which maps it: it goes back to the kernel when it is free, and takes no
//! memory where it was never touched.
#![expect(unsafe_code, reason = "an allocator's interface is")]

use std::alloc::{GlobalAlloc, Layout, System};

use dlmalloc::GlobalDlmalloc;

/// From here on a piece is the C library's: where musl begins to map each one.
const LARGE_BYTES: usize = 128 * 1024;

#[derive(Debug)]
pub struct Allocator;

/// Who has the pieces of a size: told from it alone, so that who frees one knows as well.
fn is_large(bytes: usize) -> bool {
    bytes >= LARGE_BYTES
}

// SAFETY: each call goes on to one of two allocators that keep the rules, and always to the same one for a layout.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are theirs.
        unsafe {
            if is_large(layout.size()) {
                System.alloc(layout)
            } else {
                GlobalDlmalloc.alloc(layout)
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            if is_large(layout.size()) {
                System.alloc_zeroed(layout)
            } else {
                GlobalDlmalloc.alloc_zeroed(layout)
            }
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the piece was made with this layout, and so by whom it goes back to.
        unsafe {
            if is_large(layout.size()) {
                System.dealloc(pointer, layout);
            } else {
                GlobalDlmalloc.dealloc(pointer, layout);
            }
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the piece was made with this layout; where it changes hands, the new one has room for what both hold, and
        // they do not overlap. The caller promises that the new size fits the alignment.
        unsafe {
            match (is_large(layout.size()), is_large(bytes)) {
                (true, true) => System.realloc(pointer, layout, bytes),
                (false, false) => GlobalDlmalloc.realloc(pointer, layout, bytes),
                _ => {
                    let new = self.alloc(Layout::from_size_align_unchecked(bytes, layout.align()));
                    if !new.is_null() {
                        new.copy_from_nonoverlapping(pointer, layout.size().min(bytes));
                        self.dealloc(pointer, layout);
                    }
                    new
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of sizes on both sides of the limit, at it and just below, grown and shrunk through it, keep what is in them.
    #[test]
    fn what_is_in_a_piece_stays_while_its_size_changes() {
        let sizes = [
            1,
            100,
            LARGE_BYTES - 1,
            LARGE_BYTES,
            LARGE_BYTES + 1,
            3 * LARGE_BYTES,
            8,
        ];
        for align in [1, 16, 4096] {
            for from in sizes {
                for to in sizes {
                    let layout = Layout::from_size_align(from, align).unwrap();
                    // SAFETY: sizes are not zero, every piece goes back with the layout it has by then.
                    unsafe {
                        let pointer = Allocator.alloc_zeroed(layout);
                        assert!(std::slice::from_raw_parts(pointer, from).iter().all(|byte| *byte == 0));
                        for at in 0..from {
                            pointer.add(at).write(u8::try_from(at % 251).unwrap());
                        }
                        let pointer = Allocator.realloc(pointer, layout, to);
                        let kept = std::slice::from_raw_parts(pointer, from.min(to));
                        assert!(kept.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at % 251));
                        assert_eq!(pointer.align_offset(align), 0, "{from} to {to}");
                        Allocator.dealloc(pointer, Layout::from_size_align(to, align).unwrap());
                    }
                }
            }
        }
    }
}

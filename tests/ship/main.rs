//! What is shipped: what is in packages and images, and how packages are installed, upgraded and taken away.
//!
//! The modules `packages` and `images` look at what is made, and need no programs but headers of some. `installed` needs
//! root, debootstrap, and the real static programs of `scripts/cross`.
#![expect(clippy::unwrap_used, reason = "what supports a test fails by panicking, too")]

mod images;
mod installed;
mod packages;

//! The node's own images: what runs containers without a daemon keeps its images here.
//!
//! Manifests and configurations are kept as they came, by digest. A layer is unpacked once for each stack it is on
//! and its packed form is never kept, so that a card holds each layer once. A layer counts when it is unpacked, matches both
//! of its digests, is synced and has its record; a name means its old image until the new one is complete. Whatever
//! is cut off at any moment leaves the old or the new, and what is left over counts for nothing and is taken away by
//! [`ImageStore::collect`], which follows every image that came and every root that went.
//!
//! Why chains, not single layers: what a layer means depends on what it is on. `lib/x` goes into `usr/lib` where `lib`
//! is a link below, a hard link may reach down, and a folder nobody described looks as it does below.
//!
//! Where folders can be seen through each other (overlayfs) a layer holds only what it changes, and a container's
//! root is a mount. Elsewhere an image is one folder with everything in it, and a container's root a copy of that:
//! it costs the image once more for every container, and says so.

mod collect;
mod copy;
mod folder;
mod overlay;
mod pull;
mod root;
pub mod unpack;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use daemon::files::FileError;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

pub use self::collect::Collected;
use self::folder::Folder;
pub use self::root::Root;
use super::{Config, Digest, ImageError, Manifest, Reference};

/// An image is called by the digest of its configuration.
pub type ImageId = Digest;

/// How a container's root is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RootKind {
    /// Layers seen through each other.
    Overlay,
    /// A copy of all of them.
    Copy,
}

/// An image that is completely there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// `sha256:…` of its configuration.
    pub id: ImageId,
    pub config: Config,
    /// What it weighed as it was fetched.
    pub size_bytes: u64,
    /// The chains of its layers, topmost first.
    layers: Vec<Digest>,
}

/// The images in one folder. Several processes may use it at once.
#[derive(Debug, Clone)]
pub struct ImageStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: Folder,
    /// This program, to be started as [`unpack::main`].
    program: PathBuf,
    kind: RootKind,
    /// One image at a time: a small machine's link and card are the bottleneck, and it keeps the peak low.
    turn: Semaphore,
}

impl ImageStore {
    /// Opens the images in `folder`, made when it is not there, and finds out how roots are made here.
    pub fn open(folder: PathBuf, program: PathBuf) -> Result<Self, StoreError> {
        let folder = Folder::open(folder)?;
        let staging = folder.staging()?;
        let kind = if overlay::works(&staging) {
            RootKind::Overlay
        } else {
            RootKind::Copy
        };
        folder::remove_tree(&staging)?;
        if kind == RootKind::Copy {
            tracing::warn!(
                folder = %folder.path().display(),
                "overlayfs does not work in this folder: every container costs a copy of its image; load the overlay \
                 module, or put the data folder on a file system such as ext4"
            );
        }
        Ok(Self::with(folder, program, kind))
    }

    /// The same with no look at what the machine can do.
    pub fn open_as(folder: PathBuf, program: PathBuf, kind: RootKind) -> Result<Self, StoreError> {
        Ok(Self::with(Folder::open(folder)?, program, kind))
    }

    fn with(folder: Folder, program: PathBuf, kind: RootKind) -> Self {
        let turn = Semaphore::new(1);
        Self { shared: Arc::new(Shared { folder, program, kind, turn }) }
    }

    /// How roots are made here.
    pub fn kind(&self) -> RootKind {
        self.shared.kind
    }

    /// The image a manifest's name means, if it is completely there.
    pub fn image(&self, name: &str) -> Result<Option<Stored>, StoreError> {
        let reference = Reference::parse(name).map_err(image_error(name))?;
        match self.shared.folder.name(&reference.to_string())? {
            Some(name) => self.stored(&name.manifest),
            None => Ok(None),
        }
    }

    /// The names there are, also of what is on its way, each with its image if that is completely there.
    pub fn names(&self) -> Result<Vec<(String, Option<Stored>)>, StoreError> {
        let mut names = self.shared.folder.names()?;
        for name in self.shared.folder.incoming()? {
            if names.iter().all(|known| known.name != name.name) {
                names.push(name);
            }
        }
        names
            .into_iter()
            .map(|name| Ok((name.name, self.stored(&name.manifest)?)))
            .collect()
    }

    /// Forgets a name; says whether it was known. What only it needed is taken away by the next [`ImageStore::collect`].
    pub fn forget(&self, name: &str) -> Result<bool, StoreError> {
        let reference = Reference::parse(name).map_err(image_error(name))?;
        self.shared.folder.forget(&reference.to_string())
    }

    fn stored(&self, manifest: &Digest) -> Result<Option<Stored>, StoreError> {
        let folder = &self.shared.folder;
        let Some(bytes) = folder.blob(manifest)? else {
            return Ok(None);
        };
        let known = image_error(manifest.as_str());
        let manifest = Manifest::parse(&bytes).map_err(&known)?;
        let Some(bytes) = folder.blob(&manifest.config.digest)? else {
            return Ok(None);
        };
        let config = Config::parse(&bytes).map_err(&known)?;
        let layers = match config.chain_ids().last() {
            Some(top) => folder.stack(top)?,
            None => Some(Vec::new()),
        };
        let size_bytes = manifest.size_bytes();
        Ok(layers.map(|layers| Stored { id: manifest.config.digest, config, size_bytes, layers }))
    }
}

/// Why the image store could not do something.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("image {image}")]
    Image {
        image: String,
        #[source]
        source: ImageError,
    },
    /// The image is wrong; nothing on this machine changes that.
    #[error("image {image}: layer {layer}: {reason}")]
    Layer { image: String, layer: String, reason: String },
    /// The machine would not, or not this time.
    #[error("image {image}: unpacking layer {layer}: {reason}")]
    Unpack { image: String, layer: String, reason: String },
    #[error("{}: the disk is full; {}", path.display(), super::NO_ROOM)]
    DiskFull { path: PathBuf },
    #[error("{} is damaged", path.display())]
    Record {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{} is of version {version}: a newer edge core wrote it; install that again, or delete the file", path.display())]
    Newer { path: PathBuf, version: u32 },
    #[error("the layers of the root in {} are not all there", folder.display())]
    Missing { folder: PathBuf },
    #[error("{action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    File(FileError),
}

impl From<FileError> for StoreError {
    fn from(error: FileError) -> Self {
        let full = match &error {
            FileError::Write { path, source }
            | FileError::Rename { path, source }
            | FileError::Folder { path, source } => is_full(source).then(|| path.clone()),
            FileError::Name { .. } | FileError::Locked { .. } | FileError::Lock { .. } => None,
        };
        full.map_or(Self::File(error), |path| Self::DiskFull { path })
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn image_error(image: &str) -> impl Fn(ImageError) -> StoreError + use<> {
    let image = image.to_owned();
    move |source| StoreError::Image { image: image.clone(), source }
}

fn io_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> StoreError + use<> {
    folder::io_error(action, path)
}

#[cfg(test)]
mod tests;

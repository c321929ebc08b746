//! Images: what they are called, what they are made of, and where they come from.
//!
//! Nothing here knows a container runtime. A [`Source`], a registry or an archive, hands out documents (indexes,
//! manifests, configurations) and layers by digest; the runtime takes them in. Documents are checked against their
//! digest here; whoever takes in a layer checks its digest when it is complete.
//!
//! Absent on purpose: pushing, signatures, `sha512` digests, schema 1 manifests.

pub mod archive;
pub mod manifest;
pub mod reference;
pub mod registry;
pub mod store;
mod tar;
pub mod trust;

use std::io;

use hyper::body::Bytes;

pub use self::archive::Archive;
pub use self::manifest::{Config, Descriptor, Digest, Document, Host, Manifest};
pub use self::reference::Reference;
pub use self::registry::Registry;
pub use self::store::ImageStore;
pub use self::trust::{Clock, Trust};

/// The most an index, a manifest or a configuration may hold.
pub const DOCUMENT_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// What to do where an image has no room.
pub const NO_ROOM: &str = "take away what is not needed: edgecore image list shows what is here, edgecore image remove NAME \
                           removes it";

/// Where an image comes from.
#[derive(Debug)]
pub enum Source {
    Registry(Box<Registry>),
    Archive(Archive),
}

/// What one image for this machine is made of, its parts checked against each other.
#[derive(Debug)]
pub struct Documents {
    /// Points at the manifest.
    pub descriptor: Descriptor,
    pub manifest_bytes: Vec<u8>,
    pub manifest: Manifest,
    pub config_bytes: Vec<u8>,
    pub config: Config,
}

impl Source {
    /// What a name leads to, checked when the name has a digest.
    pub async fn named(&mut self, reference: &Reference) -> Result<(Descriptor, Vec<u8>), ImageError> {
        match self {
            Self::Registry(registry) => {
                let bytes = registry.manifest(reference.version()).await?;
                if let Some(digest) = reference.digest() {
                    digest.check(&bytes)?;
                }
                Ok((Descriptor::of(&bytes), bytes))
            }
            Self::Archive(archive) => {
                let mut images = archive.images().await?.into_iter();
                let missing = || ImageError::Damaged { reason: format!("{reference} is not in it") };
                let (_, root) = images.find(|(name, _)| name == reference).ok_or_else(missing)?;
                let bytes = self.document(&root).await?;
                Ok((root, bytes))
            }
        }
    }

    /// What a manifest speaks of.
    pub async fn documents(
        &mut self,
        descriptor: Descriptor,
        manifest_bytes: Vec<u8>,
    ) -> Result<Documents, ImageError> {
        let manifest = Manifest::parse(&manifest_bytes)?;
        let config_bytes = self.document(&manifest.config).await?;
        let config = Config::parse(&config_bytes)?;
        if config.diff_ids().len() != manifest.layers.len() {
            let reason = "its configuration does not fit its layers".to_owned();
            return Err(ImageError::Damaged { reason });
        }
        if let Some(made_for) = config.foreign_to(&Host::this()) {
            let image = &descriptor.digest;
            tracing::warn!(%image, %made_for, "made for another machine: it runs where binfmt has an emulator");
        }
        Ok(Documents { descriptor, manifest_bytes, manifest, config_bytes, config })
    }

    /// A document by its digest, checked.
    pub async fn document(&mut self, descriptor: &Descriptor) -> Result<Vec<u8>, ImageError> {
        if descriptor.size > DOCUMENT_BYTES_MAX {
            return Err(ImageError::TooLarge {
                what: descriptor.digest.to_string(),
                bytes_max: DOCUMENT_BYTES_MAX,
            });
        }
        let bytes = match self {
            Self::Registry(registry) if descriptor.is_manifest() => {
                registry.manifest(descriptor.digest.as_str()).await?
            }
            _ => self.blob(descriptor, 0).await?.all(&descriptor.digest).await?,
        };
        descriptor.digest.check(&bytes)?;
        Ok(bytes)
    }

    /// A blob from an offset on, unchecked.
    pub async fn blob(&mut self, descriptor: &Descriptor, offset: u64) -> Result<Blob, ImageError> {
        match self {
            Self::Registry(registry) => registry.blob(&descriptor.digest, offset).await.map(Blob::Body),
            Self::Archive(archive) => archive.blob(&descriptor.digest, offset).await.map(Blob::File),
        }
    }

    /// From what a name leads to, follows an index, if it is one, to the manifest for this machine.
    pub async fn manifest(
        &mut self,
        root: Descriptor,
        bytes: Vec<u8>,
        host: &Host,
    ) -> Result<(Descriptor, Vec<u8>), ImageError> {
        match Document::parse(&bytes)? {
            Document::Manifest(_) => Ok((root, bytes)),
            Document::Index(entries) => {
                let chosen = host.choose(&entries)?;
                Ok((chosen.clone(), self.document(chosen).await?))
            }
        }
    }
}

/// A blob as it comes in.
#[derive(Debug)]
pub enum Blob {
    Body(registry::Body),
    File(archive::Part),
}

impl Blob {
    /// Where the first piece belongs: a registry may start over where a later offset was asked for.
    pub fn offset(&self) -> u64 {
        match self {
            Self::Body(body) => body.offset(),
            Self::File(part) => part.offset(),
        }
    }

    /// The next piece.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ImageError> {
        match self {
            Self::Body(body) => body.next().await,
            Self::File(part) => part.next().await,
        }
    }

    async fn all(mut self, digest: &Digest) -> Result<Vec<u8>, ImageError> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.next().await? {
            bytes.extend_from_slice(&piece);
            if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > DOCUMENT_BYTES_MAX {
                return Err(ImageError::TooLarge { what: digest.to_string(), bytes_max: DOCUMENT_BYTES_MAX });
            }
        }
        Ok(bytes)
    }
}

/// Why an image cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("{name:?} is not an image name: {reason}")]
    Name { name: String, reason: &'static str },
    #[error("{digest:?} is not a sha256 digest")]
    Digest { digest: String },
    #[error("the content does not match its digest {digest}")]
    Mismatch { digest: String },
    #[error("{what} is larger than {bytes_max} bytes")]
    TooLarge { what: String, bytes_max: u64 },
    #[error("reading the {what}")]
    Format {
        what: &'static str,
        #[source]
        source: serde_json::Error,
    },
    #[error("the image is not made for {wanted}, only for {found}: build or save it for {wanted}")]
    Platform { wanted: String, found: String },
    #[error("{url}: the registry does not know it")]
    NotFound { url: String },
    #[error("{url}: the registry refuses the credentials, or wants some")]
    Denied { url: String },
    #[error("{url}: the registry answers {status}")]
    Status { url: String, status: u16 },
    #[error("{url}: {reason}")]
    Protocol { url: String, reason: &'static str },
    #[error("reaching {host}")]
    Unreachable {
        host: String,
        #[source]
        source: io::Error,
    },
    #[error("talking to {host}")]
    Broken {
        host: String,
        #[source]
        source: hyper::Error,
    },
    #[error("{host} did not answer in time")]
    Timeout { host: String },
    #[error("no certificate authorities on this machine; install ca-certificates or name a file of them")]
    NoTrust,
    #[error("reading the archive")]
    Archive(#[source] io::Error),
    /// It is something else, or not whole.
    #[error("{0}")]
    NoArchive(String),
    #[error("the archive is damaged: {reason}")]
    Damaged { reason: String },
}

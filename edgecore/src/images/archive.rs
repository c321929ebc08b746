//! Images in a file: a tar archive of an OCI image layout, as `docker save`, `skopeo` and `images/build` make them.

use std::collections::BTreeMap;
use std::io::{self, Read, SeekFrom};
use std::path::{Path, PathBuf};

use hyper::body::Bytes;
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use super::tar::index::{Entry, index};
use super::{DOCUMENT_BYTES_MAX, Descriptor, Digest, Document, ImageError, Reference};

/// What is read from the file at once.
const PIECE_BYTES_MAX: u64 = 256 * 1024;

/// Where names are kept in an index: containerd's own whole ones first, then OCI's, which may be a tag only.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// What lists the images.
const INDEX: &str = "index.json";

/// How a file begins that is compressed, and what undoes that.
const COMPRESSED: [(&[u8], &str); 4] = [
    (&[0x1f, 0x8b], "gunzip"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "unzstd"),
    (&[0xfd, b'7', b'z', b'X', b'Z'], "unxz"),
    (b"BZh", "bunzip2"),
];

/// An opened archive.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    entries: BTreeMap<String, Entry>,
}

impl Archive {
    pub async fn open(path: &Path) -> Result<Self, ImageError> {
        let file = File::open(path).await.map_err(ImageError::Archive)?.into_std().await;
        let opened = tokio::task::spawn_blocking(move || {
            what_else(&file)?;
            index(file).map_err(|error| match error.kind() {
                io::ErrorKind::InvalidData => ImageError::NoArchive(error.to_string()),
                _ => ImageError::Archive(error),
            })
        });
        let entries = opened.await.map_err(|error| ImageError::Archive(error.into()))??;
        if !entries.contains_key(INDEX) {
            let reason = if entries.contains_key("manifest.json") {
                "it is what Docker before 25 saves and no OCI layout: save it with a newer one, or skopeo copy \
                 docker-archive:FILE oci-archive:OTHER"
            } else {
                "it holds no images: an archive of an OCI layout has an index.json at its top"
            };
            return Err(ImageError::NoArchive(reason.to_owned()));
        }
        Ok(Self { path: path.to_owned(), entries })
    }

    /// The images of the archive. One without a whole name is an error: nothing could ever ask for it.
    pub async fn images(&self) -> Result<Vec<(Reference, Descriptor)>, ImageError> {
        let entry = self.entry(INDEX)?;
        if entry.size > DOCUMENT_BYTES_MAX {
            return Err(ImageError::TooLarge { what: INDEX.into(), bytes_max: DOCUMENT_BYTES_MAX });
        }
        let mut part = self.part(entry, 0).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = part.next().await? {
            bytes.extend_from_slice(&piece);
        }
        let Document::Index(descriptors) = Document::parse(&bytes)? else {
            return Err(ImageError::Damaged { reason: format!("{INDEX} is not an index") });
        };
        descriptors
            .into_iter()
            .map(|descriptor| Ok((name(&descriptor)?, descriptor)))
            .collect()
    }

    pub(super) async fn blob(&self, digest: &Digest, offset: u64) -> Result<Part, ImageError> {
        let entry = self.entry(&format!("blobs/sha256/{}", digest.hex()))?;
        self.part(entry, offset).await
    }

    /// Where a blob stands: the file, the offset in it, and its size.
    pub(super) fn place(&self, digest: &Digest) -> Result<(PathBuf, u64, u64), ImageError> {
        let entry = self.entry(&format!("blobs/sha256/{}", digest.hex()))?;
        Ok((self.path.clone(), entry.offset, entry.size))
    }

    fn entry(&self, name: &str) -> Result<Entry, ImageError> {
        let missing = || ImageError::Damaged { reason: format!("{name} is not in it") };
        self.entries.get(name).copied().ok_or_else(missing)
    }

    async fn part(&self, entry: Entry, offset: u64) -> Result<Part, ImageError> {
        let offset = offset.min(entry.size);
        let mut file = File::open(&self.path).await.map_err(ImageError::Archive)?;
        file.seek(SeekFrom::Start(entry.offset + offset))
            .await
            .map_err(ImageError::Archive)?;
        Ok(Part { file, offset, left: entry.size - offset })
    }
}

/// Says what a file is that is no archive and often taken for one.
fn what_else(mut file: &std::fs::File) -> Result<(), ImageError> {
    let mut begin = Vec::new();
    Read::take(&mut file, 8)
        .read_to_end(&mut begin)
        .map_err(ImageError::Archive)?;
    if begin.is_empty() {
        return Err(ImageError::NoArchive("it is empty: copy it again".to_owned()));
    }
    match COMPRESSED.iter().find(|(magic, _)| begin.starts_with(magic)) {
        Some((_, undo)) => Err(ImageError::NoArchive(format!("it is compressed: {undo} it first"))),
        None => Ok(()),
    }
}

fn name(descriptor: &Descriptor) -> Result<Reference, ImageError> {
    let mut names = NAMES.iter().filter_map(|key| descriptor.annotations.get(*key));
    match names.find(|name| name.contains(['/', ':'])) {
        Some(name) => Reference::parse(name),
        None => Err(ImageError::Damaged {
            reason: format!(
                "the image {} has no whole name such as docker.io/library/web:1: name it when it is saved",
                descriptor.digest
            ),
        }),
    }
}

/// A blob of an archive.
#[derive(Debug)]
pub struct Part {
    file: File,
    offset: u64,
    left: u64,
}

impl Part {
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ImageError> {
        if self.left == 0 {
            return Ok(None);
        }
        let size = usize::try_from(self.left.min(PIECE_BYTES_MAX)).expect("at most a piece");
        let mut piece = vec![0; size];
        self.file.read_exact(&mut piece).await.map_err(ImageError::Archive)?;
        self.left -= u64::try_from(size).expect("a piece");
        Ok(Some(piece.into()))
    }
}

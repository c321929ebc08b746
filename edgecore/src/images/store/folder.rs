//! What the store's folder holds, and what its records say.
//!
//! ```text
//! blobs/<hex>        manifests and configurations, by digest
//! names/<hex>        which manifest a name means (<hex>: of the name)
//! incoming/<hex>     the same for an image that is on its way
//! partial/<hex>      packed layers on their way, by digest
//! layers/<hex>       unpacked layers, by chain: one content below and in it
//! layers/<hex>.json  that the layer is complete, and what it is on
//! roots/<hex>        which layers a container's root is made of (<hex>: of its folder)
//! work/              being unpacked
//! trash/             being deleted
//! lock               shared: something is being put in; exclusive: something is being taken away
//! commit             held while a record, or a layer, is put in its place
//! ```
//!
//! A record is replaced as a whole and durable before it counts. What no record speaks of counts for nothing.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use daemon::files;
use rustix::fs::FlockOperation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{RootKind, StoreError};
use crate::images::{DOCUMENT_BYTES_MAX, Digest};
use crate::removal;

/// Of every record; a newer one is not touched.
const VERSION: u32 = 1;

/// A record that is larger is damaged.
const RECORD_BYTES_MAX: u64 = 64 * 1024;

/// Hexadecimal digits of a layer's or a root's name: enough to be one of its kind, few enough for a mount's options.
const SHORT: usize = 20;

/// The folders.
const BLOBS: &str = "blobs";
const NAMES: &str = "names";
const INCOMING: &str = "incoming";
const PARTIAL: &str = "partial";
const LAYERS: &str = "layers";
const ROOTS: &str = "roots";
const WORK: &str = "work";
const TRASH: &str = "trash";

/// What a name means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Name {
    version: u32,
    pub(super) name: String,
    pub(super) manifest: Digest,
}

impl Name {
    pub(super) fn new(name: &str, manifest: &Digest) -> Self {
        Self {
            version: VERSION,
            name: name.to_owned(),
            manifest: manifest.clone(),
        }
    }
}

/// An unpacked layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Layer {
    version: u32,
    pub(super) chain: Digest,
    /// The chain it is seen on; `None` when everything is in it.
    pub(super) below: Option<Digest>,
    /// What it holds.
    pub(super) bytes: u64,
}

impl Layer {
    pub(super) fn new(chain: &Digest, below: Option<&Digest>, bytes: u64) -> Self {
        Self {
            version: VERSION,
            chain: chain.clone(),
            below: below.cloned(),
            bytes,
        }
    }
}

/// A container's root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RootRecord {
    version: u32,
    pub(super) folder: PathBuf,
    pub(super) kind: RootKind,
    /// Topmost first.
    pub(super) chain: Vec<Digest>,
}

impl RootRecord {
    pub(super) fn new(folder: &Path, kind: RootKind, chain: Vec<Digest>) -> Self {
        Self { version: VERSION, folder: folder.to_owned(), kind, chain }
    }
}

/// The store's folder.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Numbers what this process puts to work.
    next: AtomicU64,
}

/// Something is being put in, or taken away, until this is dropped.
#[derive(Debug)]
pub(super) struct Held(File);

impl Held {
    /// For a process that works on.
    pub(super) fn file(&self) -> io::Result<File> {
        self.0.try_clone()
    }
}

impl Folder {
    pub(super) fn open(path: PathBuf) -> Result<Self, StoreError> {
        let folder = Self { path, next: AtomicU64::new(0) };
        for name in [BLOBS, NAMES, INCOMING, PARTIAL, LAYERS, ROOTS, WORK, TRASH] {
            let path = folder.path.join(name);
            files::private_folder(&path).map_err(io_error("making", &path))?;
        }
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn layers(&self) -> PathBuf {
        self.path.join(LAYERS)
    }

    /// Nothing is taken away meanwhile. Short: whoever takes away waits for nobody, and only renames under the lock.
    pub(super) fn hold(&self) -> Result<Held, StoreError> {
        self.lock("lock", FlockOperation::LockShared)
    }

    /// Nothing is put in meanwhile; `None` while somebody does.
    pub(super) fn hold_alone(&self) -> Result<Option<Held>, StoreError> {
        match self.lock("lock", FlockOperation::NonBlockingLockExclusive) {
            Ok(held) => Ok(Some(held)),
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Nobody else puts anything in its place meanwhile: a record has one writer at a time.
    fn alone(&self) -> Result<Held, StoreError> {
        self.lock("commit", FlockOperation::LockExclusive)
    }

    fn lock(&self, name: &str, operation: FlockOperation) -> Result<Held, StoreError> {
        let path = self.path.join(name);
        let locked = || -> io::Result<File> {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            rustix::fs::flock(&file, operation)?;
            Ok(file)
        };
        locked().map(Held).map_err(io_error("locking", &path))
    }

    // Documents.

    /// A document, unless it is not there or not what it was.
    pub(super) fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let bytes = read(&self.path.join(BLOBS).join(digest.hex()), DOCUMENT_BYTES_MAX)?;
        Ok(bytes.filter(|bytes| digest.check(bytes).is_ok()))
    }

    pub(super) fn put_blob(&self, digest: &Digest, bytes: &[u8]) -> Result<(), StoreError> {
        let _held = self.alone()?;
        if self.blob(digest)?.is_none() {
            files::replace(&self.path.join(BLOBS).join(digest.hex()), bytes, 0o600)?;
        }
        Ok(())
    }

    // Names.

    pub(super) fn name(&self, name: &str) -> Result<Option<Name>, StoreError> {
        self.named(NAMES, name)
    }

    pub(super) fn names(&self) -> Result<Vec<Name>, StoreError> {
        records(&self.path.join(NAMES))
    }

    pub(super) fn point(&self, name: &Name) -> Result<(), StoreError> {
        let _held = self.alone()?;
        write(&self.path.join(NAMES).join(hex(name.name.as_bytes())), name)
    }

    /// Also what is on its way under this name is given up.
    pub(super) fn forget(&self, name: &str) -> Result<bool, StoreError> {
        let here = remove_file(&self.path.join(NAMES).join(hex(name.as_bytes())))?;
        Ok(here | self.arrived(name)?)
    }

    pub(super) fn incoming(&self) -> Result<Vec<Name>, StoreError> {
        records(&self.path.join(INCOMING))
    }

    /// Remembers what an image that is on its way needs. Older ones beyond `others_max` are given up.
    pub(super) fn expect(&self, name: &Name, others_max: usize) -> Result<(), StoreError> {
        let path = self.path.join(INCOMING).join(hex(name.name.as_bytes()));
        let _held = self.alone()?;
        if self.named(INCOMING, &name.name)?.as_ref() == Some(name) {
            return Ok(());
        }
        let mut others = Vec::new();
        for entry in entries(&self.path.join(INCOMING))? {
            let modified = fs::symlink_metadata(&entry).and_then(|metadata| metadata.modified());
            others.push((modified.map_err(io_error("looking at", &entry))?, entry));
        }
        others.retain(|(_, other)| *other != path);
        others.sort();
        let surplus = others.len().saturating_sub(others_max);
        for (_, other) in others.into_iter().take(surplus) {
            remove_file(&other)?;
        }
        write(&path, name)
    }

    /// It is no longer on its way, if it was.
    pub(super) fn arrived(&self, name: &str) -> Result<bool, StoreError> {
        remove_file(&self.path.join(INCOMING).join(hex(name.as_bytes())))
    }

    fn named(&self, folder: &str, name: &str) -> Result<Option<Name>, StoreError> {
        let found: Option<Name> = lookup(&self.path.join(folder).join(hex(name.as_bytes())))?;
        Ok(found.filter(|found| found.name == name))
    }

    // Layers.

    pub(super) fn partial(&self, digest: &Digest) -> PathBuf {
        self.path.join(PARTIAL).join(digest.hex())
    }

    /// The name of a layer's folder below [`Folder::layers`].
    pub(super) fn layer_name(chain: &Digest) -> String {
        chain.hex()[..SHORT].to_owned()
    }

    /// The layers of a chain, topmost first; `None` unless all are complete.
    pub(super) fn stack(&self, top: &Digest) -> Result<Option<Vec<Digest>>, StoreError> {
        let mut stack = Vec::new();
        let mut next = Some(top.clone());
        while let Some(chain) = next.take() {
            let path = self.layers().join(format!("{}.json", Self::layer_name(&chain)));
            let layer: Option<Layer> = lookup(&path)?;
            let Some(layer) = layer.filter(|layer| layer.chain == chain && !stack.contains(&chain)) else {
                return Ok(None);
            };
            stack.push(chain);
            next = layer.below;
        }
        Ok(Some(stack))
    }

    pub(super) fn all_layers(&self) -> Result<Vec<Layer>, StoreError> {
        let mut layers = Vec::new();
        for path in entries(&self.layers())? {
            if path.extension().is_some_and(|extension| extension == "json") {
                layers.extend(record::<Layer>(&path)?);
            }
        }
        Ok(layers)
    }

    /// A new folder to work in.
    pub(super) fn staging(&self) -> Result<PathBuf, StoreError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.path.join(WORK).join(format!("{}-{number}", std::process::id()));
        // A process of the same number may have left one.
        remove_tree(&path)?;
        files::private_folder(&path).map_err(io_error("making", &path))?;
        Ok(path)
    }

    /// Puts an unpacked and synced tree into the place of its layer. Another one may have been faster.
    pub(super) fn commit(&self, tree: &Path, layer: &Layer) -> Result<(), StoreError> {
        let _held = self.alone()?;
        let place = self.layers().join(Self::layer_name(&layer.chain));
        let said = place.with_extension("json");
        match lookup::<Layer>(&said)? {
            Some(there) if there.chain == layer.chain && (there.below.is_none() || layer.below.is_some()) => {
                return Ok(());
            }
            Some(_) => {
                remove_file(&said)?;
                sync(&self.layers())?;
            }
            None => {}
        }
        self.discard(&place)?;
        fs::rename(tree, &place).map_err(io_error("putting in place", &place))?;
        write(&said, layer)
    }

    /// Takes a complete layer away; what it held is in the trash afterwards.
    pub(super) fn remove_layers(&self, layers: &[Digest]) -> Result<(), StoreError> {
        let places: Vec<PathBuf> = layers
            .iter()
            .map(|chain| self.layers().join(Self::layer_name(chain)))
            .collect();
        for place in &places {
            remove_file(&place.with_extension("json"))?;
        }
        // No record may outlive what it speaks of.
        if !places.is_empty() {
            sync(&self.layers())?;
        }
        places.iter().try_for_each(|place| self.discard(place))
    }

    /// Moves everything no record speaks of into the trash: for whoever holds the store alone.
    pub(super) fn sweep(&self) -> Result<(), StoreError> {
        for path in entries(&self.path.join(WORK))? {
            self.discard(&path)?;
        }
        for path in entries(&self.layers())? {
            let is_record = path.extension().is_some_and(|extension| extension == "json");
            if !is_record && !path.with_extension("json").exists() {
                self.discard(&path)?;
            }
        }
        Ok(())
    }

    /// Deletes what was thrown away.
    pub(super) fn empty_trash(&self) -> Result<(), StoreError> {
        entries(&self.path.join(TRASH))?
            .iter()
            .try_for_each(|path| remove_tree(path))
    }

    fn discard(&self, path: &Path) -> Result<(), StoreError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let trash = self.path.join(TRASH).join(format!("{}-{number}", std::process::id()));
        remove_tree(&trash)?;
        match fs::rename(path, &trash) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("throwing away", path)(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The digests below `blobs` or `partial`.
    pub(super) fn blobs(&self) -> Result<Vec<Digest>, StoreError> {
        digests(&self.path.join(BLOBS))
    }

    pub(super) fn partials(&self) -> Result<Vec<Digest>, StoreError> {
        digests(&self.path.join(PARTIAL))
    }

    pub(super) fn remove_blob(&self, digest: &Digest) -> Result<(), StoreError> {
        remove_file(&self.path.join(BLOBS).join(digest.hex())).map(drop)
    }

    pub(super) fn remove_partial(&self, digest: &Digest) -> Result<(), StoreError> {
        remove_file(&self.partial(digest)).map(drop)
    }

    // Roots.

    pub(super) fn root(&self, folder: &Path) -> Result<Option<RootRecord>, StoreError> {
        let found: Option<RootRecord> = lookup(&self.root_path(folder))?;
        Ok(found.filter(|root| root.folder == folder))
    }

    pub(super) fn roots(&self) -> Result<Vec<RootRecord>, StoreError> {
        records(&self.path.join(ROOTS))
    }

    pub(super) fn put_root(&self, root: &RootRecord) -> Result<(), StoreError> {
        let _held = self.alone()?;
        write(&self.root_path(&root.folder), root)
    }

    pub(super) fn remove_root(&self, folder: &Path) -> Result<(), StoreError> {
        remove_file(&self.root_path(folder)).map(drop)
    }

    fn root_path(&self, folder: &Path) -> PathBuf {
        use std::os::unix::ffi::OsStrExt as _;
        self.path.join(ROOTS).join(&hex(folder.as_os_str().as_bytes())[..SHORT])
    }
}

/// Makes a folder everybody may look into, or finds one.
pub(super) fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o755)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes what is there, whatever it is.
pub(super) fn remove_tree(path: &Path) -> Result<(), StoreError> {
    removal::remove_tree(path).map_err(io_error("removing", path))
}

pub(super) fn io_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> StoreError + use<> {
    let path = path.to_owned();
    move |source| match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::DiskFull { path: path.clone() },
        _ => StoreError::Io { action, path: path.clone(), source },
    }
}

fn hex(bytes: &[u8]) -> String {
    Digest::of(bytes).hex().to_owned()
}

fn sync(folder: &Path) -> Result<(), StoreError> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(io_error("syncing", folder))
}

fn write(path: &Path, record: &impl Serialize) -> Result<(), StoreError> {
    let bytes = serde_json::to_vec(record).map_err(|source| StoreError::Record { path: path.to_owned(), source })?;
    Ok(files::replace(path, &bytes, 0o600)?)
}

fn read(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, StoreError> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes));
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(|_| Some(bytes)).map_err(io_error("reading", path)),
    }
}

fn record<R: DeserializeOwned>(path: &Path) -> Result<Option<R>, StoreError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let Some(bytes) = read(path, RECORD_BYTES_MAX)? else {
        return Ok(None);
    };
    let damaged = |source| StoreError::Record { path: path.to_owned(), source };
    let version = serde_json::from_slice::<Versioned>(&bytes).map_err(damaged)?.version;
    if version > VERSION {
        return Err(StoreError::Newer { path: path.to_owned(), version });
    }
    serde_json::from_slice(&bytes).map(Some).map_err(damaged)
}

/// A record that is asked for by its name: a damaged one is none, so that whoever needs it makes it again.
fn lookup<R: DeserializeOwned>(path: &Path) -> Result<Option<R>, StoreError> {
    match record(path) {
        Err(StoreError::Record { path, source }) => {
            tracing::warn!(path = %path.display(), error = %source, "a record of the image store is damaged and does not count");
            Ok(None)
        }
        record => record,
    }
}

fn records<R: DeserializeOwned>(folder: &Path) -> Result<Vec<R>, StoreError> {
    let mut records = Vec::new();
    for path in entries(folder)? {
        records.extend(record(&path)?);
    }
    Ok(records)
}

/// What is in a folder, without what a cut-off replacement left.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut paths = Vec::new();
    let mut listed = || -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if !entry.file_name().to_string_lossy().starts_with('.') {
                paths.push(entry.path());
            }
        }
        Ok(())
    };
    listed().map_err(io_error("listing", folder))?;
    paths.sort();
    Ok(paths)
}

fn digests(folder: &Path) -> Result<Vec<Digest>, StoreError> {
    let names = entries(folder)?;
    let names = names.iter().filter_map(|path| path.file_name()?.to_str());
    Ok(names
        .filter_map(|name| Digest::parse(&format!("sha256:{name}")).ok())
        .collect())
}

fn remove_file(path: &Path) -> Result<bool, StoreError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io_error("removing", path)(error)),
    }
}

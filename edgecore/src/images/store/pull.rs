//! Taking images in.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::fs::OpenOptions;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use super::folder::{Folder, Layer, Name};
use super::unpack::apply::Fault;
use super::unpack::{self, Base, Job, Outcome, Packed};
use super::{ImageStore, RootKind, StoreError, Stored, image_error, io_error, overlay};
use crate::images::{Archive, Descriptor, Digest, Documents, Host, Reference, Source};

/// How many incomplete images are kept to go on with, beside the one that is worked at; the oldest go.
pub(super) const OTHERS_MAX: usize = 7;

/// For unpacking what is unpacked at once, on a slow card.
const UNPACK_LIMIT: Duration = Duration::from_secs(60 * 60);

/// What an unpacking process may say.
const SAID_BYTES_MAX: u64 = 64 * 1024;

impl ImageStore {
    /// Fetches an image. What had the name before stays until the new one is complete; what an attempt that was cut
    /// off brought counts.
    pub async fn pull(&self, name: &str, mut source: Source) -> Result<Stored, StoreError> {
        let refused = image_error(name);
        let reference = Reference::parse(name).map_err(&refused)?;
        let _turn = self.shared.turn.acquire().await.expect("never closed");
        let (root, bytes) = source.named(&reference).await.map_err(&refused)?;
        let stored = Box::pin(self.take_in(&mut source, root, bytes, &reference)).await?;
        self.tidy_apart().await;
        Ok(stored)
    }

    /// Brings in the images of an archive and returns their names.
    pub async fn import(&self, archive: &Path) -> Result<Vec<String>, StoreError> {
        let refused = image_error(&archive.display().to_string());
        let _turn = self.shared.turn.acquire().await.expect("never closed");
        let archive = Archive::open(archive).await.map_err(&refused)?;
        let images = archive.images().await.map_err(&refused)?;
        let mut source = Source::Archive(archive);
        let mut names = Vec::new();
        for (reference, root) in images {
            let bytes = source.document(&root).await.map_err(&refused)?;
            Box::pin(self.take_in(&mut source, root, bytes, &reference)).await?;
            names.push(reference.to_string());
        }
        self.tidy_apart().await;
        Ok(names)
    }

    /// [`ImageStore::tidy`], where blocking is allowed.
    async fn tidy_apart(&self) {
        let store = self.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || store.tidy()).await {
            tracing::warn!("taking away what no image needs: {error}");
        }
    }

    /// What other images left half done gives way to it.
    async fn take_in(
        &self,
        source: &mut Source,
        root: Descriptor,
        bytes: Vec<u8>,
        reference: &Reference,
    ) -> Result<Stored, StoreError> {
        let tried = self.take_in_once(source, root.clone(), bytes.clone(), reference).await;
        match tried {
            Err(StoreError::DiskFull { .. }) if self.make_room(&reference.to_string()).await => {
                self.take_in_once(source, root, bytes, reference).await
            }
            tried => tried,
        }
    }

    /// Gives up every image on its way but this one; says whether that took anything away.
    async fn make_room(&self, but: &str) -> bool {
        let (store, but) = (self.clone(), but.to_owned());
        let give_up = move || {
            let folder = &store.shared.folder;
            for name in folder.incoming()?.iter().filter(|name| name.name != but) {
                tracing::info!(
                    image = name.name,
                    "gives way to {but}: it is not complete, and the disk is full"
                );
                folder.arrived(&name.name)?;
            }
            store.collect(&BTreeSet::new())
        };
        match tokio::task::spawn_blocking(give_up).await {
            Ok(Ok(collected)) => collected.layers + collected.documents + collected.partials > 0,
            Ok(Err(error)) => {
                tracing::warn!("making room for an image: {}", crate::runtime::explain(&error));
                false
            }
            Err(_) => false,
        }
    }

    async fn take_in_once(
        &self,
        source: &mut Source,
        root: Descriptor,
        bytes: Vec<u8>,
        reference: &Reference,
    ) -> Result<Stored, StoreError> {
        let folder = &self.shared.folder;
        let name = reference.to_string();
        let refused = image_error(&name);
        let (descriptor, bytes) = source.manifest(root, bytes, &Host::this()).await.map_err(&refused)?;
        if folder
            .name(&name)?
            .is_some_and(|known| known.manifest == descriptor.digest)
            && let Some(stored) = self.stored(&descriptor.digest)?
        {
            return Ok(stored);
        }
        let documents = source.documents(descriptor, bytes).await.map_err(&refused)?;
        let meaning = Name::new(&name, &documents.descriptor.digest);
        {
            // From here on what it needs is kept.
            let _held = folder.hold()?;
            folder.put_blob(&documents.manifest.config.digest, &documents.config_bytes)?;
            folder.put_blob(&documents.descriptor.digest, &documents.manifest_bytes)?;
            folder.expect(&meaning, OTHERS_MAX)?;
        }
        Take { store: self, image: &name }.layers(source, &documents).await?;
        let _held = folder.hold()?;
        let stored = self.stored(&meaning.manifest)?;
        let stored = stored.ok_or_else(|| StoreError::Missing { folder: folder.layers() })?;
        folder.point(&meaning)?;
        folder.arrived(&name)?;
        Ok(stored)
    }
}

/// One image being taken in.
struct Take<'a> {
    store: &'a ImageStore,
    image: &'a str,
}

impl Take<'_> {
    /// Unpacks what is not unpacked yet, bottom first.
    async fn layers(&self, source: &mut Source, documents: &Documents) -> Result<(), StoreError> {
        let folder = &self.store.shared.folder;
        let chain = documents.config.chain_ids();
        let mut done = 0;
        let mut base = Vec::new();
        for (at, id) in chain.iter().enumerate().rev() {
            if let Some(stack) = folder.stack(id)? {
                (done, base) = (at + 1, stack);
                break;
            }
        }
        let diffs = documents.config.diff_ids();
        let layers: Vec<(&Descriptor, &Digest)> = documents.manifest.layers.iter().zip(diffs).skip(done).collect();
        if !self.is_seen(&chain) {
            return self.whole(source, &layers, &base, chain.last()).await;
        }
        for ((layer, diff), id) in layers.into_iter().zip(&chain[done..]) {
            let packed = self.fetch(source, layer, diff).await?;
            let below = base.first().cloned();
            let names = base.iter().map(Folder::layer_name).collect();
            let base_of_job = if base.is_empty() {
                Base::Nothing
            } else {
                Base::Seen { layers: folder.layers(), names }
            };
            self.unpack(base_of_job, vec![packed], id, below.as_ref()).await?;
            base.insert(0, id.clone());
        }
        Ok(())
    }

    /// Whether layers of this image are seen through each other.
    fn is_seen(&self, chain: &[Digest]) -> bool {
        let shared = &self.store.shared;
        let names: Vec<String> = chain.iter().map(Folder::layer_name).collect();
        // As long as the folders to work in, and those of containers, may be called.
        let longest = shared.folder.path().join("work").join("x".repeat(64));
        shared.kind == RootKind::Overlay && overlay::fits(&names, &longest.join("tree"), &longest.join("work"))
    }

    /// All layers in one folder.
    async fn whole(
        &self,
        source: &mut Source,
        layers: &[(&Descriptor, &Digest)],
        base: &[Digest],
        top: Option<&Digest>,
    ) -> Result<(), StoreError> {
        let Some(top) = top.filter(|_| !layers.is_empty()) else {
            return Ok(());
        };
        let mut packed = Vec::new();
        for (layer, diff) in layers {
            packed.push(self.fetch(source, layer, diff).await?);
        }
        let names: Vec<String> = base.iter().map(Folder::layer_name).collect();
        let base = if names.is_empty() {
            Base::Nothing
        } else {
            Base::Copied { layers: self.store.shared.folder.layers(), names }
        };
        self.unpack(base, packed, top, None).await
    }

    /// Brings a layer's content in, from where an earlier attempt stopped. What stands in an archive is read there.
    async fn fetch(&self, source: &mut Source, layer: &Descriptor, diff: &Digest) -> Result<Packed, StoreError> {
        let folder = &self.store.shared.folder;
        let refused = image_error(self.image);
        let (digest, diff_id) = (layer.digest.to_string(), diff.to_string());
        if let Source::Archive(archive) = source {
            let (file, offset, size) = archive.place(&layer.digest).map_err(&refused)?;
            return Ok(Packed { file, offset, size, digest, diff_id });
        }
        let path = folder.partial(&layer.digest);
        let failed = io_error("writing", &path);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .await;
        let mut file = file.map_err(&failed)?;
        let mut size = file.metadata().await.map_err(&failed)?.len();
        if size > layer.size {
            size = 0;
        }
        let room = unpack::room(folder.path()).map_err(&failed)?;
        if layer.size - size > room {
            return Err(StoreError::DiskFull { path });
        }
        if size < layer.size {
            let mut blob = source.blob(layer, size).await.map_err(&refused)?;
            size = blob.offset();
            file.set_len(size).await.map_err(&failed)?;
            file.seek(io::SeekFrom::Start(size)).await.map_err(&failed)?;
            let ended = loop {
                match blob.next().await {
                    Ok(Some(piece)) => {
                        file.write_all(&piece).await.map_err(&failed)?;
                        size += u64::try_from(piece.len()).unwrap_or(u64::MAX);
                        if size > layer.size {
                            break Ok(());
                        }
                    }
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            // However it ended, the next attempt goes on from here.
            file.flush().await.map_err(&failed)?;
            ended.map_err(&refused)?;
            if size != layer.size {
                if size > layer.size {
                    folder.remove_partial(&layer.digest)?;
                }
                let reason = format!("its content has {size} bytes, not {}", layer.size);
                return Err(self.wrong(&layer.digest, reason));
            }
        }
        Ok(Packed { file: path, offset: 0, size, digest, diff_id })
    }

    /// Unpacks layers into one folder, which becomes the layer `chain`.
    async fn unpack(
        &self,
        base: Base,
        layers: Vec<Packed>,
        chain: &Digest,
        below: Option<&Digest>,
    ) -> Result<(), StoreError> {
        let folder = &self.store.shared.folder;
        let held = folder.hold()?;
        // Taken away by now? Then the next attempt begins there.
        if let Some(below) = below
            && folder.stack(below)?.is_none()
        {
            return Err(StoreError::Missing { folder: folder.layers() });
        }
        let staging = folder.staging()?;
        let job = Job { base, staging, layers };
        let outcome = self
            .run(&job, held.file().map_err(io_error("locking", folder.path()))?)
            .await;
        let result = match outcome {
            Ok(Outcome::Done(applied)) => {
                if applied.left_out > 0 {
                    let count = applied.left_out;
                    tracing::info!(image = self.image, layer = %chain, count, "devices or attributes cannot be made here");
                }
                folder.commit(&job.staging.join("tree"), &Layer::new(chain, below, applied.bytes))
            }
            Ok(Outcome::Failed(at, fault)) => Err(self.failed(&job, at, fault)?),
            Err(error) => Err(error),
        };
        // What was half unpacked may be a lot to delete.
        let staging = job.staging.clone();
        let removed = tokio::task::spawn_blocking(move || super::folder::remove_tree(&staging)).await;
        removed.map_err(|error| io_error("removing", &job.staging)(io::Error::other(error)))??;
        result?;
        job.layers.iter().try_for_each(|layer| self.drop_partial(layer))
    }

    /// What was wrong, said of the layer; what may have come damaged is fetched again the next time.
    fn failed(&self, job: &Job, at: usize, fault: Fault) -> Result<StoreError, StoreError> {
        let layer = job.layers.get(at);
        let digest = layer.map(|layer| layer.digest.clone()).unwrap_or_default();
        if let (Fault::Bad { .. } | Fault::Digest { .. }, Some(layer)) = (&fault, layer) {
            self.drop_partial(layer)?;
        }
        let (image, reason) = (self.image.to_owned(), fault.to_string());
        Ok(match fault {
            Fault::Full => StoreError::DiskFull { path: self.store.shared.folder.path().to_owned() },
            Fault::Bad { .. } | Fault::Digest { .. } => StoreError::Layer { image, layer: digest, reason },
            Fault::Machine { .. } => StoreError::Unpack { image, layer: digest, reason },
        })
    }

    fn drop_partial(&self, layer: &Packed) -> Result<(), StoreError> {
        let folder = &self.store.shared.folder;
        match Digest::parse(&layer.digest) {
            // What stands in an archive is not ours.
            Ok(digest) if folder.partial(&digest) == layer.file => folder.remove_partial(&digest),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn wrong(&self, layer: &Digest, reason: String) -> StoreError {
        StoreError::Layer {
            image: self.image.to_owned(),
            layer: layer.to_string(),
            reason,
        }
    }

    /// Runs an unpacking process. It holds the store as long as it lives, whatever becomes of this one.
    async fn run(&self, job: &Job, held: std::fs::File) -> Result<Outcome, StoreError> {
        let layer = job.layers.first().map(|layer| layer.digest.clone()).unwrap_or_default();
        let failed = |reason: String| StoreError::Unpack { image: self.image.to_owned(), layer: layer.clone(), reason };
        let said = async {
            let mut child = Command::new(&self.store.shared.program)
                .arg(unpack::WORD)
                .arg(serde_json::to_string(job).map_err(io::Error::from)?)
                .stdin(Stdio::from(held))
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()?;
            let mut said = Vec::new();
            if let Some(stdout) = child.stdout.take() {
                stdout.take(SAID_BYTES_MAX).read_to_end(&mut said).await?;
            }
            Ok::<_, io::Error>((said, child.wait().await?))
        };
        let (said, status) = match timeout(UNPACK_LIMIT, said).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(_) => return Err(failed(format!("it took longer than {UNPACK_LIMIT:?}"))),
        };
        if !status.success() {
            return Err(failed(format!("the unpacking process ended with {status}")));
        }
        serde_json::from_slice(&said).map_err(|error| failed(format!("the unpacking process said nonsense: {error}")))
    }
}

//! Images in containerd: taken in from a source, unpacked, found again.
//!
//! What an image needs hangs together by containerd's own garbage-collection labels: the name points at the manifest,
//! that at the configuration, that at the topmost unpacked layer. Compressed layers are deleted as soon as they are
//! unpacked: a card holds each layer once, and at no time more than one twice. While an image is incomplete, a lease named
//! after it keeps what is there, across restarts of either daemon, so that the next attempt goes on where a broken link
//! cut; a name points at its old image until the new one is complete.

use std::collections::HashMap;
use std::path::Path;

use containerd_client::services::v1::snapshots::{
    CommitSnapshotRequest, MountsRequest, PrepareSnapshotRequest, RemoveSnapshotRequest, StatSnapshotRequest,
};
use containerd_client::services::v1::{
    AddResourceRequest, ApplyRequest, CreateImageRequest, CreateRequest, DeleteContentRequest, DeleteImageRequest,
    DeleteRequest, GetImageRequest, Image as Record, InfoRequest, ListImagesRequest, ListRequest, ReadContentRequest,
    Resource, UpdateImageRequest,
};
use containerd_client::types::{Descriptor as Target, Mount};
use prost_types::FieldMask;
use tokio::sync::Semaphore;
use tonic::{Code, Response, Status};

use super::client::{Answer as _, Client, PROCESS, QUICK, Refusal, UNPACK, within};
use super::ingest::Ingest;
use crate::images::manifest::Run;
use crate::images::{
    Archive, Config, DOCUMENT_BYTES_MAX, Descriptor, Digest, Documents, Host, ImageError, Manifest, NO_ROOM, Reference,
    Registry, Source, Trust,
};
use crate::runtime::{Image, RegistryAuth, RuntimeError, explain};

const FIND: &str = "looking for the image";
const FORGET: &str = "removing the image";
pub(super) const TAKE_IN: &str = "taking in the image";

/// How many incomplete images are kept to go on with; the oldest go.
const INCOMPLETE_MAX: usize = 8;

const LEASE_PREFIX: &str = "edgehold-image-";

/// An image, with all that running it needs.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) image: Image,
    pub(super) run: Run,
    /// The topmost unpacked layer; `None` for an image of nothing.
    pub(super) top: Option<Digest>,
}

#[derive(Debug)]
pub(super) struct Images {
    client: Client,
    snapshotter: String,
    trust: Trust,
    /// One image at a time: a small machine's link and card are the bottleneck, and it keeps the peak low.
    turn: Semaphore,
}

impl Images {
    pub(super) fn new(client: Client, snapshotter: String, trust: Trust) -> Self {
        Self { client, snapshotter, trust, turn: Semaphore::new(1) }
    }

    /// The image a manifest's name means, if it is completely there.
    pub(super) async fn find(&self, name: &str) -> Result<Option<Found>, RuntimeError> {
        let reference = Reference::parse(name).map_err(|error| RuntimeError::Invalid {
            action: "reading the image's name",
            reason: format!("{name}: {}", explain(&error)),
        })?;
        self.found(&reference).await
    }

    async fn found(&self, reference: &Reference) -> Result<Option<Found>, RuntimeError> {
        let name = reference.to_string();
        let Some(target) = self.target(&name).await? else {
            return Ok(None);
        };
        let Some(manifest) = self.read(&target.digest).await? else {
            return Ok(None);
        };
        let manifest = Manifest::parse(&manifest).map_err(|error| pull_error(&name, error))?;
        let Some(config) = self.read(manifest.config.digest.as_str()).await? else {
            return Ok(None);
        };
        let config = Config::parse(&config).map_err(|error| pull_error(&name, error))?;
        let top = config.chain_ids().pop();
        if let Some(top) = &top
            && !self.is_unpacked(top).await?
        {
            return Ok(None);
        }
        let size_bytes = manifest.size_bytes();
        let run = config.config.unwrap_or_default();
        let user = run.user.clone().unwrap_or_default();
        let image = Image { id: manifest.config.digest.to_string(), user, size_bytes };
        Ok(Some(Found { image, run, top }))
    }

    pub(super) async fn pull(&self, name: &str, auth: &[RegistryAuth]) -> Result<Image, RuntimeError> {
        let refused = |error| pull_error(name, error);
        let reference = Reference::parse(name).map_err(refused)?;
        let _turn = self.turn.acquire().await.expect("never closed");
        let registry = Registry::new(reference.clone(), auth, self.trust.clone());
        let mut source = Source::Registry(Box::new(registry));
        let (root, bytes) = source.named(&reference).await.map_err(refused)?;
        Ok(Box::pin(self.take_in(source, root, bytes, &reference)).await?.0)
    }

    pub(super) async fn import(&self, path: &Path) -> Result<Vec<String>, RuntimeError> {
        let _turn = self.turn.acquire().await.expect("never closed");
        let refused = |error| import_error(path, &error);
        let archive = Archive::open(path).await.map_err(refused)?;
        let images = archive.images().await.map_err(refused)?;
        let mut source = Source::Archive(archive);
        let mut names = Vec::new();
        for (reference, root) in images {
            let bytes = source.document(&root).await.map_err(refused)?;
            let taken = Box::pin(self.take_in(source, root, bytes, &reference)).await;
            source = taken.map_err(|error| import_error(path, &error))?.1;
            names.push(reference.to_string());
        }
        Ok(names)
    }

    /// Every name there is, in their order.
    pub(super) async fn names(&self) -> Result<Vec<String>, RuntimeError> {
        let list = self.client.request(ListImagesRequest::default());
        let answer = within(QUICK, self.client.images().list(list)).await;
        let images = answer.or_error(FIND, "images")?.images;
        let mut names: Vec<String> = images.into_iter().map(|image| image.name).collect();
        names.sort();
        Ok(names)
    }

    /// Forgets a name; says whether it was known. What only it needed goes before this returns.
    pub(super) async fn forget(&self, name: &str) -> Result<bool, RuntimeError> {
        let delete = DeleteImageRequest {
            name: name.to_owned(),
            sync: true,
            ..DeleteImageRequest::default()
        };
        let deleted = within(PROCESS, self.client.images().delete(self.client.request(delete))).await;
        Ok(deleted.optional().or_error(FORGET, name)?.is_some())
    }

    async fn take_in(
        &self,
        mut source: Source,
        root: Descriptor,
        bytes: Vec<u8>,
        reference: &Reference,
    ) -> Result<(Image, Source), RuntimeError> {
        let name = reference.to_string();
        let refused = |error| pull_error(&name, error);
        let (descriptor, bytes) = source.manifest(root, bytes, &Host::this()).await.map_err(refused)?;
        if let Some(target) = self.target(&name).await?
            && target.digest == descriptor.digest.as_str()
            && let Some(found) = self.found(reference).await?
        {
            return Ok((found.image, source));
        }
        let lease = self.lease(&name).await?;
        let take = Take { images: self, lease: &lease, name: &name };
        let documents = source.documents(descriptor, bytes).await.map_err(refused)?;
        take.everything(&mut source, &documents).await?;
        self.point(&name, &documents.descriptor).await?;
        let deleted = self.client.request(DeleteRequest { id: lease, sync: true });
        within(PROCESS, self.client.leases().delete(deleted))
            .await
            .optional()
            .or_error(TAKE_IN, &name)?;
        let found = self
            .found(reference)
            .await?
            .ok_or_else(|| RuntimeError::Missing { action: TAKE_IN, what: name })?;
        Ok((found.image, source))
    }

    /// What a whole name points at.
    async fn target(&self, name: &str) -> Result<Option<Target>, RuntimeError> {
        let request = self.client.request(GetImageRequest { name: name.to_owned() });
        let answer = within(QUICK, self.client.images().get(request))
            .await
            .optional()
            .or_error(FIND, name)?;
        Ok(answer.and_then(|answer| answer.image?.target))
    }

    /// Points a name at a complete image.
    async fn point(&self, name: &str, descriptor: &Descriptor) -> Result<(), RuntimeError> {
        let image = Record {
            name: name.to_owned(),
            target: Some(target(descriptor)),
            ..Record::default()
        };
        let create = CreateImageRequest { image: Some(image.clone()), ..CreateImageRequest::default() };
        let created = within(QUICK, self.client.images().create(self.client.request(create)))
            .await
            .made();
        if !created.or_error(TAKE_IN, name)? {
            let mask = Some(FieldMask { paths: vec!["target".into()] });
            let update = UpdateImageRequest {
                image: Some(image),
                update_mask: mask,
                source_date_epoch: None,
            };
            within(QUICK, self.client.images().update(self.client.request(update)))
                .await
                .or_error(TAKE_IN, name)?;
        }
        Ok(())
    }

    /// A document from containerd's content, if it is there.
    async fn read(&self, digest: &str) -> Result<Option<Vec<u8>>, RuntimeError> {
        let request = ReadContentRequest { digest: digest.to_owned(), offset: 0, size: 0 };
        let read = async {
            let mut stream = match self.client.content().read(self.client.request(request)).await {
                Err(status) if status.code() == Code::NotFound => return Ok(Response::new(None)),
                stream => stream?.into_inner(),
            };
            let mut bytes = Vec::new();
            loop {
                match stream.message().await {
                    Ok(Some(part)) => bytes.extend_from_slice(&part.data),
                    Ok(None) => return Ok(Response::new(Some(bytes))),
                    // containerd answers the stream before it looks.
                    Err(status) if status.code() == Code::NotFound => return Ok(Response::new(None)),
                    Err(status) => return Err(status),
                }
                if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > DOCUMENT_BYTES_MAX {
                    return Err(Status::out_of_range("the document is too large"));
                }
            }
        };
        within(QUICK, read).await.or_error(FIND, digest)
    }

    async fn is_unpacked(&self, chain: &Digest) -> Result<bool, RuntimeError> {
        let request = StatSnapshotRequest {
            snapshotter: self.snapshotter.clone(),
            key: chain.to_string(),
        };
        let answer = within(QUICK, self.client.snapshots().stat(self.client.request(request))).await;
        Ok(answer.optional().or_error(FIND, chain.as_str())?.is_some())
    }

    /// The lease of an image that is on its way, found or made; too old ones of other images go.
    async fn lease(&self, name: &str) -> Result<String, RuntimeError> {
        let id = format!("{LEASE_PREFIX}{}", &Digest::of(name.as_bytes()).hex()[..16]);
        let list = self.client.request(ListRequest::default());
        let known = within(QUICK, self.client.leases().list(list))
            .await
            .or_error(TAKE_IN, name)?
            .leases;
        let mut others: Vec<_> = known
            .into_iter()
            .filter(|lease| lease.id.starts_with(LEASE_PREFIX) && lease.id != id)
            .collect();
        others.sort_by_key(|lease| lease.created_at.map(|at| (at.seconds, at.nanos)));
        let surplus = (others.len() + 1).saturating_sub(INCOMPLETE_MAX);
        for lease in others.into_iter().take(surplus) {
            let delete = self.client.request(DeleteRequest { id: lease.id, sync: false });
            within(QUICK, self.client.leases().delete(delete))
                .await
                .optional()
                .or_error(TAKE_IN, name)?;
        }
        let labels = HashMap::from([("edgehold.dev/image".to_owned(), name.to_owned())]);
        let create = self.client.request(CreateRequest { id: id.clone(), labels });
        within(QUICK, self.client.leases().create(create))
            .await
            .made()
            .or_error(TAKE_IN, name)?;
        Ok(id)
    }
}

/// One image being taken in under its lease.
struct Take<'a> {
    images: &'a Images,
    lease: &'a str,
    name: &'a str,
}

impl Take<'_> {
    async fn everything(&self, source: &mut Source, documents: &Documents) -> Result<(), RuntimeError> {
        let Documents { manifest, config, .. } = documents;
        let chain = config.chain_ids();
        self.layers(source, &manifest.layers, &chain, config.diff_ids()).await?;
        let snapshot = format!("containerd.io/gc.ref.snapshot.{}", self.images.snapshotter);
        let labels = chain.last().map(|top| (snapshot, top.to_string()));
        self.write_document(&manifest.config, &documents.config_bytes, labels.into_iter().collect())
            .await?;
        let config_ref = (
            "containerd.io/gc.ref.content.config".to_owned(),
            manifest.config.digest.to_string(),
        );
        self.write_document(
            &documents.descriptor,
            &documents.manifest_bytes,
            HashMap::from([config_ref]),
        )
        .await
    }

    /// Unpacks what is not unpacked yet, bottom first.
    async fn layers(
        &self,
        source: &mut Source,
        layers: &[Descriptor],
        chain: &[Digest],
        diffs: &[Digest],
    ) -> Result<(), RuntimeError> {
        let mut unpacked = 0;
        for (at, id) in chain.iter().enumerate().rev() {
            // First kept, then looked for: what is found stays.
            self.keep(id).await?;
            if self.images.is_unpacked(id).await? {
                unpacked = at + 1;
                break;
            }
        }
        for at in unpacked..layers.len() {
            self.fetch(source, &layers[at]).await?;
            let below = at.checked_sub(1).map(|below| &chain[below]);
            self.unpack(&layers[at], &diffs[at], below, &chain[at]).await?;
            let digest = layers[at].digest.to_string();
            let delete = self.images.client.request(DeleteContentRequest { digest });
            let deleted = within(QUICK, self.images.client.content().delete(delete)).await;
            deleted.optional().or_error(TAKE_IN, self.name)?;
        }
        Ok(())
    }

    async fn keep(&self, chain: &Digest) -> Result<(), RuntimeError> {
        let kind = format!("snapshots/{}", self.images.snapshotter);
        let resource = Some(Resource { id: chain.to_string(), r#type: kind });
        let add = self
            .images
            .client
            .request(AddResourceRequest { id: self.lease.to_owned(), resource });
        within(QUICK, self.images.client.leases().add_resource(add))
            .await
            .made()
            .or_error(TAKE_IN, self.name)?;
        Ok(())
    }

    async fn unpack(
        &self,
        layer: &Descriptor,
        diff: &Digest,
        below: Option<&Digest>,
        chain: &Digest,
    ) -> Result<(), RuntimeError> {
        let client = &self.images.client;
        let snapshotter = self.images.snapshotter.clone();
        let key = format!("{}-{}", self.lease, chain.hex());
        // Half unpacked by an earlier attempt.
        self.discard(&key).await?;
        let prepare = PrepareSnapshotRequest {
            snapshotter: snapshotter.clone(),
            key: key.clone(),
            parent: below.map(ToString::to_string).unwrap_or_default(),
            labels: HashMap::new(),
        };
        let prepared = within(QUICK, client.snapshots().prepare(client.leased(self.lease, prepare))).await;
        let mounts = prepared.or_error(TAKE_IN, self.name)?.mounts;
        let apply = ApplyRequest {
            diff: Some(target(layer)),
            mounts,
            sync_fs: true,
            ..ApplyRequest::default()
        };
        let applied = within(UNPACK, client.diff().apply(client.leased(self.lease, apply))).await;
        let applied = applied.or_error(TAKE_IN, self.name)?.applied.unwrap_or_default();
        if applied.digest != diff.as_str() {
            self.discard(&key).await?;
            return Err(pull_error(self.name, ImageError::Mismatch { digest: diff.to_string() }));
        }
        let commit = CommitSnapshotRequest {
            snapshotter,
            name: chain.to_string(),
            key,
            labels: HashMap::new(),
        };
        let committed = within(PROCESS, client.snapshots().commit(client.leased(self.lease, commit))).await;
        committed.made().or_error(TAKE_IN, self.name).map(drop)
    }

    async fn discard(&self, key: &str) -> Result<(), RuntimeError> {
        let client = &self.images.client;
        remove_snapshot(client, &self.images.snapshotter, key)
            .await
            .or_error(TAKE_IN, self.name)
    }

    async fn ingest(
        &self,
        descriptor: &Descriptor,
        labels: HashMap<String, String>,
    ) -> Result<Ingest<'_>, RuntimeError> {
        Ingest::begin(&self.images.client, self.lease, self.name, descriptor, labels).await
    }

    async fn write_document(
        &self,
        descriptor: &Descriptor,
        bytes: &[u8],
        labels: HashMap<String, String>,
    ) -> Result<(), RuntimeError> {
        let mut ingest = self.ingest(descriptor, labels).await?;
        if ingest.offset() > 0 {
            ingest.restart().await?;
        }
        ingest.push(bytes).await?;
        ingest.commit().await
    }

    /// Brings a layer's content in, from where an earlier attempt stopped.
    async fn fetch(&self, source: &mut Source, layer: &Descriptor) -> Result<(), RuntimeError> {
        let refused = |error| pull_error(self.name, error);
        let client = &self.images.client;
        let info = client.request(InfoRequest { digest: layer.digest.to_string() });
        if within(QUICK, client.content().info(info))
            .await
            .optional()
            .or_error(TAKE_IN, self.name)?
            .is_some()
        {
            return Ok(());
        }
        let mut ingest = self.ingest(layer, HashMap::new()).await?;
        let mut blob = source.blob(layer, ingest.offset()).await.map_err(refused)?;
        if blob.offset() != ingest.offset() {
            ingest.restart().await?;
        }
        while let Some(piece) = blob.next().await.map_err(refused)? {
            ingest.push(&piece).await?;
        }
        ingest.commit().await
    }
}

/// Repeatable.
pub(super) async fn remove_snapshot(client: &Client, snapshotter: &str, key: &str) -> Result<(), Refusal> {
    let request = RemoveSnapshotRequest { snapshotter: snapshotter.to_owned(), key: key.to_owned() };
    within(PROCESS, client.snapshots().remove(client.request(request)))
        .await
        .optional()
        .map(drop)
}

/// A container's own writable layer on top of an image, found or made.
pub(super) async fn writable_layer(
    client: &Client,
    snapshotter: &str,
    key: &str,
    top: Option<&Digest>,
) -> Result<Vec<Mount>, Refusal> {
    let prepare = PrepareSnapshotRequest {
        snapshotter: snapshotter.to_owned(),
        key: key.to_owned(),
        parent: top.map(ToString::to_string).unwrap_or_default(),
        labels: HashMap::new(),
    };
    match within(QUICK, client.snapshots().prepare(client.request(prepare))).await {
        Err(refusal) if refusal.is(Code::AlreadyExists) => mounts(client, snapshotter, key).await,
        answer => Ok(answer?.mounts),
    }
}

pub(super) async fn mounts(client: &Client, snapshotter: &str, key: &str) -> Result<Vec<Mount>, Refusal> {
    let request = MountsRequest { snapshotter: snapshotter.to_owned(), key: key.to_owned() };
    Ok(within(QUICK, client.snapshots().mounts(client.request(request)))
        .await?
        .mounts)
}

fn target(descriptor: &Descriptor) -> Target {
    Target {
        media_type: descriptor.media_type.clone(),
        digest: descriptor.digest.to_string(),
        size: i64::try_from(descriptor.size).unwrap_or(i64::MAX),
        ..Target::default()
    }
}

fn import_error(archive: &Path, error: &(dyn std::error::Error + 'static)) -> RuntimeError {
    let reason = match error.downcast_ref::<RuntimeError>() {
        Some(unreachable @ RuntimeError::Unreachable { .. }) => explain(unreachable),
        Some(RuntimeError::DiskFull { .. }) => {
            format!("containerd has no room for it: {NO_ROOM}")
        }
        Some(_) | None => explain(error),
    };
    RuntimeError::Import { archive: archive.to_owned(), reason }
}

pub(super) fn pull_error(image: &str, error: ImageError) -> RuntimeError {
    RuntimeError::Pull { image: image.to_owned(), reason: explain(&error) }
}

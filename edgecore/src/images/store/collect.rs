//! Garbage: what no name, no image on its way and no root needs.

use std::collections::{BTreeMap, BTreeSet};

use super::folder::{Layer, Name, RootRecord};
use super::{Config, ImageId, ImageStore, Manifest, StoreError};
use crate::images::Digest;

/// What was taken away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    /// Something is being put in: nothing was taken away; ask again later.
    pub busy: bool,
    pub layers: usize,
    pub documents: usize,
    /// Packed layers that nobody waits for.
    pub partials: usize,
    /// What the layers held.
    pub bytes: u64,
}

/// What there is.
#[derive(Debug, Default)]
struct Inventory {
    names: Vec<Name>,
    incoming: Vec<Name>,
    roots: Vec<RootRecord>,
    layers: Vec<Layer>,
    /// Manifests with their configurations and packed layers, as far as they are there.
    manifests: BTreeMap<Digest, (Digest, Vec<Digest>)>,
    /// Configurations with the chains of their layers.
    configs: BTreeMap<Digest, Vec<Digest>>,
    documents: BTreeSet<Digest>,
    partials: BTreeSet<Digest>,
}

/// What nobody needs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Garbage {
    layers: Vec<Digest>,
    documents: Vec<Digest>,
    partials: Vec<Digest>,
}

impl ImageStore {
    /// Takes away what nothing in here needs any more: after a name moved, and after a root went. What fails, or has to
    /// wait for somebody, is done the next time.
    pub(super) fn tidy(&self) {
        match self.collect(&BTreeSet::new()) {
            Ok(Collected { layers: 0, .. }) => {}
            Ok(Collected { layers, bytes, .. }) => {
                tracing::info!(layers, bytes, "took away layers that no image needs");
            }
            Err(error) => tracing::warn!("taking away what no image needs: {}", crate::runtime::explain(&error)),
        }
    }

    /// Takes away what no name and no root needs, nor any image of `in_use`, and what was cut off. A record that cannot
    /// be read ends it: what is not known to be unneeded stays. Deletes, which takes long: to be called where blocking
    /// is allowed.
    pub fn collect(&self, in_use: &BTreeSet<ImageId>) -> Result<Collected, StoreError> {
        let folder = &self.shared.folder;
        let Some(held) = folder.hold_alone()? else {
            return Ok(Collected { busy: true, ..Collected::default() });
        };
        let inventory = self.inventory(in_use)?;
        let garbage = inventory.garbage(in_use);
        folder.remove_layers(&garbage.layers)?;
        garbage
            .documents
            .iter()
            .try_for_each(|digest| folder.remove_blob(digest))?;
        garbage
            .partials
            .iter()
            .try_for_each(|digest| folder.remove_partial(digest))?;
        folder.sweep()?;
        // The rest concerns nobody.
        drop(held);
        folder.empty_trash()?;
        let gone = inventory
            .layers
            .iter()
            .filter(|layer| garbage.layers.contains(&layer.chain));
        Ok(Collected {
            busy: false,
            layers: garbage.layers.len(),
            documents: garbage.documents.len(),
            partials: garbage.partials.len(),
            bytes: gone.fold(0, |sum, layer| sum.saturating_add(layer.bytes)),
        })
    }

    fn inventory(&self, in_use: &BTreeSet<ImageId>) -> Result<Inventory, StoreError> {
        let folder = &self.shared.folder;
        let mut inventory = Inventory {
            names: folder.names()?,
            incoming: Vec::new(),
            roots: Vec::new(),
            layers: folder.all_layers()?,
            manifests: BTreeMap::new(),
            configs: BTreeMap::new(),
            documents: folder.blobs()?.into_iter().collect(),
            partials: folder.partials()?.into_iter().collect(),
        };
        for name in folder.incoming()? {
            // It arrived, and nobody lived to say so.
            if inventory.names.contains(&name) {
                folder.arrived(&name.name)?;
            } else {
                inventory.incoming.push(name);
            }
        }
        for root in folder.roots()? {
            if root.folder.exists() {
                inventory.roots.push(root);
            } else {
                folder.remove_root(&root.folder)?;
            }
        }
        let wanted: BTreeSet<Digest> = inventory.wanted().map(|name| name.manifest.clone()).collect();
        let mut configs = in_use.clone();
        for digest in wanted {
            if let Some(manifest) = folder.blob(&digest)?.and_then(|bytes| Manifest::parse(&bytes).ok()) {
                configs.insert(manifest.config.digest.clone());
                let packed = manifest.layers.into_iter().map(|layer| layer.digest).collect();
                inventory.manifests.insert(digest, (manifest.config.digest, packed));
            }
        }
        for digest in configs {
            if let Some(config) = folder.blob(&digest)?.and_then(|bytes| Config::parse(&bytes).ok()) {
                inventory.configs.insert(digest, config.chain_ids());
            }
        }
        Ok(inventory)
    }
}

impl Inventory {
    fn wanted(&self) -> impl Iterator<Item = &Name> {
        self.names.iter().chain(&self.incoming)
    }

    fn garbage(&self, in_use: &BTreeSet<ImageId>) -> Garbage {
        let mut documents: BTreeSet<&Digest> = in_use.iter().collect();
        let mut partials = BTreeSet::new();
        for name in self.wanted() {
            documents.insert(&name.manifest);
            if let Some((config, _)) = self.manifests.get(&name.manifest) {
                documents.insert(config);
            }
        }
        for name in &self.incoming {
            if let Some((_, packed)) = self.manifests.get(&name.manifest) {
                partials.extend(packed);
            }
        }
        let mut layers: BTreeSet<&Digest> = self.roots.iter().flat_map(|root| &root.chain).collect();
        // All chains of an image: one on its way has only its lower ones.
        layers.extend(
            documents
                .iter()
                .filter_map(|config| self.configs.get(*config))
                .flatten(),
        );
        // What a needed layer is on is needed.
        let below: BTreeMap<&Digest, &Layer> = self.layers.iter().map(|layer| (&layer.chain, layer)).collect();
        let mut todo: Vec<&Digest> = layers.iter().copied().collect();
        while let Some(chain) = todo.pop() {
            if let Some(next) = below.get(chain).and_then(|layer| layer.below.as_ref())
                && layers.insert(next)
            {
                todo.push(next);
            }
        }
        let unneeded = |all: &BTreeSet<Digest>, needed: &BTreeSet<&Digest>| {
            all.iter().filter(|digest| !needed.contains(digest)).cloned().collect()
        };
        let chains = self.layers.iter().map(|layer| layer.chain.clone()).collect();
        Garbage {
            layers: unneeded(&chains, &layers),
            documents: unneeded(&self.documents, &documents),
            partials: unneeded(&self.partials, &partials),
        }
    }
}

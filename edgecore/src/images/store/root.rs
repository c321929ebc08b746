//! Root file systems of containers.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::folder::{Folder, RootRecord, make, remove_tree};
use super::{ImageStore, RootKind, StoreError, Stored, copy, io_error, overlay};
use crate::sys;

/// What is in a container's folder.
const ROOT: &str = "root";
const UPPER: &str = "upper";
const WORK: &str = "work";
/// A copy that is not complete.
const HALF: &str = "root.half";

/// A container's root file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    pub path: PathBuf,
    pub kind: RootKind,
}

impl ImageStore {
    /// Makes `<folder>/root` a container's root file system, or finds it as it was made. Repeatable, also after a reboot
    /// took a mount away: what the container wrote stays, and so does the image it was first made of. Copies where
    /// nothing can be mounted, which takes long: to be called where blocking is allowed.
    pub fn mount_root(&self, image: &Stored, folder: &Path) -> Result<Root, StoreError> {
        let store = &self.shared.folder;
        let _held = store.hold()?;
        let path = folder.join(ROOT);
        if is_mounted(folder, &path)? {
            return Ok(Root { path, kind: RootKind::Overlay });
        }
        let record = match store.root(folder)? {
            Some(record) => record,
            None => {
                let record = RootRecord::new(folder, self.kind_of(image, folder), image.layers.clone());
                // Before anything is made of them, so that they stay.
                store.put_root(&record)?;
                record
            }
        };
        if let Some(top) = record.chain.first()
            && store.stack(top)?.as_ref() != Some(&record.chain)
        {
            return Err(StoreError::Missing { folder: folder.to_owned() });
        }
        fs::create_dir_all(folder).map_err(io_error("making", folder))?;
        let kind = match (record.kind, self.shared.kind) {
            (RootKind::Overlay, RootKind::Overlay) => {
                self.mount(&record, folder)?;
                RootKind::Overlay
            }
            // Mounts were possible when it was made, and are no longer: what it wrote goes on top of the copy.
            (RootKind::Overlay, RootKind::Copy) => {
                self.copy(&record, folder, true)?;
                store.put_root(&RootRecord::new(folder, RootKind::Copy, record.chain))?;
                RootKind::Copy
            }
            (RootKind::Copy, _) => {
                self.copy(&record, folder, false)?;
                RootKind::Copy
            }
        };
        Ok(Root { path, kind })
    }

    /// Takes a container's root file system away, with all the container wrote. Repeatable.
    pub fn remove_root(&self, folder: &Path) -> Result<(), StoreError> {
        let store = &self.shared.folder;
        let held = store.hold()?;
        let root = folder.join(ROOT);
        while is_mounted(folder, &root)? {
            sys::unmount(&root).map_err(io_error("unmounting", &root))?;
        }
        for name in [ROOT, UPPER, WORK, HALF] {
            remove_tree(&folder.join(name))?;
        }
        store.remove_root(folder)?;
        drop(held);
        self.tidy();
        Ok(())
    }

    fn kind_of(&self, image: &Stored, folder: &Path) -> RootKind {
        let names = layer_names(&image.layers);
        let fits = !names.is_empty() && overlay::fits(&names, &folder.join(UPPER), &folder.join(WORK));
        if fits { self.shared.kind } else { RootKind::Copy }
    }

    fn mount(&self, record: &RootRecord, folder: &Path) -> Result<(), StoreError> {
        let [root, upper, work] = [ROOT, UPPER, WORK].map(|name| folder.join(name));
        for path in [&root, &upper, &work] {
            make(path).map_err(io_error("making", path))?;
        }
        let names = layer_names(&record.chain);
        overlay::mount_root(self.shared.folder.layers(), names, upper, work, root.clone())
            .map_err(io_error("mounting an overlay at", &root))
    }

    /// Copies the layers, and what was written on them, unless that was done before.
    fn copy(&self, record: &RootRecord, folder: &Path, with_written: bool) -> Result<(), StoreError> {
        let (root, half) = (folder.join(ROOT), folder.join(HALF));
        // An empty one is where a mount was.
        let is_empty = |path: &Path| fs::read_dir(path).map_or(true, |mut entries| entries.next().is_none());
        if root.exists() && !(with_written && is_empty(&root)) {
            return Ok(());
        }
        remove_tree(&half)?;
        remove_tree(&root)?;
        let mut names = layer_names(&record.chain);
        if with_written && folder.join(UPPER).exists() {
            names.insert(0, folder.join(UPPER).display().to_string());
        }
        let copied = || -> io::Result<()> {
            make(&half)?;
            copy::stack(&self.shared.folder.layers(), &names, &half)?;
            rustix::fs::syncfs(fs::File::open(&half)?)?;
            Ok(())
        };
        if let Err(error) = copied() {
            remove_tree(&half)?;
            return Err(io_error("copying to", &half)(error));
        }
        fs::rename(&half, &root).map_err(io_error("putting in place", &root))
    }
}

fn layer_names(chain: &[super::Digest]) -> Vec<String> {
    chain.iter().map(Folder::layer_name).collect()
}

/// Whether something is mounted at `path`, which is in `folder`.
fn is_mounted(folder: &Path, path: &Path) -> Result<bool, StoreError> {
    let device = |path: &Path| match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata.dev())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("looking at", path)(error)),
    };
    Ok(match (device(folder)?, device(path)?) {
        (Some(outside), Some(inside)) => outside != inside,
        (None, _) | (_, None) => false,
    })
}

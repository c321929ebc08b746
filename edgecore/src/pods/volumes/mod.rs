//! A pod's volumes: what they hold, decided from objects; and how that gets onto the disk.
//!
//! What shows config maps, secrets or the pod itself is written by [`atomic`], so that a reader sees the old files or
//! the new ones and never a mixture. Secrets and what is mixed with them live in memory only.

pub mod atomic;
mod host_path;
mod tmpfs;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use proto::object::quantity::Quantity;
use proto::value::Value;

use self::tmpfs::Memory;
use super::env::{ConfigError, Surroundings, field_ref, key_of, resource_ref};
use super::supported::TOKEN_VOLUME_PREFIX;
use crate::removal;
use crate::rootless::ids::Ids;
use crate::runtime::inside::{self, Kind};

/// What files get that say no mode of their own.
const MODE_DEFAULT: u32 = 0o644;
/// What an empty folder gets, as Kubernetes has it.
const MODE_EMPTY_DIR: u32 = 0o777;

/// The files of a volume by their paths in it.
pub type Files = BTreeMap<String, File>;

/// One file of a volume.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct File {
    pub bytes: Vec<u8>,
    pub mode: u32,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The bytes may be a secret.
        write!(f, "{} bytes, mode {:o}", self.bytes.len(), self.mode)
    }
}

/// What a volume is on this node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Content {
    /// A folder of the pod's own, in memory when it says so.
    Empty {
        memory: bool,
        size_bytes: Option<u64>,
    },
    HostPath {
        path: PathBuf,
        kind: String,
    },
    Files {
        files: Files,
        memory: bool,
    },
    /// A service account token, which nothing here can make: it is not mounted.
    Left,
}

/// One volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Volume {
    pub name: String,
    pub content: Content,
}

/// Why a volume could not be made.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("hostPath type check failed: {path} is not a {kind}")]
    HostPath { path: String, kind: String },
    #[error("{action} {path}")]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl VolumeError {
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

/// What a pod's volume holds now.
pub fn content(volume: &Value, around: &Surroundings<'_>) -> Result<Content, ConfigError> {
    let name = volume.text_at(&["name"]).unwrap_or_default();
    if name.starts_with(TOKEN_VOLUME_PREFIX) {
        return Ok(Content::Left);
    }
    if let Some(empty) = volume.get("emptyDir") {
        let size: Option<Quantity> = empty.text_at(&["sizeLimit"]).and_then(|text| text.parse().ok());
        let size_bytes = size.and_then(|size| u64::try_from(size.units()).ok());
        return Ok(Content::Empty {
            memory: empty.text_at(&["medium"]) == Some("Memory"),
            size_bytes: size_bytes.filter(|size| *size > 0),
        });
    }
    if let Some(host) = volume.get("hostPath") {
        let text = |field: &str| host.text_at(&[field]).unwrap_or_default().to_owned();
        return Ok(Content::HostPath { path: text("path").into(), kind: text("type") });
    }
    let mut files = Files::new();
    let mut memory = false;
    let mode = |source: &Value| mode_at(source, "defaultMode").unwrap_or(MODE_DEFAULT);
    if let Some(projected) = volume.get("projected") {
        for source in projected.list_at(&["sources"]) {
            let mode = mode(projected);
            for (field, value) in source.as_map().into_iter().flatten() {
                memory |= field == "secret";
                files.extend(source_files(field, value, mode, around)?);
            }
        }
    }
    for field in ["configMap", "secret", "downwardAPI"] {
        if let Some(source) = volume.get(field) {
            memory |= field == "secret";
            files.extend(source_files(field, source, mode(source), around)?);
        }
    }
    Ok(Content::Files { files, memory })
}

fn mode_at(value: &Value, field: &str) -> Option<u32> {
    let mode = u32::try_from(value.int_at(&[field])?).ok()?;
    Some(mode & 0o777)
}

fn source_files(field: &str, source: &Value, mode: u32, around: &Surroundings<'_>) -> Result<Files, ConfigError> {
    let kind = match field {
        "configMap" => "ConfigMap",
        "secret" => "Secret",
        "downwardAPI" => return downward(source, mode, around),
        _ => return Ok(Files::new()),
    };
    let name = source
        .text_at(&["name"])
        .or_else(|| source.text_at(&["secretName"]))
        .unwrap_or_default();
    let object = key_of(kind, around.pod, name);
    let optional = source.flag_at(&["optional"]);
    let Some(mut entries) = around.objects.entries(&object) else {
        return if optional {
            Ok(Files::new())
        } else {
            Err(ConfigError::NoObject(object))
        };
    };
    let items = source.list_at(&["items"]);
    if items.is_empty() {
        let file = |(name, bytes)| (name, File { bytes, mode });
        return Ok(entries.into_iter().map(file).collect());
    }
    let mut files = Files::new();
    for item in items {
        let key = item.text_at(&["key"]).unwrap_or_default();
        let Some(bytes) = entries.remove(key) else {
            if optional {
                continue;
            }
            return Err(ConfigError::NoKey { object, key: key.to_owned() });
        };
        let mode = mode_at(item, "mode").unwrap_or(mode);
        files.insert(inside(item)?, File { bytes, mode });
    }
    Ok(files)
}

fn downward(source: &Value, mode: u32, around: &Surroundings<'_>) -> Result<Files, ConfigError> {
    let mut files = Files::new();
    for item in source.list_at(&["items"]) {
        let text = match (item.text_at(&["fieldRef", "fieldPath"]), item.get("resourceFieldRef")) {
            (Some(field), _) => field_ref(field, around)?,
            (None, Some(resource)) => resource_ref(resource, &Value::Null, around)?,
            (None, None) => continue,
        };
        let mode = mode_at(item, "mode").unwrap_or(mode);
        files.insert(inside(item)?, File { bytes: text.into_bytes(), mode });
    }
    Ok(files)
}

/// The path of an item, which must stay inside its volume and out of [`atomic`]'s own names.
fn inside(item: &Value) -> Result<String, ConfigError> {
    let path = item.text_at(&["path"]).unwrap_or_default();
    let bad = path.is_empty()
        || path.starts_with("..")
        || path
            .split('/')
            .any(|part| part.is_empty() || part == "." || part == "..");
    if bad {
        Err(ConfigError::Field(format!("path {path:?}")))
    } else {
        Ok(path.to_owned())
    }
}

/// Makes one volume in its folder, or brings it up to date.
pub fn write(volume: &Volume, folder: &Path, group: Option<u32>, mount_memory: bool) -> Result<(), VolumeError> {
    // One that is not there has no members either: what is the user's own is written to as that.
    let group = group.filter(|group| Ids::groups().contains(*group));
    let (memory, size_bytes) = match &volume.content {
        Content::Left => return Ok(()),
        Content::HostPath { path, kind } => return host_path::ensure(path, kind),
        Content::Empty { memory, size_bytes } => (*memory, *size_bytes),
        Content::Files { memory, .. } => (*memory, None),
    };
    let in_memory = memory && mount_memory;
    match &volume.content {
        Content::Files { files, .. } => {
            fs::create_dir_all(folder).map_err(VolumeError::io("making folder", folder))?;
            if in_memory {
                tmpfs::ensure(folder, &Memory { size_bytes, ..Memory::default() })
                    .map_err(VolumeError::io("mounting memory at", folder))?;
            }
            set_mode(folder, 0o755)?;
            atomic::write(folder, files, group)
        }
        Content::Empty { .. } | Content::HostPath { .. } | Content::Left => {
            empty(folder, group)?;
            if in_memory {
                let memory = Memory { size_bytes, mode: Some(empty_mode(group)), group };
                tmpfs::ensure(folder, &memory).map_err(VolumeError::io("mounting memory at", folder))?;
            }
            Ok(())
        }
    }
}

fn empty_mode(group: Option<u32>) -> u32 {
    MODE_EMPTY_DIR | if group.is_some() { 0o2000 } else { 0 }
}

/// Makes an empty folder. One that is there is the pod's: who may do what in it is what its containers made of it.
fn empty(folder: &Path, group: Option<u32>) -> Result<(), VolumeError> {
    let (Some(volumes), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Ok(());
    };
    if folder.exists() {
        return Ok(());
    }
    // It gets its name when it is as it should be. No volume's name begins with a dot.
    let new = volumes.join(format!(".new-{}", name.to_string_lossy()));
    fs::create_dir_all(&new).map_err(VolumeError::io("making folder", &new))?;
    if group.is_some() {
        chown(&new, None, group).map_err(VolumeError::io("giving to its group", &new))?;
    }
    set_mode(&new, empty_mode(group))?;
    fs::rename(&new, folder).map_err(VolumeError::io("making folder", folder))
}

fn set_mode(folder: &Path, mode: u32) -> Result<(), VolumeError> {
    let error = |source| VolumeError::Io {
        action: "setting the mode of",
        path: folder.to_owned(),
        source,
    };
    let now = fs::metadata(folder).map_err(error)?.permissions().mode() & 0o7777;
    if now != mode {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode)).map_err(error)?;
    }
    Ok(())
}

/// Takes all volumes of a pod away; what the host lent is only unmounted from the containers, never touched.
pub fn remove(folder: &Path) -> Result<(), VolumeError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(VolumeError::io("reading", folder)(error)),
    };
    for entry in entries {
        let path = entry.map_err(VolumeError::io("reading", folder))?.path();
        tmpfs::release(&path).map_err(VolumeError::io("unmounting", &path))?;
    }
    removal::remove_tree(folder).map_err(VolumeError::io("removing", folder))
}

/// Where a container's mount comes from: the volume, or what `subPath` names in it, made as a folder if it is not there.
///
/// The result has no symbolic links left and lies inside the volume.
pub fn source(volume: &Path, sub_path: &str) -> Result<PathBuf, VolumeError> {
    if sub_path.is_empty() {
        return Ok(volume.to_owned());
    }
    let path = volume.join(sub_path);
    if !path.exists() {
        // As if the volume were all there is: a link that a container puts there leads nowhere else.
        let made = fs::File::open(volume).and_then(|root| inside::place(root, Path::new(sub_path), Kind::FolderAsRoot));
        made.map_err(VolumeError::io("making folder", &path))?;
    }
    let real = path.canonicalize().map_err(VolumeError::io("resolving", &path))?;
    let root = volume.canonicalize().map_err(VolumeError::io("resolving", volume))?;
    if real.starts_with(&root) {
        Ok(real)
    } else {
        Err(VolumeError::io("leaving the volume by", &path)(
            io::ErrorKind::PermissionDenied.into(),
        ))
    }
}

#[cfg(test)]
mod tests;

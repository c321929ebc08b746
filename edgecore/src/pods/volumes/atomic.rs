//! A folder of files that changes all at once.
//!
//! The files live in a folder `..<number>`, `..data` is a symbolic link to it, and every visible name is a link through
//! `..data`. A change writes a new folder, renames a new `..data` over the old one (the only moment at which anything
//! changes for a reader), and takes the old folder away. A crash in between leaves the old files in force; what it left
//! behind is swept by the next write.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;

use super::{File, Files, VolumeError};

const DATA: &str = "..data";
const DATA_NEW: &str = "..data_tmp";

/// Makes the folder hold these files. Writes nothing when it does already.
pub fn write(folder: &Path, files: &Files, group: Option<u32>) -> Result<(), VolumeError> {
    let data = folder.join(DATA);
    let target = fs::read_link(&data).ok();
    if target.is_some() && read(&data).is_ok_and(|now| same(&now, files, group.is_some())) {
        return links(folder, files);
    }
    let number = target
        .as_ref()
        .and_then(|target| target.to_str()?.strip_prefix("..")?.parse::<u64>().ok())
        .map_or(0, |number| number.wrapping_add(1));
    let name = format!("..{number}");
    let next = folder.join(&name);
    if next.exists() {
        // Left by a crash before it was ever in force.
        fs::remove_dir_all(&next).map_err(VolumeError::io("removing", &next))?;
    }
    fs::create_dir(&next).map_err(VolumeError::io("making folder", &next))?;
    for (path, file) in files {
        write_file(&next.join(path), file, group)?;
    }
    open_folders(&next)?;
    let new = folder.join(DATA_NEW);
    if new.symlink_metadata().is_ok() {
        fs::remove_file(&new).map_err(VolumeError::io("removing", &new))?;
    }
    symlink(&name, &new).map_err(VolumeError::io("linking", &new))?;
    fs::rename(&new, &data).map_err(VolumeError::io("putting in force", &data))?;
    links(folder, files)?;
    sweep(folder, &name)
}

fn write_file(path: &Path, file: &File, group: Option<u32>) -> Result<(), VolumeError> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(VolumeError::io("making folder", parent))?;
    }
    fs::write(path, &file.bytes).map_err(VolumeError::io("writing", path))?;
    if group.is_some() {
        chown(path, None, group).map_err(VolumeError::io("giving to its group", path))?;
    }
    let mode = mode(file, group.is_some());
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(VolumeError::io("setting the mode of", path))
}

/// With a group, its members may read.
fn mode(file: &File, group: bool) -> u32 {
    if group { file.mode | 0o040 } else { file.mode }
}

/// Folders are open whatever the edge core's umask is; the files' own modes decide.
fn open_folders(folder: &Path) -> Result<(), VolumeError> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).map_err(VolumeError::io("opening", folder))?;
    for entry in fs::read_dir(folder).map_err(VolumeError::io("reading", folder))? {
        let path = entry.map_err(VolumeError::io("reading", folder))?.path();
        if path.is_dir() {
            open_folders(&path)?;
        }
    }
    Ok(())
}

fn same(now: &Files, wanted: &Files, group: bool) -> bool {
    now.len() == wanted.len()
        && now
            .iter()
            .zip(wanted)
            .all(|((a, now), (b, wanted))| a == b && now.bytes == wanted.bytes && now.mode == mode(wanted, group))
}

/// Every file under a folder.
fn read(folder: &Path) -> io::Result<Files> {
    let mut files = Files::new();
    let mut open = vec![(folder.to_owned(), String::new())];
    while let Some((path, prefix)) = open.pop() {
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().ok_or(io::ErrorKind::InvalidData)?;
            if entry.file_type()?.is_dir() {
                open.push((entry.path(), format!("{prefix}{name}/")));
            } else {
                let bytes = fs::read(entry.path())?;
                let mode = entry.metadata()?.permissions().mode() & 0o777;
                files.insert(format!("{prefix}{name}"), File { bytes, mode });
            }
        }
    }
    Ok(files)
}

/// Links the visible names, and unlinks those that show nothing any more.
fn links(folder: &Path, files: &Files) -> Result<(), VolumeError> {
    let names: BTreeSet<&str> = files.keys().filter_map(|path| path.split('/').next()).collect();
    for entry in fs::read_dir(folder).map_err(VolumeError::io("reading", folder))? {
        let entry = entry.map_err(VolumeError::io("reading", folder))?;
        let name = entry.file_name();
        let visible = name.to_str().filter(|name| !name.starts_with(".."));
        if visible.is_some_and(|name| !names.contains(name)) {
            fs::remove_file(entry.path()).map_err(VolumeError::io("removing", &entry.path()))?;
        }
    }
    for name in names {
        let link = folder.join(name);
        match symlink(Path::new(DATA).join(name), &link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(VolumeError::io("linking", &link)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Takes away every folder that is not in force.
fn sweep(folder: &Path, name: &str) -> Result<(), VolumeError> {
    for entry in fs::read_dir(folder).map_err(VolumeError::io("reading", folder))? {
        let entry = entry.map_err(VolumeError::io("reading", folder))?;
        let other = entry.file_name();
        let ours = other.to_str().and_then(|other| other.strip_prefix(".."));
        let old = ours.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit())) && other != name;
        if old {
            fs::remove_dir_all(entry.path()).map_err(VolumeError::io("removing", &entry.path()))?;
        }
    }
    Ok(())
}

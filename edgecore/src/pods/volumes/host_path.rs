//! Folders and files that the host lends to a pod.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use super::VolumeError;

/// Checks that what a pod wants is there, and makes it where its type says so.
pub(super) fn ensure(path: &Path, kind: &str) -> Result<(), VolumeError> {
    let found = fs::metadata(path).ok().map(|meta| meta.file_type());
    match (kind, &found) {
        // Without a type nothing is checked, and what is not there is made, as other runtimes do it.
        ("" | "DirectoryOrCreate", None) => {
            return fs::create_dir_all(path).map_err(VolumeError::io("making folder", path));
        }
        ("FileOrCreate", None) => {
            let file = fs::OpenOptions::new().create(true).append(true).open(path);
            return file.map(drop).map_err(VolumeError::io("making file", path));
        }
        _ => {}
    }
    let fits = match kind {
        "" => true,
        _ => found.is_some_and(|found| match kind {
            "Directory" | "DirectoryOrCreate" => found.is_dir(),
            "File" | "FileOrCreate" => found.is_file(),
            "Socket" => found.is_socket(),
            "CharDevice" => found.is_char_device(),
            "BlockDevice" => found.is_block_device(),
            _ => false,
        }),
    };
    if fits {
        Ok(())
    } else {
        Err(VolumeError::HostPath { path: path.display().to_string(), kind: kind.to_owned() })
    }
}

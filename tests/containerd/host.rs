//! What tests do to the machine they run on, below a folder or a namespace of their own.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Takes all the room a folder's file system has left, to the last byte, and says with which file.
pub(crate) fn fill(folder: &Path) -> PathBuf {
    let path = folder.join("filler");
    let mut file = std::fs::File::options().create(true).append(true).open(&path).unwrap();
    let block = vec![0; 1 << 20];
    let mut size = block.len();
    while size > 0 {
        match file.write_all(&block[..size]) {
            Ok(()) => {}
            // Some of it may have found room.
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
                size /= 2;
            }
        }
    }
    path
}

/// Mounts a small file system of memory on a folder; `options` are those of tmpfs.
pub(crate) fn small(folder: &Path, options: &str) -> PathBuf {
    std::fs::create_dir_all(folder).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", options, "none"])
        .arg(folder)
        .status()
        .unwrap();
    assert!(mounted.success());
    folder.to_owned()
}

/// Gives this thread, and every process it starts from now on, a mount table of its own.
pub(crate) fn own_mounts() {
    #[expect(unsafe_code, reason = "rustix marks it unsafe for what other flags than this one do")]
    // SAFETY: a new mount namespace shares no memory or descriptors differently.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
    assert!(
        Command::new("mount")
            .args(["--make-rprivate", "/"])
            .status()
            .unwrap()
            .success()
    );
}

/// Removes a cgroup and those below it.
pub(crate) fn remove_tree(cgroup: &Path) {
    for entry in std::fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_tree(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(cgroup);
}

pub(crate) fn kill(pid: u32) {
    let _ = Command::new("kill")
        .args(["-9", &pid.to_string()])
        .stderr(Stdio::null())
        .status();
}

//! Paths in a container's root, as what runs in it would see them: whatever links an image has, none leads out of it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, mkdirat, openat, openat2, readlinkat};
use rustix::io::Errno;

/// More links on the way are taken for a circle, as the kernel does.
const LINKS_MAX: usize = 40;
/// The kernel may ask for another try when names move while it looks at them; it says so.
const TRIES_MAX: usize = 128;

const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);

/// What a place that is missing is made as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Folder,
    /// Whoever may write to the root may write to it.
    FolderAsRoot,
    File,
}

/// Opens what is at `path`.
pub(crate) fn open(root: impl AsFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(resolve(
        root,
        path,
        flags,
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )?)
}

/// As [`place`], where no link is allowed on the way: it is an error.
pub(crate) fn place_exactly(root: impl AsFd, path: &Path, kind: Kind) -> io::Result<OwnedFd> {
    place_with(root, path, kind, 0)
}

/// Finds `path`, or makes it with all that is missing above it, and where a link on the way leads to nothing, there. The
/// descriptor says only where it is.
pub(crate) fn place(root: impl AsFd, path: &Path, kind: Kind) -> io::Result<OwnedFd> {
    place_with(root, path, kind, LINKS_MAX)
}

fn place_with(root: impl AsFd, path: &Path, kind: Kind, links_max: usize) -> io::Result<OwnedFd> {
    let root = root.as_fd();
    let mode = match kind {
        Kind::Folder | Kind::File => FOLDER_MODE,
        Kind::FolderAsRoot => Mode::from_raw_mode(fstat(root)?.st_mode),
    };
    // What was reached so far, without links, and what is still to go, the next one last.
    let mut reached = PathBuf::new();
    let mut rest: Vec<OsString> = parts(path);
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == ".." {
            reached.pop();
            continue;
        }
        if part == "/" {
            reached.clear();
            continue;
        }
        let next = reached.join(&part);
        match exactly(root, &next) {
            Ok(found) if FileType::from_raw_mode(fstat(&found)?.st_mode) == FileType::Symlink => {
                links += 1;
                if links > links_max {
                    return Err(Errno::LOOP.into());
                }
                let target = readlinkat(&found, "", Vec::new())?;
                rest.extend(parts(Path::new(&OsString::from_vec(target.into_bytes()))));
                continue;
            }
            Ok(_) => {}
            Err(Errno::NOENT) if kind == Kind::File && rest.is_empty() => make_file(exactly(root, &reached)?, &part)?,
            Err(Errno::NOENT) => make_folder(exactly(root, &reached)?, &part, mode)?,
            Err(error) => return Err(error.into()),
        }
        reached = next;
    }
    Ok(exactly(root, &reached)?)
}

fn make_file(parent: OwnedFd, name: &OsStr) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    openat(&parent, name, flags, FILE_MODE)?;
    Ok(())
}

fn make_folder(parent: OwnedFd, name: &OsStr, mode: Mode) -> io::Result<()> {
    mkdirat(&parent, name, FOLDER_MODE)?;
    if mode != FOLDER_MODE {
        // Said of what is there, whatever this process takes from all that it makes; and never through a link.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fchmod(openat(&parent, name, flags, Mode::empty())?, mode)?;
    }
    Ok(())
}

/// A path that has no links but the last one at most, which is not followed.
fn exactly(root: impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    resolve(root, path, flags, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

fn resolve(root: impl AsFd, path: &Path, flags: OFlags, how: ResolveFlags) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    for _ in 0..TRIES_MAX {
        match openat2(&root, path, flags | OFlags::CLOEXEC, Mode::empty(), how) {
            Err(Errno::AGAIN) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().filter(|part| *part != Component::CurDir);
    let mut parts: Vec<_> = parts.map(|part| part.as_os_str().to_owned()).collect();
    parts.reverse();
    parts
}

/// A device, a folder or whatever else is at a place: what `stat` says of its kind.
pub(crate) fn kind(place: impl AsFd) -> io::Result<Kind> {
    let about = rustix::fs::statat(place, "", AtFlags::EMPTY_PATH)?;
    Ok(if FileType::from_raw_mode(about.st_mode) == FileType::Directory {
        Kind::Folder
    } else {
        Kind::File
    })
}

/// The name under which the kernel takes a descriptor for a path, while it is open.
pub(crate) fn name(place: &impl AsFd) -> PathBuf {
    use std::os::fd::AsRawFd as _;
    PathBuf::from(format!("/proc/self/fd/{}", place.as_fd().as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write as _;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    fn root() -> (tempfile::TempDir, File) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        let open = File::open(&root).unwrap();
        (folder, open)
    }

    /// Where a place is, below the root.
    fn found(folder: &tempfile::TempDir, place: OwnedFd) -> PathBuf {
        let path = fs::read_link(name(&place)).unwrap();
        path.strip_prefix(folder.path().canonicalize().unwrap().join("root"))
            .unwrap()
            .to_owned()
    }

    #[test]
    fn what_is_missing_is_made() {
        let (folder, root) = root();
        for (path, kind) in [
            ("/a/b/c", Kind::Folder),
            ("x/y", Kind::File),
            ("/a/b/c", Kind::Folder),
            ("/", Kind::Folder),
            ("/a/./b//d", Kind::File),
        ] {
            let place = place(&root, Path::new(path), kind).unwrap();
            assert_eq!(super::kind(&place).unwrap(), kind, "{path}");
            assert_eq!(
                found(&folder, place).components().count(),
                parts(Path::new(path)).iter().filter(|part| *part != "/").count()
            );
        }
        // A file in the way is no folder.
        assert!(place(&root, Path::new("/x/y/z"), Kind::Folder).is_err());
    }

    #[test]
    fn no_link_leads_out() {
        let (folder, root) = root();
        let here = |name: &str| folder.path().join("root").join(name);
        fs::create_dir(here("etc")).unwrap();
        fs::write(folder.path().join("outside"), "").unwrap();
        for (link, target, leads_to) in [
            // Dangling: what systemd leaves in images.
            (
                "etc/resolv.conf",
                "../run/systemd/resolve/stub.conf",
                "run/systemd/resolve/stub.conf",
            ),
            ("etc/hosts", "/var/hosts", "var/hosts"),
            ("etc/up", "../../../../outside", "outside"),
            ("etc/absolute", &folder.path().join("outside").display().to_string(), ""),
            ("etc/again", "up", "outside"),
        ] {
            symlink(target, here(link)).unwrap();
            let place = place(&root, Path::new(link), Kind::File).unwrap();
            let found = found(&folder, place);
            if !leads_to.is_empty() {
                assert_eq!(found, Path::new(leads_to), "{link}");
            }
        }
        assert_eq!(fs::metadata(folder.path().join("outside")).unwrap().len(), 0);
        let error = place_exactly(&root, Path::new("etc/again"), Kind::File).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
        assert!(place_exactly(&root, Path::new("etc/plain"), Kind::File).is_ok());
        // A folder that is a link is gone through.
        symlink("/var", here("lib")).unwrap();
        let place = place(&root, Path::new("/lib/new/file"), Kind::File).unwrap();
        assert_eq!(found(&folder, place), Path::new("var/new/file"));
        // What is made can be written to.
        let mut file = File::from(open(&root, Path::new("/lib/new/file"), OFlags::WRONLY).unwrap());
        file.write_all(b"x").unwrap();
        assert_eq!(fs::metadata(here("var/new/file")).unwrap().size(), 1);
    }

    #[test]
    fn circles_end() {
        let (folder, root) = root();
        let link = |from: usize, to: &str| symlink(to, folder.path().join(format!("root/{from}"))).unwrap();
        for number in 0..LINKS_MAX {
            link(number, &format!("{}", number + 1));
        }
        assert!(place(&root, Path::new("0"), Kind::File).is_ok());
        link(LINKS_MAX + 1, "0");
        let error = place(&root, Path::new(&format!("{}", LINKS_MAX + 1)), Kind::File).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
        link(99, "99");
        assert!(place(&root, Path::new("99"), Kind::File).is_err());
    }
}

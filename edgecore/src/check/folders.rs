//! The folders that are written to: seen without touching them, then judged by a pure function, one line each.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, StatVfsMountFlags, access, statfs, statvfs};

use super::Line;

/// File systems that hold no upper folder of an overlay, by the numbers the kernel has for them (`statfs(2)`).
const NO_UPPER: [(u64, &str); 11] = [
    (0x794c_7630, "overlay"),
    (0x4d44, "vfat"),
    (0x2011_bab0, "exfat"),
    (0x5346_544e, "ntfs"),
    (0x7366_746e, "ntfs3"),
    (0x6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x0102_1997, "9p"),
    (0xf15f, "ecryptfs"),
    (0x8584_58f6, "ramfs"),
];

/// Of a folder's mode: whoever is not its owner may change what is in it.
const OTHERS_WRITE: u32 = 0o022;

/// A folder as it was found, or the one that it would be made in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// As it is configured.
    path: PathBuf,
    /// What there is of it.
    found: PathBuf,
    is_folder: bool,
    is_writable: bool,
    is_read_only: bool,
    /// The bits of it that say what others may do.
    mode: u32,
    /// `None` where nothing can be kept at all, as in /proc.
    room: Option<Room>,
    file_system: u64,
}

/// What may still be written to a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) folder: PathBuf,
    pub(super) bytes: u64,
    pub(super) files: u64,
}

impl Place {
    /// Looks, and changes nothing.
    pub(super) fn observe(path: &Path) -> io::Result<Self> {
        let there = |path: &&Path| path.symlink_metadata().is_ok();
        // A relative path was made an absolute one when it was read; the root is always there.
        let found = path.ancestors().find(there).unwrap_or_else(|| Path::new("/"));
        let disk = statvfs(found)?;
        let metadata = found.metadata()?;
        Ok(Self {
            path: path.to_owned(),
            found: found.to_owned(),
            is_folder: metadata.is_dir(),
            is_writable: access(found, Access::WRITE_OK | Access::EXEC_OK).is_ok(),
            is_read_only: disk.f_flag.contains(StatVfsMountFlags::RDONLY),
            mode: metadata.mode() & 0o7777,
            room: (disk.f_blocks > 0).then(|| Room {
                folder: path.to_owned(),
                bytes: disk.f_bavail.saturating_mul(disk.f_frsize),
                // A file system that does not count files has room for more.
                files: if disk.f_files == 0 { u64::MAX } else { disk.f_favail },
            }),
            file_system: statfs(found).map(|stat| kernel_number(stat.f_type)).unwrap_or(0),
        })
    }

    /// What there is to say of it; `what` is its key in the configuration.
    pub(super) fn line(&self, what: &'static str) -> Line {
        let (path, found) = (self.path.display(), self.found.display());
        let missing = |trouble: &str, fix: &str| {
            let through = if self.found == self.path {
                String::new()
            } else {
                format!(" (as {path} would be made there)")
            };
            Line::missing(what, format!("{found}{through}: {trouble}; {fix}"))
        };
        if !self.is_folder {
            let fix = format!("move the file away, or name another folder as `{what}`");
            return missing("it is a file and no folder", &fix);
        }
        if self.is_read_only {
            let fix = "mount -o remount,rw, and see in dmesg whether the disk is failing";
            return missing("its file system is read-only", fix);
        }
        let Some(room) = &self.room else {
            let fix = format!("name a folder on a disk as `{what}`");
            return missing("nothing can be kept there", &fix);
        };
        if !self.is_writable {
            return missing("it cannot be written", "make it writable for this user");
        }
        if room.bytes == 0 || room.files == 0 {
            let short = if room.bytes == 0 {
                "no space left"
            } else {
                "no room for another file"
            };
            return missing(short, "take away what is not needed, or give it a larger disk");
        }
        if self.found == self.path && self.mode & OTHERS_WRITE != 0 {
            let mode = self.mode;
            Line::note(
                what,
                format!("{path} can be written by others than its owner (mode {mode:04o}): chmod go-w {path}"),
            )
        } else if self.found == self.path {
            Line::good(what, format!("{path} can be written"))
        } else {
            Line::good(what, format!("{path} will be made when it is needed"))
        }
    }

    /// The name of its file system, where that holds no upper folder of an overlay.
    pub(super) fn without_overlay(&self) -> Option<&'static str> {
        let known = NO_UPPER.iter().find(|(number, _)| *number == self.file_system);
        known.map(|(_, name)| *name)
    }

    pub(super) fn room(self) -> Option<Room> {
        self.room
    }

    pub(super) fn bytes_free(&self) -> u64 {
        self.room.as_ref().map_or(0, |room| room.bytes)
    }
}

/// The number of a file system, whose type and sign differ between machines; it has 32 bits everywhere.
fn kernel_number(number: impl TryInto<i128>) -> u64 {
    let number = number.try_into().unwrap_or(0);
    u64::try_from(number & 0xffff_ffff).unwrap_or(0)
}

/// Why a folder could not even be looked at.
pub(super) fn unseen(what: &'static str, path: &Path, error: &io::Error) -> Line {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or("it");
    Line::missing(
        what,
        format!(
            "{}: {error}; see that {name} can be reached, or name another folder as `{what}`",
            path.display()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    fn room(bytes: u64, files: u64) -> Room {
        Room { folder: "/d/x".into(), bytes, files }
    }

    fn place() -> Place {
        Place {
            path: "/d/x".into(),
            found: "/d/x".into(),
            is_folder: true,
            is_writable: true,
            is_read_only: false,
            mode: 0o755,
            room: Some(room(1, 1)),
            file_system: 0xef53,
        }
    }

    #[test]
    fn each_trouble_has_its_own_fix() {
        let check = |change: &dyn Fn(&mut Place), state: State, words: &[&str]| {
            let mut place = place();
            change(&mut place);
            let line = place.line("data");
            assert_eq!(line.state, state, "{line:?}");
            for word in words {
                assert!(line.detail.contains(word), "{word}: {line:?}");
            }
        };
        check(&|_| {}, State::Good, &["/d/x can be written"]);
        check(&|place| place.found = "/d".into(), State::Good, &["/d/x will be made"]);
        for mode in [0o775, 0o757, 0o1777] {
            let words = [format!("(mode {mode:04o}): chmod go-w /d/x")];
            let words = words.each_ref().map(String::as_str);
            check(&|place| place.mode = mode, State::Note, &words);
        }
        // What is only passed through is made for nobody else.
        check(
            &|place| (place.found, place.mode) = ("/d".into(), 0o1777),
            State::Good,
            &["/d/x will be made"],
        );
        check(
            &|place| place.is_folder = false,
            State::Missing,
            &["/d/x: it is a file", "as `data`"],
        );
        check(
            &|place| (place.is_folder, place.found) = (false, "/d".into()),
            State::Missing,
            &["/d (as /d/x would be made there): it is a file"],
        );
        check(
            &|place| place.is_read_only = true,
            State::Missing,
            &["read-only", "remount,rw"],
        );
        check(&|place| place.room = None, State::Missing, &["on a disk"]);
        check(
            &|place| place.is_writable = false,
            State::Missing,
            &["make it writable"],
        );
        let short = |bytes, files| move |place: &mut Place| place.room = Some(room(bytes, files));
        check(&short(0, 1), State::Missing, &["no space left", "take away"]);
        check(&short(1, 0), State::Missing, &["another file", "take away"]);
    }

    #[test]
    fn looking_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let place = Place::observe(&path).unwrap();
        assert_eq!((place.found.as_path(), place.is_folder), (folder.path(), true));
        assert_eq!(place.line("data").state, State::Good);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        std::fs::write(folder.path().join("a"), "").unwrap();
        let below = Place::observe(&path);
        let line = match below {
            Ok(place) => place.line("data"),
            Err(error) => unseen("data", &path, &error),
        };
        assert_eq!(line.state, State::Missing);
        assert!(line.detail.contains("/a "), "{line:?}");
        let nowhere = Place::observe(Path::new("/proc/nowhere")).unwrap();
        assert_eq!(nowhere.line("data").state, State::Missing);
    }

    #[test]
    fn what_holds_no_overlay_is_known_by_its_number() {
        let on = |number: u64| Place { file_system: number, ..place() }.without_overlay();
        assert_eq!(on(0xef53), None);
        assert_eq!(on(0x0102_1994), None, "tmpfs");
        assert_eq!(on(0x4d44), Some("vfat"));
        // As a 32-bit machine has the number of overlays, and as one has it that knows signs.
        assert_eq!(kernel_number(0x794c_7630_i32), 0x794c_7630);
        assert_eq!(
            kernel_number(i32::from_ne_bytes(0xff53_4d42_u32.to_ne_bytes())),
            0xff53_4d42
        );
    }
}

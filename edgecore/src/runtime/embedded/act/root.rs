//! A container's root: what is mounted in it, its devices, what is hidden or cannot be written to. All of it is made from
//! outside, through descriptors, so that no link in an image leads anywhere else; then it is entered, and there is no
//! outside any more.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, Dev, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, chmodat, chownat, fstatvfs, makedev,
    mknodat, symlinkat,
};
use rustix::process::{Gid, Uid};

use super::{devices, during};
use crate::oci::{Device, DeviceKind, Mount, Spec};
use crate::runtime::oci::inside::{self, Kind};
use crate::runtime::oci::spec;
use crate::sys;

const ANYWHERE: OFlags = OFlags::PATH;

/// What every container finds in `/dev` besides its devices.
const LINKS: [(&str, &str); 6] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
    ("/proc/kcore", "core"),
];

/// What may be mounted in `/proc`: files that tell of the machine, for who shows a container its own share instead.
const SHOWN_INSTEAD: [&str; 8] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/slabinfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/uptime",
];

/// A root with all in it, not entered yet.
pub(super) struct Root(OwnedFd);

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Root {
    /// In a mount namespace of this process' own.
    pub(super) fn make(spec: &Spec) -> Result<Self, String> {
        let path = spec.root.path.as_path();
        // What the host mounts later may be seen; nothing that is mounted here is seen there.
        change(Path::new("/"), libc::MS_SLAVE | libc::MS_REC).map_err(during("parting from the host's mounts"))?;
        let bound = sys::mount(path, path, "", libc::MS_BIND | libc::MS_REC, "");
        bound.map_err(during(&format!("mounting its root {}", path.display())))?;
        // Modes are those that are asked for.
        rustix::process::umask(Mode::empty());
        let opened = rustix::fs::open(path, ANYWHERE | OFlags::CLOEXEC, Mode::empty());
        let root = Self(opened.map_err(during("opening its root"))?);
        let exact = spec::exact(&spec.annotations);
        for mount in &spec.mounts {
            root.mount(mount, exact.contains(&mount.destination.as_path()))?;
        }
        root.make_devices(spec)?;
        root.hide(spec)?;
        // In a volume, perhaps: its folder is not there before that is.
        let folder = &spec.process.cwd;
        inside::place(&root.0, folder, Kind::Folder)
            .map_err(during(&format!("making its working folder {}", folder.display())))?;
        Ok(root)
    }

    /// What is at a path inside.
    pub(super) fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        inside::open(&self.0, path, flags)
    }

    fn mount(&self, mount: &Mount, exact: bool) -> Result<(), String> {
        let target = &mount.destination;
        let options = Options::of(&mount.options);
        let (source, kind) = (mount.source.as_path(), mount.kind.as_str());
        let done = if options.flags & libc::MS_BIND == 0 {
            self.mount_new(source, target, kind, &options)
        } else {
            self.bind(source, target, &options, exact)
        };
        done.map_err(during(&format!(
            "mounting {} at {}",
            source.display(),
            target.display()
        )))
    }

    fn mount_new(&self, source: &Path, target: &Path, kind: &str, options: &Options) -> io::Result<()> {
        // Where the kernel shows itself there is no link: what is hidden below it later would be somewhere else.
        let place = inside::place_exactly(&self.0, target, Kind::Folder)?;
        // The name in specifications is that of version 1, which never comes here.
        let kind = if kind == "cgroup" { "cgroup2" } else { kind };
        match sys::mount(source, &inside::name(&place), kind, options.flags, &options.data) {
            // Not every kernel has message queues, and next to no program uses them.
            Err(error) if kind == "mqueue" && error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
            // Those of the host are the host's root's to show.
            Err(error) if kind == "mqueue" && error.raw_os_error() == Some(libc::EPERM) => return Ok(()),
            // The network it would show is the host's, and so is who may mount it: what the host mounted is shown.
            Err(error) if kind == "sysfs" && error.raw_os_error() == Some(libc::EPERM) => {
                let flags = options.flags | libc::MS_BIND | libc::MS_REC;
                let shown = Options { flags, ..Options::default() };
                return self.bind(Path::new("/sys"), target, &shown, true);
            }
            other => other?,
        }
        self.spread(target, options)
    }

    fn bind(&self, source: &Path, target: &Path, options: &Options, exact: bool) -> io::Result<()> {
        let links = if exact {
            ResolveFlags::NO_SYMLINKS
        } else {
            ResolveFlags::empty()
        };
        let opened = rustix::fs::openat2(
            rustix::fs::CWD,
            source,
            ANYWHERE | OFlags::CLOEXEC,
            Mode::empty(),
            links,
        )?;
        let place = inside::place(&self.0, target, inside::kind(&opened)?)?;
        if rustix::fs::fstatfs(&place)?.f_type == rustix::fs::PROC_SUPER_MAGIC
            && !SHOWN_INSTEAD.iter().any(|path| Path::new(path) == target)
        {
            return Err(io::Error::other(
                "nothing is mounted in /proc, but for what tells of the machine",
            ));
        }
        let flags = libc::MS_BIND | options.flags & libc::MS_REC;
        sys::mount(&inside::name(&opened), &inside::name(&place), "", flags, "")?;
        self.spread(target, options)?;
        let more = options.flags & !(libc::MS_BIND | libc::MS_REC);
        if more == 0 { Ok(()) } else { self.limit(target, more) }
    }

    fn spread(&self, target: &Path, options: &Options) -> io::Result<()> {
        let Some(flags) = options.spread else { return Ok(()) };
        let mounted = self.open(target, ANYWHERE)?;
        change(&inside::name(&mounted), flags)
    }

    /// Takes more from a mount; what was taken from it before stays taken.
    fn limit(&self, target: &Path, flags: libc::c_ulong) -> io::Result<()> {
        let mounted = self.open(target, ANYWHERE)?;
        let flags = flags | known_flags(&mounted)?;
        let name = inside::name(&mounted);
        sys::mount(
            Path::new("none"),
            &name,
            "",
            libc::MS_BIND | libc::MS_REMOUNT | flags,
            "",
        )
    }

    fn make_devices(&self, spec: &Spec) -> Result<(), String> {
        // One that the host's own is mounted on has all there is.
        let is_own = |mount: &Mount| mount.destination == Path::new("/dev") && mount.kind == "tmpfs";
        if !spec.mounts.iter().any(is_own) {
            return Ok(());
        }
        let folder = self
            .open(Path::new("/dev"), ANYWHERE)
            .map_err(during("opening its /dev"))?;
        for (target, name) in LINKS {
            let made = symlinkat(target, &folder, name).or_else(exists_is_fine);
            made.map_err(during(&format!("making /dev/{name}")))?;
        }
        for (name, major, minor) in devices::NODES {
            let node = Node {
                kind: FileType::CharacterDevice,
                number: makedev(major, minor),
                mode: Mode::from_raw_mode(0o666),
                owner: (Uid::ROOT, Gid::ROOT),
            };
            self.make_node(&Path::new("/dev").join(name), &node)
                .map_err(during(&format!("making /dev/{name}")))?;
        }
        for device in &spec.linux.devices {
            self.make_node(&device.path, &Node::of(device))
                .map_err(during(&format!("making the device {}", device.path.display())))?;
        }
        Ok(())
    }

    fn make_node(&self, path: &Path, node: &Node) -> io::Result<()> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let folder = inside::place(&self.0, above, Kind::Folder)?;
        match mknodat(&folder, name, node.kind, node.mode, node.number) {
            Ok(()) => {
                chmodat(&folder, name, node.mode, AtFlags::empty())?;
                Ok(chownat(
                    &folder,
                    name,
                    Some(node.owner.0),
                    Some(node.owner.1),
                    AtFlags::SYMLINK_NOFOLLOW,
                )?)
            }
            // Devices cannot be made by whoever is root in a user namespace only: the host's are used.
            Err(rustix::io::Errno::PERM) => self.bind(path, path, &Options::of(&["bind".to_owned()]), false),
            Err(error) => Ok(exists_is_fine(error)?),
        }
    }

    /// What tells of the machine, or changes it, is covered or cannot be written to.
    fn hide(&self, spec: &Spec) -> Result<(), String> {
        for path in &spec.linux.masked_paths {
            self.cover(Path::new(path)).map_err(during(&format!("hiding {path}")))?;
        }
        for path in &spec.linux.readonly_paths {
            self.protect(Path::new(path))
                .map_err(during(&format!("protecting {path}")))?;
        }
        Ok(())
    }

    fn cover(&self, path: &Path) -> io::Result<()> {
        let Some(found) = self.find(path)? else { return Ok(()) };
        match inside::kind(&found)? {
            Kind::Folder | Kind::FolderAsRoot => sys::mount(
                Path::new("tmpfs"),
                &inside::name(&found),
                "tmpfs",
                libc::MS_RDONLY,
                "size=0k",
            ),
            Kind::File => {
                sys::mount(Path::new("/dev/null"), &inside::name(&found), "", libc::MS_BIND, "")?;
                // The host's own: not even its mode is a container's to change.
                self.limit(path, libc::MS_RDONLY)
            }
        }
    }

    fn protect(&self, path: &Path) -> io::Result<()> {
        let Some(found) = self.find(path)? else { return Ok(()) };
        let name = inside::name(&found);
        sys::mount(&name, &name, "", libc::MS_BIND | libc::MS_REC, "")?;
        self.limit(path, libc::MS_RDONLY)
    }

    fn find(&self, path: &Path) -> io::Result<Option<OwnedFd>> {
        match self.open(path, ANYWHERE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// There is nothing else from now on.
    pub(super) fn enter(self, spec: &Spec) -> Result<(), String> {
        if spec.root.readonly {
            self.limit(Path::new("/"), libc::MS_RDONLY)
                .map_err(during("protecting its root"))?;
        }
        let enter = || -> io::Result<()> {
            rustix::process::fchdir(&self.0)?;
            // The old root comes to lie on top of the new one, from where it is taken away.
            rustix::process::pivot_root(".", ".")?;
            sys::unmount(Path::new("."))?;
            Ok(rustix::process::chdir("/")?)
        };
        enter().map_err(during("entering its root"))
    }
}

struct Node {
    kind: FileType,
    number: Dev,
    mode: Mode,
    owner: (Uid, Gid),
}

impl Node {
    fn of(device: &Device) -> Self {
        Self {
            kind: match device.kind {
                DeviceKind::Block => FileType::BlockDevice,
                DeviceKind::Character => FileType::CharacterDevice,
            },
            number: makedev(device.major, device.minor),
            mode: Mode::from_raw_mode(device.file_mode),
            owner: (Uid::from_raw(device.uid), Gid::from_raw(device.gid)),
        }
    }
}

/// A mount's options, in the kernel's terms.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    flags: libc::c_ulong,
    /// What happens to mounts that are made in it later.
    spread: Option<libc::c_ulong>,
    data: String,
}

impl Options {
    fn of(options: &[String]) -> Self {
        let mut all = Self::default();
        let mut data = Vec::new();
        for option in options {
            match option.as_str() {
                "ro" => all.flags |= libc::MS_RDONLY,
                "rw" => all.flags &= !libc::MS_RDONLY,
                "nosuid" => all.flags |= libc::MS_NOSUID,
                "nodev" => all.flags |= libc::MS_NODEV,
                "noexec" => all.flags |= libc::MS_NOEXEC,
                "relatime" => all.flags |= libc::MS_RELATIME,
                "noatime" => all.flags |= libc::MS_NOATIME,
                "strictatime" => all.flags |= libc::MS_STRICTATIME,
                "bind" => all.flags |= libc::MS_BIND,
                "rbind" => all.flags |= libc::MS_BIND | libc::MS_REC,
                "private" => all.spread = Some(libc::MS_PRIVATE),
                "rprivate" => all.spread = Some(libc::MS_PRIVATE | libc::MS_REC),
                "slave" => all.spread = Some(libc::MS_SLAVE),
                "rslave" => all.spread = Some(libc::MS_SLAVE | libc::MS_REC),
                "shared" => all.spread = Some(libc::MS_SHARED),
                "rshared" => all.spread = Some(libc::MS_SHARED | libc::MS_REC),
                other => data.push(other),
            }
        }
        all.data = data.join(",");
        all
    }
}

fn change(place: &Path, flags: libc::c_ulong) -> io::Result<()> {
    sys::mount(Path::new("none"), place, "", flags, "")
}

/// What a mount has been denied, as flags for another denial, which would lift what it does not name.
fn known_flags(mounted: &OwnedFd) -> io::Result<libc::c_ulong> {
    let known = fstatvfs(mounted)?.f_flag;
    let pairs = [
        (StatVfsMountFlags::RDONLY, libc::MS_RDONLY),
        (StatVfsMountFlags::NOSUID, libc::MS_NOSUID),
        (StatVfsMountFlags::NODEV, libc::MS_NODEV),
        (StatVfsMountFlags::NOEXEC, libc::MS_NOEXEC),
        (StatVfsMountFlags::NOATIME, libc::MS_NOATIME),
        (StatVfsMountFlags::NODIRATIME, libc::MS_NODIRATIME),
        (StatVfsMountFlags::RELATIME, libc::MS_RELATIME),
    ];
    let held = pairs.into_iter().filter(|(flag, _)| known.contains(*flag));
    Ok(held.fold(0, |flags, (_, flag)| flags | flag))
}

fn exists_is_fine(error: rustix::io::Errno) -> Result<(), rustix::io::Errno> {
    if error == rustix::io::Errno::EXIST {
        Ok(())
    } else {
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_flags_and_the_rest_is_the_file_systems() {
        let of = |text: &str| Options::of(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(
            of("nosuid noexec newinstance ptmxmode=0666 gid=5"),
            Options {
                flags: libc::MS_NOSUID | libc::MS_NOEXEC,
                spread: None,
                data: "newinstance,ptmxmode=0666,gid=5".into()
            }
        );
        assert_eq!(
            of("rbind rprivate ro"),
            Options {
                flags: libc::MS_BIND | libc::MS_REC | libc::MS_RDONLY,
                spread: Some(libc::MS_PRIVATE | libc::MS_REC),
                data: String::new()
            }
        );
        // The last word counts.
        assert_eq!(of("bind ro rw").flags, libc::MS_BIND);
    }
}

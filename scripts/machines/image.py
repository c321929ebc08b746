"""The disk image of a minimal machine: busybox, our own few lines of init, and our programs. Made once per content."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .packages import TARGET, Packages, initrd, unpack

GUEST = Path(__file__).resolve().parent / "guest"
DISK_BYTES = 2 << 30
# Of each architecture that many images are kept: a change of a program makes a new one.
KEPT = 2
APPLETS = """[ ash awk base64 basename cat chgrp chmod chown chroot clear cmp cp cut date dd depmod df dirname dmesg du echo env
expand expr fallocate false find fold free fsfreeze grep gunzip gzip halt head hostname hwclock id init insmod ip kill killall
less ln logger losetup ls lsmod md5sum mkdir mkfifo mknod mktemp modprobe more mount mv nc netstat nproc nslookup od
pidof ping pivot_root poweroff printf ps pwd readlink realpath reboot reset rm rmdir rmmod route sed seq setsid sh
sha256sum sleep sort stat stty swapoff swapon switch_root sync sysctl tail tar tee test timeout top touch tr true tty umount
uname uniq unshare uptime usleep vi wc wget which xargs xxd yes zcat""".split()
# Of the image's files, and of its file system: the same content gives the same image.
FIXED = "e7d6e401-0000-4000-8000-000000000000"


@dataclass
class Image:
    """What a machine boots: a kernel, its memory disk, and a disk that is copied for each machine."""

    kernel: Path
    initrd: Path
    disk: Path


def whole(arch, folder):
    """What images/disk made."""
    made = Image(folder / f"vmlinuz-{arch}", folder / f"initrd-{arch}", folder / f"edgehold-{arch}.img")
    if not made.disk.exists():
        sys.exit(f"there is no {made.disk}: images/disk makes it")
    return made


def minimal(arch, files=()):
    """The image with these (host path, guest path) files in it."""
    packages = Packages(arch)
    kernel = packages.kernel()
    debs = packages.fetch("busybox-static", "e2fsck-static")
    key = _key(arch, [kernel.deb.name, *(deb.name for deb in debs)], files)
    folder = TARGET / "images" / f"minimal-{arch}-{key}"
    if not (folder / "whole").exists():
        _make(folder, arch, kernel, debs, files)
        _keep_few(f"minimal-{arch}-*")
    os.utime(folder)
    return Image(folder / "vmlinuz", folder / "initrd", folder / "disk.img")


def _key(arch, names, files):
    """A hash of all that decides what is in an image."""
    state = hashlib.sha256(repr((arch, names, DISK_BYTES, APPLETS)).encode())
    for path in [*sorted(GUEST.iterdir()), Path(__file__)]:
        state.update(path.read_bytes())
    for host, guest in files:
        with open(host, "rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        state.update(f"{guest} {digest} {os.stat(host).st_mode & 0o111}\n".encode())
    return state.hexdigest()[:16]


def _make(folder, arch, kernel, debs, files):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copyfile(kernel.image, folder / "vmlinuz")
    with tempfile.TemporaryDirectory(dir=TARGET) as temporary:
        root = Path(temporary) / "root"
        root.mkdir()
        for deb in debs:
            unpack(deb, root, "bin/busybox", "sbin/e2fsck.static", "usr/sbin/e2fsck.static")
        e2fsck = next(root.rglob("e2fsck.static"))
        (folder / "initrd").write_bytes(_initrd(kernel, "initrd-init", root / "bin/busybox", e2fsck))
        kernel.install(root)
        _fill(root, files)
        file_system(root, folder / "disk.img", DISK_BYTES)
    (folder / "whole").touch()


def settler(arch, target):
    """A memory disk that finishes what lies unpacked on a disk, as guest/settle-init says; returns the kernel to boot it with."""
    packages = Packages(arch)
    kernel = packages.kernel()
    with tempfile.TemporaryDirectory(dir=TARGET) as temporary:
        root = Path(temporary)
        for deb in packages.fetch("busybox-static"):
            unpack(deb, root, "bin/busybox")
        target.write_bytes(_initrd(kernel, "settle-init", root / "bin/busybox"))
    return kernel.image


def _initrd(kernel, init, *programs):
    modules = kernel.for_disk()
    entries = [(path, 0o40755, None) for path in ("bin", "dev", "proc", "sys", "root", "modules")]
    entries += [("init", 0o100755, (GUEST / init).read_bytes()),
                *((f"bin/{path.name.removesuffix('.static')}", 0o100755, path.read_bytes()) for path in programs),
                ("modules/order", 0o100644, "".join(f"{path.name}\n" for path in modules).encode())]
    entries += [(f"modules/{path.name}", 0o100644, path.read_bytes()) for path in modules]
    return initrd(entries)


def _fill(root, files):
    for folder in ("bin", "dev", "etc/edgehold", "lib", "proc", "root", "run", "sbin", "sys", "tmp", "usr/bin",
                   "usr/lib/edgehold", "usr/sbin", "var/lib/edgehold", "var/log"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for applet in APPLETS:
        (root / "bin" / applet).symlink_to("busybox")
    for applet in ("init", "modprobe", "poweroff", "reboot", "halt"):
        (root / "sbin" / applet).symlink_to("../bin/busybox")
    for name, to in (("rcS", "etc"), ("inittab", "etc"), ("vm-agent", "usr/lib/edgehold"), ("vm-edgecore", "usr/lib/edgehold")):
        shutil.copy(GUEST / name, root / to / name)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    (root / "etc/group").write_text("root:x:0:\ntty:x:5:\nnogroup:x:65534:\n")
    (root / "etc/hostname").write_text("edge\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n127.0.1.1 edge\n10.0.2.2 host\n")
    (root / "etc/resolv.conf").write_text("nameserver 10.0.2.3\n")
    for host, guest in files:
        to = root / guest.lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(host, to)


def file_system(root, target, size, label="edgehold"):
    """An ext4 file system with this content, without mounting anything; all of it belongs to root."""
    new = target.with_suffix(".new")
    new.unlink(missing_ok=True)
    command = ["mke2fs", "-q", "-t", "ext4", "-b", "4096", "-m", "1", "-L", label, "-U", FIXED,
               "-E", f"hash_seed={FIXED},root_owner=0:0", "-d", root, new, f"{size // 1024}k"]
    if os.geteuid() != 0:
        # Files of this user are root's there.
        command = ["unshare", "--map-root-user", *command]
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})
    if done.returncode != 0:
        sys.exit(f"making the file system of {target}: {done.stderr.strip()}")
    new.replace(target)


def _keep_few(pattern):
    folders = sorted((TARGET / "images").glob(pattern), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in folders[KEPT:]:
        shutil.rmtree(folder)

"""What machines are made of: Debian's kernels, busybox and e2fsck, fetched without touching this machine's package state."""

import gzip
import importlib.machinery
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tarfile
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = ROOT / "target" / "vm"
ARCHITECTURES = {"arm64": "aarch64", "amd64": "x86_64"}
# The kernel of a Raspberry Pi and of a small server in a data centre: what Debian installs there.
KERNELS = {"arm64": "linux-image-arm64", "amd64": "linux-image-cloud-amd64"}

# What a machine needs to reach its disk, in the initial memory disk.
DISK_MODULES = ["virtio_pci", "virtio_mmio", "virtio_blk", "virtio_console", "virtio_net", "ext4", "crc32c_generic"]
# What it may need later, by path below the kernel's module folder; dependencies come by themselves.
LATER_MODULES = ["fs/overlayfs/*", "fs/fuse/fuse.ko", "fs/configfs/*", "drivers/net/veth.ko", "drivers/net/tun.ko",
                 "drivers/net/dummy.ko", "drivers/block/loop.ko", "drivers/char/hw_random/virtio-rng.ko", "net/bridge/*.ko",
                 "net/netfilter/*", "net/ipv4/netfilter/*", "net/ipv6/netfilter/*", "net/bridge/netfilter/*",
                 "net/ipv6/ipv6.ko", "drivers/virtio/virtio_balloon.ko", "drivers/rtc/rtc-pl031.ko"]


def _images_build():
    """`images/build` as a module: it knows how to run an apt of its own."""
    sys.path.append(str(ROOT / "images"))
    loader = importlib.machinery.SourceFileLoader("images_build", str(ROOT / "images" / "build"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


images_build = _images_build()


class Packages:
    """Packages of one architecture. What was fetched once is used until `update`: a start asks no network."""

    def __init__(self, arch):
        self.arch = arch
        self.known = TARGET / f"packages-{arch}.json"
        self.apt = None

    def update(self):
        """Forgets which packages were used: the next fetch takes the distribution's present ones."""
        self.known.unlink(missing_ok=True)

    def fetch(self, *names):
        known = json.loads(self.known.read_text()) if self.known.exists() else {}
        debs = [Path(known.get(name, "")) for name in names]
        if not all(deb.is_file() for deb in debs):
            debs = self._apt().fetch([self._concrete(name) for name in names])
            known.update({name: str(deb) for name, deb in zip(names, debs)})
            self.known.parent.mkdir(parents=True, exist_ok=True)
            self.known.write_text(json.dumps(known, indent=1))
        return debs

    def kernel(self, name=None):
        return Kernel(self.fetch(name or KERNELS[self.arch])[0])

    def closure(self, names):
        return self._apt().closure(names)

    def _apt(self):
        self.apt = self.apt or images_build.Apt(self.arch)
        return self.apt

    def _concrete(self, name):
        """A kernel's package only names the one of the present version."""
        if not name.startswith("linux-image-"):
            return name
        depends = self._apt().run("apt-cache", "depends", "--important", name)
        return re.search(r"Depends: (linux-image-\S+)", depends)[1]


class Kernel:
    """A kernel package, unpacked once."""

    def __init__(self, deb):
        self.deb = deb
        self.folder = TARGET / "kernels" / deb.name.removesuffix(".deb")
        if not (self.folder / "whole").exists():
            self._unpack()
        self.version = next((self.folder / "lib" / "modules").iterdir()).name
        self.image = self.folder / "boot" / f"vmlinuz-{self.version}"
        self.modules = self.folder / "lib" / "modules" / self.version

    def _unpack(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        subprocess.run(["dpkg-deb", "-x", self.deb, self.folder], check=True)
        version = next((self.folder / "lib" / "modules").iterdir()).name
        subprocess.run(["depmod", "--basedir", self.folder, version], check=True)
        (self.folder / "whole").touch()

    def _dependencies(self):
        """Each module's path below the module folder, and those it needs."""
        for line in (self.modules / "modules.dep").read_text().splitlines():
            path, _, needs = line.partition(":")
            yield path, needs.split()

    def for_disk(self):
        """Modules in the order in which they load: a dependency before what needs it."""
        needs = dict(self._dependencies())
        by_name = {Path(path).stem.replace("-", "_"): path for path in needs}
        order = []
        for name in DISK_MODULES:
            # What is not there is built in.
            if path := by_name.get(name):
                order += [module for module in [*reversed(needs[path]), path] if module not in order]
        return [self.modules / path for path in order]

    def install(self, root):
        """The modules a machine may need, and the lists by which it finds them."""
        needs = dict(self._dependencies())
        patterns = [f"kernel/{pattern}" for pattern in LATER_MODULES]
        chosen = {path for path in needs if any(fnmatch(path, pattern) for pattern in patterns)}
        chosen |= {path.relative_to(self.modules).as_posix() for path in self.for_disk()}
        for path in list(chosen):
            chosen |= set(needs[path])
        to = root / "lib" / "modules" / self.version
        for path in chosen:
            (to / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.modules / path, to / path)
        for listing in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
            shutil.copyfile(self.modules / listing, to / listing)
        subprocess.run(["depmod", "--basedir", root, self.version], check=True)


def unpack(deb, root, *paths):
    """Some files of a package."""
    shown = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE)
    with tarfile.open(fileobj=shown.stdout, mode="r|") as tar:
        for member in tar:
            if member.name.removeprefix("./") in paths:
                tar.extract(member, root, filter="fully_trusted")
    shown.stdout.close()
    shown.wait()


def initrd(entries):
    """A memory disk: a compressed cpio archive of (path, mode, content); a folder's content is None."""
    out = bytearray()
    for number, (path, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        content = content or b""
        name = path.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        out += b"070701" + "".join(f"{field:08x}" for field in fields).encode() + name
        out += bytes(-len(out) % 4) + content
        out += bytes(-len(out) % 4)
    return gzip.compress(bytes(out), 1, mtime=0)

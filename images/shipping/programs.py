"""Our programs as `scripts/cross` builds them, by the names Debian has for machines."""

import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from .source import ROOT

PT_INTERP = 3


@dataclass(frozen=True)
class Machine:
    """A kind of machine that is shipped for."""

    # As Debian calls it.
    debian: str
    # What Rust builds for.
    target: str
    # As OCI calls it.
    oci: dict
    # Width and machine in an ELF header.
    elf: tuple
    # In names of files, where two kinds have one name at Debian.
    suffix: str = ""


MACHINES = {
    "amd64": Machine("amd64", "x86_64-unknown-linux-musl", {"architecture": "amd64"}, (64, 62)),
    "arm64": Machine("arm64", "aarch64-unknown-linux-musl", {"architecture": "arm64", "variant": "v8"}, (64, 183)),
    "armhf": Machine("armhf", "armv7-unknown-linux-musleabihf", {"architecture": "arm", "variant": "v7"}, (32, 40)),
    # The first Pi and the Pi Zero: Raspberry Pi OS calls them armhf, too, which at Debian means version 7.
    "armv6": Machine("armhf", "arm-unknown-linux-musleabihf", {"architecture": "arm", "variant": "v6"}, (32, 40), "-armv6"),
}


def program(name, machine, folder=None, profile="release-small"):
    """The path of a program for a machine. Ends with what to do when it is not there or is another one's."""
    target = Path(folder or os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    path = target / machine.target / profile / name
    if not path.exists():
        sys.exit(f"{path} is not there: scripts/cross --bin {name} {machine.target}")
    if wrong := unfit(path.read_bytes(), machine):
        sys.exit(f"{path} {wrong}: build it again with scripts/cross --bin {name} {machine.target}")
    return path


def unfit(elf, machine):
    """Why a file is no program that runs on any system of this machine; nothing where it is one."""
    if elf[:4] != b"\x7fELF" or len(elf) < 64:
        return "is no ELF program, or cut short"
    bits = {1: 32, 2: 64}.get(elf[4])
    kind = struct.unpack_from("<H", elf, 18)[0]
    if (bits, kind) != machine.elf:
        return f"is for another machine ({bits} bits, ELF machine {kind}, not {machine.elf[1]})"
    if bits == 64:
        start, size, count = struct.unpack_from("<Q", elf, 32)[0], *struct.unpack_from("<HH", elf, 54)
        sections, section_size, section_count = struct.unpack_from("<Q", elf, 40)[0], *struct.unpack_from("<HH", elf, 58)
    else:
        start, size, count = struct.unpack_from("<I", elf, 28)[0], *struct.unpack_from("<HH", elf, 42)
        sections, section_size, section_count = struct.unpack_from("<I", elf, 32)[0], *struct.unpack_from("<HH", elf, 46)
    # The table of sections stands at the end: a file that ends before it was cut.
    if len(elf) < max(start + size * count, sections + section_size * section_count):
        return "is cut short"
    kinds = [struct.unpack_from("<I", elf, start + at * size)[0] for at in range(count)]
    return "is linked dynamically" if PT_INTERP in kinds else None

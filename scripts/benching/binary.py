"""Where the bytes of a program go: its sections, and its symbols by crate.

It reads the ELF file itself, so that it does for every target what `nm` does for the machine's own.
"""

import re
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SYMBOL_TABLE = 2
ALLOCATED = 0x2
NO_BITS = 8
EXECUTABLE = 0x4
# Types of symbols: objects and functions; and the name of a source file, for the local ones that follow it.
NAMED = (1, 2)
FUNCTION = 2
FILE = 4
LOCAL = 0
# C code by its source file, or by how its names begin where it has none.
C_FILES = [("sqlite3.c", "SQLite (C)")]
C_NAMES = [("sqlite3", "SQLite (C)"), ("ring_core_", "ring (C, assembly)"), ("ecp_nistz256", "ring (C, assembly)"),
           ("blake3_", "blake3"), ("_Unwind", "libunwind"), ("unw_", "libunwind")]
OTHER_C = "C library, other C"
PLAIN = re.compile(r"(?:dyn |impl |mut |const |&|\*|\(|\[|<)*([A-Za-z_][A-Za-z0-9_]*)")
STANDARD = ("core", "alloc", "std")


@dataclass
class Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int


@dataclass
class Symbol:
    name: str
    source: str
    is_function: bool
    address: int
    size: int
    section: Section


class Elf:
    """The sections and symbols of a little-endian file of either class."""

    def __init__(self, path):
        self.data = Path(path).read_bytes()
        if self.data[:4] != b"\x7fELF" or self.data[5] != 1:
            raise RuntimeError(f"{path} is no little-endian ELF file")
        self.wide = self.data[4] == 2
        head = struct.unpack_from("<QIHHHHHH" if self.wide else "<IIHHHHHH", self.data, 40 if self.wide else 32)
        at, entry, count, names = head[0], head[5], head[6], head[7]
        found = [self.section(at + index * entry) for index in range(count)]
        strings = found[names].offset
        for section in found:
            section.name = self.text(strings + section.name)
        self.sections = found

    def section(self, at):
        fields = struct.unpack_from("<IIQQQQII" if self.wide else "<IIIIIIII", self.data, at)
        name, kind, flags, _, offset, size, link, _ = fields
        return Section(name, kind, flags, offset, size, link)

    def text(self, at):
        return self.data[at:self.data.index(b"\0", at)].decode(errors="replace")

    def symbols(self):
        """What has a name and a size. Several names of one address count once."""
        tables = [section for section in self.sections if section.kind == SYMBOL_TABLE]
        if not tables:
            raise RuntimeError("a program without symbols: build it with -C strip=none")
        file = ""
        form, seen = ("<IBBHQQ" if self.wide else "<IIIBBH"), set()
        for table in tables:
            strings = self.sections[table.link].offset
            for at in range(table.offset, table.offset + table.size, struct.calcsize(form)):
                fields = struct.unpack_from(form, self.data, at)
                if self.wide:
                    name, info, _, index, value, size = fields
                else:
                    name, value, size, info, _, index = fields
                if info & 0xF == FILE:
                    file = self.text(strings + name)
                if info & 0xF in NAMED and size and 0 < index < len(self.sections) and value not in seen:
                    seen.add(value)
                    source = file if info >> 4 == LOCAL else ""
                    yield Symbol(self.text(strings + name), source, info & 0xF == FUNCTION, value, size,
                                 self.sections[index])

    def functions(self):
        """Addresses of code, with their symbols."""
        return {symbol.address: symbol.name for symbol in self.symbols()
                if symbol.is_function and symbol.section.flags & EXECUTABLE}


def crate(symbol, source):
    """The crate whose code a symbol is: of generic code, the one it was made for, as far as the name tells."""
    if symbol.startswith("_ZN"):
        return older(symbol)
    if symbol.startswith("_R"):
        return newer(symbol)
    for part, name in C_FILES:
        if source.endswith(part):
            return name
    return next((name for start, name in C_NAMES if symbol.startswith(start)), OTHER_C)


def older(symbol):
    """_ZN, then parts each with its length before it, E at the end."""
    parts, at = [], 3
    while found := re.match(r"\d+", symbol[at:]):
        at += len(found[0])
        parts.append(symbol[at:at + int(found[0])])
        at += int(found[0])
    text = parts[0].lstrip("_") if parts and parts[0].startswith("_$") else "..".join(parts)
    for code, character in (("$LT$", "<"), ("$GT$", ">"), ("$u20$", " "), ("$RF$", "&"), ("$BP$", "*"), ("$C$", ","),
                            ("$u5b$", "["), ("$u7b$", "{"), ("$LP$", "("), ("$RP$", ")")):
        text = text.replace(code, character)
    named = [found[1] for found in map(PLAIN.match, re.split(r" as |drop_in_place<|[<,]", text)) if found]
    # A part in angle brackets that is one capital letter, or a few, is a parameter.
    named = [name for name in named if len(name) > 2 or name == "h2"]
    return next((name for name in named if name not in STANDARD), named[0] if named else "?")


def newer(symbol):
    """A crate is C, an s with its hash perhaps, and its name with the length before it."""
    named = []
    for found in re.finditer(r"C(?:s[0-9A-Za-z]*_)?(\d+)_?", symbol):
        name = symbol[found.end():found.end() + int(found[1])]
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            named.append(name)
    return next((name for name in named if name not in STANDARD), named[0] if named else "std")


def by_section(elf):
    """Bytes in the file of everything that is loaded."""
    return Counter({section.name: section.size for section in elf.sections
                    if section.flags & ALLOCATED and section.kind != NO_BITS and section.size})


def by_crate(elf):
    """Bytes of code and of data with a name, by crate."""
    code, data = Counter(), Counter()
    for symbol in elf.symbols():
        flags = symbol.section.flags
        if symbol.section.kind != NO_BITS and flags & ALLOCATED:
            (code if flags & EXECUTABLE else data)[crate(symbol.name, symbol.source)] += symbol.size
    return code, data

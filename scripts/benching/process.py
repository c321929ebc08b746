"""What a process takes of its machine, read from /proc there, wherever `there` is."""

import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field

# One answer for everything, so that it is of one moment and costs one round trip. What ends meanwhile is left out.
LOOK = """
cd /proc/{pid} || exit 1
echo "@smaps"; cat smaps
for task in task/*; do echo "@task ${{task#task/}}"; cat "$task/comm" "$task/status" 2>/dev/null; done
echo "@fd"; ls -l fd
for table in udp udp6 tcp tcp6 unix netlink; do echo "@net $table"; cat "net/$table"; done
echo "@io"; cat io
"""

SHIMS = """
for p in /proc/[0-9]*; do
    case "$(tr '\\0' ' ' <$p/cmdline 2>/dev/null)" in
        "edgecore pod-shim "*) sed -n 's/^Pss: *\\([0-9]*\\) kB/\\1/p' $p/smaps_rollup ;;
    esac
done
true
"""


class Place:
    """Where a process is: on this machine, or behind words that run a shell somewhere else."""

    def __init__(self, *words):
        self.words = words

    def shell(self, script):
        # Through standard input, so that nobody on the way takes its words apart.
        done = subprocess.run([*self.words, "sh"], input=script, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(self.words) or 'here'}: {script.strip().splitlines()[0]}: {done.stderr.strip()}")
        return done.stdout

    def oldest(self, name):
        """The first process of a program."""
        script = f'for p in /proc/[0-9]*; do [ "$(cat $p/comm 2>&1)" = {name} ] && echo "${{p#/proc/}}"; done; true'
        found = self.shell(script)
        if not found:
            raise RuntimeError(f"no {name} runs {' '.join(self.words) or 'here'}")
        return min(map(int, found.split()))

    def shims(self):
        """The PSS of each process that keeps a pod's containers, in KiB."""
        return [int(line) for line in self.shell(SHIMS).split()]

    def look(self, pid):
        return Look(self.shell(LOOK.format(pid=pid)))


HERE = Place()


@dataclass
class Mapping:
    """Memory of one kind, in KiB."""

    rss: int = 0
    pss: int = 0
    anonymous: int = 0

    def add(self, other):
        self.rss += other.rss
        self.pss += other.pss
        self.anonymous += other.anonymous


@dataclass
class Look:
    """A process at one moment, from the answer to `LOOK`."""

    text: str
    mappings: dict = field(default_factory=dict)
    threads: Counter = field(default_factory=Counter)
    waits: Counter = field(default_factory=Counter)
    descriptors: Counter = field(default_factory=Counter)
    written: int = 0

    def __post_init__(self):
        parts = re.split(r"^@(.*)\n", self.text, flags=re.M)[1:]
        inodes = {}
        for name, body in zip(parts[::2], parts[1::2]):
            if name.startswith("net "):
                inodes.update(sockets(name[4:], body))
        for name, body in zip(parts[::2], parts[1::2]):
            if name == "smaps":
                self.mappings = mappings(body)
            elif name.startswith("task ") and body:
                thread, rest = body.split("\n", 1)
                self.threads[thread] += 1
                self.waits[thread] += int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", rest, flags=re.M)[1])
            elif name == "fd":
                self.descriptors = Counter(kind(target, inodes) for target in re.findall(r" -> (.*)$", body, flags=re.M))
            elif name == "io":
                self.written = int(re.search(r"^write_bytes: (\d+)", body, flags=re.M)[1])
        self.text = ""

    def total(self):
        found = Mapping()
        for mapping in self.mappings.values():
            found.add(mapping)
        return found


def mappings(smaps):
    """By what is mapped."""
    found, name, current = {}, None, None
    for line in smaps.splitlines():
        if head := re.match(r"[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ \S+ *(.*)$", line):
            name, current = purpose(*head.groups()), Mapping()
            found.setdefault(name, Mapping())
        elif value := re.match(r"(Rss|Pss|Anonymous): +(\d+) kB", line):
            setattr(current, value[1].lower(), int(value[2]))
            if value[1] == "Anonymous":
                found[name].add(current)
    return {name: mapping for name, mapping in found.items() if mapping.rss}


def purpose(access, path):
    if path == "[stack]":
        return "first thread's stack"
    if path.startswith("[v"):
        return "kernel's pages"
    if path in ("", "[heap]") or path.startswith("[anon"):
        return "heap, other stacks, zeroed data"
    if access.startswith("rw"):
        return "data"
    return "code" if "x" in access else "constants, unwinding tables"


def sockets(table, text):
    """What each socket of a table of /proc/PID/net is, by inode."""
    found = {}
    for line in text.splitlines()[1:]:
        words = line.split()
        if table == "unix":
            inode, name = words[6], words[7] if len(words) > 7 else ""
        elif table == "netlink":
            inode, name = words[9], ""
        else:
            inode, name = words[9], ""
        found[inode] = f"{table.rstrip('6')} socket {name}".strip()
    return found


def kind(target, inodes):
    """A descriptor by what it is of; names that hold numbers of their own count as one."""
    if found := re.match(r"socket:\[(\d+)\]", target):
        return inodes.get(found[1], "other socket")
    if found := re.match(r"(pipe|anon_inode):", target):
        return target.removeprefix("anon_inode:").strip("[]") if found[1] == "anon_inode" else "pipe"
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+", "N", target)


def wakes(before, after, seconds):
    """How often threads began to run again after they had waited, a minute."""
    return {name: (after.waits[name] - before.waits[name]) * 60 / seconds for name in after.threads}


def calls(place, pid, seconds):
    """System calls of a process in a while, by name; needs strace there."""
    script = f"timeout -s INT {seconds} strace -f -c -U name,calls -p {pid} 2>&1 || [ $? -eq 124 ]"
    found = Counter()
    for line in place.shell(script).splitlines():
        if match := re.match(r"([a-z_0-9]+) +(\d+)$", line.strip()):
            if match[1] != "total":
                found[match[1]] += int(match[2])
    return found

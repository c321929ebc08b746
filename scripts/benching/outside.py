"""What is counted outside the processes: datagrams on the link, calls that force the disk, containerd's events. And what
only they can tell: the sizes of the frames that the datagrams carry encrypted."""

import json
import re
import signal
import socket
import struct
import subprocess
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

from .site import HUB_PORT, run
from .wait import until

PACKET_OUTGOING = 4
ETHERNET_HEADER = 14
UDP_HEADERS = 28
QUIET_S = 2


class Wire:
    """Every datagram between a node and the hub, seen at the cloud's end of the link."""

    def __init__(self, link):
        self.link = link
        self.seen = []
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self.socket.bind((link.interface, 0))
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        while True:
            # A link that is taken down says so by an error, once.
            try:
                frame, about = self.socket.recvfrom(65535)
            except OSError:
                continue
            if len(frame) < ETHERNET_HEADER + UDP_HEADERS + 1 or frame[12:14] != b"\x08\x00":
                continue
            packet = frame[ETHERNET_HEADER:]
            header = (packet[0] & 0x0F) * 4
            (length,) = struct.unpack_from("!H", packet, 2)
            if packet[9] != socket.IPPROTO_UDP:
                continue
            ports = struct.unpack_from("!HH", packet, header)
            if HUB_PORT not in ports:
                continue
            way = "down" if about[2] == PACKET_OUTGOING else "up"
            self.seen.append((time.monotonic(), way, length, bool(packet[header + 8] & 0x80)))

    def mark(self):
        return len(self.seen)

    def quiet(self, for_s=QUIET_S):
        """Waits until nothing went over the link for a while."""
        until("the link is quiet",
              lambda: not self.seen or time.monotonic() - self.seen[-1][0] >= for_s)

    def since(self, mark):
        return Traffic(self.seen[mark:])

    def dropped(self):
        """Datagrams that came too fast to be counted here."""
        # struct tpacket_stats: packets, drops; reading resets it.
        return struct.unpack("II", self.socket.getsockopt(263, 6, 8))[1]


class Traffic:
    def __init__(self, seen):
        self.seen = seen

    def bytes(self, way=None):
        """With IP and UDP headers."""
        return sum(length for _, direction, length, _ in self.seen if way in (None, direction))

    def datagrams(self, way=None):
        return sum(1 for _, direction, _, _ in self.seen if way in (None, direction))

    def handshake(self):
        """Bytes of datagrams that begin with a long header."""
        return sum(length for _, _, length, long in self.seen if long)


class Frames:
    """The frames of an edge core that logs their sizes."""

    LINE = re.compile(r" frame (sent|received) bytes=(\d+)")

    def __init__(self, edge):
        self.file = edge.log

    def mark(self):
        return self.file.stat().st_size

    def since(self, mark):
        """Bytes up and down."""
        with open(self.file) as log:
            log.seek(mark)
            found = [(way, int(count)) for way, count in self.LINE.findall(log.read())]
        return tuple(sum(count for way, count in found if way == wanted) for wanted in ("sent", "received"))


class Syncs:
    """Counts the calls with which a process forces the disk."""

    CALLS = "fsync,fdatasync,sync_file_range,syncfs,sync,msync"

    def __init__(self, process, folder):
        self.file = folder / "strace.out"
        self.file.unlink(missing_ok=True)
        self.strace = subprocess.Popen(["strace", "-f", "-qq", "-e", f"trace={self.CALLS}", "-e", "signal=none", "-o",
                                        self.file, "-p", str(process.pid)], stderr=subprocess.PIPE)
        until("strace is attached", lambda: "TracerPid:\t0" not in Path(f"/proc/{process.pid}/status").read_text())

    def end(self):
        self.strace.send_signal(signal.SIGINT)
        self.strace.wait()
        lines = self.file.read_text().splitlines()
        # A call that another thread interrupted takes two lines.
        return sum(1 for line in lines if "resumed>" not in line)


class Events:
    """Containerd's events, with the time that containerd gives them."""

    LINE = re.compile(r"^(\d+-\d+-\d+ \d+:\d+:\d+)(?:\.(\d+))? \+0000 UTC (\S+) (\S+) (.*)$")

    def __init__(self, containerd):
        self.seen = []
        self.containerd = containerd
        self.start()

    def start(self):
        process = subprocess.Popen(["ctr", "-a", self.containerd.socket, "events"], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True, env={"TZ": "UTC", "PATH": "/usr/bin:/bin"})
        # One that is not there yet misses what comes: events of our own tell when it is.
        threading.Thread(target=self.follow, args=(process,), daemon=True).start()

        def heard():
            name = f"ping{time.monotonic_ns()}"
            run("ctr", "-a", self.containerd.socket, "namespaces", "create", name)
            run("ctr", "-a", self.containerd.socket, "namespaces", "remove", name)
            return any(name in body for *_, body in self.seen)

        until("containerd's events are heard", heard, every_s=0.2)

    def follow(self, process):
        for line in process.stdout:
            if found := self.LINE.match(line):
                whole, fraction, _, topic, body = found.groups()
                at = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
                self.seen.append((at + float(f"0.{fraction or 0}"), topic, json.loads(body), body))

    def mark(self):
        return len(self.seen)

    def first(self, mark, pod, topics):
        """When the first event of a pod with one of these topics was, after a mark; None if there was none."""
        for at, topic, _, body in self.seen[mark:]:
            if topic in topics and pod in body:
                return at
        return None

    def count(self, mark, topic):
        """The times of events with a topic after a mark."""
        return [at for at, name, _, _ in self.seen[mark:] if name == topic]

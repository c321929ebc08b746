"""The process that keeps one machine: its emulator, its disk, its agent, and the socket at which it is asked for things.

A request is one line of JSON, with as many bytes after it as it says; the answer likewise. The emulator ends with the
keeper, whatever ends that.
"""

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from . import PATIENCE_S
from .disk import Disk, serve

LINE_BYTES_MAX = 1 << 16
PR_SET_PDEATHSIG = 1


class Refused(Exception):
    """What was asked for cannot be had; the text says why."""


class Agent:
    """The machine's end of the serial port that is ours (see guest/vm-agent)."""

    def __init__(self):
        self.changed = threading.Condition()
        self.boot = None
        self.gone = False
        self.stream = None
        self.number = 0
        self.answers = {}
        # One request at a time: so the machine's end has it.
        self.one = threading.Lock()
        threading.Thread(target=self._listen_to, args=(_listen("agent"),), daemon=True).start()

    def _listen_to(self, listener):
        connection, _ = listener.accept()
        stream = connection.makefile("rwb")
        self.stream = stream
        try:
            while line := stream.readline(LINE_BYTES_MAX):
                words = line.decode(errors="replace").split()
                with self.changed:
                    if len(words) == 2 and words[0] == "ready":
                        # What was asked before it restarted is not answered any more.
                        self.boot = words[1]
                        self.number += 1
                    elif len(words) == 5 and words[0] == "done":
                        number, code, output, errors = map(int, words[1:])
                        self.answers = {number: (code, stream.read(output), stream.read(errors))}
                    self.changed.notify_all()
        except (OSError, ValueError):
            pass
        self.end()

    def end(self):
        with self.changed:
            self.gone = True
            self.changed.notify_all()

    def until_ready(self):
        with self.changed:
            if not self.changed.wait_for(lambda: self.boot or self.gone, PATIENCE_S):
                raise Refused(f"the machine's agent did not answer within {PATIENCE_S} s")
            if self.gone:
                raise Refused("the machine is off")

    def run(self, command, given, seconds):
        """The exit code, output and errors of a shell command."""
        self.until_ready()
        with self.one:
            with self.changed:
                self.number += 1
                mine = self.number
            head = f"run {mine} {seconds} {len(command)} {len(given)}\n".encode()
            self.stream.write(head + command + given)
            self.stream.flush()
            with self.changed:
                answered = lambda: mine in self.answers or self.gone or self.number != mine
                # Its own limit is the machine's to keep.
                self.changed.wait_for(answered, seconds + PATIENCE_S)
                if mine in self.answers:
                    return self.answers.pop(mine)
        raise Refused("the machine went off, restarted or stalled before the command ended")


class Keeper:
    """One machine, in the current folder."""

    def __init__(self, plan, cable):
        self.plan = plan
        self.disk = Disk("disk.img")
        disk_listener = _listen("disk")
        self.agent = Agent()
        threading.Thread(target=serve, args=(self.disk, disk_listener), daemon=True).start()
        # It waits until its cable is as it should be: a machine that boots without a link must never have seen one.
        self.emulator = subprocess.Popen([*plan["emulator"], "-S"], stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)
        self.monitor = self._monitor()
        self._ask("qmp_capabilities")
        self._ask("set_link", name="net0", up=cable)
        self._ask("cont")
        # Somebody sees to the end of the emulator.
        self.ending = threading.Event()

    def answer(self, request, given):
        """The answer to a request, bytes that go with it, and whether the keeper ends then."""
        what = request["do"]
        if what == "ready":
            self.agent.until_ready()
            return {"boot": self.agent.boot}, b"", False
        if what == "exec":
            code, output, errors = self.agent.run(request["command"].encode(), given, request["seconds"])
            return {"code": code, "output": len(output)}, output + errors, False
        if what == "link":
            self._ask("set_link", name="net0", up=request["up"])
            return {}, b"", False
        if what == "cut":
            self.ending.set()
            # The drive loses power in the same moment: it takes no request that comes after.
            with self.disk.lock:
                self.emulator.kill()
                self.emulator.wait()
                return self.disk.cut(request["seed"]), b"", True
        if what == "stop":
            # Before it is asked to: it may be off before this goes on.
            self.ending.set()
            try:
                self.agent.run(b"(sleep 0.1; poweroff) >/dev/null 2>&1 &", b"", PATIENCE_S)
            except Refused:
                # It may have gone off before its answer was read; if not, that is said below.
                pass
            try:
                self.emulator.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.ending.clear()
                raise Refused(f"the machine did not go off within {PATIENCE_S} s") from None
            self.settle()
            return {}, b"", True
        raise Refused(f"there is no request {what}")

    def _monitor(self):
        """The emulator's monitor, which is there soon after its start."""
        end = time.monotonic() + PATIENCE_S
        connection = socket.socket(socket.AF_UNIX)
        while True:
            try:
                connection.connect("monitor")
                break
            except OSError:
                if self.emulator.poll() is not None or time.monotonic() > end:
                    sys.exit("the emulator did not start")
                time.sleep(0.02)
        monitor = connection.makefile("rwb")
        monitor.readline()
        return monitor

    def _ask(self, execute, **arguments):
        self.monitor.write(json.dumps({"execute": execute, "arguments": arguments}).encode() + b"\n")
        self.monitor.flush()
        while line := self.monitor.readline():
            answer = json.loads(line)
            if "error" in answer:
                raise Refused(answer["error"]["desc"])
            if "return" in answer:
                return
        raise Refused("the emulator ended")

    def settle(self):
        """Everything that is still in the drive's cache goes to the disk: the machine went off in good order."""
        with self.disk.lock:
            self.disk.flush()


def keep(folder, owner, cable):
    """Runs a machine until it is cut or stopped, goes off by itself, or has lost its owner, if it has one."""
    if owner:
        # Before anything is started: it may be gone already.
        owner = os.pidfd_open(owner)
    os.chdir(folder)
    plan = json.loads(Path("plan.json").read_text())
    listener = _listen("control")
    keeper = Keeper(plan, cable)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    threading.Thread(target=_watch, args=(keeper,), daemon=True).start()
    if owner:
        threading.Thread(target=_end_with, args=(owner, keeper), daemon=True).start()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_converse, args=(keeper, connection), daemon=True).start()


def _watch(keeper):
    """Ends the keeper when the machine goes off by itself."""
    keeper.emulator.wait()
    keeper.agent.end()
    if not keeper.ending.is_set():
        keeper.settle()
        _end()


def _end_with(owner, keeper):
    """Ends the machine with a process."""
    select.select([owner], [], [])
    keeper.answer({"do": "cut", "seed": 0}, b"")
    _end()


def _converse(keeper, connection):
    with connection:
        stream = connection.makefile("rwb")
        try:
            request = json.loads(stream.readline(LINE_BYTES_MAX))
            given = stream.read(request.get("input", 0))
            answer, data, last = keeper.answer(request, given)
        except (Refused, OSError, ValueError, KeyError) as error:
            answer, data, last = {"refused": f"{error}"}, b"", False
        try:
            stream.write(json.dumps(answer).encode() + b"\n" + data)
            stream.flush()
        except OSError:
            pass
        if last:
            # Who asked reads until this process has gone: the next keeper's sockets are not to be taken for ours.
            _end()


def _end():
    for name in ("control", "disk", "agent", "monitor", "serial"):
        Path(name).unlink(missing_ok=True)
    os._exit(0)


def _listen(name):
    Path(name).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen(4)
    return listener


def _end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    keep(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "in")

"""Which functions a running program calls: each gets a breakpoint, which goes when it is met.

Run as a program of its own, because it waits for the threads of other processes:

    used.py PID PROGRAM SECONDS

PROGRAM is what runs, with its symbols and not movable. Prints the symbols of what was called within so many seconds by the
process, and by those it starts as long as they are the same program, in the order of the first call. For x86-64; nobody
else may trace the process. What it started may not be left as it was: end it.
"""

import ctypes
import os
import signal
import struct
import sys
import time
from pathlib import Path

if __package__:
    from . import binary
else:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from benching import binary

CONT, GET_REGISTERS, SET_REGISTERS, DETACH, SEIZE, INTERRUPT = 7, 12, 13, 17, 0x4206, 0x4207
FORKED, VFORKED, CLONED, EXECUTED = 1, 2, 3, 4
FOLLOW = sum(1 << event for event in (FORKED, VFORKED, CLONED, EXECUTED))
WAIT_FOR_THREADS = 0x40000000
BREAKPOINT = b"\xcc"
# Of `user_regs_struct`: eight bytes each, the instruction pointer is the seventeenth.
REGISTERS_BYTES = 27 * 8
INSTRUCTION_AT = 16 * 8

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 2 + [ctypes.c_void_p] * 2


def ptrace(what, thread, address=0, data=0):
    if libc.ptrace(what, thread, address, data) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


class Traced:
    def __init__(self, pid, functions):
        self.functions, self.called = functions, {}
        self.program = os.stat(f"/proc/{pid}/exe").st_ino
        self.threads = set()
        for entry in Path(f"/proc/{pid}/task").iterdir():
            ptrace(SEIZE, int(entry.name), 0, FOLLOW)
            self.threads.add(int(entry.name))
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            self.first = {address: os.pread(memory.fileno(), 1, address) for address in functions}
        self.put(pid, dict.fromkeys(functions, BREAKPOINT))

    def put(self, thread, bytes_at):
        with open(f"/proc/{thread}/mem", "r+b", buffering=0) as memory:
            for address, byte in bytes_at.items():
                os.pwrite(memory.fileno(), byte, address)

    def follow(self, seconds):
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.turn() or time.sleep(0.001)

    def turn(self):
        """Lets whichever thread has stopped go on; false when none has."""
        thread, status = os.waitpid(-1, WAIT_FOR_THREADS | os.WNOHANG)
        if thread == 0:
            return False
        if not os.WIFSTOPPED(status):
            self.threads.discard(thread)
            return True
        self.threads.add(thread)
        stopped, event = os.WSTOPSIG(status), status >> 16
        try:
            if event == EXECUTED and not self.begin(thread):
                self.threads.discard(thread)
                ptrace(DETACH, thread)
                return True
            met = stopped == signal.SIGTRAP and not event and self.met(thread)
            ptrace(CONT, thread, 0, 0 if met or event else stopped)
        except (ProcessLookupError, FileNotFoundError):
            # It was killed while it stood.
            self.threads.discard(thread)
        return True

    def begin(self, thread):
        """A process has executed something; false when it is not the program."""
        if os.stat(f"/proc/{thread}/exe").st_ino != self.program:
            return False
        self.put(thread, {address: BREAKPOINT for address, name in self.functions.items() if name not in self.called})
        return True

    def met(self, thread):
        registers = ctypes.create_string_buffer(REGISTERS_BYTES)
        ptrace(GET_REGISTERS, thread, 0, ctypes.addressof(registers))
        address = struct.unpack_from("<Q", registers, INSTRUCTION_AT)[0] - 1
        if address not in self.first:
            return False
        self.called.setdefault(self.functions[address])
        # Another thread of the process may have done so just before.
        self.put(thread, {address: self.first[address]})
        struct.pack_into("<Q", registers, INSTRUCTION_AT, address)
        ptrace(SET_REGISTERS, thread, 0, ctypes.addressof(registers))
        return True

    def leave(self, pid):
        """The process goes on as if nobody had looked: what is about to meet a breakpoint meets it first."""
        self.put(pid, self.first)
        while self.turn():
            pass
        for thread in list(self.threads):
            ptrace(INTERRUPT, thread)
            os.waitpid(thread, WAIT_FOR_THREADS)
            ptrace(DETACH, thread)


def main():
    pid, program, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    traced = Traced(pid, binary.Elf(program).functions())
    traced.follow(seconds)
    traced.leave(pid)
    print("\n".join(traced.called))


if __name__ == "__main__":
    main()

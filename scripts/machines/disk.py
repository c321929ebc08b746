"""A machine's disk as a drive with a volatile write cache, served over NBD.

What an emulator wrote into a file survives its end, flushed or not: the host's page cache keeps it. A real card loses what
it was not asked to flush. So the disk is ours: writes stay in memory until the machine flushes, and a power cut drops some
of them, keeps some, and tears some, in no order that the machine may count on. A block of 4 KiB is written whole or not at
all, as flash does and as the disk says of itself.
"""

import os
import random
import struct
import threading

BLOCK = 4096
# A drive's cache is small: past that it writes out by itself.
CACHE_BYTES_MAX = 16 << 20
# The largest request taken; qemu asks for no more than 32 MiB.
REQUEST_BYTES_MAX = 64 << 20

NBD_MAGIC = 0x4E42444D41474943
OPTION_MAGIC = 0x49484156454F5054
OPTION_REPLY_MAGIC = 0x3E889045565A9
REQUEST_MAGIC = 0x25609513
REPLY_MAGIC = 0x67446698
FIXED_NEWSTYLE, NO_ZEROES = 1, 2
OPT_EXPORT_NAME, OPT_ABORT, OPT_INFO, OPT_GO = 1, 2, 6, 7
REP_ACK, REP_INFO, REP_ERR_UNSUP = 1, 3, 0x80000001
INFO_EXPORT = 0
HAS_FLAGS, SEND_FLUSH, SEND_FUA = 1, 4, 8
CMD_READ, CMD_WRITE, CMD_DISC, CMD_FLUSH = 0, 1, 2, 3
FLAG_FUA = 1
EINVAL = 22


class Disk:
    """The blocks. Used by one thread at a time."""

    def __init__(self, path):
        self.file = os.open(path, os.O_RDWR)
        self.size = os.fstat(self.file).st_size
        # Newest content of blocks that are not flushed, and the writes that made it, in order.
        self.cached = {}
        self.writes = []
        self.cached_bytes = 0
        self.flushes = 0
        self.lock = threading.Lock()

    def read(self, offset, length):
        first, end = offset // BLOCK, -(-(offset + length) // BLOCK)
        if self.cached.keys().isdisjoint(range(first, end)):
            return os.pread(self.file, length, offset)
        whole = b"".join(self._block(number) for number in range(first, end))
        return whole[offset - first * BLOCK:][:length]

    def write(self, offset, data):
        """Into the cache, as changes of whole blocks: one list a request."""
        changes = []
        end = offset + len(data)
        for number in range(offset // BLOCK, -(-end // BLOCK)):
            at = number * BLOCK
            piece = data[max(at - offset, 0):at + BLOCK - offset]
            if len(piece) < BLOCK:
                block = bytearray(self._block(number))
                inside = max(offset - at, 0)
                block[inside:inside + len(piece)] = piece
                piece = bytes(block)
            self.cached[number] = piece
            changes.append((number, piece))
        self.writes.append(changes)
        self.cached_bytes += len(changes) * BLOCK
        if self.cached_bytes > CACHE_BYTES_MAX:
            self._out()

    def flush(self):
        self.flushes += 1
        self._out()

    def cut(self, seed):
        """Power fails: of what was not flushed, chance keeps some, drops some and tears some. Says how many writes each."""
        chance = random.Random(seed)
        counts = {"kept": 0, "dropped": 0, "torn": 0, "flushes": self.flushes}
        for changes in self.writes:
            fate = chance.choice(["kept", "dropped", "torn"])
            if fate == "torn" and len(changes) == 1:
                fate = chance.choice(["kept", "dropped"])
            counts[fate] += 1
            for number, block in changes:
                if fate == "kept" or fate == "torn" and chance.random() < 0.5:
                    os.pwrite(self.file, block, number * BLOCK)
        self._forget()
        return counts

    def _block(self, number):
        block = self.cached.get(number)
        return block if block is not None else os.pread(self.file, BLOCK, number * BLOCK)

    def _out(self):
        for number, block in self.cached.items():
            os.pwrite(self.file, block, number * BLOCK)
        self._forget()

    def _forget(self):
        self.cached, self.writes, self.cached_bytes = {}, [], 0


def serve(disk, listener):
    """Serves one client until it goes."""
    connection, _ = listener.accept()
    with connection:
        if _negotiate(connection, disk.size):
            _transmit(connection, disk)


def _negotiate(connection, size):
    flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA
    connection.sendall(struct.pack(">QQH", NBD_MAGIC, OPTION_MAGIC, FIXED_NEWSTYLE | NO_ZEROES))
    client, = struct.unpack(">I", _exactly(connection, 4))
    while True:
        magic, option, length = struct.unpack(">QII", _exactly(connection, 16))
        if magic != OPTION_MAGIC or length > BLOCK:
            return False
        _exactly(connection, length)
        if option == OPT_EXPORT_NAME:
            zeroes = b"" if client & NO_ZEROES else bytes(124)
            connection.sendall(struct.pack(">QH", size, flags) + zeroes)
            return True
        if option in (OPT_INFO, OPT_GO):
            export = struct.pack(">HQH", INFO_EXPORT, size, flags)
            _answer(connection, option, REP_INFO, export)
            _answer(connection, option, REP_ACK)
            if option == OPT_GO:
                return True
        elif option == OPT_ABORT:
            _answer(connection, option, REP_ACK)
            return False
        else:
            _answer(connection, option, REP_ERR_UNSUP)


def _answer(connection, option, kind, data=b""):
    connection.sendall(struct.pack(">QIII", OPTION_REPLY_MAGIC, option, kind, len(data)) + data)


def _transmit(connection, disk):
    while True:
        try:
            magic, flags, command, handle, offset, length = struct.unpack(">IHHQQI", _exactly(connection, 28))
            data = _exactly(connection, length) if command == CMD_WRITE else b""
        except (EOFError, ConnectionError):
            return
        if magic != REQUEST_MAGIC or command == CMD_DISC:
            return
        error, answer = 0, b""
        with disk.lock:
            if command in (CMD_READ, CMD_WRITE) and (length > REQUEST_BYTES_MAX or offset + length > disk.size):
                error = EINVAL
            elif command == CMD_READ:
                answer = disk.read(offset, length)
            elif command == CMD_WRITE:
                disk.write(offset, data)
                if flags & FLAG_FUA:
                    disk.flush()
            elif command == CMD_FLUSH:
                disk.flush()
            else:
                error = EINVAL
        try:
            connection.sendall(struct.pack(">IIQ", REPLY_MAGIC, error, handle) + answer)
        except ConnectionError:
            return


def _exactly(connection, length):
    data = bytearray()
    while len(data) < length:
        piece = connection.recv(min(length - len(data), 1 << 20))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)

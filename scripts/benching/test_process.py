"""What is read from /proc."""

import os
import unittest

from . import process

SMAPS = """\
01000000-011ca000 r--p 00000000 fe:00 42                         /usr/bin/edgecore
Rss:                 704 kB
Pss:                 700 kB
Anonymous:             0 kB
011ca000-016e9000 r-xp 001c9000 fe:00 42                         /usr/bin/edgecore
Rss:                4732 kB
Pss:                4730 kB
Anonymous:             0 kB
016e9000-01728000 rw-p 006e7000 fe:00 42                         /usr/bin/edgecore
Rss:                 252 kB
Pss:                 250 kB
Anonymous:             4 kB
7f2ef5302000-7f2ef5303000 rw-p 00000000 00:00 0
Rss:                  12 kB
Pss:                  12 kB
Anonymous:            12 kB
7f2ef5311000-7f2ef5514000 ---p 00000000 00:00 0
Rss:                   0 kB
Pss:                   0 kB
Anonymous:             0 kB
"""


class Looks(unittest.TestCase):
    def test_mappings_are_summed_by_what_they_are(self):
        found = process.mappings(SMAPS)
        self.assertEqual({name: (size.rss, size.pss, size.anonymous) for name, size in found.items()}, {
            "constants, unwinding tables": (704, 700, 0), "code": (4732, 4730, 0), "data": (252, 250, 4),
            "heap, other stacks, zeroed data": (12, 12, 12)})

    def test_descriptors_are_what_they_are_of(self):
        inodes = process.sockets("udp6", "  sl  local_address\n   5: 0:0 0:0 07 0:0 0:0 0 0 0 77 2 0 0\n")
        inodes |= process.sockets("unix", "Num RefCount\n0: 2 0 1 1 1 78 /run/x\n0: 2 0 1 1 1 79\n")
        for target, kind in (("socket:[77]", "udp socket"), ("socket:[78]", "unix socket /run/x"), ("socket:[79]", "unix socket"),
                             ("socket:[1]", "other socket"), ("anon_inode:[eventpoll]", "eventpoll"), ("pipe:[5]", "pipe"),
                             ("/var/x/24fe-1/6", "/var/x/Nfe-N/N")):
            self.assertEqual(process.kind(target, inodes), kind)

    def test_this_process_can_be_looked_at(self):
        look = process.HERE.look(os.getpid())
        self.assertGreater(look.total().rss, 1000)
        self.assertGreaterEqual(sum(look.threads.values()), 1)
        self.assertGreaterEqual(sum(look.descriptors.values()), 3)
        self.assertEqual(look.threads.keys(), look.waits.keys())


if __name__ == "__main__":
    unittest.main()

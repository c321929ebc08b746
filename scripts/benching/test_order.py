"""Names that mean the same function in every build."""

import fnmatch
import unittest

from . import order

NAMES = [
    # A crate's hash, a backward reference, the number of an implementation.
    ("_RNvMs0_NtCsaz6eC2DG7lh_5alloc3vecINtB6_3VechE4push", "_RNvM*NtC*5alloc3vecINt*3VechE4push"),
    # Names that look like these stay: their lengths say where they end.
    ("_RNvNtCsaz6eC2DG7lh_4core3fmt9sB_s_0sB_", "_RNvNtC*4core3fmt9sB_s_0sB_"),
    ("_RNvCsaz6eC2DG7lh_4core4__sB_", "_RNvC*4core4__sB_"),
    # A constant, and what the optimiser appends.
    ("_RNvXsh_NtCsaz6eC2DG7lh_4core5arrayAhKj10_NtB5_5Array4from.llvm.123", "_RNvX*NtC*4core5arrayAhKj10_Nt*5Array4from.*"),
    ("sqlite3VdbeExec", "sqlite3VdbeExec"),
]


class Patterns(unittest.TestCase):
    def test_a_pattern_keeps_what_every_build_has(self):
        for name, wanted in NAMES:
            with self.subTest(name):
                self.assertEqual(order.pattern(name), wanted)
                self.assertTrue(fnmatch.fnmatchcase(name, wanted))

    def test_the_pattern_of_another_build_is_the_same(self):
        for name, _ in NAMES:
            other = name.replace("Csaz6eC2DG7lh_", "CsMVJnqguots_").replace("B6_", "B5_")
            self.assertEqual(order.pattern(other), order.pattern(name))


if __name__ == "__main__":
    unittest.main()

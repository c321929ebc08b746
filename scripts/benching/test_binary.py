"""Whose code a symbol is."""

import unittest

from . import binary

# By their names, as rustc and C compilers make them.
SYMBOLS = [
    ("_ZN8edgecore4main17h723c73369b6eb81dE", "", "edgecore"),
    ("_ZN8edgecore4pods3pod24PodTask$LT$R$C$D$C$C$GT$3run28_$u7b$$u7b$closure$u7d$$u7d$17h0804bb47aad31e16E", "", "edgecore"),
    ("_ZN132_$LT$rustls..msgs..message..Message$u20$as$u20$core..convert..TryFrom$LT$rustls..msgs..message..inbound.."
     "InboundPlainMessage$GT$$GT$8try_from17h0123456789abcdefE", "", "rustls"),
    ("_ZN4core3ptr52drop_in_place$LT$quinn_proto..connection..Connection$GT$17h0123456789abcdefE", "", "quinn_proto"),
    ("_ZN2h25proto10connection22DynConnection$LT$B$GT$10recv_frame17h0d71b3f26555e0edE", "", "h2"),
    ("_ZN5alloc7raw_vec11finish_grow17h0123456789abcdefE", "", "alloc"),
    ("_RINvMs0_NtNtNtCsaz6eC2DG7lh_3std12backtrace_rs9symbolize5gimliNtB6_5Cache11with_global", "", "std"),
    ("_RNvNtCsaz6eC2DG7lh_4core3fmt5writeCshGpAVYOtgW1_8edgecore", "", "edgecore"),
    ("sqlite3VdbeExec", "", "SQLite (C)"),
    ("btreeParseCell", "sqlite3.c", "SQLite (C)"),
    ("ring_core_0_17_14__k25519Precomp", "", "ring (C, assembly)"),
    ("printf_core", "vfprintf.c", binary.OTHER_C),
]


class Crates(unittest.TestCase):
    def test_a_symbol_has_a_crate(self):
        for symbol, source, crate in SYMBOLS:
            self.assertEqual(binary.crate(symbol, source), crate, symbol)


if __name__ == "__main__":
    unittest.main()

"""What counts as a leak, and what does not."""

import unittest

from . import flat

HEAP = "memory of the edge core: heap"
SOCKETS = "descriptors of the edge core: udp socket"
ROWS = "rows of node.db: desired"


def samples(count=30, **series):
    """Each series is a function of the round."""
    names = {"heap": HEAP, "sockets": SOCKETS, "rows": ROWS}
    return [{names[key]: value(turn) for key, value in series.items()} for turn in range(count)]


class Flat(unittest.TestCase):
    def leaking(self, found):
        return [name for name, _ in flat.leaks(found)]

    def test_what_stays_is_no_leak(self):
        self.assertEqual(self.leaking(samples(heap=lambda _: 700, sockets=lambda _: 1, rows=lambda _: 5)), [])

    def test_what_moves_about_is_no_leak(self):
        self.assertEqual(self.leaking(samples(heap=lambda turn: 700 + 400 * (turn % 3), rows=lambda turn: 5 + turn % 7)), [])

    def test_what_fills_up_at_first_is_no_leak(self):
        self.assertEqual(self.leaking(samples(heap=lambda turn: 700 + 100 * min(turn, 9))), [])

    def test_one_odd_sample_at_the_end_is_no_leak(self):
        self.assertEqual(self.leaking(samples(sockets=lambda turn: 9 if turn > 27 else 1)), [])

    def test_what_grows_is_named(self):
        found = samples(heap=lambda turn: 700 + 20 * turn + 30 * (turn % 2), sockets=lambda turn: 1, rows=lambda turn: 5 + turn)
        self.assertEqual(self.leaking(found), [HEAP, ROWS])

    def test_a_limit_is_what_may_be_seen_and_not_more(self):
        def growing(most):
            rest = 30 - int(30 * flat.WARM_UP)
            return samples(heap=lambda turn: 700 + turn * most / (rest - 1))

        most = flat.limit(HEAP).most
        self.assertEqual(self.leaking(growing(most)), [])
        self.assertEqual(self.leaking(growing(most * 1.01)), [HEAP])

    def test_what_appears_later_was_at_nothing_before(self):
        found = samples(heap=lambda _: 700)
        for turn, sample in enumerate(found[12:], 1):
            sample[SOCKETS] = turn
        self.assertEqual(self.leaking(found), [SOCKETS])

    def test_what_fills_for_long_is_judged_by_long_runs(self):
        cloud = "memory of the cloud core: heap"
        found = [{cloud: 5000 + 1000 * turn} for turn in range(30)]
        long_s = flat.limit(cloud).fills_s / flat.WARM_UP
        self.assertEqual(flat.leaks(found, long_s - 1), [])
        self.assertEqual([name for name, _ in flat.leaks(found, long_s + 1)], [cloud])

    def test_too_few_samples_are_no_verdict(self):
        with self.assertRaises(RuntimeError):
            flat.leaks(samples(flat.SAMPLES_MIN - 1, heap=lambda _: 700))


if __name__ == "__main__":
    unittest.main()

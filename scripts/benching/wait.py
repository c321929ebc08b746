"""Waiting for conditions, with a deadline."""

import time

DEADLINE_S = 120


class TooLate(Exception):
    pass


def until(what, check, deadline_s=DEADLINE_S, every_s=0.02):
    """Waits until `check` returns something true, and returns it."""
    end = time.monotonic() + deadline_s
    while not (found := check()):
        if time.monotonic() > end:
            raise TooLate(f"still not so after {deadline_s} s: {what}")
        time.sleep(every_s)
    return found

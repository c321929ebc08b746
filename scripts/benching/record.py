"""Figures: how they are said, what they are judged by, and where they are written down."""

import math
import platform
import subprocess
import time
from pathlib import Path

HOUR_S = 3600
MONTH_S = 30 * 24 * HOUR_S
MEASURED_COLUMN = 3
STAMP = "Last run: "
# Around a table that is written whole.
BLOCK = "<!-- {} -->", "<!-- end -->"


class Figures:
    """What was measured, by the name of its row in the page."""

    def __init__(self):
        self.rows = {}
        self.tables = {}

    def add(self, row, text, *budgets):
        """`budgets` are those of `judged`."""
        text = judged(text, *budgets)
        self.rows[row] = text
        print(f"    {row}: {text}", flush=True)

    def table(self, name, head, rows):
        """A table that is written whole where the page has its name."""
        self.tables[name] = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
        print("\n".join([f"    {name}", *(f"        {' | '.join(cells)}" for cells in rows)]), flush=True)

    def record(self, page, about, stamp=STAMP):
        """Writes the figures into the page's tables, and what they are of. Every figure must have its row."""
        left = dict(self.rows)
        lines = []
        text = page.read_text()
        for name, table in self.tables.items():
            begin, end = BLOCK[0].format(name), BLOCK[1]
            if begin not in text:
                raise RuntimeError(f"{page} has no place for the table {name}: it needs the lines {begin} and {end}")
            before, rest = text.split(begin, 1)
            text = "\n".join([before + begin, *table, end + rest.split(end, 1)[1]])
        for line in text.splitlines():
            cells = line.split("|")
            name = cells[1].strip() if len(cells) > MEASURED_COLUMN + 1 else None
            if name in left:
                cells[MEASURED_COLUMN] = f" {left.pop(name)} "
                line = "|".join(cells)
            lines.append(stamp + about if line.startswith(stamp) else line)
        page.write_text("\n".join(lines) + "\n")
        if left:
            raise RuntimeError(f"{page} has no row for: {', '.join(left)}")


def judged(text, *budgets):
    """A figure, and where it is over: `budgets` are pairs of a value and its limit, in one unit each."""
    over = [f"over by {number((value / limit - 1) * 100)} %" for value, limit in budgets if limit and value > limit]
    over += ["over" for value, limit in budgets if not limit and value > 0]
    return f"{text} (**{', '.join(over)}**)" if over else text


def number(value):
    """With three digits that mean something."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"


def mib(kb):
    return f"{kb / 1024:.1f} MiB"


def ms(seconds):
    return f"{number(seconds * 1000)} ms"


def size(count):
    """Bytes, as the wire's figures are said."""
    return f"{number(count / 1000)} KB" if count >= 10_000 else f"{count:.0f} bytes"


def spread(values, say):
    """p50 and p99."""
    return f"p50 {say(quantile(values, 0.5))}, p99 {say(quantile(values, 0.99))} of {len(values)}"


def quantile(values, share):
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def middle(values):
    return quantile(values, 0.5)


def about(root):
    """The commit, the day and the machine."""
    def git(*words):
        return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":!docs")
    commit = (git("rev-parse", "--short=10", "HEAD") or "no commit") + (", changed" if changed else "")
    cpus = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")]
    model = f"{len(cpus)} × {cpus[0]}" if cpus else platform.machine()
    return f"commit {commit}, {time.strftime('%Y-%m-%d', time.gmtime())}, {model}, Linux {platform.release()}."

"""Whether what is counted again and again stays where it is: a slope over samples, and a limit for each kind of thing."""

from dataclasses import dataclass

# Of all samples, those in which everything may still fill up.
WARM_UP = 0.34
SAMPLES_MIN = 9


@dataclass(frozen=True)
class Limit:
    """How much something may seem to grow over a whole run before that is a leak."""

    what: str
    unit: str
    most: float
    # How long it may fill up; a run with a shorter warm-up does not judge it.
    fills_s: float = 0


# By how the name of a series begins; the first that fits counts.
LIMITS = [
    # Events are kept for ten minutes there (soak.py), the history of every object for five.
    ("memory of the cloud", Limit("memory", "KiB", 2048, fills_s=900)),
    ("memory", Limit("memory", "KiB", 256)),
    ("descriptors", Limit("descriptors", "", 2)),
    ("threads", Limit("threads", "", 0.9)),
    ("rows", Limit("rows of the store", "", 4)),
    ("file", Limit("a file", "KiB", 64)),
    ("count", Limit("what it says it holds", "", 2)),
]


def limit(name):
    return next(limit for start, limit in LIMITS if name.startswith(start))


def slope(values):
    """The median of the slopes between all pairs (Theil and Sen), which a few odd samples do not move."""
    slopes = sorted((later - earlier) / (j - i) for i, earlier in enumerate(values)
                    for j, later in enumerate(values[i + 1:], i + 1))
    middle = len(slopes) // 2
    return slopes[middle] if len(slopes) % 2 else (slopes[middle - 1] + slopes[middle]) / 2


def growth(values):
    """By how much a series grew over the samples after the warm-up, as its slope has it."""
    rest = values[int(len(values) * WARM_UP):]
    return slope(rest) * (len(rest) - 1)


def leaks(samples, seconds=float("inf")):
    """What grew, of samples of so many seconds: pairs of a name and how much. A series that a sample lacks was at nothing
    then."""
    if len(samples) < SAMPLES_MIN:
        raise RuntimeError(f"{len(samples)} samples are too few to judge by: it takes {SAMPLES_MIN}; run for longer")
    names = sorted({name for sample in samples for name in sample})
    grown = {name: growth([sample.get(name, 0) for sample in samples]) for name in names}
    judged = [name for name in names if seconds * WARM_UP >= limit(name).fills_s]
    return [(name, grown[name]) for name in judged if grown[name] > limit(name).most]

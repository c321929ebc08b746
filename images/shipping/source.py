"""The source that is shipped: its version and its time, as its commit has them."""

import os
import re
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Source:
    """What everything that is built from one commit says of itself."""

    def __init__(self, version=None, epoch=None):
        self.commit = git("rev-parse", "HEAD")
        # The time of the commit; builders of distributions set their own.
        self.epoch = int(epoch or os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))
        self.cargo = cargo_version()
        self.version = version or package_version(self.cargo, self.epoch, self.commit, tag(), dirty())

    @property
    def created(self):
        """The time, as OCI writes it."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.epoch))


def package_version(cargo, epoch, commit, tagged, changed):
    """The version of a package: what was committed later is newer, and a release is newer than all on the way to it.

    `0.2.0-dev` of Cargo is `0.2.0~dev+git20260131120000.0123abc`; a tagged `0.2.0` is `0.2.0`.
    """
    base = cargo.replace("-", "~", 1)
    if tagged == f"v{cargo}" and not changed:
        return base
    stamp = time.strftime("%Y%m%d%H%M%S", time.gmtime(epoch))
    return f"{base}+git{stamp}.{commit[:7]}" + (".changed" if changed else "")


def cargo_version():
    text = (ROOT / "Cargo.toml").read_text()
    return re.search(r'^\[workspace\.package\]$.*?^version = "([^"]+)"$', text, re.MULTILINE | re.DOTALL)[1]


def tag():
    done = subprocess.run(["git", "-C", ROOT, "describe", "--exact-match", "--tags"], capture_output=True, text=True)
    return done.stdout.strip()


def dirty():
    return bool(git("status", "--porcelain", "--untracked-files=no"))


def git(*words):
    # Who builds as root builds in somebody else's folder.
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", ROOT, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

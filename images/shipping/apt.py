"""Packages of this machine's distribution, for any of its architectures, without touching this machine's own apt."""

import os
import subprocess
import sys
import time
from pathlib import Path

LISTS_MAX_AGE_S = 24 * 3600

# Needed by maintainer scripts only, which never run here.
SCRIPTS_ONLY = {"adduser", "debconf", "debconf-2.0", "init-system-helpers", "lsb-base", "sysvinit-utils", "passwd"}


class Apt:
    """An apt of its own: lists, cache, status and sources, for one architecture."""

    def __init__(self, arch):
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.folder = cache / "edgehold" / "apt" / arch
        for part in ("lists/partial", "cache/archives/partial", "debs"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        (self.folder / "status").touch()
        sources = self.folder / "sources.list"
        text = distribution_sources(arch)
        changed = not sources.exists() or sources.read_text() != text
        sources.write_text(text)
        config = {
            "APT::Architecture": arch, "APT::Architectures": arch, "APT::Sandbox::User": "",
            "Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::lists": self.folder / "lists", "Dir::State::status": self.folder / "status",
            "Dir::Cache": self.folder / "cache", "Acquire::Languages": "none", "Acquire::Retries": "3",
        }
        file = self.folder / "apt.conf"
        file.write_text("".join(f'{key} "{value}";\n' for key, value in config.items()) + "#clear APT::Update::Post-Invoke;\n"
                        "#clear APT::Update::Post-Invoke-Success;\n#clear DPkg::Post-Invoke;\n")
        self.environment = dict(os.environ, APT_CONFIG=str(file), LC_ALL="C")
        updated = self.folder / "updated"
        if changed or not updated.exists() or time.time() - updated.stat().st_mtime > LISTS_MAX_AGE_S:
            self.run("apt-get", "-qq", "update")
            updated.touch()

    def run(self, *command, cwd=None):
        done = subprocess.run(command, env=self.environment, cwd=cwd, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def closure(self, packages):
        """The packages and all they depend on, without what only maintainer scripts need."""
        found, wanted = set(), set(packages)
        while wanted := wanted - found - SCRIPTS_ONLY:
            found |= wanted
            alternative = False
            following = set()
            for line in self.run("apt-cache", "depends", "--important", *sorted(wanted)).splitlines():
                kind, _, name = line.strip().partition(": ")
                if kind.lstrip("|") in ("Depends", "PreDepends"):
                    # The first of alternatives, and none that is only virtual.
                    if not alternative and not name.startswith("<"):
                        following.add(name)
                    alternative = kind.startswith("|")
            wanted = following
        return sorted(found)

    def fetch(self, packages):
        """Files of the packages, downloaded if they are not there, their hashes checked by apt."""
        versions = {}
        for block in self.run("apt-cache", "show", "--no-all-versions", *packages).split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != " ")
            if fields:
                versions[fields["Package"]] = (fields["Version"].replace(":", "%3a"), fields["Architecture"])
        debs = {package: self.folder / "debs" / f"{package}_{version}_{arch}.deb"
                for package, (version, arch) in versions.items()}
        if missing := [package for package, deb in debs.items() if not deb.exists()]:
            self.run("apt-get", "-qq", "download", *missing, cwd=self.folder / "debs")
        return [debs[package] for package in packages]


def distribution_sources(arch):
    """The distribution's own archive, for the release this machine runs."""
    lines = Path("/etc/os-release").read_text().splitlines()
    about = {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}
    release = about.get("VERSION_CODENAME", "")
    if about.get("ID") == "debian":
        sign = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
        return (f"deb {sign} http://deb.debian.org/debian {release} main\n"
                f"deb {sign} http://deb.debian.org/debian {release}-updates main\n"
                f"deb {sign} http://deb.debian.org/debian-security {release}-security main\n")
    if about.get("ID") == "ubuntu":
        sign = "[signed-by=/usr/share/keyrings/ubuntu-archive-keyring.gpg]"
        url = "http://archive.ubuntu.com/ubuntu" if arch == "amd64" else "http://ports.ubuntu.com/ubuntu-ports"
        return "".join(f"deb {sign} {url} {release}{pocket} main universe\n" for pocket in ("", "-updates", "-security"))
    sys.exit("images are built on Debian or Ubuntu")

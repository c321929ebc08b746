"""The licences of what is linked into a program: most of them ask to be shipped with it."""

import json
import re
import subprocess
from pathlib import Path

from .source import ROOT

FILE = re.compile(r"(licen[cs]e|copying|notice|copyright|unlicense)", re.IGNORECASE)


def third_party(program, target):
    """One text: every crate that is linked into a program, and each licence once, with the crates it is of."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = next(key for key, package in packages.items() if package["name"] == program and not package["source"])
    crates, texts = [], {}
    for key in linked(root, nodes):
        package = packages[key]
        # Ours are in the package's own copyright file.
        if not package["source"]:
            continue
        name = f"{package['name']} {package['version']}"
        crates.append(f"{name}: {package['license'] or 'see its text'}")
        folder = Path(package["manifest_path"]).parent
        for path in sorted(folder.iterdir()):
            if path.is_file() and FILE.match(path.name):
                texts.setdefault(path.read_text(errors="replace").strip(), []).append(name)
    parts = [f"What is linked into {program}, and under which licences.", "\n".join(sorted(crates))]
    for text, names in sorted(texts.items(), key=lambda item: sorted(item[1])):
        parts.append(f"{'-' * 80}\nOf {', '.join(sorted(set(names)))}:\n\n{text}")
    return "\n\n".join(parts) + "\n"


def linked(root, nodes):
    """The crates that end up in the program: not what only builds or tests it."""
    found, wanted = set(), [root]
    while wanted:
        key = wanted.pop()
        if key in found:
            continue
        found.add(key)
        wanted += [dependency["pkg"] for dependency in nodes[key]["deps"]
                   if any(kind["kind"] is None for kind in dependency["dep_kinds"])]
    return sorted(found)

"""What an edge core takes on an emulated machine with a kernel and a processor of its own, as at a site."""

import os
import subprocess
from pathlib import Path

from .kube import Kube, Watch, is_ready, of_app
from .measures import DEPLOYMENTS, deployment
from .process import Place
from .record import mib, number
from .site import API_PORT, Cloud

VM = Path(__file__).resolve().parent.parent / "vm"
NAME = "bench"
NODE = "edge"
# The host's loopback, as the machine sees it.
HOST = "10.0.2.2"
CONFIG = "/etc/edgehold/edgecore.toml"
IMAGE = "/usr/share/edgehold/web.tar"
# Emulated, everything takes its time.
PATIENCE_S = 900
# What a pod may take beside the edge core.
SHIM_KIB_MAX = 1024


class Machine:
    """One of scripts/vm, with an edge core on the embedded runtime that has joined a cloud core here."""

    def __init__(self, folder, architecture, programs, image):
        self.architecture, self.program = architecture, programs["edgecore"]
        self.cloud = Cloud(folder, programs["cloudcore"], ["127.0.0.1", HOST])
        self.kube = Kube(self.cloud.kubeconfig, folder)
        self.nodes, self.pods = Watch(self.kube, "/api/v1/nodes"), Watch(self.kube, "/api/v1/pods")
        config, token = folder / "machine.toml", folder / "machine.token"
        config.write_text('runtime = "embedded"\n')
        token.write_text(self.cloud.token(NODE))
        files = [f"--file={here}={there}" for here, there in
                 ((self.program, "/usr/bin/edgecore"), (config, CONFIG), (image, IMAGE), (token, "/etc/edgehold/token"))]
        vm("start", NAME, "--arch", architecture, "--new", "--owner", str(os.getpid()), *files)
        self.edgecore(f"join https://{HOST}:{API_PORT} --token-file /etc/edgehold/token")
        self.edgecore(f"image import {IMAGE}")
        self.nodes.wait("the machine is Ready",
                        lambda nodes: any(is_ready(node) for node in nodes.values()), PATIENCE_S)

    def edgecore(self, words):
        vm("exec", NAME, "--", f"edgecore --config {CONFIG} {words}")

    def measure(self, footprint, counts):
        """Rows as those of this machine, behind the architecture's name."""
        size = os.path.getsize(self.program)
        row = f"{self.architecture}: edge core"
        footprint.figures.add(f"{row}, program", f"{number(size / 1e6)} MB", (size, 8e6))
        pid = footprint.place.oldest("edgecore")
        footprint.measure(f"{row}, idle, joined", pid, 5, 8, long=True)
        self.kube.create(DEPLOYMENTS, deployment("site", NODE, 0))
        for count, pss_mib in counts:
            self.kube.scale("site", count)
            self.pods.wait(f"{count} pods are ready", lambda objects, count=count: len(of_app(objects, "site")) == count
                           and all(map(is_ready, objects.values())), PATIENCE_S)
            footprint.measure(f"{row}, {count} pods", pid, pss_mib)
            shims = footprint.place.shims()
            each = sum(shims) / count
            footprint.figures.add(f"{row}, beside it with {count} pods", f"{mib(sum(shims))} PSS in {len(shims)} shims: "
                                  f"{number(each)} KiB a pod", (each, SHIM_KIB_MAX))

    def remove(self):
        vm("remove", NAME)


def place():
    return Place(VM, "exec", NAME, "--")


def vm(*words):
    done = subprocess.run([VM, *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"scripts/vm {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout

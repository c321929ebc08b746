"""Which functions of the edge core belong together in its file.

The kernel maps a program's pages by sixteen around each that is used, so that functions in use that are spread over all of
the program take most of it into memory. The result is a linker script with the names of the functions' sections.
"""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from .kube import Kube, Watch, is_ready, of_app
from .measures import DEPLOYMENTS, deployment
from .site import Cloud, Containerd, Edge, Link, run
from .wait import until

HEAD = """\
/* Which functions lie together in the edge core, so that the pages in use are few: those that an idle one calls each
   minute, those that it calls now and then, and those that running pods and their probes take. Made by
   `scripts/bench order`; what differs from build to build in a name is a star. */
SECTIONS {
    .text.used : { *(
"""
TAIL = """\
    ) }
} INSERT BEFORE .text;
"""
USED = Path(__file__).with_name("used.py")
PODS = 4
PROBE = {"exec": {"command": ["/bin/true"]}, "periodSeconds": 1}


class Order:
    def __init__(self, folder, programs, image, how):
        self.how, self.program = how, programs["symbols"]
        links = [Link(1), Link(2)]
        cloud = Cloud(folder, programs["cloudcore"], [link.cloud for link in links])
        self.kube = Kube(cloud.kubeconfig, folder)
        self.pods = Watch(self.kube, "/api/v1/pods")
        self.edges = [Edge(folder, self.program, "containerd", links[0], cloud, Containerd(folder)),
                      Edge(folder, self.program, "embedded", links[1], cloud, runtime="embedded")]
        for edge in self.edges:
            run(self.program, "--config", edge.config, "image", "import", image)

    def script(self):
        """The linker script."""
        for edge in self.edges:
            edge.start()
        for edge in self.edges:
            until(f"{edge.name} is connected", edge.connected)
        time.sleep(self.how.settle_s)
        # What every minute takes, what happens once in a while, and what pods take.
        patterns = self.patterns(self.how.minute_s)
        patterns |= self.patterns(self.how.idle_s)
        self.run_pods()
        # What it took to make them is not called again.
        time.sleep(self.how.settle_s)
        patterns |= self.patterns(self.how.rest_s)
        for edge in self.edges:
            edge.process.end(signal.SIGKILL)
        return HEAD + "".join(f"        {pattern}\n" for pattern in patterns) + TAIL

    def patterns(self, seconds):
        """What is called within so many seconds, in the order of the first call; a dict, for it keeps it and nothing
        comes twice."""
        looks = [subprocess.Popen([sys.executable, USED, str(edge.process.pid), self.program, str(seconds)],
                                  stdout=subprocess.PIPE, text=True) for edge in self.edges]
        outputs = [look.communicate()[0] for look in looks]
        if any(look.returncode != 0 for look in looks):
            raise RuntimeError("the edge core could not be looked at")
        return {f".text.{pattern(name)}": None for output in outputs for name in output.split()}

    def run_pods(self):
        for edge in self.edges:
            made = deployment(edge.name, edge.name, PODS)
            made["spec"]["template"]["spec"]["containers"][0] |= {"readinessProbe": PROBE, "livenessProbe": PROBE}
            self.kube.create(DEPLOYMENTS, made)
        for edge in self.edges:
            self.pods.wait(f"{edge.name}: {PODS} pods are ready", lambda objects, edge=edge:
                           sum(map(is_ready, of_app(objects, edge.name))) == PODS)


def pattern(name):
    """A name as rustc makes it, with stars for what another build of the same sources, or the next change of them, has
    different: crates' hashes, the numbers of implementations and closures, how far back a part was named before, and
    what the optimiser appends."""
    if not name.startswith("_R"):
        return name
    parts, at = ["_R"], 2
    while at < len(name):
        rest = name[at:]
        if found := re.match(r"[0-9]+", rest):
            # An identifier, with its length before it and an underscore between where it would not end otherwise.
            length = found.end() + int(found[0]) + rest[found.end():].startswith("_")
            parts.append(rest[:length])
        elif found := re.match(r"[sB][0-9A-Za-z]*_", rest):
            length = found.end()
            parts.append("*")
        elif found := re.match(r"K[a-z]n?[0-9a-f]*_", rest):
            length = found.end()
            parts.append(found[0])
        elif rest.startswith("."):
            length = len(rest)
            parts.append(".*")
        else:
            length = 1
            parts.append(rest[0])
        at += length
    return re.sub(r"\*+", "*", "".join(parts))

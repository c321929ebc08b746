"""The node's two container runtimes beside each other: the same pods on both, one after the other, in one run.

What both do is seen from outside, by the same eyes: the first thing that a container does is to write into a folder of the
host's, and what a runtime takes is what all of its processes take.
"""

import os
import re
import shutil
import signal
import time
from pathlib import Path

from .kube import Kube, Watch, is_ready, of_app
from .measures import DEPLOYMENTS, PODS, deployment, pod_spec
from .machine import SHIM_KIB_MAX
from .record import judged, middle, mib, ms, number, quantile, spread
from .site import Cloud, Containerd, Edge, Link, boot_anew, contained, memory, processes, read, run
from .wait import until

TABLE = "two runtimes"
RUNTIMES = ("containerd", "embedded")
# What a node runs beside the containers themselves, and what it is called in the table.
BESIDE = {"edgecore": "of ours", "containerd": "containerd", "containerd-shim-runc-v2": "of its shims"}
ACTS = "/acts"
# It says that it runs, and rests.
SCRIPT = f'echo >> {ACTS}/"$POD"; exec sleep 1000000'
SLEEPS = b"sleep\0"
# What each may take; there are no budgets for the daemon's side.
BUDGETS = {"beside the edge core, 10 pods": "≤ 1 MiB PSS a pod"}


class Runtimes:
    def __init__(self, folder, programs, image, how, figures):
        self.folder, self.programs, self.image, self.how, self.figures = folder, programs, image, how, figures
        self.links = dict(zip(RUNTIMES, (Link(1), Link(2))))
        self.cloud = Cloud(folder, programs["cloudcore"], [link.cloud for link in self.links.values()])
        self.kube = Kube(self.cloud.kubeconfig, folder)
        self.pods, self.nodes = Watch(self.kube, "/api/v1/pods"), Watch(self.kube, "/api/v1/nodes")
        self.rows = {}

    def all(self):
        for runtime in RUNTIMES:
            node = Node(self, runtime)
            print(f"with {runtime}", flush=True)
            for name, text in node.measures():
                print(f"    {name}: {text}", flush=True)
                self.rows.setdefault(name, {})[runtime] = text
            node.end()
        rows = [[name, BUDGETS.get(name, ""), *(found.get(runtime, "") for runtime in RUNTIMES)]
                for name, found in self.rows.items()]
        self.figures.table(TABLE, ["what", "budget of the embedded one", *(f"with {name}" for name in RUNTIMES)], rows)


class Node:
    """An edge core with one of the runtimes."""

    def __init__(self, site, runtime):
        self.site, self.runtime, self.how = site, runtime, site.how
        self.folder, self.link = site.folder, site.links[runtime]
        self.name = f"on-{runtime}"
        self.acts = self.folder / f"{self.name}-acts"
        self.acts.mkdir()
        # Whoever the image runs as.
        self.acts.chmod(0o1777)
        self.containerd = Containerd(self.folder) if runtime == "containerd" else None
        # A copy of its own: pages of one file count half for each of two who have it in memory.
        program = self.folder / f"{self.name}-program/edgecore"
        program.parent.mkdir()
        shutil.copy(site.programs["edgecore"], program)
        self.edge = Edge(self.folder, program, self.name, self.link, site.cloud, self.containerd, runtime)
        run(program, "--config", self.edge.config, "image", "import", site.image)
        self.edge.start()
        self.wait_ready()
        body = deployment("site", self.name, 0)
        body["metadata"]["name"] = self.name
        body["spec"]["template"]["spec"] = self.acting()
        site.kube.create(DEPLOYMENTS, body)

    def acting(self):
        uid = {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
        spec = pod_spec(self.name, command=["/bin/sh", "-c", SCRIPT], env=[uid],
                        volumeMounts=[{"name": "acts", "mountPath": ACTS}])
        return spec | {"volumes": [{"name": "acts", "hostPath": {"path": str(self.acts)}}]}

    def measures(self):
        """Pairs of a row and what this runtime has in it."""
        yield "idle", self.memory()
        yield "apply → the container's first act", self.latency()
        before = self.written()
        self.scale(self.how.pods)
        each = (self.written() - before) / self.how.pods
        yield "written to the disk for one pod's start", f"{number(each / 1024)} KiB"
        yield from self.with_pods(self.how.pods, SHIM_KIB_MAX)
        yield "killed → its next first act, offline", self.restarts()
        yield f"power cut → first act of all {self.how.pods} pods, offline", self.boots()
        if self.how.many_pods:
            self.scale(self.how.many_pods)
            yield from self.with_pods(self.how.many_pods)

    def with_pods(self, count, kib_max=None):
        yield f"edge core, {count} pods", self.memory()
        beside = self.beside()
        each = sum(beside.values()) / count
        text = ", ".join(f"{mib(pss)} {BESIDE[word]}" for word, pss in beside.items() if pss)
        limits = [(each, kib_max)] if kib_max and self.runtime == "embedded" else []
        yield f"beside the edge core, {count} pods", judged(f"{mib(sum(beside.values()))} PSS: {text}; {number(each)} KiB a pod",
                                                            *limits)

    def memory(self):
        time.sleep(self.how.rest_s)
        found = self.edge.process.memory()
        return f"{mib(found.pss)} PSS, {mib(found.rss)} RSS"

    def others(self, word):
        return [pid for pid in processes(word) if pid != self.edge.process.pid]

    def beside(self):
        """PSS of everything but the edge core and the containers, in KiB, by program."""
        return {word: sum(memory(pid).pss for pid in self.others(word)) for word in BESIDE}

    def written(self):
        """Bytes for disks, of everything but the containers so far."""
        files = [read(Path(f"/proc/{pid}/io")).decode() for word in BESIDE for pid in processes(word)]
        return sum(int(count) for text in files for count in re.findall(r"^write_bytes: (\d+)", text, flags=re.M))

    def act(self, uid, count=1):
        """When a pod's container acted for this time, the first by default."""
        file = self.acts / uid
        until(f"{uid} acted", lambda: file.exists() and file.stat().st_size >= count, every_s=0.002)
        return file.stat().st_mtime

    def latency(self):
        """One pod after the other, through the scheduler."""
        took = []
        for index in range(self.how.applies):
            name = f"{self.name}-{index}"
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": self.acting()}
            since = time.time()
            uid = self.site.kube.create(PODS, body)["metadata"]["uid"]
            took.append(self.act(uid) - since)
            self.site.kube.delete(f"{PODS}/{name}")
            self.site.pods.wait(f"{name} is gone", lambda objects, uid=uid: uid not in objects)
        return spread(took, ms)

    def uids(self):
        return [pod["metadata"]["uid"] for pod in of_app(self.site.pods.objects, "site")]

    def scale(self, count):
        self.site.kube.scale(self.name, count)

        def ready(objects):
            found = of_app(objects, "site")
            return len(found) == count and all(map(is_ready, found))

        self.site.pods.wait(f"{count} pods are ready", ready)

    def wait_ready(self):
        until("the edge core is connected", self.edge.connected)
        self.site.nodes.wait(f"{self.name} is Ready", lambda nodes: any(
            node["metadata"]["name"] == self.name and is_ready(node) for node in nodes.values()))

    def cut(self):
        self.link.cut()
        until("the node knows it", lambda: not self.edge.connected())

    def mend(self):
        self.link.mend()
        self.wait_ready()

    def restarts(self):
        """Each container's first restart, which has no back-off."""
        self.cut()
        took = []
        for uid in self.uids()[: self.how.runs]:
            asleep = [pid for pid in contained(uid) if read(Path(f"/proc/{pid}/cmdline")).startswith(SLEEPS)]
            since = time.time()
            os.kill(asleep[0], signal.SIGKILL)
            took.append(self.act(uid, 2) - since)
        self.mend()
        return f"{ms(middle(took))}, {ms(max(took))} at most, of {len(took)}"

    def boots(self):
        took = [self.boot() for _ in range(self.how.boots)]
        return f"{ms(middle(took))}, {ms(max(took))} at most, of {len(took)}"

    def boot(self):
        self.link.cut()
        keep = [self.site.cloud.process.pid, *(link.holder.pid for link in self.site.links.values())]
        boot_anew(self.folder, self.edge, self.containerd, keep)
        acts = {uid: (self.acts / uid).stat().st_size for uid in self.uids()}
        since = self.edge.start().begun
        took = max(self.act(uid, count + 1) for uid, count in acts.items()) - since
        self.mend()
        self.site.pods.wait("all pods are ready", lambda objects: all(map(is_ready, of_app(objects, "site"))))
        return took

    def end(self):
        """Leaves the machine to the next."""
        self.site.kube.delete(f"{DEPLOYMENTS}/{self.name}")
        self.site.pods.wait("the pods are gone", lambda objects: not of_app(objects, "site"))
        for process in (self.edge.process, *([self.containerd.process] if self.containerd else [])):
            process.end(signal.SIGTERM)

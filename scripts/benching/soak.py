"""A site that never rests, and everything that could grow with it: pods come and go, the link flaps, status and
configuration change, and after every round all is as it was.

Whoever does not trust the verdict has it leak on purpose (`--leak`): memory and descriptors are taken inside the running
edge core by a debugger, rows are entries that the rounds leave behind.
"""

import json
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

from . import flat, site
from .kube import Kube, Watch, is_ready, of_app
from .measures import CONFIG_MAPS, DEPLOYMENTS, deployment
from .outside import Wire
from .process import HERE
from .record import number
from .site import Cloud, Containerd, Edge, Link, contained, processes, run
from .wait import until

PODS = 3
PODS_MORE = 6
# Every so many rounds the link is cut, for longer than the dialler needs to notice that it is gone.
CUT_EVERY = 4
BEAT_S = 3
# So that the cloud core is full of events soon.
EVENT_TTL_S = 600
# Words of the command lines of what keeps containers, and their logs.
KEEPERS = ("pod-shim", "log-shim")
LEAK_KIB = 64
LEAKS = ("memory", "descriptors", "rows")
# System calls, as a debugger makes them on x86-64: mmap of memory that is there at once, dup of standard input.
CALLS = {"memory": (9, 0, LEAK_KIB * 1024, 3, 0x8022, -1, 0), "descriptors": (32, 0)}
REGISTERS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")


class Soak:
    def __init__(self, folder, programs, image, figures, runtime="containerd", leak=None):
        self.folder, self.figures, self.leak = folder, figures, leak
        self.link = Link(1)
        self.wire = Wire(self.link)
        self.runtime = runtime
        self.containerd = Containerd(folder) if runtime == "containerd" else None
        self.cloud = Cloud(folder, programs["cloudcore"], [self.link.cloud], event_ttl_s=EVENT_TTL_S)
        self.kube = Kube(self.cloud.kubeconfig, folder)
        self.pods, self.nodes = Watch(self.kube, "/api/v1/pods"), Watch(self.kube, "/api/v1/nodes")
        self.edge = Edge(folder, programs["edgecore"], "edge", self.link, self.cloud, self.containerd,
                         runtime)
        self.edge.configure(beat_s=BEAT_S)
        run(programs["edgecore"], "--config", self.edge.config, "image", "import", image)
        self.edge.start()
        self.wait_node(True)
        self.rounds = 0

    def run(self, seconds):
        self.kube.create(CONFIG_MAPS, {"metadata": {"name": "settings"}, "data": {"turn": "0"}})
        body = deployment("soak", "edge", PODS)
        spec = body["spec"]["template"]["spec"]
        spec["volumes"] = [{"name": "settings", "configMap": {"name": "settings"}}]
        main = spec["containers"][0]
        main["volumeMounts"] = [{"name": "settings", "mountPath": "/settings"}]
        main["command"] = ["/bin/sh", "-c", "touch /tmp/ready; while true; do sleep 1; done"]
        main["readinessProbe"] = {"exec": {"command": ["/bin/test", "-f", "/tmp/ready"]}, "periodSeconds": 1,
                                  "failureThreshold": 1}
        self.kube.create(DEPLOYMENTS, body)
        self.settled(PODS)
        samples, since = [], time.monotonic()
        while time.monotonic() < since + seconds or len(samples) < flat.SAMPLES_MIN:
            self.round()
            samples.append(self.sample())
            print(f"    round {self.rounds}", flush=True)
        return self.verdict(samples, time.monotonic() - since)

    def round(self):
        """Everything that changes in a site's life, and back."""
        self.rounds += 1
        self.kube.scale("soak", PODS_MORE)
        self.settled(PODS_MORE)
        self.kube.merge(f"{CONFIG_MAPS}/settings", {"data": {"turn": str(self.rounds)}})
        pod = min(pod["metadata"]["uid"] for pod in of_app(self.pods.objects, "soak"))
        first = contained(pod)[0]
        until("the file has the new value",
              lambda: read(f"/proc/{first}/root/settings/turn") == str(self.rounds))
        ready = Path(f"/proc/{first}/root/tmp/ready")
        for there in (False, True):
            ready.touch() if there else ready.unlink()
            self.pods.wait("the flip is known", lambda objects, there=there: is_ready(objects[pod]) == there)
        if self.rounds % CUT_EVERY == 0:
            self.link.cut()
            until("the node knows that it is cut off", lambda: not self.edge.connected())
            self.link.mend()
            self.wait_node(True)
        self.kube.scale("soak", PODS)
        self.settled(PODS)
        if self.leak in CALLS:
            inject(self.edge.process.pid, self.leak)
        elif self.leak == "rows":
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"left-{self.rounds}"},
                    "spec": {"nodeName": "edge", "nodeSelector": {"nowhere": "yes"},
                             "containers": [{"name": "main", "image": "images.edgehold.dev/none:1"}]}}
            self.kube.create("/api/v1/namespaces/default/pods", body)
        self.wire.quiet()

    def settled(self, count):
        """So many pods are there and ready, here and there."""
        def ready(objects):
            found = of_app(objects, "soak")
            return len(found) == count and all(map(is_ready, found))

        self.pods.wait(f"{count} pods are ready", ready)

    def wait_node(self, ready):
        until("the edge core is connected", self.edge.connected)
        self.nodes.wait("the node is Ready", lambda nodes: any(is_ready(node) == ready for node in nodes.values()))

    def sample(self):
        """Everything that must be as it was, by the subsystem that holds it."""
        found = {}
        for name, process in (("edge core", self.edge.process), ("cloud core", self.cloud.process)):
            look = HERE.look(process.pid)
            for mapping, size in look.mappings.items():
                if size.anonymous:
                    found[f"memory of the {name}: {mapping}"] = size.anonymous
            for kind, count in look.descriptors.items():
                found[f"descriptors of the {name}: {kind}"] = count
            for thread, count in look.threads.items():
                found[f"threads of the {name}: {thread}"] = count
        # Those that keep containers and their logs, together. One of a pod that has gone may be just ending.
        beside = [pid for word in KEEPERS for pid in processes(word)]
        rollups = [site.read(Path(f"/proc/{pid}/smaps_rollup")).decode() for pid in beside]
        found["memory beside the edge core"] = sum(
            int(kib) for text in rollups for kib in re.findall(r"^Anonymous: +(\d+)", text, flags=re.M))
        found["count of processes beside it"] = len(beside)
        for table, count in self.rows().items():
            found[f"rows of node.db: {table}"] = count
        for path in self.edge.folder.rglob("*"):
            if path.is_file() and "pods" not in path.relative_to(self.edge.folder).parts:
                found[f"file {path.relative_to(self.folder)}"] = path.stat().st_size / 1024
        found["count of folders of pods"] = len(list((self.edge.folder / "pods").glob("*")))
        status = json.loads(run(self.edge.program, "--config", self.edge.config, "status", "--json"))
        found["count of pods"] = len(status["pods"])
        return found

    def rows(self):
        """Rows of each table, in a copy: the edge core's own file is its alone."""
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for name in ("node.db", "node.db-wal"):
            if (self.edge.folder / name).exists():
                shutil.copy(self.edge.folder / name, copy)
        connection = sqlite3.connect(copy / "node.db")
        try:
            tables = [name for name, in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {table: connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0] for table in tables}
        finally:
            connection.close()

    def verdict(self, samples, seconds):
        grown = flat.leaks(samples, seconds)
        for name, amount in grown:
            limit = flat.limit(name)
            print(f"    LEAK: {name}: grew by {number(amount)} {limit.unit}".rstrip() +
                  f" in {len(samples)} rounds, where {limit.most} is the most", flush=True)
        first, last = samples[int(len(samples) * flat.WARM_UP)], samples[-1]

        def all_of(sample, start):
            return sum(value for name, value in sample.items() if name.startswith(start))

        words = [f"{what} {number(all_of(first, start))} → {number(all_of(last, start))} {unit}".strip()
                 for what, start, unit in (("memory of the edge core", "memory of the edge", "KiB"),
                                           ("of its pods' processes", "memory beside", "KiB"),
                                           ("of the cloud core", "memory of the cloud", "KiB"),
                                           ("descriptors", "descriptors of the edge", ""),
                                           ("threads", "threads of the edge", ""), ("rows", "rows", ""),
                                           ("database and WAL", "file edge/node.db", "KiB"))]
        text = f"{self.rounds} rounds in {number(seconds / 3600)} h: {', '.join(words)}"
        self.figures.add(f"soak with {self.runtime}", text + (f"; **{len(grown)} leaks**" if grown else ""))
        self.edge.process.end(signal.SIGTERM)
        return not grown


def inject(pid, kind):
    """Has a process make one system call, by a debugger."""
    number_of_call, *arguments = CALLS[kind]
    script = "\n".join([
        "import gdb",
        "names = ['rax', 'orig_rax', 'rip', 'rcx', 'r11', *%r]" % (REGISTERS,),
        "kept = {name: int(gdb.parse_and_eval('(unsigned long)$' + name)) for name in names}",
        # The thread waits in a system call, so the instruction before is one.
        "gdb.execute('set $rip = $rip - 2')",
        "gdb.execute('set $orig_rax = -1')",
        f"gdb.execute('set $rax = {number_of_call}')",
        *(f"gdb.execute('set ${name} = {value}')" for name, value in zip(REGISTERS, arguments)),
        "gdb.execute('stepi')",
        "answer = int(gdb.parse_and_eval('(long)$rax'))",
        "[gdb.execute(f'set ${name} = {value}') for name, value in kept.items()]",
        "gdb.execute('detach')",
        "gdb.execute(f'quit {1 if -4096 < answer < 0 else 0}')"])
    done = subprocess.run(["gdb", "-q", "-nx", "-batch", "-p", str(pid), "-ex", f"python exec({script!r})"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"leaking {kind} on purpose: {done.stdout[-500:]} {done.stderr[-500:]}")


def read(path):
    try:
        return Path(path).read_text()
    except OSError:
        return None

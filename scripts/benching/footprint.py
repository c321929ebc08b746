"""What an edge core and a cloud core take of a machine when nothing happens, and where it goes."""

import os
import signal
import time
from collections import Counter

from . import binary
from .kube import Kube, Watch, is_ready, of_app
from .machine import Machine, place
from .measures import DEPLOYMENTS, deployment
from .process import HERE, calls, wakes
from .record import mib, number
from .site import API_PORT, Cloud, Containerd, Edge, Link, Process, run
from .wait import until

# Crates that are shown; the rest is one row.
CRATES = 40
# How many there are, and the MiB that the edge core may take then.
PODS = ((10, 6), (50, 10))
# How often memory is looked at while nothing happens: it moves, and the most counts.
LOOKS = 10


class Footprint:
    """The processes are at `place`: here, or where its words lead."""

    def __init__(self, folder, programs, image, how, figures, place=HERE):
        self.folder, self.programs, self.image, self.how, self.figures = folder, programs, image, how, figures
        self.place = place

    def machine(self, architecture):
        """An edge core on an emulated machine."""
        machine = Machine(self.folder, architecture, self.programs, self.image)
        self.place = place()
        machine.measure(self, [(count, limit) for count, limit in PODS if count <= self.how.many_pods])
        machine.remove()

    def elsewhere(self, row):
        """An edge core that somebody started at the place, as it is."""
        self.measure(row, self.place.oldest("edgecore"), 5, 8, long=True)

    def all(self):
        self.binary()
        self.begin()
        self.steps()
        self.edge_core()
        self.many_nodes()

    def cloud_core(self):
        """The cloud core and its nodes, and nothing else."""
        self.begin()
        self.many_nodes()

    def begin(self):
        self.link = Link(1)
        self.cloud = Cloud(self.folder, self.programs["cloudcore"], [self.link.cloud, "127.0.0.1"])
        self.kube = Kube(self.cloud.kubeconfig, self.folder)
        self.nodes = Watch(self.kube, "/api/v1/nodes")
        self.pods = Watch(self.kube, "/api/v1/pods")
        self.measure("cloud core, no node", self.cloud.process.pid, rss_mib=30)

    def binary(self):
        size = os.path.getsize(self.programs["edgecore"])
        self.figures.add("edge core, program", f"{number(size / 1e6)} MB", (size, 8e6))
        if not self.programs.get("symbols"):
            return
        elf = binary.Elf(self.programs["symbols"])
        sections = binary.by_section(elf)
        self.figures.table("edge core, sections", ["section", "bytes"],
                           [[name, str(count)] for name, count in sections.most_common()])
        code, data = binary.by_crate(elf)
        both = code + data
        shown = [name for name, _ in both.most_common(CRATES)]
        rows = [[name, str(code[name]), str(data[name])] for name in shown]
        rest = [sum(count for name, count in counts.items() if name not in shown) for counts in (code, data)]
        self.figures.table("edge core, crates", ["crate", "bytes of code", "of data with a name"],
                           [*rows, [f"{len(both) - len(shown)} others", *map(str, rest)]])

    def measure(self, row, pid, pss_mib=None, rss_mib=None, long=False):
        """Everything about one process, over a while in which nothing happens."""
        time.sleep(self.how.settle_s if long else self.how.rest_s)
        lasts_s = self.how.idle_s if long else self.how.show_s
        before, since = self.place.look(pid), time.monotonic()
        looks = [before]
        for _ in range(LOOKS):
            time.sleep(lasts_s / LOOKS)
            looks.append(self.place.look(pid))
        after, lasted = looks[-1], time.monotonic() - since
        most = max(looks, key=lambda look: look.total().pss)
        total, woken = most.total(), wakes(before, after, lasted)
        threads = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in sorted(after.threads.items()))
        text = (f"{mib(total.pss)} PSS, {mib(total.rss)} RSS: {mib(total.anonymous)} anonymous, "
                f"{mib(total.rss - total.anonymous)} of files; {sum(after.threads.values())} threads ({threads}); "
                f"{number(sum(woken.values()))} wake-ups a minute; {sum(after.descriptors.values())} descriptors")
        budgets = [(found, limit * 1024) for found, limit in ((total.pss, pss_mib), (total.rss, rss_mib)) if limit]
        self.figures.add(row, text, *budgets)
        if long and self.place is HERE:
            made = calls(self.place, pid, self.how.calls_s)
            rates = [f"{name} {number(count * 60 / self.how.calls_s)}" for name, count in made.most_common(8)]
            self.figures.add(f"{row}: system calls a minute", ", ".join(rates))
            self.figures.add(f"{row}: descriptors", said(after.descriptors).replace(f"{self.folder}/", ""))
            self.figures.table(f"{row}, memory", ["what is mapped", "RSS KiB", "PSS KiB", "anonymous KiB"],
                               [[name, str(found.rss), str(found.pss), str(found.anonymous)]
                                for name, found in sorted(most.mappings.items(), key=lambda item: -item[1].rss)])
        return after

    def steps(self):
        """The start of an edge core, stopped at each step: what each adds."""
        self.containerd = Containerd(self.folder)
        run(self.programs["edgecore"], "--config", self.bare("import", self.containerd), "image", "import", self.image)
        rows, last = [], None
        for step, config in (("store open, no runtime, not joined", self.bare("bare", None)),
                             ("and containerd connected", self.bare("runtime", self.containerd))):
            process = Process(self.folder / "steps.log", self.programs["edgecore"], "--config", config, "run")
            last = self.step(rows, step, process, last)
            process.end(signal.SIGTERM)
        self.edge = Edge(self.folder, self.programs["edgecore"], "edge", self.link, self.cloud, self.containerd)
        self.link.cut()
        last = self.step(rows, "and joined, dialling a cloud that is away", self.edge.start(), last)
        self.link.mend()
        self.wait_ready(self.edge.name)
        self.step(rows, "and QUIC up", self.edge.process, last)
        self.figures.table("edge core, memory by step of its start",
                           ["step", "anonymous KiB", "of it new", "RSS KiB", "of it new"], rows)

    def step(self, rows, name, process, last):
        time.sleep(self.how.step_s)
        found = self.place.look(process.pid).total()
        new = (found.anonymous - last.anonymous, found.rss - last.rss) if last else ("", "")
        rows.append([name, str(found.anonymous), str(new[0]), str(found.rss), str(new[1])])
        return found

    def bare(self, name, containerd):
        """The configuration of an edge core that has not joined."""
        path = self.folder / f"{name}.toml"
        lines = [f'{key} = "{self.folder}/{name}-{key}"' for key in ("data", "logs", "run")]
        lines += ["[containerd]", f'socket = "{containerd.socket}"'] if containerd else ['runtime = "fake"']
        path.write_text("\n".join(lines) + "\n")
        return path

    def wait_ready(self, name):
        def ready(nodes):
            return any(node["metadata"]["name"] == name and is_ready(node) for node in nodes.values())

        self.nodes.wait(f"{name} is Ready", ready)

    def edge_core(self):
        pid = self.edge.process.pid
        self.measure("edge core, idle, joined", pid, 5, 8, long=True)
        self.kube.create(DEPLOYMENTS, deployment("site", "edge", 0))
        for count, pss_mib in PODS:
            if count > self.how.many_pods:
                continue
            self.kube.scale("site", count)
            self.pods.wait(f"{count} pods are ready",
                           lambda objects, count=count: sum(map(is_ready, of_app(objects, "site"))) == count)
            self.measure(f"edge core, {count} pods", pid, pss_mib)
        self.kube.scale("site", 0)
        self.pods.wait("the pods are gone", lambda objects: not of_app(objects, "site"))
        self.edge.process.end(signal.SIGTERM)

    def many_nodes(self):
        """The cloud core with real edge cores, which have a runtime that runs nothing, on this host's loopback."""
        started, anonymous = [], []
        for count in self.how.nodes:
            started += [self.light(f"light-{index}") for index in range(len(started), count)]
            for index in range(count):
                self.wait_ready(f"light-{index}")
            after = self.measure(f"cloud core, {count} nodes", self.cloud.process.pid)
            anonymous.append(after.total().anonymous)
        if len(anonymous) > 1:
            each = (anonymous[-1] - anonymous[0]) / (self.how.nodes[-1] - self.how.nodes[0])
            self.figures.add("cloud core, each node more", f"{number(each)} KiB, its objects and their history included")
        for process in started:
            process.end(signal.SIGTERM)
        self.beside_objects(self.how.nodes[-1])

    def beside_objects(self, count):
        """What a connected node takes when its objects are counted before: of a cloud core that knows all of them."""
        begun = self.cloud.restart()
        # Not for longer: nodes that stay silent become Unknown, which would be written, and make new versions.
        time.sleep(self.how.step_s)
        before = self.place.look(self.cloud.process.pid).total()
        self.figures.add(f"cloud core, {count} nodes known, none connected",
                         f"{mib(before.pss)} PSS, {mib(before.rss)} RSS: {mib(before.anonymous)} anonymous")
        started = [self.run_light(f"light-{index}") for index in range(count)]
        until(f"{count} nodes are connected", lambda: self.cloud.said("session up", begun) >= count)
        after = self.measure(f"cloud core, {count} nodes known, all connected", self.cloud.process.pid)
        each = (after.total().anonymous - before.anonymous) / count
        self.figures.add("cloud core, each connected node, beside its objects", f"{number(each)} KiB", (each, 40))
        for process in started:
            process.end(signal.SIGTERM)

    def light(self, name):
        config = self.bare(name, None)
        token = self.folder / f"{name}.token"
        token.write_text(self.cloud.token(name))
        run(self.programs["edgecore"], "--config", config, "join", f"https://127.0.0.1:{API_PORT}", "--token-file", token)
        return self.run_light(name)

    def run_light(self, name):
        config = self.folder / f"{name}.toml"
        return Process(self.folder / f"{name}.log", self.programs["edgecore"], "--config", config, "run")


def said(counts):
    return ", ".join(f"{count} × {name}" if count > 1 else name for name, count in sorted(Counter(counts).items()))


"""What is measured, one method each, in an order in which each finds what it needs."""

import os
import signal
import time

from .kube import Kube, Watch, condition, is_ready, of_app
from .outside import Events, Frames, Syncs, Wire
from .record import HOUR_S, MONTH_S, middle, mib, ms, number, quantile, size, spread
from .site import IMAGE, Cloud, Containerd, Edge, Link, boot_anew, contained, memory, processes, run
from .wait import until

PODS = "/api/v1/namespaces/default/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
# The beat of a node whose link is cut to see how it comes back.
SHORT_BEAT_S = 5
# Words of the command lines of log processes and shims.
LOG_PROCESS = "log-shim"
SHIM = "containerd-shim-runc-v2"


def pod_spec(node, **container):
    return {"terminationGracePeriodSeconds": 1, "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "main", "image": IMAGE, **container}]}


def deployment(name, node, replicas):
    labels = {"app": name}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels},
                     "template": {"metadata": {"labels": labels}, "spec": pod_spec(node)}}}


class Measures:
    def __init__(self, folder, programs, image, how, figures):
        self.folder, self.programs, self.how, self.figures = folder, programs, how, figures
        self.link, self.far_link = Link(1), Link(2)
        self.wire, self.far_wire = Wire(self.link), Wire(self.far_link)
        self.containerd = Containerd(folder)
        self.events = Events(self.containerd)
        self.cloud = Cloud(folder, programs["cloudcore"], [self.link.cloud, self.far_link.cloud])
        self.kube = Kube(self.cloud.kubeconfig, folder)
        self.pods, self.nodes = Watch(self.kube, "/api/v1/pods"), Watch(self.kube, "/api/v1/nodes")
        self.edge = Edge(folder, programs["edgecore"], "edge", self.link, self.cloud, self.containerd)
        self.edge.configure(**self.link_settings())
        run(programs["edgecore"], "--config", self.edge.config, "image", "import", image)
        self.edge.start()
        self.wait_ready(self.edge)

    def link_settings(self):
        return {"beat_s": self.how.beat_s} if self.how.beat_s else {}

    def wait_ready(self, edge):
        def ready(nodes):
            return any(node["metadata"]["name"] == edge.name and is_ready(node) for node in nodes.values())

        until(f"{edge.name} is connected", edge.connected)
        return self.nodes.wait(f"{edge.name} is Ready", ready)

    def wait_pods(self, app, count):
        """Waits until so many pods are there and ready, and nothing more is said of them."""
        def all_ready(objects):
            found = of_app(objects, app)
            return len(found) == count and all(is_ready(pod) for pod in found)

        at = self.pods.wait(f"{count} pods of {app} are ready", all_ready)
        self.wire.quiet()
        return at

    def all(self):
        for measure in (self.idle_memory, self.far_node, self.latency, self.pods_on_the_wire, self.crash, self.deletion,
                        self.ten_pods, self.idle, self.readiness, self.config_map, self.reconnect, self.far_reconnect,
                        self.offline_restart, self.cold_start, self.fifty_pods):
            print(f"{measure.__name__.replace('_', ' ')}", flush=True)
            measure()
        dropped = self.wire.dropped() + self.far_wire.dropped()
        if dropped:
            raise RuntimeError(f"{dropped} datagrams were not counted")

    def memory(self, row, pss_mib, rss_mib=None):
        time.sleep(self.how.rest_s)
        found = self.edge.process.memory()
        budgets = [(found.pss, pss_mib * 1024)] + ([(found.rss, rss_mib * 1024)] if rss_mib else [])
        self.figures.add(row, f"{mib(found.pss)} PSS, {mib(found.rss)} RSS, {mib(found.anonymous)} of it anonymous",
                         *budgets)

    def idle_memory(self):
        self.memory("idle, joined", 5, 8)
        found = self.cloud.process.memory()
        self.figures.add("idle, SQLite", f"{mib(found.rss)} RSS, {mib(found.anonymous)} of it anonymous",
                         (found.rss, 30 * 1024))
        count = os.path.getsize(self.programs["edgecore"])
        self.figures.add("binary, stripped, static", f"{number(count / 1e6)} MB", (count, 8e6))

    def far_node(self):
        """A second node, metered, whose runtime runs nothing: for its wire alone."""
        self.far = Edge(self.folder, self.programs["edgecore"], "far", self.far_link, self.cloud)
        self.far.configure(metered=True)
        self.far.start()
        self.wait_ready(self.far)
        self.kube.create(DEPLOYMENTS, deployment("far", "far", self.how.far_pods))
        self.wait_pods("far", self.how.far_pods)
        self.far_wire.quiet()

    def latency(self):
        """One pod after the other, through the scheduler."""
        first, called, started, seen = [], [], [], []
        for index in range(self.how.applies):
            name, mark = f"one-{index}", self.events.mark()
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod_spec("edge")}
            since = time.time()
            uid = self.kube.create(PODS, body)["metadata"]["uid"]
            at = self.pods.wait(f"{name} is Running",
                                lambda objects: uid in objects and objects[uid]["status"].get("phase") == "Running")
            seen.append(at - since)
            until("the start was told", lambda: self.events.first(mark, uid, ["/tasks/start"]))
            started.append(self.events.first(mark, uid, ["/tasks/start"]) - since)
            # The call to start follows at once on the answer that the task was made.
            called.append(self.events.first(mark, uid, ["/tasks/create"]) - since)
            first.append(self.events.first(mark, uid, ["/snapshot/prepare", "/containers/create"]) - since)
            self.kube.delete(f"{PODS}/{name}")
            self.pods.wait(f"{name} is gone", lambda objects: uid not in objects)
        self.figures.add("apply → start call at the runtime, LAN", spread(called, ms), (quantile(called, 0.99), 0.05))
        self.figures.add("apply → first call for the pod at the runtime", spread(first, ms))
        self.figures.add("apply → container started", spread(started, ms))
        self.figures.add("apply → Running at the API", spread(seen, ms))

    def say_frames(self, edge, said, **link):
        """Has an edge core log its frames, or not."""
        edge.start_again(log="trace" if said else "info", **link)
        self.wait_ready(edge)

    def pods_on_the_wire(self):
        self.say_frames(self.edge, True, **self.link_settings())
        frames = Frames(self.edge)
        self.wire.quiet()
        mark = self.wire.mark()
        self.kube.create(DEPLOYMENTS, deployment("site", "edge", 1))
        self.wait_pods("site", 1)
        first = self.wire.since(mark)
        self.figures.add("first pod of a template created",
                         f"{size(first.bytes('down'))} down, {size(first.bytes('up'))} up")
        down, up, payload = [], [], []
        for count in range(2, self.how.pods + 1):
            mark, frame_mark = self.wire.mark(), frames.mark()
            self.kube.scale("site", count)
            self.wait_pods("site", count)
            traffic = self.wire.since(mark)
            down.append(traffic.bytes("down"))
            up.append(traffic.bytes("up"))
            payload.append(frames.since(frame_mark))
        (sent, received), datagrams = map(middle, zip(*payload)), traffic.datagrams("down")
        self.figures.add("one pod created",
                         f"{size(middle(down))} down, {size(received)} of it payload, in {datagrams} datagrams; "
                         f"{size(middle(up))} up, {size(sent)} of it payload; median of {len(down)}", (middle(down), 400))

    def ten_pods(self):
        self.say_frames(self.edge, False, **self.link_settings())
        self.memory("with 10 pods", 6)
        logs = [memory(pid).pss for pid in processes(LOG_PROCESS)]
        shims = [memory(pid).pss for pid in processes(SHIM)]
        self.figures.add("beside it, with 10 pods", f"{mib(sum(logs))} PSS in {len(logs)} log processes, {mib(sum(shims))} in "
                                                    f"{len(shims)} of containerd's shims")

    def idle(self):
        """The idle hour, from a shorter while in which every call that forces the disk is counted as well."""
        self.wire.quiet()
        process = self.edge.process
        syncs = Syncs(process, self.folder)
        mark, far_mark, written = self.wire.mark(), self.far_wire.mark(), process.written()
        time.sleep(self.how.idle_s)
        traffic, far = self.wire.since(mark), self.far_wire.since(far_mark)
        written, calls = process.written() - written, syncs.end()
        for row, found, limit_mb in (("idle node, unmetered (30 s beat)", traffic, 15),
                                     ("idle node, metered (5 min beat)", far, 1.5)):
            hour = HOUR_S / self.how.idle_s
            month = found.bytes() * MONTH_S / self.how.idle_s / 1e6
            self.figures.add(row, f"{number(month)} MB a month: {size(found.bytes('up') * hour)} up and "
                                  f"{size(found.bytes('down') * hour)} down an hour, from {found.datagrams()} datagrams in "
                                  f"{self.how.idle_s} s", (month, limit_mb))
        self.figures.add("disk, idle", f"{written} bytes and {calls} fsyncs in {self.how.idle_s} s", (written + calls, 0))

    def main_process(self, uid):
        """The first process of a pod's container."""
        return until(f"the container of {uid} runs", lambda: contained(uid))[0]

    def kill(self, uid):
        """Kills a pod's container and returns how long it took until the next one was started."""
        pid, mark, since = self.main_process(uid), self.events.mark(), time.time()
        os.kill(pid, signal.SIGKILL)
        until("the container is started again", lambda: self.events.first(mark, uid, ["/tasks/start"]), every_s=0.002)
        return self.events.first(mark, uid, ["/tasks/start"]) - since

    def site_pods(self):
        return sorted(pod["metadata"]["uid"] for pod in of_app(self.pods.objects, "site"))

    def crash(self):
        down, up = [], []
        for uid in self.site_pods()[: self.how.runs]:
            mark = self.wire.mark()
            self.kill(uid)
            self.pods.wait("the restart is known", lambda objects, uid=uid: restarts(objects[uid]) == 1)
            self.wait_pods("site", self.how.pods)
            down.append(self.wire.since(mark).bytes("down"))
            up.append(self.wire.since(mark).bytes("up"))
        self.figures.add("one pod crashed and restarted",
                         f"{size(middle(down))} down, {size(middle(up))} up; median of {len(up)}")

    def deletion(self):
        down, up = [], []
        for count in range(self.how.pods - 1, self.how.pods - 1 - self.how.runs, -1):
            mark = self.wire.mark()
            self.kube.scale("site", count)
            self.wait_pods("site", count)
            down.append(self.wire.since(mark).bytes("down"))
            up.append(self.wire.since(mark).bytes("up"))
        self.figures.add("one pod deleted", f"{size(middle(down))} down, {size(middle(up))} up; median of {len(up)}")
        self.kube.scale("site", self.how.pods)
        self.wait_pods("site", self.how.pods)

    def readiness(self):
        """A probe that looks for a file, which is taken away and put back."""
        probe = {"exec": {"command": ["/bin/test", "-f", "/tmp/ready"]}, "periodSeconds": 1, "failureThreshold": 1}
        script = "touch /tmp/ready; while true; do sleep 1; done"
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "flip", "labels": {"app": "flip"}},
                "spec": pod_spec("edge", command=["/bin/sh", "-c", script], readinessProbe=probe)}
        uid = self.kube.create(PODS, body)["metadata"]["uid"]
        self.wait_pods("flip", 1)
        file = f"/proc/{self.main_process(uid)}/root/tmp/ready"

        def flip(ready):
            if ready:
                open(file, "w").close()
            else:
                os.unlink(file)
            self.pods.wait("the flip is known", lambda objects: is_ready(objects[uid]) == ready)
            self.wire.quiet()

        self.say_frames(self.edge, True, **self.link_settings())
        self.wire.quiet()
        frames = Frames(self.edge)
        payload, total = {False: [], True: []}, {False: [], True: []}
        for _ in range(self.how.runs):
            for ready in (False, True):
                mark, frame_mark = self.wire.mark(), frames.mark()
                flip(ready)
                total[ready].append(self.wire.since(mark).bytes())
                payload[ready].append(frames.since(frame_mark)[0])
        payload, total = ({ready: middle(lists[ready]) for ready in lists} for lists in (payload, total))
        self.figures.add("one pod's readiness flips",
                         f"to ready: {size(payload[True])} of payload up, {size(total[True])} both ways with all headers; "
                         f"to unready, with its event: {size(payload[False])}, {size(total[False])}; median of "
                         f"{self.how.runs}", (payload[True], 48))
        self.say_frames(self.edge, False, **self.link_settings())
        self.wire.quiet()
        process = self.edge.process
        calls, written = {False: [], True: []}, {False: [], True: []}
        for _ in range(self.how.runs):
            for ready in (False, True):
                syncs, before = Syncs(process, self.folder), process.written()
                flip(ready)
                written[ready].append(process.written() - before)
                calls[ready].append(syncs.end())
        calls, written = ({ready: sum(lists[ready]) / self.how.runs for ready in lists} for lists in (calls, written))
        self.figures.add("disk, one status change acknowledged",
                         f"to ready: {number(calls[True])} fsyncs, {size(written[True])}; to unready, with its event: "
                         f"{number(calls[False])} fsyncs, {size(written[False])}; mean of {self.how.runs}",
                         (calls[True], 1.1), (written[True], 12 * 1024))
        self.wire.quiet()
        syncs, before, mark = Syncs(process, self.folder), process.written(), self.wire.mark()
        time.sleep(self.how.probe_s)
        self.figures.add("disk, idle with a probe each second",
                         f"{process.written() - before} bytes and {syncs.end()} fsyncs in {self.how.probe_s} s")
        self.kube.delete(f"{PODS}/flip")
        self.pods.wait("flip is gone", lambda objects: uid not in objects)
        self.wire.quiet()

    def config_map(self):
        self.kube.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"},
                                       "data": {"value": "0"}})
        spec = pod_spec("edge", volumeMounts=[{"name": "settings", "mountPath": "/settings"}])
        spec["volumes"] = [{"name": "settings", "configMap": {"name": "settings"}}]
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "reader", "labels": {"app": "reader"}}, "spec": spec}
        uid = self.kube.create(PODS, body)["metadata"]["uid"]
        self.wait_pods("reader", 1)
        file = f"/proc/{self.main_process(uid)}/root/settings/value"
        took = []
        for index in range(1, self.how.config_maps + 1):
            since = time.monotonic()
            self.kube.merge(f"{CONFIG_MAPS}/settings", {"data": {"value": str(index)}})
            until("the file has it", lambda: read(file) == str(index), every_s=0.001)
            took.append(time.monotonic() - since)
            self.wire.quiet(0.2)
        self.figures.add("ConfigMap change → file in the pod", spread(took, ms))
        self.kube.delete(f"{PODS}/reader")
        self.pods.wait("reader is gone", lambda objects: uid not in objects)
        self.wire.quiet()

    def lost(self, edge):
        """Waits until the cloud no longer hears a node; returns when that was known."""
        def unknown(nodes):
            return any(node["metadata"]["name"] == edge.name and condition(node, "Ready") == "Unknown"
                       for node in nodes.values())

        return self.nodes.wait(f"{edge.name} is Unknown", unknown)

    def reconnect(self):
        silent, back, total = [], [], []
        for _ in range(self.how.cuts):
            self.wire.quiet()
            since = time.time()
            self.link.cut()
            silent.append(self.lost(self.edge) - since)
            until("the node knows it too", lambda: not self.edge.connected())
            mark, since = self.wire.mark(), time.time()
            self.link.mend()
            back.append(self.wait_ready(self.edge) - since)
            self.wire.quiet()
            total.append(self.wire.since(mark))
        beat_s = self.how.beat_s or 30
        limit_s = max(40, 2 * beat_s + 10)
        self.figures.add("node seen Unknown after a cut",
                         f"{number(max(silent))} s at most, of {len(silent)}, with a beat of {beat_s} s",
                         (max(silent), limit_s))
        self.figures.add("session back after a cut",
                         f"{number(middle(back))} s, {number(max(back))} s at most, of {len(back)}, after {limit_s} s")
        self.figures.add("reconnect, nothing changed, with all of TLS and QUIC",
                         f"{size(middle([found.bytes('down') for found in total]))} down, "
                         f"{size(middle([found.bytes('up') for found in total]))} up; median of {len(total)}")

    def far_reconnect(self):
        """On the metered node, which does not probe for larger datagrams, so that only the session's are left."""
        self.say_frames(self.far, True, metered=True, beat_s=SHORT_BEAT_S)
        self.far_wire.quiet()
        frames = Frames(self.far)
        payload, handshake, total = [], [], []
        for _ in range(self.how.runs):
            self.far_link.cut()
            until("the node knows it", lambda: not self.far.connected())
            mark, frame_mark = self.far_wire.mark(), frames.mark()
            self.far_link.mend()
            self.wait_ready(self.far)
            self.far_wire.quiet()
            found = self.far_wire.since(mark)
            payload.append(sum(frames.since(frame_mark)))
            handshake.append(found.handshake())
            total.append(found.bytes())
        self.figures.add("reconnect, nothing changed, 50 objects",
                         f"{size(middle(payload))} of payload both ways; metered, {size(middle(total))} in all, "
                         f"{size(middle(handshake))} of it the handshake; median of {len(total)}", (middle(payload), 200))
        self.far.process.end(signal.SIGTERM)

    def offline_restart(self):
        uids = self.site_pods()[-self.how.runs:]
        self.link.cut()
        until("the node knows it", lambda: not self.edge.connected())
        took = [self.kill(uid) for uid in uids]
        self.figures.add("first restart of a container, offline",
                         f"{ms(middle(took))}, {ms(max(took))} at most, of {len(took)}")
        self.link.mend()
        self.wait_ready(self.edge)
        self.wait_pods("site", self.how.pods)

    def boot(self, count):
        """Power cut and boot with no link: when all pods were handed to the runtime, and when all were started."""
        self.link.cut()
        keep = [self.cloud.process.pid, self.link.holder.pid, self.far_link.holder.pid]
        boot_anew(self.folder, self.edge, self.containerd, keep)
        self.events.start()
        mark = self.events.mark()
        since = self.edge.start().begun
        until("all pods run again", lambda: len(self.events.count(mark, "/tasks/start")) >= count, deadline_s=300)
        handed, started = (max(self.events.count(mark, topic)) - since for topic in ("/containers/create", "/tasks/start"))
        self.link.mend()
        self.wait_ready(self.edge)
        self.wait_pods("site", count)
        return handed, started

    def cold_start(self):
        found = [self.boot(self.how.pods) for _ in range(self.how.boots)]
        handed, started = zip(*found)
        self.figures.add("start without network → all 10 stored pods handed to the runtime",
                         f"{ms(middle(handed))}, {ms(max(handed))} at most; all started after {ms(middle(started))}; of "
                         f"{len(found)}", (middle(handed), 0.1))

    def fifty_pods(self):
        if not self.how.many_pods:
            return
        self.kube.scale("site", self.how.many_pods)
        self.wait_pods("site", self.how.many_pods)
        self.memory("with 50 pods", 10)
        found = self.cloud.process.memory()
        self.figures.add("2 nodes and 100 pods", f"{mib(found.rss)} RSS, {mib(found.anonymous)} of it anonymous")
        handed, started = self.boot(self.how.many_pods)
        self.figures.add("cold start of 50 pods, offline", f"handed over after {number(handed)} s, all started after "
                                                           f"{number(started)} s")


def restarts(pod):
    return sum(container.get("restartCount", 0) for container in pod["status"].get("containerStatuses", []))


def read(file):
    try:
        with open(file) as opened:
            return opened.read()
    except OSError:
        return None

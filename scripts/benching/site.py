"""One cloud, its nodes and their links, in namespaces of this process: what is measured.

This process has network, mount and process namespaces of its own (see `isolated`), and is the cloud's host. A node has a
network namespace behind one link. Whatever runs here ends with this process and leaves nothing in the machine's.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from .wait import until

API_PORT = 6443
HUB_PORT = 7443
IMAGE = "images.edgehold.dev/web:1"
NETWORK = "10.232"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CGROUPS = Path("/sys/fs/cgroup")
CGROUP = "edgehold-bench"


def isolated(script, arguments):
    """Runs a script in namespaces of its own and returns its exit code."""
    # The first process there is a shell, which takes in whatever its parent left behind: a shim of each pod, in a soak.
    # Whoever ends this process ends all of it: no namespace, containerd or node is left running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc",
               "--kill-child", "sh", "-c", '"$@"; exit $?', "sh", sys.executable, script]
    try:
        return subprocess.run([*command, *arguments]).returncode
    finally:
        until_no_cgroup()


def settle_in():
    """The first steps in the new namespaces: what the machine shares by path is covered up."""
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    run("ip", "link", "set", "lo", "up")


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


@dataclass
class Memory:
    """Of a process, in KiB."""

    rss: int
    pss: int
    anonymous: int


def memory(pid):
    fields = dict(line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return Memory(*(int(fields[name].split()[0]) for name in ("Rss", "Pss", "Anonymous")))


def processes(word):
    """Those that are a program of this name, or have it as the first argument."""
    found = []
    for entry in Path("/proc").iterdir():
        words = [os.path.basename(text) for text in read(entry / "cmdline").decode(errors="replace").split("\0")[:2]]
        if entry.name.isdigit() and word in words:
            found.append(int(entry.name))
    return found


def read(path):
    """What a file holds; nothing where it is gone."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


class Process:
    """A program whose output goes to a file."""

    def __init__(self, log, *command):
        self.begun = time.time()
        with open(log, "ab") as output:
            self.popen = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=output,
                                          stderr=output)
        self.pid = self.popen.pid

    def end(self, how=signal.SIGKILL):
        self.popen.send_signal(how)
        self.popen.wait()

    def memory(self):
        return memory(self.pid)

    def written(self):
        """Bytes that the process caused to be written to disks."""
        fields = dict(line.split(": ") for line in Path(f"/proc/{self.pid}/io").read_text().splitlines())
        return int(fields["write_bytes"])


class Link:
    """A node's network namespace and its one interface. `number` makes names and addresses differ."""

    def __init__(self, number):
        self.interface = f"veth{number}"
        self.cloud = f"{NETWORK}.{number}.1"
        self.address = f"{NETWORK}.{number}.2"
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.namespace = f"/proc/{self.holder.pid}/ns/net"
        own = os.readlink("/proc/self/ns/net")
        until("the node's network is there", lambda: os.readlink(self.namespace) != own)
        run("ip", "link", "add", self.interface, "type", "veth", "peer", "name", "eth0", "netns", self.holder.pid)
        # Cut into datagrams before they are counted, as a real interface would.
        run("ip", "link", "set", self.interface, "gso_max_segs", 1, "up")
        run("ip", "addr", "add", f"{self.cloud}/24", "dev", self.interface)
        self.inside("ip", "link", "set", "lo", "up")
        self.inside("ip", "link", "set", "eth0", "gso_max_segs", 1, "up")
        self.inside("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        self.inside("ip", "route", "add", "default", "via", self.cloud)

    def inside(self, *command):
        return run("nsenter", f"--net={self.namespace}", *command)

    def cut(self):
        run("ip", "link", "set", self.interface, "down")

    def mend(self):
        run("ip", "link", "set", self.interface, "up")


class Cloud:
    """`settings` are keys of its configuration, beside their defaults."""

    def __init__(self, folder, program, hosts, **settings):
        self.folder = folder / "cloud"
        self.program = program
        self.config = folder / "cloudcore.toml"
        self.config.write_text(f'data = "{self.folder}"\napi = "0.0.0.0:{API_PORT}"\nhub = "0.0.0.0:{HUB_PORT}"\n'
                               f"hosts = {json.dumps(hosts)}\n" +
                               "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
        self.log = folder / "cloudcore.log"
        self.kubeconfig = self.folder / "admin.kubeconfig"
        self.start()

    def start(self):
        self.process = Process(self.log, self.program, "--config", self.config, "serve")
        until("the cloud core answers", self.answers)

    def restart(self):
        """Stops it in good order and starts it again; returns where its log goes on."""
        self.process.end(signal.SIGTERM)
        end = self.log.stat().st_size
        self.start()
        return end

    def said(self, words, since):
        """How often it said so in its log since a place of it."""
        return self.log.read_bytes()[since:].count(words.encode())

    def answers(self):
        done = subprocess.run([self.program, "--config", self.config, "token", "list"], capture_output=True)
        return self.kubeconfig.exists() and done.returncode == 0

    def token(self, node):
        return run(self.program, "--config", self.config, "token", "create", "--name", node)


class Containerd:
    """A containerd of one's own, without CRI."""

    def __init__(self, folder):
        self.folder = folder
        self.socket = folder / "c.sock"
        self.state = folder / "containerd-run"
        self.config = folder / "containerd.toml"
        self.config.write_text(f'version = 2\nroot = "{folder}/containerd"\nstate = "{self.state}"\n'
                               'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
                               f'[grpc]\naddress = "{self.socket}"\n')
        self.start()

    def start(self):
        self.process = Process(self.folder / "containerd.log", "containerd", "--config", self.config)
        until("containerd answers",
              lambda: subprocess.run(["ctr", "-a", self.socket, "version"], capture_output=True).returncode == 0)


class Edge:
    """An edge core behind a link. Without containerd it has a runtime that runs nothing, or the one named."""

    def __init__(self, folder, program, name, link, cloud, containerd=None, runtime="fake"):
        self.name = name
        self.runtime = runtime
        self.link = link
        self.program = program
        self.containerd = containerd
        self.folder = folder / name
        self.logs = folder / f"{name}-logs"
        # In memory, as on a real machine.
        self.run_folder = Path(f"/run/edgehold-{name}")
        self.log = folder / f"{name}.log"
        self.config = folder / f"{name}.toml"
        self.cni = folder / "cni"
        self.configure()
        token = folder / f"{name}.token"
        token.write_text(cloud.token(name))
        link.inside(program, "--config", self.config, "join", f"https://{link.cloud}:{API_PORT}", "--token-file", token)

    def configure(self, log="info", **link):
        """`link` are settings of the link, beside their defaults."""
        lines = [f'data = "{self.folder}"', f'logs = "{self.logs}"', f'run = "{self.run_folder}"', f'log = "{log}"']
        if self.containerd:
            lines += ["[containerd]", f'socket = "{self.containerd.socket}"']
        else:
            lines.append(f'runtime = "{self.runtime}"')
        lines += ["[pods]", f'cgroup = "/{CGROUP}"', f'cni_conf = "{self.cni}"']
        lines += ["[link]", *(f"{key} = {json.dumps(value)}" for key, value in link.items())]
        self.config.write_text("\n".join(lines) + "\n")

    def start(self):
        self.process = Process(self.log, "nsenter", f"--net={self.link.namespace}", self.program, "--config", self.config,
                               "run")
        return self.process

    def start_again(self, **configuration):
        self.process.end(signal.SIGTERM)
        self.configure(**configuration)
        self.start()

    def connected(self):
        done = subprocess.run([self.program, "--config", self.config, "status", "--json"], capture_output=True)
        # Before its first start there is nothing to ask.
        return done.returncode == 0 and json.loads(done.stdout)["connected"]


def boot_anew(folder, edge, containerd, keep):
    """What a power cut leaves: nothing that ran except `keep`, nothing of what does not survive a reboot, another boot.
    Containerd, where the node has one, is started, the edge core is not."""
    keep = {os.getpid(), *keep}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in keep:
            try:
                os.kill(int(entry.name), signal.SIGKILL)
            except ProcessLookupError:
                pass
    for process in (edge.process, *([containerd.process] if containerd else [])):
        process.popen.wait()
    until("all of them have ended", lambda: not contained())
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in reversed([point for point in points if point.startswith((f"{folder}/", f"{edge.run_folder}/"))]):
        run("umount", "-l", point)
    for gone in (*([containerd.state] if containerd else []), edge.run_folder, Path("/run/containerd")):
        shutil.rmtree(gone, ignore_errors=True)
    until_no_cgroup()
    boot = folder / "boot_id"
    boot.write_text(Path("/proc/sys/kernel/random/uuid").read_text())
    if str(BOOT_ID) in points:
        run("umount", BOOT_ID)
    run("mount", "--bind", boot, BOOT_ID)
    if containerd:
        containerd.start()


def cgroups():
    """The nodes' cgroup, in each hierarchy."""
    paths = [CGROUPS / CGROUP, *(path / CGROUP for path in CGROUPS.iterdir() if path.is_dir())]
    return [path for path in paths if path.is_dir()]


def until_no_cgroup():
    """Removes them; processes in them may still be ending."""
    until("the nodes' cgroups are gone", lambda: not any(map(remove_cgroup, cgroups())))


def remove_cgroup(path):
    """Removes a cgroup with those below it; true when something is left, because processes in it are still ending."""
    below = [entry for entry in path.iterdir() if entry.is_dir()]
    left = any([remove_cgroup(entry) for entry in below])
    try:
        path.rmdir()
    except OSError:
        return True
    return left


def contained(pod=""):
    """The processes inside containers, of one pod or of all."""
    found = set()
    for path in cgroups():
        for file in path.glob(f"pod{pod}*/**/cgroup.procs"):
            # Beside the containers' there is that of what keeps them.
            if file.parent.name != "shim":
                found.update(map(int, read(file).split()))
    return sorted(found - {0})

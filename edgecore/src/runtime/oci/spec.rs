//! The OCI runtime specification of a container. Pure: what the machine can do is an argument.
//!
//! Absent so far: AppArmor and SELinux labels. A container without a seccomp profile runs unconfined, as Kubernetes does by
//! default.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::accounts::Account;
use super::names;
use super::signal;
use crate::images::manifest::Run;
use crate::oci::{
    self, Capabilities, Capability, Cpu, Device, DeviceRule, Linux, Memory, Mount, Namespace, NamespaceKind, Pids,
    Process, Resources, Root, Sets, Spec, User,
};
use crate::rootless::ids::Ids;
use crate::runtime::{Container, Limits, Sandbox, Seccomp};
use crate::seccomp;

/// What a container may do unless told otherwise: what container engines have agreed on.
const DEFAULT_CAPABILITIES: [Capability; 14] = [
    Capability::AuditWrite,
    Capability::Chown,
    Capability::DacOverride,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::Mknod,
    Capability::NetBindService,
    Capability::NetRaw,
    Capability::Setfcap,
    Capability::Setgid,
    Capability::Setpcap,
    Capability::Setuid,
    Capability::SysChroot,
];

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What tells of the machine or of other programs, and is nothing to a container.
const MASKED: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// What changes the machine.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The CPU quota's period.
const CPU_PERIOD_US: u64 = 100_000;
/// The kernel takes no smaller quota.
const CPU_QUOTA_US_MIN: u64 = 1000;
const CPU_SHARES_MIN: u64 = 2;
const CPU_SHARES_MAX: u64 = 262_144;

/// Containers with the same value share one shim.
const SHIM_GROUP: &str = "io.containerd.runc.v2.group";

/// Names the places whose mounts come from where containers can write, apart by what no path has.
const EXACT: &str = "edgehold.dev/exact-sources";

/// The places for what no link is followed to.
pub(in crate::runtime) fn exact(annotations: &BTreeMap<String, String>) -> Vec<&Path> {
    annotations
        .get(EXACT)
        .into_iter()
        .flat_map(|all| all.split('\0'))
        .map(Path::new)
        .collect()
}

/// Names the signal that the image's containers are asked to end with, as OCI has it.
const STOP_SIGNAL: &str = "org.opencontainers.image.stopSignal";

/// What a container is asked to end with: SIGTERM where its image says nothing, or nothing that is a signal.
pub(in crate::runtime) fn stop_signal(annotations: &BTreeMap<String, String>) -> u32 {
    let named = annotations.get(STOP_SIGNAL).and_then(|text| signal::parse(text));
    named.unwrap_or(signal::TERM)
}

/// What the machine offers.
#[derive(Debug, Clone, Default)]
pub(in crate::runtime) struct Machine {
    /// What this process could hand on.
    pub(in crate::runtime) capabilities: Capabilities,
    /// Whether there is one cgroup tree for everything (v2).
    pub(in crate::runtime) unified_cgroups: bool,
    /// For privileged containers.
    pub(in crate::runtime) devices: Vec<Device>,
    /// The users and groups that there are.
    pub(in crate::runtime) users: Ids,
    pub(in crate::runtime) groups: Ids,
    pub(in crate::runtime) may_set_groups: bool,
    /// The lowest score that a process may be given for when memory runs out; whoever runs a container fails on a lower one.
    pub(in crate::runtime) oom_score_adj_min: i32,
    /// The edge core is not root outside: what it cannot do is left out.
    pub(in crate::runtime) rootless: bool,
}

/// What a specification is made from.
#[derive(Debug)]
pub(in crate::runtime) struct Input<'a> {
    pub(in crate::runtime) sandbox: &'a Sandbox,
    pub(in crate::runtime) container: &'a Container,
    pub(in crate::runtime) image: &'a Run,
    pub(in crate::runtime) account: &'a Account,
    pub(in crate::runtime) machine: &'a Machine,
    /// Where the sandbox keeps its namespaces and its shared memory.
    pub(in crate::runtime) shared: &'a Path,
    pub(in crate::runtime) cgroup_parent: &'a str,
}

/// `Err` is what to tell people.
pub(in crate::runtime) fn build(input: &Input<'_>) -> Result<Spec, String> {
    if input.machine.rootless && input.sandbox.host_pid {
        return Err(
            "hostPID: true shows the host's processes, which takes its root: leave it out, or run this node's edge core as root"
                .to_owned(),
        );
    }
    let exact = input.container.mounts.iter().filter(|mount| mount.exact);
    let exact: Vec<&str> = exact.map(|mount| mount.target.as_str()).collect();
    let annotations = [
        Some((SHIM_GROUP.to_owned(), input.sandbox.pod.to_string())),
        (!exact.is_empty()).then(|| (EXACT.to_owned(), exact.join("\0"))),
        (input.image.stop_signal.clone()).map(|signal| (STOP_SIGNAL.to_owned(), signal)),
    ];
    Ok(Spec {
        oci_version: oci::VERSION.to_owned(),
        process: process(input)?,
        root: Root {
            path: "rootfs".into(),
            readonly: input.container.security.read_only_root,
        },
        mounts: mounts(input),
        annotations: annotations.into_iter().flatten().collect(),
        linux: linux(input)?,
    })
}

fn process(input: &Input<'_>) -> Result<Process, String> {
    let (container, image) = (input.container, input.image);
    let capabilities = capabilities(input)?;
    let working_dir = container.working_dir.clone().or_else(|| image.working_dir.clone());
    Ok(Process {
        terminal: container.tty,
        user: User {
            uid: input.account.uid,
            gid: input.account.gid,
            additional_gids: input.account.groups.clone(),
        },
        args: args(container, image)?,
        env: env(input),
        cwd: working_dir
            .filter(|folder| !folder.is_empty())
            .unwrap_or_else(|| "/".to_owned())
            .into(),
        capabilities: Sets {
            bounding: capabilities.clone(),
            effective: capabilities.clone(),
            permitted: capabilities,
            ..Sets::default()
        },
        no_new_privileges: container.security.no_new_privileges,
        oom_score_adj: Some(container.oom_score_adj.max(input.machine.oom_score_adj_min)),
    })
}

fn args(container: &Container, image: &Run) -> Result<Vec<String>, String> {
    let or_image = |own: &[String], images: &Option<Vec<String>>| {
        if own.is_empty() {
            images.clone().unwrap_or_default()
        } else {
            own.to_vec()
        }
    };
    let mut all = or_image(&container.command, &image.entrypoint);
    all.extend(if container.command.is_empty() {
        or_image(&container.args, &image.cmd)
    } else {
        container.args.clone()
    });
    if all.first().is_none_or(String::is_empty) {
        return Err("neither the container nor its image names a command".into());
    }
    Ok(all)
}

/// Defaults, then the image's, then the container's own; the last one to name a variable wins, the first keeps its place.
fn env(input: &Input<'_>) -> Vec<String> {
    let home = input.account.home.as_deref().filter(|home| !home.is_empty());
    let mut all: Vec<(String, String)> = vec![
        ("PATH".into(), PATH.into()),
        ("HOSTNAME".into(), input.sandbox.hostname.clone()),
        (
            "HOME".into(),
            home.unwrap_or(if input.account.uid == 0 { "/root" } else { "/" })
                .into(),
        ),
    ];
    if input.container.tty {
        all.push(("TERM".into(), "xterm".into()));
    }
    let images = input.image.env.iter().flatten().filter_map(|pair| pair.split_once('='));
    let own = input
        .container
        .env
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in images.chain(own) {
        match all.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => value.clone_into(old),
            None => all.push((name.to_owned(), value.to_owned())),
        }
    }
    all.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

fn capabilities(input: &Input<'_>) -> Result<Capabilities, String> {
    let security = &input.container.security;
    let held = &input.machine.capabilities;
    if security.privileged {
        return Ok(held.clone());
    }
    let dropped = |capability: &Capability| {
        let mut names = security.capabilities_dropped.iter();
        names.any(|drop| same(drop, capability.name()))
    };
    let drops_all = security.capabilities_dropped.iter().any(|drop| same(drop, "ALL"));
    let mut set: Capabilities = DEFAULT_CAPABILITIES
        .into_iter()
        .filter(|capability| !drops_all && held.contains(capability) && !dropped(capability))
        .collect();
    for name in &security.capabilities_added {
        if same(name, "ALL") {
            set.extend(held.iter().filter(|capability| !dropped(capability)));
            continue;
        }
        let found = held.iter().find(|known| same(name, known.name()));
        set.insert(*found.ok_or_else(|| format!("this node cannot give the capability {name}"))?);
    }
    Ok(set)
}

/// Whether two names of a capability mean the same, with or without `CAP_`.
fn same(a: &str, b: &str) -> bool {
    let plain = |name: &str| {
        let name = name.to_ascii_uppercase();
        name.strip_prefix(oci::capability::PREFIX).unwrap_or(&name).to_owned()
    };
    plain(a) == plain(b)
}

fn linux(input: &Input<'_>) -> Result<Linux, String> {
    let (container, machine) = (input.container, input.machine);
    let privileged = container.security.privileged;
    let unless_privileged = |paths: &[&str]| {
        let paths = paths.iter().filter(|_| !privileged);
        paths.map(|path| (*path).to_owned()).collect()
    };
    Ok(Linux {
        namespaces: namespaces(input),
        cgroups_path: names::cgroup(input.cgroup_parent, &container.labels),
        resources: resources(&container.limits, privileged, machine.rootless)?,
        devices: if privileged {
            machine.devices.clone()
        } else {
            Vec::new()
        },
        masked_paths: unless_privileged(&MASKED),
        readonly_paths: unless_privileged(&READ_ONLY),
        seccomp: match &container.security.seccomp {
            _ if privileged => None,
            Seccomp::Unconfined => None,
            Seccomp::RuntimeDefault => Some(seccomp::runtime_default(&capabilities(input)?)),
            Seccomp::Profile(profile) => Some((**profile).clone()),
        },
    })
}

/// Its own mount namespace; the pod's network, IPC and UTS; the host's where the pod wants that.
fn namespaces(input: &Input<'_>) -> Vec<Namespace> {
    let sandbox = input.sandbox;
    let namespace = |kind, path: Option<PathBuf>| Namespace { kind, path };
    let shared = |name| Some(input.shared.join(name));
    let mut all = vec![namespace(NamespaceKind::Mount, None)];
    if !sandbox.host_pid {
        all.push(namespace(NamespaceKind::Pid, None));
    }
    if !sandbox.host_ipc {
        all.push(namespace(NamespaceKind::Ipc, shared("ipc")));
    }
    if !sandbox.host_network {
        all.push(namespace(NamespaceKind::Network, shared("net")));
        all.push(namespace(NamespaceKind::Uts, shared("uts")));
    }
    // Where it has no cgroup of its own, what it sees of them ends at its edge core's.
    if input.machine.unified_cgroups {
        all.push(namespace(NamespaceKind::Cgroup, None));
    }
    all
}

fn resources(limits: &Limits, privileged: bool, rootless: bool) -> Result<Resources, String> {
    let mut cpu = Cpu::default();
    if limits.cpu_request_milli > 0 {
        let shares = limits.cpu_request_milli.saturating_mul(1024) / 1000;
        cpu.shares = Some(shares.clamp(CPU_SHARES_MIN, CPU_SHARES_MAX));
    }
    if limits.cpu_limit_milli > 0 {
        let quota = (limits.cpu_limit_milli.saturating_mul(CPU_PERIOD_US) / 1000).max(CPU_QUOTA_US_MIN);
        cpu.period = Some(CPU_PERIOD_US);
        cpu.quota = Some(signed(quota, "the CPU limit")?);
    }
    let set = |value: u64, what| (value > 0).then(|| signed(value, what)).transpose();
    Ok(Resources {
        // Nothing, then what every runtime allows every container (null, zero, random, terminals). Who is not root can
        // limit none, and has none that its user has not.
        devices: if rootless {
            Vec::new()
        } else {
            vec![DeviceRule { allow: privileged, access: "rwm".to_owned() }]
        },
        cpu: Some(cpu),
        memory: set(limits.memory_limit_bytes, "the memory limit")?.map(|limit| Memory { limit }),
        pids: set(limits.pids_max, "the limit of processes")?.map(|limit| Pids { limit }),
    })
}

fn signed(value: u64, what: &str) -> Result<i64, String> {
    i64::try_from(value).map_err(|_| format!("{what} is out of range"))
}

fn mounts(input: &Input<'_>) -> Vec<Mount> {
    let privileged = input.container.security.privileged;
    let access = if privileged { "rw" } else { "ro" };
    let mut all = vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount(
            "/dev",
            "tmpfs",
            "tmpfs",
            &["nosuid", "strictatime", "mode=755", "size=65536k"],
        ),
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            // The group of terminals, by whatever name, where there is such a group.
            if input.machine.groups.contains(5) {
                &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]
            } else {
                &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]
            },
        ),
        mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", access]),
        mount(
            "/sys/fs/cgroup",
            "cgroup",
            "cgroup",
            &["nosuid", "noexec", "nodev", "relatime", access],
        ),
    ];
    if input.cgroup_parent.is_empty() {
        all.retain(|mount| mount.kind != "cgroup");
    }
    let memory = if input.sandbox.host_ipc {
        PathBuf::from("/dev/shm")
    } else {
        input.shared.join("shm")
    };
    all.push(bind("/dev/shm", &memory, false));
    let mut own: Vec<_> = input.container.mounts.iter().collect();
    // A mount below another one comes after it; otherwise the manifest's order stands.
    own.sort_by_key(|mount| Path::new(&mount.target).components().count());
    let targets: BTreeSet<&Path> = own.iter().map(|mount| Path::new(&mount.target)).collect();
    all.retain(|mount| !targets.contains(mount.destination.as_path()));
    all.extend(
        own.iter()
            .map(|mount| bind(&mount.target, &mount.source, mount.read_only)),
    );
    all
}

fn bind(target: &str, source: &Path, read_only: bool) -> Mount {
    let access = if read_only { "ro" } else { "rw" };
    Mount {
        source: source.to_owned(),
        ..mount(target, "bind", "", &["rbind", "rprivate", access])
    }
}

fn mount(target: &str, kind: &str, source: &str, options: &[&str]) -> Mount {
    Mount {
        destination: target.into(),
        kind: kind.to_owned(),
        source: source.into(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
    }
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;

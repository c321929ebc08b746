//! The OCI runtime specification of a container. Pure: what the machine can do is an argument.
//!
//! Absent so far: AppArmor and SELinux labels, an OOM score (lowering it takes a capability not every node has, and runc
//! fails misleadingly without it). A container without a seccomp profile runs unconfined, as Kubernetes does by default.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use oci_spec::runtime::{
    Capability, Linux, LinuxBuilder, LinuxCapabilitiesBuilder, LinuxCpu, LinuxDevice, LinuxDeviceCgroup, LinuxMemory,
    LinuxNamespace, LinuxNamespaceType, LinuxPidsBuilder, LinuxResources, Mount, Process, ProcessBuilder, RootBuilder,
    Spec, SpecBuilder, User,
};

use super::accounts::Account;
use super::names;
use crate::images::manifest::Run;
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

/// The CPU quota's period.
const CPU_PERIOD_US: u64 = 100_000;
/// The kernel takes no smaller quota.
const CPU_QUOTA_US_MIN: u64 = 1000;
const CPU_SHARES_MIN: u64 = 2;
const CPU_SHARES_MAX: u64 = 262_144;

/// Containers with the same value share one shim.
const SHIM_GROUP: &str = "io.containerd.runc.v2.group";

/// What the machine offers.
#[derive(Debug, Clone, Default)]
pub(in crate::runtime) struct Machine {
    /// What this process could hand on.
    pub(in crate::runtime) capabilities: BTreeMap<String, Capability>,
    /// Whether there is one cgroup tree for everything (v2).
    pub(in crate::runtime) unified_cgroups: bool,
    /// For privileged containers.
    pub(in crate::runtime) devices: Vec<LinuxDevice>,
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
    let container = input.container;
    let root = RootBuilder::default()
        .path("rootfs")
        .readonly(container.security.read_only_root)
        .build();
    let group = HashMap::from([(SHIM_GROUP.to_owned(), input.sandbox.pod.to_string())]);
    let mut spec = SpecBuilder::default()
        .version("1.0.2")
        .process(process(input)?)
        .root(root.map_err(|error| error.to_string())?)
        .mounts(mounts(input))
        .annotations(group)
        .linux(linux(input)?)
        .build()
        .map_err(|error| error.to_string())?;
    // The host name is the sandbox's, set when its UTS namespace was made.
    spec.set_hostname(None);
    Ok(spec)
}

fn process(input: &Input<'_>) -> Result<Process, String> {
    let (container, image) = (input.container, input.image);
    let capabilities = capabilities(input)?;
    let capabilities = LinuxCapabilitiesBuilder::default()
        .bounding(capabilities.clone())
        .effective(capabilities.clone())
        .permitted(capabilities)
        .inheritable(HashSet::new())
        .ambient(HashSet::new())
        .build()
        .map_err(|error| error.to_string())?;
    let working_dir = container.working_dir.clone().or_else(|| image.working_dir.clone());
    let mut process = ProcessBuilder::default()
        .terminal(container.tty)
        .user(user(input.account))
        .args(args(container, image)?)
        .env(env(input))
        .cwd(
            working_dir
                .filter(|folder| !folder.is_empty())
                .unwrap_or_else(|| "/".to_owned()),
        )
        .capabilities(capabilities)
        .no_new_privileges(container.security.no_new_privileges)
        .build()
        .map_err(|error| error.to_string())?;
    // None of its own: those of the shim, as other runtimes do.
    process.set_rlimits(None);
    Ok(process)
}

fn user(account: &Account) -> User {
    let mut user = User::default();
    user.set_uid(account.uid)
        .set_gid(account.gid)
        .set_additional_gids(Some(account.groups.clone()));
    user
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

fn capabilities(input: &Input<'_>) -> Result<HashSet<Capability>, String> {
    let security = &input.container.security;
    let held = &input.machine.capabilities;
    if security.privileged {
        return Ok(held.values().copied().collect());
    }
    let is_held = |capability: &Capability| held.values().any(|other| other == capability);
    let mut set: Vec<Capability> = DEFAULT_CAPABILITIES.into_iter().filter(is_held).collect();
    let dropped = |name: &str| security.capabilities_dropped.iter().any(|drop| same(drop, name));
    if dropped("ALL") {
        set.clear();
    }
    set.retain(|capability| !dropped(&capability.to_string()));
    for name in &security.capabilities_added {
        if same(name, "ALL") {
            set.extend(
                held.iter()
                    .filter(|(name, _)| !dropped(name))
                    .map(|(_, capability)| *capability),
            );
            continue;
        }
        let found = held.iter().find(|(known, _)| same(name, known));
        let (_, capability) = found.ok_or_else(|| format!("this node cannot give the capability {name}"))?;
        set.push(*capability);
    }
    Ok(set.into_iter().collect())
}

/// Whether two names of a capability mean the same, with or without `CAP_`.
fn same(a: &str, b: &str) -> bool {
    let plain = |name: &str| name.strip_prefix("CAP_").unwrap_or(name).to_ascii_uppercase();
    plain(a) == plain(b)
}

fn linux(input: &Input<'_>) -> Result<Linux, String> {
    let (container, machine) = (input.container, input.machine);
    let privileged = container.security.privileged;
    let defaults = Linux::default();
    let hidden = |paths: &Option<Vec<String>>| {
        if privileged {
            Vec::new()
        } else {
            paths.clone().unwrap_or_default()
        }
    };
    let cgroup = names::cgroup(input.cgroup_parent, &container.labels);
    let mut linux = LinuxBuilder::default()
        .namespaces(namespaces(input))
        .cgroups_path(cgroup)
        .resources(resources(&container.limits, privileged)?)
        .devices(if privileged {
            machine.devices.clone()
        } else {
            Vec::new()
        })
        .masked_paths(hidden(defaults.masked_paths()))
        .readonly_paths(hidden(defaults.readonly_paths()))
        .build()
        .map_err(|error| error.to_string())?;
    linux.set_seccomp(match &container.security.seccomp {
        _ if privileged => None,
        Seccomp::Unconfined => None,
        Seccomp::RuntimeDefault => Some(seccomp::runtime_default(&capabilities(input)?)),
        Seccomp::Profile(profile) => Some((**profile).clone()),
    });
    Ok(linux)
}

/// Its own mount namespace; the pod's network, IPC and UTS; the host's where the pod wants that.
fn namespaces(input: &Input<'_>) -> Vec<LinuxNamespace> {
    let sandbox = input.sandbox;
    let namespace = |kind, path: Option<PathBuf>| {
        let mut namespace = LinuxNamespace::default();
        namespace.set_typ(kind).set_path(path);
        namespace
    };
    let shared = |name| Some(input.shared.join(name));
    let mut all = vec![namespace(LinuxNamespaceType::Mount, None)];
    if !sandbox.host_pid {
        all.push(namespace(LinuxNamespaceType::Pid, None));
    }
    if !sandbox.host_ipc {
        all.push(namespace(LinuxNamespaceType::Ipc, shared("ipc")));
    }
    if !sandbox.host_network {
        all.push(namespace(LinuxNamespaceType::Network, shared("net")));
        all.push(namespace(LinuxNamespaceType::Uts, shared("uts")));
    }
    if input.machine.unified_cgroups {
        all.push(namespace(LinuxNamespaceType::Cgroup, None));
    }
    all
}

fn resources(limits: &Limits, privileged: bool) -> Result<LinuxResources, String> {
    let mut resources = LinuxResources::default();
    // Nothing, then what runc allows every container (null, zero, random, terminals).
    let mut devices = LinuxDeviceCgroup::default();
    devices.set_allow(privileged).set_access(Some("rwm".into()));
    resources.set_devices(Some(vec![devices]));
    let mut cpu = LinuxCpu::default();
    if limits.cpu_request_milli > 0 {
        let shares = limits.cpu_request_milli.saturating_mul(1024) / 1000;
        cpu.set_shares(Some(shares.clamp(CPU_SHARES_MIN, CPU_SHARES_MAX)));
    }
    if limits.cpu_limit_milli > 0 {
        let quota = (limits.cpu_limit_milli.saturating_mul(CPU_PERIOD_US) / 1000).max(CPU_QUOTA_US_MIN);
        cpu.set_period(Some(CPU_PERIOD_US))
            .set_quota(Some(signed(quota, "the CPU limit")?));
    }
    resources.set_cpu(Some(cpu));
    if limits.memory_limit_bytes > 0 {
        let mut memory = LinuxMemory::default();
        memory.set_limit(Some(signed(limits.memory_limit_bytes, "the memory limit")?));
        resources.set_memory(Some(memory));
    }
    if limits.pids_max > 0 {
        let limit = signed(limits.pids_max, "the limit of processes")?;
        let pids = LinuxPidsBuilder::default()
            .limit(limit)
            .build()
            .map_err(|error| error.to_string())?;
        resources.set_pids(Some(pids));
    }
    Ok(resources)
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
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
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
    all.retain(|mount| !targets.contains(mount.destination().as_path()));
    all.extend(
        own.iter()
            .map(|mount| bind(&mount.target, &mount.source, mount.read_only)),
    );
    all
}

fn bind(target: &str, source: &Path, read_only: bool) -> Mount {
    let mut mount = mount(
        target,
        "bind",
        "",
        &["rbind", "rprivate", if read_only { "ro" } else { "rw" }],
    );
    mount.set_source(Some(source.to_owned()));
    mount
}

fn mount(target: &str, kind: &str, source: &str, options: &[&str]) -> Mount {
    let mut mount = Mount::default();
    mount
        .set_destination(target.into())
        .set_typ(Some(kind.to_owned()))
        .set_source(Some(source.into()))
        .set_options(Some(options.iter().map(|option| (*option).to_owned()).collect()));
    mount
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;

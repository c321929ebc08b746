use proto::object::Uid;

use super::*;
use crate::oci::seccomp::Profile;
use crate::runtime::{Labels, Security};

fn sandbox() -> Sandbox {
    Sandbox {
        pod: Uid::random([1; 16]),
        namespace: "default".into(),
        name: "web-0".into(),
        hostname: "web-0".into(),
        host_network: false,
        host_pid: false,
        host_ipc: false,
    }
}

fn container() -> Container {
    Container {
        labels: Labels {
            pod: Uid::random([1; 16]),
            namespace: "default".into(),
            pod_name: "web-0".into(),
            container: "web".into(),
            attempt: 2,
            hash: 0,
        },
        image: "web:1".into(),
        command: Vec::new(),
        args: Vec::new(),
        env: Vec::new(),
        working_dir: None,
        mounts: Vec::new(),
        limits: Limits::default(),
        oom_score_adj: 0,
        security: Security::default(),
        tty: false,
        log: "/var/log/pods/x/0.log".into(),
    }
}

fn image() -> Run {
    Run {
        user: None,
        env: Some(vec!["PATH=/bin".into(), "A=image".into()]),
        entrypoint: Some(vec!["/entry".into()]),
        cmd: Some(vec!["cmd".into()]),
        working_dir: Some("/srv".into()),
        stop_signal: None,
    }
}

/// A machine that has all default capabilities and some more, but not SYS_RESOURCE.
fn machine() -> Machine {
    let more = [Capability::SysAdmin, Capability::NetAdmin];
    Machine {
        capabilities: DEFAULT_CAPABILITIES.into_iter().chain(more).collect(),
        unified_cgroups: true,
        devices: Vec::new(),
        users: Ids::all(),
        groups: Ids::all(),
        may_set_groups: true,
        oom_score_adj_min: -1000,
        rootless: false,
    }
}

fn spec(sandbox: &Sandbox, container: &Container) -> Result<Spec, String> {
    build(&Input {
        sandbox,
        container,
        image: &image(),
        account: &Account::default(),
        machine: &machine(),
        shared: Path::new("/run/x"),
        cgroup_parent: "/edgehold",
    })
}

fn process_of(container: &Container) -> Process {
    spec(&sandbox(), container).unwrap().process
}

#[test]
fn command_and_arguments_follow_kubernetes_table() {
    let check = |command: &[&str], own: &[&str], expected: &[&str]| {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        let container = Container { command: list(command), args: list(own), ..container() };
        assert_eq!(args(&container, &image()).unwrap(), expected);
    };
    check(&[], &[], &["/entry", "cmd"]);
    check(&[], &["x"], &["/entry", "x"]);
    check(&["/own"], &[], &["/own"]);
    check(&["/own"], &["x"], &["/own", "x"]);
    assert!(args(&container(), &Run::default()).is_err());
}

#[test]
fn the_last_one_to_name_a_variable_wins() {
    let env = vec![
        ("A".into(), "own".into()),
        ("B".into(), "x=y".into()),
        ("HOSTNAME".into(), "h".into()),
    ];
    let process = process_of(&Container { env, ..container() });
    assert_eq!(process.env, ["PATH=/bin", "HOSTNAME=h", "HOME=/root", "A=own", "B=x=y"]);
    assert_eq!(process.cwd, Path::new("/srv"));
    let working_dir = Some("/own".to_owned());
    assert_eq!(
        process_of(&Container { working_dir, ..container() }).cwd,
        Path::new("/own")
    );
}

#[test]
fn capabilities_are_dropped_before_they_are_added() {
    let check = |added: &[&str], dropped: &[&str], expected: Option<usize>| {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        let security = Security {
            capabilities_added: list(added),
            capabilities_dropped: list(dropped),
            ..Security::default()
        };
        let container = Container { security, ..container() };
        let spec = spec(&sandbox(), &container).ok();
        let bounding = spec.map(|spec| {
            let capabilities = spec.process.capabilities;
            assert_eq!(capabilities.bounding, capabilities.effective);
            assert_eq!(capabilities.ambient.len(), 0);
            capabilities.bounding.len()
        });
        assert_eq!(bounding, expected, "{added:?} {dropped:?}");
    };
    check(&[], &[], Some(14));
    check(&[], &["ALL"], Some(0));
    check(&["NET_ADMIN"], &["ALL"], Some(1));
    check(&["CAP_NET_ADMIN", "CHOWN"], &["NET_RAW"], Some(14));
    check(&["cap_net_admin", "chown"], &["cap_net_raw"], Some(14));
    check(&["ALL"], &[], Some(16));
    check(&["ALL"], &["SYS_ADMIN"], Some(15));
    check(&["SYS_RESOURCE"], &[], None);
    check(&["NO_SUCH"], &[], None);
}

#[test]
fn a_seccomp_profile_goes_with_the_capabilities() {
    let section = |seccomp: Seccomp, added: &str, privileged: bool| {
        let security = Security {
            seccomp,
            privileged,
            capabilities_added: vec![added.to_owned()],
            ..Security::default()
        };
        let spec = spec(&sandbox(), &Container { security, ..container() }).unwrap();
        spec.linux.seccomp
    };
    let allows = |seccomp: &Profile, name: &str| {
        let mut rules = seccomp.syscalls.iter();
        rules.any(|rule| rule.names.iter().any(|known| known == name))
    };
    assert_eq!(section(Seccomp::Unconfined, "NET_ADMIN", false), None);
    let default = section(Seccomp::RuntimeDefault, "NET_ADMIN", false).unwrap();
    assert!(allows(&default, "read") && allows(&default, "chroot") && !allows(&default, "mount"));
    let default = section(Seccomp::RuntimeDefault, "SYS_ADMIN", false).unwrap();
    assert!(allows(&default, "mount"));
    let own = seccomp::local::parse(br#"{"defaultAction":"SCMP_ACT_LOG"}"#).unwrap();
    let profile = Seccomp::Profile(Box::new(own.clone()));
    assert_eq!(section(profile, "NET_ADMIN", false), Some(own));
    assert_eq!(section(Seccomp::RuntimeDefault, "NET_ADMIN", true), None);
}

#[test]
fn a_pod_shares_what_it_should() {
    let kinds = |sandbox: &Sandbox| {
        let spec = spec(sandbox, &container()).unwrap();
        let all = spec.linux.namespaces.into_iter();
        all.map(|namespace| (namespace.kind, namespace.path.map(|path| path.display().to_string())))
            .collect::<Vec<_>>()
    };
    let path = |name: &str| Some(format!("/run/x/{name}"));
    let own = [
        (NamespaceKind::Mount, None),
        (NamespaceKind::Pid, None),
        (NamespaceKind::Ipc, path("ipc")),
        (NamespaceKind::Network, path("net")),
        (NamespaceKind::Uts, path("uts")),
        (NamespaceKind::Cgroup, None),
    ];
    assert_eq!(kinds(&sandbox()), own);
    let host = Sandbox {
        host_network: true,
        host_pid: true,
        host_ipc: true,
        ..sandbox()
    };
    assert_eq!(kinds(&host), [own[0].clone(), own[5].clone()]);
}

#[test]
fn without_root_what_cannot_be_had_is_left_out_or_refused() {
    let of = |sandbox: &Sandbox, groups: Ids, cgroup_parent: &str| {
        build(&Input {
            sandbox,
            container: &container(),
            image: &image(),
            account: &Account::default(),
            machine: &Machine { groups, rootless: true, ..machine() },
            shared: Path::new("/run/x"),
            cgroup_parent,
        })
    };
    let has = |spec: &Spec, kind: &str, option: &str| {
        let mount = spec.mounts.iter().find(|mount| mount.kind == kind);
        mount.map(|mount| mount.options.iter().any(|known| known == option))
    };
    let owns_cgroups = |spec: &Spec| {
        spec.linux
            .namespaces
            .iter()
            .any(|one| one.kind == NamespaceKind::Cgroup)
    };
    let none = of(&sandbox(), Ids::of(1), "").unwrap();
    assert_eq!(
        (has(&none, "devpts", "gid=5"), has(&none, "cgroup", "ro")),
        (Some(false), None)
    );
    assert!(none.linux.cgroups_path.is_empty() && owns_cgroups(&none));
    assert!(none.linux.resources.devices.is_empty());
    let delegated = of(&sandbox(), Ids::of(6), "/user/edgehold").unwrap();
    assert_eq!(
        (has(&delegated, "devpts", "gid=5"), has(&delegated, "cgroup", "ro")),
        (Some(true), Some(true))
    );
    assert!(delegated.linux.cgroups_path.starts_with("/user/edgehold/pod") && owns_cgroups(&delegated));
    let said = of(&Sandbox { host_pid: true, ..sandbox() }, Ids::all(), "").unwrap_err();
    assert!(said.contains("hostPID: true"), "{said}");
}

#[test]
fn limits_become_what_the_kernel_takes() {
    let of = |limits: Limits| resources(&limits, false, false).unwrap();
    let none = of(Limits::default());
    assert!(none.memory.is_none() && none.pids.is_none());
    assert_eq!(none.cpu.unwrap().quota, None);
    let set = of(Limits {
        cpu_request_milli: 500,
        cpu_limit_milli: 1500,
        memory_limit_bytes: 64 << 20,
        pids_max: 100,
    });
    let cpu = set.cpu.unwrap();
    assert_eq!(
        (cpu.shares, cpu.quota, cpu.period),
        (Some(512), Some(150_000), Some(100_000))
    );
    assert_eq!(set.memory.unwrap().limit, 64 << 20);
    assert_eq!(set.pids.unwrap().limit, 100);
    let least = of(Limits {
        cpu_request_milli: 1,
        cpu_limit_milli: 1,
        ..Limits::default()
    });
    let cpu = least.cpu.unwrap();
    assert_eq!((cpu.shares, cpu.quota), (Some(CPU_SHARES_MIN), Some(1000)));
    assert!(
        resources(
            &Limits { memory_limit_bytes: u64::MAX, ..Limits::default() },
            false,
            false
        )
        .is_err()
    );
}

#[test]
fn a_score_is_no_lower_than_the_machine_gives() {
    let of = |wanted, least| {
        let container = Container { oom_score_adj: wanted, ..container() };
        let machine = Machine { oom_score_adj_min: least, ..machine() };
        let built = build(&Input {
            sandbox: &sandbox(),
            container: &container,
            image: &image(),
            account: &Account::default(),
            machine: &machine,
            shared: Path::new("/run/x"),
            cgroup_parent: "/edgehold",
        });
        built.unwrap().process.oom_score_adj
    };
    assert_eq!(of(-997, -1000), Some(-997));
    assert_eq!(of(-997, 0), Some(0));
    assert_eq!(of(1000, 0), Some(1000));
}

#[test]
fn mounts_below_others_come_later_and_replace_ours() {
    let mount = |target: &str, read_only| crate::runtime::Mount {
        source: "/src".into(),
        target: target.into(),
        read_only,
        exact: target.starts_with("/a\n"),
    };
    let mounts = vec![mount("/a/b/c", true), mount("/a\n/b", false), mount("/dev/shm", false)];
    let spec = spec(&sandbox(), &Container { mounts, ..container() }).unwrap();
    let (all, annotations) = (spec.mounts, spec.annotations);
    let targets: Vec<_> = all
        .iter()
        .map(|mount| mount.destination.display().to_string())
        .collect();
    assert_eq!(targets[targets.len() - 3..], ["/a\n/b", "/dev/shm", "/a/b/c"]);
    assert_eq!(exact(&annotations), [Path::new("/a\n/b")]);
    assert_eq!(targets.iter().filter(|target| *target == "/dev/shm").count(), 1);
    assert_eq!(all.last().unwrap().options, ["rbind", "rprivate", "ro"]);
}

#[test]
fn a_privileged_container_sees_everything_and_others_do_not() {
    let plain = spec(&sandbox(), &container()).unwrap();
    let linux = &plain.linux;
    assert!(linux.masked_paths.contains(&"/proc/kcore".to_owned()));
    assert!(linux.readonly_paths.contains(&"/proc/sys".to_owned()));
    assert!(!linux.resources.devices[0].allow);
    let pod = sandbox().pod;
    assert_eq!(linux.cgroups_path, format!("/edgehold/pod{pod}/web-2"));
    assert_eq!(plain.annotations[SHIM_GROUP], pod.to_string());

    let security = Security { privileged: true, ..Security::default() };
    let spec = spec(&sandbox(), &Container { security, ..container() }).unwrap();
    assert!(spec.linux.masked_paths.is_empty() && spec.linux.readonly_paths.is_empty());
    assert!(spec.linux.resources.devices[0].allow);
    assert_eq!(spec.process.capabilities.bounding.len(), 16);
}

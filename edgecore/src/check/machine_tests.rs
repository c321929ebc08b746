use super::super::State;
use super::*;

const CONTAINERS: Need = Need {
    containers: true,
    overlay: true,
    unpacks: false,
    rootless: false,
};

/// One that lacks nothing.
fn whole() -> Machine {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Machine {
        proc: true,
        sys: true,
        arch: "aarch64",
        bits: 64,
        time_bits: 64,
        file: Some((7_000_000, 7_000_000)),
        kernel_arch: "aarch64".to_owned(),
        release: "6.1.0-18-arm64".to_owned(),
        file_systems: "nodev\tproc\nnodev\toverlay\n".to_owned(),
        overlay_module: false,
        data_without_overlay: None,
        namespaces: names(&["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"]),
        user_namespaces_max: 1000,
        filters: true,
        ipv6: Ipv6::On,
        root_read_only: false,
        run: Some(Room {
            folder: "/run/edgehold".into(),
            bytes: 32 << 20,
            files: 10_000,
        }),
        cgroups: Cgroups {
            unified: Some("cpuset cpu io memory pids\n".to_owned()),
            ..Cgroups::default()
        },
        command_line: COMMAND_LINES[0].1,
    }
}

/// With one change, one line about `what` is as expected, and no other line is anything but good.
fn check(change: impl FnOnce(&mut Machine), what: &str, state: State, words: &[&str]) {
    let mut machine = whole();
    change(&mut machine);
    let lines = machine.lines(CONTAINERS);
    let about: Vec<_> = lines.iter().filter(|line| line.what == what).collect();
    let [line] = about[..] else { panic!("{what}: {lines:?}") };
    assert_eq!(line.state, state, "{line:?}");
    for word in words {
        assert!(line.text().contains(word), "{word}: {}", line.text());
    }
    let others = lines.iter().filter(|line| line.what != what);
    assert!(others.clone().all(|line| line.state == State::Good), "{lines:?}");
}

#[test]
fn a_whole_machine_lacks_nothing() {
    let lines = whole().lines(CONTAINERS);
    assert!(lines.iter().all(|line| line.state == State::Good), "{lines:?}");
    // What only containers need is not asked for where there are none.
    let mut bare = whole();
    (bare.sys, bare.filters) = (false, false);
    bare.namespaces.clear();
    let lines = bare.lines(Need {
        containers: false,
        overlay: false,
        unpacks: true,
        rootless: false,
    });
    assert!(lines.iter().all(|line| line.state == State::Good), "{lines:?}");
}

#[test]
fn without_proc_nothing_else_is_said() {
    let mut machine = whole();
    machine.proc = false;
    machine.namespaces.clear();
    let lines = machine.lines(CONTAINERS);
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].text().starts_with("MISSING proc") && lines[0].text().contains("mount -t proc"),
        "{lines:?}"
    );
}

#[test]
fn programs() {
    let short = |machine: &mut Machine| machine.file = Some((6_999_999, 7_000_000));
    check(
        short,
        "program",
        State::Missing,
        &["6999999 bytes of at least 7000000", "copy it again", "checksum"],
    );
    check(|machine| machine.file = None, "program", State::Good, &["aarch64"]);
    check(
        |machine| machine.kernel_arch = "x86_64".to_owned(),
        "program",
        State::Note,
        &[
            "made for aarch64",
            "emulated on x86_64",
            "install the edge core for x86_64",
        ],
    );
    let narrow = |kernel: &'static str| {
        move |machine: &mut Machine| {
            (machine.arch, machine.bits) = ("arm", 32);
            machine.kernel_arch = kernel.to_owned();
        }
    };
    check(
        narrow("aarch64"),
        "program",
        State::Note,
        &["64-bit kernel", "images for arm only"],
    );
    for kernel in ["armv6l", "armv7l", "armv8l"] {
        check(narrow(kernel), "program", State::Good, &["arm"]);
    }
    check(narrow("x86_64"), "program", State::Note, &["emulated on x86_64"]);
}

#[test]
fn kernels_and_their_time() {
    let release = |release: &'static str| move |machine: &mut Machine| machine.release = release.to_owned();
    check(
        release("5.7.19"),
        "kernel",
        State::Missing,
        &["5.7.19 is older than 5.8", "install a newer one"],
    );
    check(release("5.8.0"), "kernel", State::Good, &["5.8.0"]);
    check(release("4.19.66-v7+"), "kernel", State::Missing, &["older than 5.8"]);
    check(release("10.0"), "kernel", State::Good, &[]);
    check(release("custom"), "kernel", State::Good, &["custom"]);
    let mut old = whole();
    (old.arch, old.bits, old.release) = ("arm", 32, "5.0.21".to_owned());
    old.kernel_arch = "armv7l".to_owned();
    let lines = old.lines(CONTAINERS);
    let time = lines.iter().find(|line| line.what == "time").unwrap();
    assert_eq!(time.state, State::Note);
    assert!(
        time.detail.contains("2038") && time.detail.contains("5.1 or newer"),
        "{time:?}"
    );
    old.release = "5.1.0".to_owned();
    let lines = old.lines(CONTAINERS);
    assert!(
        lines
            .iter()
            .any(|line| line.what == "time" && line.state == State::Good),
        "{lines:?}"
    );
    check(
        |machine| machine.time_bits = 32,
        "time",
        State::Note,
        &["this build", "2038"],
    );
}

#[test]
fn networks_disks_and_run() {
    check(
        |machine| machine.ipv6 = Ipv6::Absent,
        "IPv6",
        State::Note,
        &["IPv4 alone", "modprobe ipv6", "cmdline.txt"],
    );
    check(
        |machine| machine.ipv6 = Ipv6::Off,
        "IPv6",
        State::Note,
        &["switched off", "disable_ipv6=0"],
    );
    check(
        |machine| machine.root_read_only = true,
        "rootfs",
        State::Note,
        &["read-only", "remount,rw", "dmesg"],
    );
    let room = |bytes, files| {
        move |machine: &mut Machine| {
            machine.run = Some(Room { folder: "/run/edgehold".into(), bytes, files });
        }
    };
    let fix = ["/run/edgehold", "remount,size=32M", "`run` in the configuration"];
    check(
        room(RUN_BYTES_MIN - 1, RUN_FILES_MIN),
        "runfs",
        State::Note,
        &[&["1023 KiB left"], &fix[..]].concat(),
    );
    check(
        room(RUN_BYTES_MIN, RUN_FILES_MIN - 1),
        "runfs",
        State::Note,
        &["room for 255 files left"],
    );
    let mut enough = whole();
    room(RUN_BYTES_MIN, RUN_FILES_MIN)(&mut enough);
    assert!(enough.lines(CONTAINERS).iter().all(|line| line.state == State::Good));
}

#[test]
fn what_containers_are_made_of() {
    check(
        |machine| machine.sys = false,
        "sys",
        State::Missing,
        &["mount -t sysfs"],
    );
    for name in NAMESPACES {
        let without = |machine: &mut Machine| machine.namespaces.retain(|known| known != name);
        check(
            without,
            "namespaces",
            State::Missing,
            &[&format!("lacks {name}:"), "CONFIG_NAMESPACES"],
        );
    }
    let no_user = |machine: &mut Machine| machine.namespaces.retain(|known| known != "user");
    check(no_user, "namespaces", State::Good, &["no user ones (CONFIG_USER_NS)"]);
    check(
        |machine| machine.user_namespaces_max = 0,
        "namespaces",
        State::Good,
        &["user.max_user_namespaces"],
    );
    check(
        |machine| machine.filters = false,
        "seccomp",
        State::Note,
        &["are refused", "CONFIG_SECCOMP_FILTER"],
    );
    let no_overlay = |machine: &mut Machine| machine.file_systems = "nodev\toverlayfs\n".to_owned();
    check(
        no_overlay,
        "overlayfs",
        State::Missing,
        &["modprobe overlay", "snapshotter"],
    );
    let module = |machine: &mut Machine| {
        no_overlay(machine);
        machine.overlay_module = true;
    };
    check(module, "overlayfs", State::Good, &["loaded when it is first used"]);
    let mut copies = whole();
    no_overlay(&mut copies);
    let lines = copies.lines(Need {
        containers: true,
        overlay: false,
        unpacks: true,
        rootless: false,
    });
    let overlay = lines.iter().find(|line| line.what == "overlayfs").unwrap();
    assert!(
        overlay.state == State::Note && overlay.detail.contains("copy"),
        "{overlay:?}"
    );
    let mut stacked = whole();
    stacked.data_without_overlay = Some("vfat");
    let lines = stacked.lines(Need {
        containers: true,
        overlay: false,
        unpacks: true,
        rootless: false,
    });
    let overlay = lines.iter().find(|line| line.what == "overlayfs").unwrap();
    assert!(
        overlay.state == State::Note && overlay.detail.contains("on vfat"),
        "{overlay:?}"
    );
}

#[test]
fn without_root_overlays_take_a_newer_kernel_and_cgroups_are_somebody_elses() {
    let of = |release: &str| {
        let mut machine = whole();
        machine.release = release.to_owned();
        machine.lines(Need { rootless: true, unpacks: true, overlay: false, ..CONTAINERS })
    };
    for (release, state) in [
        ("5.10.0-8-amd64", State::Note),
        ("5.11.0", State::Good),
        ("6.1.0", State::Good),
    ] {
        let lines = of(release);
        let overlay = lines.iter().find(|line| line.what == "overlayfs").unwrap();
        assert_eq!(overlay.state, state, "{overlay:?}");
        assert!(!lines.iter().any(|line| line.what == "cgroups"));
    }
    assert!(of("5.10.0").iter().any(|line| line.detail.contains("5.11 or newer")));
}

#[test]
fn cgroups_of_both_versions() {
    let v2 =
        |controllers: &'static str| move |machine: &mut Machine| machine.cgroups.unified = Some(controllers.to_owned());
    // As Raspberry Pi OS comes.
    check(
        v2("cpuset cpu io pids\n"),
        "cgroups",
        State::Missing,
        &[
            "memory is off (version 2)",
            "add cgroup_enable=memory cgroup_memory=1 to the one line in /boot/firmware/cmdline.txt",
        ],
    );
    check(
        v2("cpu memory"),
        "cgroups",
        State::Missing,
        &["pids is off", "CONFIG_CGROUP_PIDS"],
    );
    check(
        v2(""),
        "cgroups",
        State::Missing,
        &["cpu, memory, pids is off", "cgroup_enable=memory", "CONFIG_CGROUP_PIDS"],
    );
    let v1 = |memory: u8, mounted: &'static [&'static str]| {
        move |machine: &mut Machine| {
            machine.cgroups = Cgroups {
                table: format!(
                    "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t1\t1\nmemory\t0\t1\t{memory}\npids\t2\t1\t1\n"
                ),
                unified: None,
                mounted: mounted.iter().map(|name| (*name).to_owned()).collect(),
            };
        }
    };
    let all = &["cpu", "memory", "pids", "systemd"];
    check(v1(1, all), "cgroups", State::Good, &["version 1"]);
    check(v1(0, all), "cgroups", State::Missing, &["memory is off (version 1)"]);
    check(
        v1(1, &["cpu", "memory"]),
        "cgroups",
        State::Missing,
        &["pids is not mounted", "cgroupfs-mount"],
    );
    check(
        v1(1, &[]),
        "cgroups",
        State::Missing,
        &["cpu, memory, pids is not mounted", "mount -t cgroup2"],
    );
}

#[test]
fn this_machine_is_seen() {
    let machine = Machine::observe(&Config::default());
    assert!(machine.proc && version(&machine.release).is_some(), "{machine:?}");
    assert!(
        machine.namespaces.contains("mnt") && machine.run.is_some(),
        "{machine:?}"
    );
    let lines = machine.lines(CONTAINERS);
    let program = lines.iter().find(|line| line.what == "program").unwrap();
    // Tests for 32 bits are run where more would do.
    let wanted = if machine.bits == 32 && machine.kernel_arch.ends_with("64") {
        State::Note
    } else {
        State::Good
    };
    assert_eq!(program.state, wanted, "{program:?}");
}

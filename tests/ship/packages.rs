//! What is in the packages, and that it depends on nothing but the source.

use std::fs;
use std::path::Path;
use std::process::Command;

use tests::cores::program;
use tests::ship::{AMD64, ARM64, ARMHF, ARMV6, Programs, run, said};

const VERSION: &str = "1.2.3~dev+git20260101000000.0123abc";

/// Each package with its program, and the files that only it has.
const PACKAGES: [(&str, &str, &[&str]); 3] = [
    (
        "edgehold-edge",
        "edgecore",
        &[
            "etc/edgehold/edgecore.toml",
            "usr/lib/systemd/system/edgecore.service",
            "usr/lib/systemd/user/edgecore.service",
            "usr/share/man/man8/edgecore.8.gz",
        ],
    ),
    (
        "edgehold-cloud",
        "cloudcore",
        &[
            "etc/edgehold/cloudcore.toml",
            "usr/lib/systemd/system/cloudcore.service",
            "usr/share/man/man8/cloudcore.8.gz",
        ],
    ),
    ("edgehold-cli", "edgectl", &["usr/share/man/man1/edgectl.1.gz"]),
];

#[test]
fn packages_hold_what_they_should_for_every_machine() {
    let folder = tempfile::tempdir().unwrap();
    let programs = Programs::headers(&folder.path().join("programs"));
    for machine in [AMD64, ARM64, ARMHF, ARMV6] {
        for (name, program, own) in PACKAGES {
            let deb = programs.package(folder.path(), name, machine, VERSION);
            let field = |field: &str| run("dpkg-deb", ["-f", deb.to_str().unwrap(), field]).trim().to_owned();
            assert_eq!(
                [field("Package"), field("Version"), field("Architecture")],
                [name, VERSION, machine.debian]
            );

            let mut wanted: Vec<_> = (own.iter())
                .map(|path| ("-rw-r--r--", (*path).to_owned()))
                .chain([("-rwxr-xr-x", format!("usr/bin/{program}"))])
                .chain(
                    ["CHANGELOG.md.gz", "THIRD-PARTY.gz", "changelog.gz", "copyright"]
                        .map(|file| ("-rw-r--r--", format!("usr/share/doc/{name}/{file}"))),
                )
                .chain([("-rw-r--r--", format!("usr/share/lintian/overrides/{name}"))])
                .collect();
            wanted.sort_by(|a, b| a.1.cmp(&b.1));
            let listed = run("dpkg-deb", ["-c", deb.to_str().unwrap()]);
            let mut found: Vec<_> = listed
                .lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>())
                .collect();
            assert!(found.iter().all(|words| words[1] == "root/root"), "{listed}");
            let folders = found.extract_if(.., |words| words[5].ends_with('/'));
            assert!(
                folders.map(|words| words[0]).all(|mode| mode == "drwxr-xr-x"),
                "{listed}"
            );
            let mut found: Vec<_> = (found.iter())
                .map(|words| (words[0], words[5].trim_start_matches("./").to_owned()))
                .collect();
            found.sort_by(|a, b| a.1.cmp(&b.1));
            assert_eq!(found, wanted, "{name} for {}", machine.name);

            let root = folder.path().join(format!("{name}-{}", machine.name));
            run("dpkg-deb", ["-R".as_ref(), deb.as_os_str(), root.as_os_str()]);
            let sums = Command::new("md5sum")
                .args(["--check", "--strict", "--quiet", "DEBIAN/md5sums"])
                .current_dir(&root)
                .output();
            assert_eq!(said(&sums.unwrap()), "");
            assert_eq!(
                fs::read(root.join("usr/bin").join(program)).unwrap(),
                fs::read(programs.path(machine, program)).unwrap()
            );
            let conffiles = fs::read_to_string(root.join("DEBIAN/conffiles")).unwrap_or_default();
            let configuration = own.iter().filter(|path| path.starts_with("etc/"));
            assert_eq!(
                conffiles,
                configuration.map(|path| format!("/{path}\n")).collect::<String>()
            );
        }
    }
}

#[test]
fn the_same_source_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let programs = Programs::headers(&folder.path().join("programs"));
    let build = |name: &str, umask: &str| {
        let out = folder.path().join(name);
        let temporary = folder.path().join(format!("{name}-temporary"));
        fs::create_dir_all(&temporary).unwrap();
        let line = format!("umask {umask}; exec images/deb --programs \"$1\" \"$2\" amd64 armhf");
        let built = Command::new("sh")
            .args(["-c", &line, "sh"])
            .args([&programs.folder, &out])
            .env("TMPDIR", &temporary)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
            .output();
        said(&built.unwrap());
        out
    };
    let (one, two) = (build("one", "022"), build("two", "077"));
    let mut names: Vec<_> = fs::read_dir(&one)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names.len(), 6, "{names:?}");
    for name in names {
        assert!(
            fs::read(one.join(&name)).unwrap() == fs::read(two.join(&name)).unwrap(),
            "{}",
            name.display()
        );
    }
}

#[test]
fn what_was_committed_later_is_newer_and_a_release_is_newer_than_the_way_to_it() {
    let script = "
import sys
sys.path.insert(0, 'images')
from shipping.source import package_version as version
print(version('0.2.0-dev', 1767225600, '0123abcdef', '', False))
print(version('0.2.0-dev', 1767225601, '0000000000', '', False))
print(version('0.2.0-dev', 1767225601, '0000000000', '', True))
print(version('0.2.0-dev', 1798761600, '0000000000', '', False))
print(version('0.2.0', 1798761601, '0000000000', 'v0.2.0', False))
print(version('0.2.0', 1798761602, '0000000000', 'v0.2.0', True))
print(version('0.2.0', 1798761603, '0000000000', '', False))
print(version('0.2.1-dev', 1798761604, '0000000000', '', False))
";
    let output = Command::new("python3")
        .args(["-B", "-c", script])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output();
    let said = said(&output.unwrap());
    let versions: Vec<_> = said.lines().collect();
    assert_eq!(versions[0], "0.2.0~dev+git20260101000000.0123abc");
    assert_eq!(versions[4], "0.2.0");
    assert_eq!(versions.len(), 8);
    for pair in versions.windows(2) {
        run("dpkg", ["--compare-versions", pair[0], "lt", pair[1]]);
    }
}

#[test]
fn programs_that_would_not_run_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let programs = Programs::headers(&folder.path().join("programs"));
    let refused = |part: &str| {
        let out = folder.path().display().to_string();
        let output = programs.script("deb", ["--package", "edgehold-edge", &out, "arm64"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && said.contains(part),
            "{part:?} is not in {said:?}"
        );
        assert!(
            said.contains("scripts/cross --bin edgecore aarch64-unknown-linux-musl"),
            "{said}"
        );
    };
    let path = programs.path(ARM64, "edgecore");
    let header = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    refused("is not there");
    programs.place(ARM64, "edgecore", b"#!/bin/sh\n");
    refused("is no ELF program");
    programs.place(ARM64, "edgecore", &header[..40]);
    refused("cut short");
    programs.place(ARM64, "edgecore", &fs::read(programs.path(ARMHF, "edgecore")).unwrap());
    refused("is for another machine (32 bits, ELF machine 40, not 183)");

    // A real program of this machine: whole it is linked dynamically, and a part of it is cut short.
    let mut real = fs::read(std::env::current_exe().unwrap()).unwrap();
    real[18] = 183;
    programs.place(ARM64, "edgecore", &real);
    refused("is linked dynamically");
    real.truncate(real.len() - 1);
    programs.place(ARM64, "edgecore", &real);
    refused("is cut short");
}

#[test]
fn manuals_name_every_command() {
    for (package, name, manual) in [
        ("edge", "edgecore", "edgecore.8"),
        ("cloud", "cloudcore", "cloudcore.8"),
        ("cli", "edgectl", "edgectl.1"),
    ] {
        let manual = packages().join(package).join(manual);
        let text = fs::read_to_string(&manual).unwrap();
        let help = run(program(name).to_str().unwrap(), ["help"]);
        let commands = help
            .split("Commands:")
            .nth(1)
            .unwrap()
            .split("Options:")
            .next()
            .unwrap();
        let names: Vec<_> = commands
            .lines()
            .filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next())
            .collect();
        assert!(names.len() >= 4, "{help}");
        for command in names.iter().filter(|command| **command != "help") {
            assert!(
                text.contains(&format!(".B {command}"))
                    || text.contains(&format!("\"{command}"))
                    || text.contains(&format!(".BI {command} ")),
                "{command} is not in {}",
                manual.display()
            );
        }
        let warned = Command::new("man")
            .args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"])
            .arg(&manual)
            .output()
            .unwrap();
        assert!(
            warned.status.success() && warned.stderr.is_empty(),
            "{}",
            String::from_utf8_lossy(&warned.stderr)
        );
    }
}

#[test]
fn units_are_understood_and_wait_for_no_network() {
    let folder = tempfile::tempdir().unwrap();
    // How open each may be, of 100: what is taken from it is not given back by accident.
    let units = [
        ("edge", "edgecore", Some(92)),
        ("cloud", "cloudcore", Some(18)),
        // A user's has nothing that could be taken.
        ("edge/user", "edgecore", None),
    ];
    for (package, name, exposure_max) in units {
        let text = fs::read_to_string(packages().join(package).join(format!("{name}.service"))).unwrap();
        assert!(text.contains(&format!("ExecStart=/usr/bin/{name} ")), "{text}");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(!line.contains("network"), "{line}");
        }
        // The program is not installed on this machine.
        let unit = folder.path().join(format!("{name}.service"));
        fs::write(&unit, text.replace(&format!("/usr/bin/{name}"), "/bin/true")).unwrap();
        let verified = Command::new("systemd-analyze")
            .args(["--man=no", "verify"])
            .arg(&unit)
            .output()
            .unwrap();
        let complaints = String::from_utf8(verified.stderr).unwrap();
        // Versions before 254 start at the same pace for ever.
        let newer = ["'RestartSteps'", "'RestartMaxDelaySec'"];
        for line in complaints.lines() {
            assert!(newer.iter().any(|key| line.contains(key)), "{line}");
        }
        assert!(verified.status.success(), "{complaints}");
        let Some(exposure_max) = exposure_max else { continue };
        let threshold = format!("--threshold={exposure_max}");
        run(
            "systemd-analyze",
            [
                "security",
                "--no-pager",
                "--offline=true",
                &threshold,
                unit.to_str().unwrap(),
            ],
        );
    }
}

fn packages() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/packages")
}

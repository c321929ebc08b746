//! Packages of real programs in a real Debian: installed, upgraded, put back, taken away.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tests::debian::Root;
use tests::foreign::Foreign;
use tests::shell::has;
use tests::ship::{AMD64, ARM64, ARMHF, Machine, Programs, run};

/// Two versions in a row.
const VERSIONS: [&str; 2] = [
    "0.1.0~dev+git20260101000000.0123abc",
    "0.1.0~dev+git20260101000001.4567def",
];

const NAMES: [&str; 3] = ["edgehold-edge", "edgehold-cloud", "edgehold-cli"];

#[test]
fn packages_come_stay_and_go_on_amd64() {
    life(AMD64);
}

#[test]
fn packages_come_stay_and_go_on_arm64() {
    let _foreign = Foreign::arm();
    life(ARM64);
}

#[test]
fn packages_come_stay_and_go_on_armhf() {
    let _foreign = Foreign::arm();
    life(ARMHF);
}

/// A Debian and the packages of two versions for a machine.
struct Place {
    root: Root,
    machine: Machine,
    /// Of each version, in the order of [`NAMES`].
    packages: [Vec<PathBuf>; 2],
    _folder: TempDir,
}

impl Place {
    fn new(machine: Machine) -> Self {
        let root = Root::new();
        if machine != AMD64 {
            root.takes(machine);
        }
        let folder = tempfile::tempdir().unwrap();
        let programs = Programs::built();
        let build = |version| {
            NAMES
                .map(|name| programs.package(folder.path(), name, machine, version))
                .to_vec()
        };
        Self {
            root,
            machine,
            packages: VERSIONS.map(build),
            _folder: folder,
        }
    }

    /// The line that installs packages, as apt does it when nobody can be asked.
    fn install(&self, packages: &[PathBuf]) -> String {
        let paths: Vec<_> = packages.iter().map(|package| self.root.bring(package)).collect();
        format!("dpkg --force-confdef --force-confold -i {}", paths.join(" "))
    }

    fn full(&self, name: &str) -> String {
        format!("{name}:{}", self.machine.debian)
    }

    fn state(&self, name: &str) -> String {
        let line = format!(
            "dpkg-query -W -f '${{db:Status-Status}} ${{Version}}' {}",
            self.full(name)
        );
        self.root.run(&line).1
    }
}

fn life(machine: Machine) {
    let place = Place::new(machine);
    let root = &place.root;
    let before = root.files();

    // Installed: what is missing is said, and stops nothing.
    let said = root.ok(&place.install(&place.packages[0]));
    has(
        &said,
        &[
            "MISSING cgroups",
            "note    joined",
            "edgehold-edge: the node works once what is MISSING",
        ],
    );
    for name in NAMES {
        assert_eq!(place.state(name), format!("installed {}", VERSIONS[0]));
    }
    for program in ["edgecore", "cloudcore", "edgectl"] {
        has(&root.ok(&format!("{program} --version")), &[program]);
    }
    for unit in ["edgecore", "cloudcore"] {
        has(
            &root.ok(&format!(
                "readlink /etc/systemd/system/multi-user.target.wants/{unit}.service"
            )),
            &[unit],
        );
    }
    has(
        &root.ok("stat -c '%U %a' /var/backups/edgehold"),
        &["_edgehold-cloud 700"],
    );

    // An upgrade whose configuration has changed keeps the one that was edited, and the data.
    let [edge, cloud] = ["etc/edgehold/edgecore.toml", "etc/edgehold/cloudcore.toml"];
    let data = "/var/lib/edgehold/edge/node.key";
    let edited = root.read(edge).replace("log = \"info\"", "log = \"debug\"");
    root.write(edge, &edited);
    root.write(data, "a key");
    let mut next = place.packages[1].clone();
    next[0] = with_another_configuration(&next[0], edge);
    next[1] = with_another_configuration(&next[1], cloud);
    root.ok(&place.install(&next));
    assert_eq!(root.read(edge), edited);
    has(&root.read(&format!("{edge}.dpkg-dist")), &["# Another default."]);
    // One that nobody edited is replaced.
    has(&root.read(cloud), &["# Another default."]);
    assert_eq!(place.state("edgehold-cloud"), format!("installed {}", VERSIONS[1]));

    // And back.
    has(&root.ok(&place.install(&place.packages[0])), &["downgrading"]);
    assert_eq!(place.state("edgehold-edge"), format!("installed {}", VERSIONS[0]));
    assert_eq!((root.read(edge), root.read(data)), (edited.clone(), "a key".to_owned()));

    // A configuration that is refused stops the upgrade before anything is restarted; corrected, it goes on.
    root.write(edge, "runtime = \"docker\"\n");
    let refused = root.fails(&place.install(&place.packages[1][..1]));
    has(
        &refused,
        &[
            "/etc/edgehold/edgecore.toml",
            "\"docker\"",
            "then: dpkg --configure edgehold-edge",
        ],
    );
    has(&place.state("edgehold-edge"), &["half-configured"]);
    // A key that an older version does not know does not.
    root.write(edge, &format!("{edited}[later]\nkey = 1\n"));
    has(&root.ok("dpkg --configure -a"), &["later: no such key"]);
    assert_eq!(place.state("edgehold-edge"), format!("installed {}", VERSIONS[1]));
    root.write(cloud, "log = \"loud\"\n");
    let refused = root.fails(&place.install(&place.packages[1][1..2]));
    has(&refused, &["`loud`", "then: dpkg --configure edgehold-cloud"]);
    root.write(cloud, "later = 1\n");
    root.ok("dpkg --configure -a");

    // Disabled stays disabled.
    root.ok("rm /etc/systemd/system/multi-user.target.wants/edgecore.service");
    root.ok(&place.install(&place.packages[1]));
    root.fails("readlink /etc/systemd/system/multi-user.target.wants/edgecore.service");

    // Removed, and everything of the administrator's is still there.
    let all = NAMES.map(|name| place.full(name)).join(" ");
    root.write("var/backups/edgehold/b", "a back-up");
    root.write("var/lib/edgehold/cloud/cloud.key", "a key");
    root.ok(&format!("dpkg --remove {all}"));
    root.fails("ls /usr/bin/edgecore");
    assert_eq!(root.read(data), "a key");
    has(&root.read(edge), &["log = \"debug\""]);

    // Purged: nothing is asked, back-ups are said to be left, and nothing else is.
    let configured = NAMES[..2]
        .iter()
        .map(|name| place.full(name))
        .collect::<Vec<_>>()
        .join(" ");
    has(
        &root.ok(&format!("dpkg --purge {configured}")),
        &["back-ups are kept in /var/backups/edgehold"],
    );
    let after = root.files();
    let left: Vec<_> = after.difference(&before).collect();
    assert_eq!(left, ["/var/backups/edgehold", "/var/backups/edgehold/b"]);
    assert_eq!(before.difference(&after).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// The same package with another sample of its configuration in it.
fn with_another_configuration(package: &Path, file: &str) -> PathBuf {
    let root = package.with_extension("root");
    run("dpkg-deb", ["-R".as_ref(), package.as_os_str(), root.as_os_str()]);
    let file = root.join(file);
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("# Another default.\n{text}")).unwrap();
    let new = package.with_extension("other.deb");
    run(
        "dpkg-deb",
        [
            "--root-owner-group".as_ref(),
            "-Zgzip".as_ref(),
            "--build".as_ref(),
            root.as_os_str(),
            new.as_os_str(),
        ],
    );
    new
}

#[test]
fn a_program_of_another_machine_is_told_from_a_broken_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let package = Programs::built().package(folder.path(), NAMES[0], AMD64, VERSIONS[0]);
    // As a package for another machine would be: the kernel does not start it.
    let root = package.with_extension("root");
    run("dpkg-deb", ["-R".as_ref(), package.as_os_str(), root.as_os_str()]);
    let program = root.join("usr/bin/edgecore");
    let mut bytes = fs::read(&program).unwrap();
    bytes[18] = 0;
    fs::write(&program, bytes).unwrap();
    run(
        "dpkg-deb",
        [
            "-Zgzip".as_ref(),
            "--build".as_ref(),
            root.as_os_str(),
            package.as_os_str(),
        ],
    );
    let debian = Root::new();
    let said = debian.fails(&format!("dpkg -i {}", debian.bring(&package)));
    has(&said, &["edgecore cannot be executed here (exit code 126)"]);
}

#[test]
fn lintian_finds_no_fault() {
    let folder = tempfile::tempdir().unwrap();
    let built = NAMES.map(|name| Programs::built().package(folder.path(), name, AMD64, VERSIONS[0]));
    let words = built.iter().map(|package| package.as_os_str());
    let options = ["--fail-on=error,warning", "--allow-root"].map(str::as_ref);
    assert_eq!(run("lintian", options.into_iter().chain(words)), "");
}

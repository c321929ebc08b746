//! The disk image that people try: Debian with systemd, on which the edge core is a package like any other.
//!
//! `VM_IMAGE` names a folder where `images/disk` has put one, instead of making it, which takes minutes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use tests::machine::{Board, eventually};
use tests::processes::repository;
use tests::ship::{ARM64, Programs};

use super::site::{DATA, FOREVER, Site, all_run};

/// The version of an image that is made here, and those that it is brought to: the next, and one from before.
const SHIPPED: &str = "0.1.0~dev+git20260102000000.0123abc";
const OTHERS: [&str; 2] = [
    "0.1.0~dev+git20260103000000.4567def",
    "0.1.0~dev+git20260101000000.89abcde",
];

/// What `edgecore.service` is made to be here: a store that hangs is noticed in a time for tests.
const HURRY: &str = "mkdir -p /run/systemd/system/edgecore.service.d
echo '[Service]\nWatchdogSec=20s' >/run/systemd/system/edgecore.service.d/hurry.conf
systemctl daemon-reload && systemctl restart edgecore";

fn made(command: &mut Command) {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
}

/// What `scripts/cross` built.
fn programs(board: Board) -> Programs {
    let core = board.edgecore();
    let folders: Vec<&Path> = core.ancestors().collect();
    let [_, profile, _, target, ..] = folders[..] else {
        panic!("{core:?} is not where cargo leaves programs");
    };
    Programs {
        folder: target.to_owned(),
        profile: profile.file_name().unwrap().to_string_lossy().into_owned(),
    }
}

fn package(folder: &Path, version: &str) -> PathBuf {
    programs(Board::Arm64).package(folder, "edgehold-edge", ARM64, version)
}

fn image(folder: &Path) {
    made(
        Command::new(repository().join("images/disk"))
            .arg(folder)
            .arg(package(folder, SHIPPED))
            .args(["--arch", Board::Arm64.arch()]),
    );
}

impl Site {
    fn main_process(&self) -> String {
        self.machine.ok("systemctl show --property MainPID --value edgecore")
    }
}

#[tokio::test]
#[ignore = "makes a whole Debian, as root: scripts/test --full"]
async fn arm64_disk_image_boots_joins_and_lives_through_its_versions() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let made = std::env::var_os("VM_IMAGE").map(PathBuf::from);
    if made.is_none() {
        image(folder.path());
    }
    let made = made.unwrap_or_else(|| folder.path().to_owned());
    let site = Site::of_image(Board::Arm64, "disk", &made).await;
    site.run("steady", "Always", &format!("{FOREVER} # steady"));
    site.settles("one pod", all_run(1)).await;
    let failed = site.machine.ok("systemctl --failed --plain --no-legend");
    assert_eq!(failed, "", "every unit of the system is well");

    // Another boot, by systemd.
    site.machine.stop();
    site.machine.start_again(true);
    site.settles("the pod again", all_run(1)).await;
    let steady = site.process("# steady").await;

    // An edge core that hangs is ended and started anew, and its pod runs on.
    site.machine.ok(HURRY);
    site.settles("the pod after a restart", all_run(1)).await;
    let hangs = site.main_process();
    site.machine.ok(&format!("kill -STOP {hangs}"));
    eventually("systemd starts another edge core", async || {
        let now = site.main_process();
        (now != hangs && now != "0").then_some(())
    })
    .await;
    site.settles("the pod runs on", all_run(1)).await;
    assert_eq!(site.process("# steady").await, steady);

    // Another version, and one from before: the edge core is another, the pod is not.
    for version in OTHERS {
        let before = site.main_process();
        site.machine.put(&package(folder.path(), version), "/root/edge.deb");
        site.machine.ok("dpkg -i /root/edge.deb");
        assert_ne!(site.main_process(), before, "{version}");
        site.settles("the pod runs on", all_run(1)).await;
        assert_eq!(site.process("# steady").await, steady, "{version}");
    }

    // Removed, it leaves its pods alone; purged, it takes all that was its own along.
    site.machine.ok("dpkg --remove edgehold-edge");
    assert_eq!(site.process("# steady").await, steady);
    site.machine.ok("dpkg --purge edgehold-edge");
    assert_eq!(site.processes("# steady"), BTreeSet::new());
    let left = site.machine.exec(&format!(
        "ls -d {DATA} /run/edgehold /var/log/edgehold /sys/fs/cgroup/edgehold/pod*; grep edgehold /proc/self/mounts"
    ));
    assert_eq!(String::from_utf8_lossy(&left.stdout), "");
}

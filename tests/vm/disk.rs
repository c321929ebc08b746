//! The disk image that people try: Debian with systemd, on which the edge core is a package like any other.
//!
//! `VM_IMAGE` names a folder where `images/disk` has put one, instead of making it, which takes minutes.

use std::path::{Path, PathBuf};
use std::process::Command;

use tests::machine::{Board, eventually};

use super::site::{FOREVER, Site, all_run};

/// What `edgecore.service` is made to be here: a store that hangs is noticed in a time for tests.
const HURRY: &str = "mkdir -p /run/systemd/system/edgecore.service.d
echo '[Service]\nWatchdogSec=20s' >/run/systemd/system/edgecore.service.d/hurry.conf
systemctl daemon-reload && systemctl restart edgecore";

fn made(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The image, of the edge core that `scripts/cross` built.
fn image(board: Board, folder: &Path) {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images");
    let core = board.edgecore();
    let profile = core.parent().unwrap();
    let said = made(
        Command::new(images.join("deb"))
            .args(["--package", "edgehold-edge", "--programs"])
            .arg(profile.ancestors().nth(2).unwrap())
            .arg("--profile")
            .arg(profile.file_name().unwrap())
            .arg(folder)
            .arg(board.arch()),
    );
    let package = said.rsplit_once(": ").expect("it names the package").0;
    made(
        Command::new(images.join("disk"))
            .arg(folder)
            .arg(package)
            .args(["--arch", board.arch()]),
    );
}

impl Site {
    fn main_process(&self) -> String {
        self.machine.ok("systemctl show --property MainPID --value edgecore")
    }
}

#[tokio::test]
#[ignore = "makes a whole Debian, as root: scripts/test --full"]
async fn arm64_disk_image_boots_joins_and_is_watched() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let made = std::env::var_os("VM_IMAGE").map(PathBuf::from);
    if made.is_none() {
        image(Board::Arm64, folder.path());
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
}

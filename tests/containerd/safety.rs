//! What a container must not get hold of.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use edgecore::runtime::{Mount, Runtime as _, RuntimeError};
use rustix::fs::{Mode, OFlags, StatVfsMountFlags, mkfifoat, open, statvfs};

use super::node::{Node, On, eventually, on_both, pod};

on_both!(
    has_the_standard_streams_only,
    cannot_change_what_hides_the_machine,
    finds_nothing_in_what_enters,
    starts_in_a_folder_of_a_volume,
);

/// The image of these tests with links on top; its name.
pub(crate) async fn image_with(node: &Node, links: &[(&str, &str)]) -> String {
    let archive = node.folder.join("links.tar");
    let made = Command::new("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("containerd/links.py"))
        .args([super::node::archive("web"), archive.clone()])
        .args(links.iter().map(|(path, target)| format!("{path}={target}")))
        .status();
    assert!(made.unwrap().success());
    node.runtime.import(&archive).await.unwrap().remove(0)
}

/// What the kernel shows of itself is never somewhere else than where it is hidden and protected.
#[tokio::test]
async fn embedded_mounts_nothing_of_the_kernels_through_a_link() {
    for (path, target) in [
        ("proc", "/dev/link"),
        ("proc", "/data/p"),
        ("sys", "/real"),
        ("dev", "/tmp"),
    ] {
        let node = Node::empty_of(On::Embedded, "trap").await;
        let image = image_with(&node, &[(path, target), ("dev/link", "/real/p")]).await;
        let uid = pod();
        let mut container = node.script(uid, "c", "true");
        container.image = image;
        let sandbox = node.sandbox(uid);
        node.runtime.prepare(&sandbox).await.unwrap();
        let id = node.runtime.create(&sandbox, &container).await.unwrap();
        let error = node.runtime.start(&id).await.unwrap_err().to_string();
        assert!(
            error.contains(&format!("at /{path}: Too many levels")),
            "{path} -> {target}: {error}"
        );
        node.finish(&[&id], &[uid]).await;
    }
}

/// A volume leads to where the image says, but not into what the kernel shows.
#[tokio::test]
async fn embedded_mounts_no_volume_into_proc() {
    let node = Node::empty_of(On::Embedded, "inproc").await;
    let image = image_with(&node, &[("data", "/proc/sys")]).await;
    let (uid, source) = (pod(), node.folder.join("volume"));
    std::fs::create_dir(&source).unwrap();
    let mut container = node.script(uid, "c", "true");
    container.image = image;
    container.mounts = vec![Mount {
        source,
        target: "/data".into(),
        read_only: false,
        exact: false,
    }];
    let sandbox = node.sandbox(uid);
    node.runtime.prepare(&sandbox).await.unwrap();
    let id = node.runtime.create(&sandbox, &container).await.unwrap();
    let error = node.runtime.start(&id).await.unwrap_err().to_string();
    assert!(error.contains("nothing is mounted in /proc"), "{error}");
    node.finish(&[&id], &[uid]).await;
}

/// Where containers can put links, none is followed.
#[tokio::test]
async fn embedded_follows_no_link_to_a_part_of_a_volume() {
    let node = Node::of(On::Embedded, "subpath").await;
    let (uid, volume) = (pod(), node.folder.join("volume"));
    std::fs::create_dir_all(volume.join("there")).unwrap();
    std::os::unix::fs::symlink("there", volume.join("link")).unwrap();
    let sandbox = node.sandbox(uid);
    node.runtime.prepare(&sandbox).await.unwrap();
    for (part, exact, starts) in [("there", true, true), ("link", false, true), ("link", true, false)] {
        let mut container = node.script(uid, &format!("{part}-{exact}"), "true");
        container.mounts = vec![Mount {
            source: volume.join(part),
            target: "/data".into(),
            read_only: false,
            exact,
        }];
        let id = node.runtime.create(&sandbox, &container).await.unwrap();
        assert_eq!(node.runtime.start(&id).await.is_ok(), starts, "{part} {exact}");
        if starts {
            assert_eq!(node.exit_code(&id).await, 0);
        }
        node.runtime.remove(&id).await.unwrap();
    }
    node.finish(&[], &[uid]).await;
}

/// Whatever whoever started the node ignores; what C libraries keep for themselves is not asked.
#[tokio::test]
async fn embedded_ignores_no_signal_for_a_program() {
    let node = Node::of(On::Embedded, "signals").await;
    let uid = pod();
    let mut container = node.script(uid, "c", "");
    container.command = ["/bin/grep", "SigIgn", "/proc/self/status"].map(str::to_owned).into();
    let id = node.run(&container).await;
    assert_eq!(node.exit_code(&id).await, 0);
    let line = node.log("c").remove(0);
    let mask = u64::from_str_radix(line.rsplit(['\t', ' ']).next().unwrap(), 16).unwrap();
    assert_eq!(mask & 0x7fff_ffff, 0, "{line}");
    node.finish(&[&id], &[uid]).await;
}

/// The mode of the host's own device stands, whatever a container does to what covers a file.
async fn cannot_change_what_hides_the_machine(on: On) {
    let node = Node::of(on, "covers").await;
    let uid = pod();
    let script = "for file in keys timer_list kcore; do chmod 667 /proc/$file 2>/dev/null; done; cat /proc/keys /proc/timer_list; echo end";
    let id = node.run(&node.script(uid, "c", script)).await;
    assert_eq!(node.exit_code(&id).await, 0);
    assert_eq!(node.log("c"), ["stdout F end"]);
    assert_eq!(
        std::fs::metadata("/dev/null").unwrap().permissions().mode() & 0o7777,
        0o666
    );
    node.finish(&[&id], &[uid]).await;
}

/// A container that may look into every process it sees finds its own root in all of them.
async fn finds_nothing_in_what_enters(on: On) {
    let node = Node::of(on, "looks").await;
    let uid = pod();
    let mark = node.folder.join("mark");
    std::fs::write(&mark, "").unwrap();
    let look = format!(
        "echo ready; while :; do for at in /proc/[0-9]*; do [ -e $at/root{0} ] && echo $at; done; done",
        mark.display()
    );
    let mut container = node.script(uid, "c", &look);
    container.security.capabilities_added = vec!["SYS_PTRACE".into()];
    let id = node.run(&container).await;
    node.logs("c", "stdout F ready").await;
    for _ in 0..40 {
        let done = node
            .runtime
            .exec(&id, &["/bin/true".into()], Duration::from_secs(20))
            .await;
        assert_eq!(done.unwrap().code, 0);
    }
    assert_eq!(node.log("c"), ["stdout F ready"]);
    node.finish(&[&id], &[uid]).await;
}

/// A container that stops whatever it sees stops no probe's limit.
#[tokio::test]
async fn embedded_cannot_stop_the_clock_of_a_command() {
    let node = Node::of(On::Embedded, "stops").await;
    let uid = pod();
    let stop = "echo ready; while :; do for at in /proc/[0-9]*; do at=${at#/proc/}; [ $at = 1 ] || kill -STOP $at 2>/dev/null; done; done";
    let id = node.run(&node.script(uid, "c", stop)).await;
    node.logs("c", "stdout F ready").await;
    for _ in 0..3 {
        let slow = ["/bin/sh", "-c", "sleep 1000"].map(str::to_owned);
        let error = node
            .runtime
            .exec(&id, &slow, Duration::from_millis(300))
            .await
            .unwrap_err();
        assert!(matches!(error, RuntimeError::Timeout { .. }), "{error}");
    }
    node.finish(&[&id], &[uid]).await;
}

/// The folder is made where it is used, not below the volume that covers it.
async fn starts_in_a_folder_of_a_volume(on: On) {
    let node = Node::of(on, "workdir").await;
    let (uid, source) = (pod(), node.folder.join("volume"));
    std::fs::create_dir(&source).unwrap();
    let mut container = node.script(uid, "c", "pwd");
    container.working_dir = Some("/data/sub/x".into());
    container.mounts = vec![Mount {
        source: source.clone(),
        target: "/data".into(),
        read_only: false,
        exact: false,
    }];
    let id = node.run(&container).await;
    assert_eq!(node.exit_code(&id).await, 0);
    assert_eq!(node.log("c"), ["stdout F /data/sub/x"]);
    assert!(source.join("sub/x").is_dir());
    node.finish(&[&id], &[uid]).await;
}

async fn has_the_standard_streams_only(on: On) {
    let node = Node::of(on, "streams").await;
    let uid = pod();
    // The shell's own look at the folder is one, which is gone when it is asked for.
    let show = "for at in /proc/self/fd/*; do [ -e /proc/$$/fd/${at##*/} ] && echo ${at##*/}; done; true";
    let id = node.run(&node.script(uid, "c", &format!("{show}; sleep 1000"))).await;
    node.logs("c", "stdout F 2").await;
    let lines = node.log("c");
    assert_eq!(lines, ["stdout F 0", "stdout F 1", "stdout F 2"]);
    let command = ["/bin/sh", "-c", show].map(str::to_owned);
    let done = node.runtime.exec(&id, &command, Duration::from_secs(20)).await.unwrap();
    assert_eq!((done.code, done.output.as_str()), (0, "0\n1\n2\n"));
    node.finish(&[&id], &[uid]).await;
}

/// A process of ours that enters a container is one that the container can start over, or look at: nobody can write to the
/// file it runs from.
#[tokio::test]
async fn a_program_that_enters_cannot_be_written_to() {
    let folder = tempfile::tempdir().unwrap();
    // Its own, so that nothing else runs from it.
    let program = folder.path().join("program");
    std::fs::copy(env!("CARGO_BIN_EXE_edgehold-log-shim"), &program).unwrap();
    // What it reads first, so that it waits there.
    let config = folder.path().join("config.json");
    mkfifoat(rustix::fs::CWD, &config, Mode::from_raw_mode(0o600)).unwrap();
    let mut child = Command::new(&program)
        .args(["container-act", "exec"])
        .args([folder.path(), folder.path()])
        .args(["c", "1000", "/bin/true"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let seen = format!("/proc/{}/exe", child.id());
    eventually("it was started over", async || {
        let mounted = statvfs(&seen).ok()?;
        mounted.f_flag.contains(StatVfsMountFlags::RDONLY).then_some(())
    })
    .await;
    let held = open(&seen, OFlags::PATH, Mode::empty()).unwrap();
    // Nothing of the mount is to be seen.
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains("/program"), "{mounts}");
    File::options()
        .write(true)
        .open(&config)
        .unwrap()
        .write_all(b"{}")
        .unwrap();
    assert!(!child.wait().unwrap().success());
    // While it ran, nobody could have anyway.
    let held = format!("/proc/self/fd/{}", held.as_raw_fd());
    let error = OpenOptions::new().append(true).open(held).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{error}");
    OpenOptions::new().append(true).open(&program).unwrap();
}

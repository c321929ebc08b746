//! What a container must not get hold of.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use edgecore::runtime::Runtime as _;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags, mkfifoat, open, statvfs};

use super::node::{Node, On, eventually, on_both, pod};

on_both!(has_the_standard_streams_only);

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

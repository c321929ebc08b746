//! What a container may take and do, and what it may not.

use std::process::{Command, Stdio};
use std::time::Duration;

use edgecore::runtime::{Limits, Runtime as _, RuntimeError, Security, State};

use super::node::{Node, On, on_both, pod};

on_both!(
    tells_an_oom_kill,
    keeps_a_container_from_multiplying,
    goes_as_soon_as_it_is_told_when_memory_runs_out,
    limits_what_a_container_may_do,
    gives_a_privileged_container_the_machine,
    keeps_its_limits_from_a_container,
    keeps_devices_from_a_container,
);

async fn tells_an_oom_kill(on: On) {
    let node = Node::of(on, "oom").await;
    let uid = pod();
    let mut container = node.script(uid, "c", "x=x; while :; do x=$x$x; done");
    container.limits = Limits { memory_limit_bytes: 16 << 20, ..Limits::default() };
    let id = node.run(&container).await;
    assert_eq!(node.exit_code(&id).await, 137);
    assert!(matches!(
        node.seen(&id).await.unwrap().state,
        State::Exited { oom_killed: true, .. }
    ));
    node.finish(&[&id], &[uid]).await;
}

async fn keeps_a_container_from_multiplying(on: On) {
    let node = Node::of(on, "pids").await;
    let uid = pod();
    // The shell, and as many beside it as the limit leaves.
    let script =
        "exec 2>&1; i=0; while [ $i -lt 7 ]; do sleep 1000 & i=$((i+1)); done; echo seven; sleep 1000 & echo eight";
    let mut container = node.script(uid, "c", script);
    container.limits.pids_max = 8;
    let id = node.run(&container).await;
    assert_eq!(node.exit_code(&id).await, 2);
    let said = node.log("c");
    assert!(
        said[0] == "stdout F seven" && said.len() == 2 && said[1].contains("can't fork"),
        "{said:?}"
    );
    node.finish(&[&id], &[uid]).await;
}

/// The lowest score that may be given here: a machine in a container may give none below its own.
fn lowest_score() -> i32 {
    let may_lower = Command::new("sh")
        .args(["-c", "echo -1000 >/proc/self/oom_score_adj"])
        .stderr(Stdio::null())
        .status();
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    if may_lower.unwrap().success() {
        -1000
    } else {
        own.trim().parse().unwrap()
    }
}

async fn goes_as_soon_as_it_is_told_when_memory_runs_out(on: On) {
    const SHOW: &str = "cat /proc/self/oom_score_adj";
    let node = Node::of(on, "score").await;
    let uid = pod();
    let mut ids = Vec::new();
    for wanted in [-997_i32, 3, 1000] {
        let name = format!("c{}", wanted.unsigned_abs());
        let mut container = node.script(uid, &name, &format!("{SHOW}; sleep 1000"));
        container.oom_score_adj = wanted;
        let id = node.run(&container).await;
        let score = wanted.max(lowest_score()).to_string();
        node.logs(&name, &format!("stdout F {score}")).await;
        // What is run in it as well.
        let command = ["/bin/sh", "-c", SHOW].map(str::to_owned);
        let said = node.runtime.exec(&id, &command, Duration::from_secs(60)).await.unwrap();
        assert_eq!((said.code, said.output.trim()), (0, score.as_str()));
        ids.push(id);
    }
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    node.finish(&ids, &[uid]).await;
}

async fn limits_what_a_container_may_do(on: On) {
    let node = Node::of(on, "limits").await;
    let uid = pod();
    let show = "id -u; id -g; id -G; pwd; echo $HOME; touch /x 2>&1; touch /ro/x 2>&1; cat /ro/file; \
                grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; echo $A$B";
    let source = node.folder.join("volume");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("file"), "content\n").unwrap();
    let mut container = node.script(uid, "c", show);
    container.env = vec![("A".into(), "a b".into()), ("B".into(), "=".into())];
    container.working_dir = Some("/made".into());
    container.mounts = vec![edgecore::runtime::Mount { source, target: "/ro".into(), read_only: true, exact: false }];
    container.security = Security {
        // The image's own: web, 1000.
        user: None,
        groups: vec![7],
        run_as_non_root: true,
        read_only_root: true,
        no_new_privileges: true,
        capabilities_added: vec!["NET_BIND_SERVICE".into()],
        capabilities_dropped: vec!["ALL".into()],
        ..Security::default()
    };
    let id = node.run(&container).await;
    assert_eq!(node.exit_code(&id).await, 0);
    let text: Vec<String> = node
        .log("c")
        .iter()
        .map(|line| line.trim_start_matches("stdout F ").replace('\t', " "))
        .collect();
    let expected = [
        "1000",
        "1000",
        "1000 7",
        "/made",
        "/",
        "touch: /x: Read-only file system",
        "touch: /ro/x: Read-only file system",
        "content",
        "CapEff: 0000000000000000",
        "CapBnd: 0000000000000400",
        "NoNewPrivs: 1",
        "a b=",
    ];
    assert_eq!(text, expected);
    let mut root = node.script(uid, "root", "true");
    root.security = Security { user: Some(0), run_as_non_root: true, ..Security::default() };
    let error = node.runtime.create(&node.sandbox(uid), &root).await.unwrap_err();
    assert!(
        matches!(error, RuntimeError::Invalid { .. }) && error.to_string().contains("root"),
        "{error}"
    );
    node.finish(&[&id], &[uid]).await;
}

async fn gives_a_privileged_container_the_machine(on: On) {
    let node = Node::of(on, "priv").await;
    let uid = pod();
    let mut container = node.script(
        uid,
        "c",
        "test -w /sys/kernel && test -e /dev/kmsg && mount -t tmpfs x /tmp && echo yes",
    );
    container.security.privileged = true;
    container.tty = true;
    let id = node.run(&container).await;
    assert_eq!(node.exit_code(&id).await, 0);
    // A terminal's lines end in CR LF; the log has them so, and `lines` here takes both.
    node.logs("c", "stdout F yes").await;
    node.finish(&[&id], &[uid]).await;
}

/// A container sees its limits and changes none of them, also as root.
async fn keeps_its_limits_from_a_container(on: On) {
    let node = Node::of(on, "cgroups").await;
    let uid = pod();
    let show = "cd /sys/fs/cgroup; for file in memory/memory.limit_in_bytes memory.max; do test -e $file && cat $file; done; \
                for file in $(find . -type f -perm -u+w | head -500); do echo 1 2>/dev/null >$file && echo changed $file; done; \
                for folder in . *; do mkdir $folder/own 2>/dev/null && test -e $folder/own/cgroup.procs && echo made $folder; done; \
                echo end";
    let mut container = node.script(uid, "c", show);
    container.security = Security { user: Some(0), ..Security::default() };
    container.limits = Limits { memory_limit_bytes: 32 << 20, ..Limits::default() };
    let id = node.run(&container).await;
    assert_eq!(node.exit_code(&id).await, 0);
    assert_eq!(node.log("c"), ["stdout F 33554432", "stdout F end"]);
    node.finish(&[&id], &[uid]).await;
}

async fn keeps_devices_from_a_container(on: On) {
    let node = Node::of(on, "devices").await;
    let uid = pod();
    // The kernel's log: a device that every machine has.
    let show = "mknod /tmp/log c 1 11; head -c1 /tmp/log 2>&1; echo >/dev/null && head -c1 /dev/zero | wc -c";
    let id = node.run(&node.script(uid, "c", show)).await;
    assert_eq!(node.exit_code(&id).await, 0);
    let lines = node.log("c");
    assert!(lines[0].ends_with("/tmp/log: Operation not permitted"), "{lines:?}");
    assert_eq!(lines[1..], ["stdout F 1"]);
    node.finish(&[&id], &[uid]).await;
}

//! A kernel that lacks a cgroup controller, as Raspberry Pi OS comes: pods run, with the limits that can be kept.

use std::path::Path;
use std::process::Command;

use super::host::own_mounts;
use super::node::{On, WEB, on_both};
use super::site::{Site, text};

on_both!(runs_without_the_memory_controller);

fn done(words: &[&str]) {
    let status = Command::new(words[0]).args(&words[1..]).status();
    assert!(status.unwrap().success(), "{words:?}");
}

async fn runs_without_the_memory_controller(on: On) {
    own_mounts();
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers");
    let fewer = tempfile::NamedTempFile::new().unwrap();
    if unified.exists() {
        std::fs::write(&fewer, "cpuset cpu io pids\n").unwrap();
        let fewer = fewer.path().display().to_string();
        done(&["mount", "--bind", &fewer, &unified.display().to_string()]);
    } else {
        done(&["umount", "-l", "/sys/fs/cgroup/memory"]);
    }
    let site = Site::of(on, "nomem").await;
    site.kubectl.apply(&format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: limited, labels: {{app: web}}}}
spec:
  nodeName: edge-1
  restartPolicy: Never
  containers:
  - name: c
    image: {WEB}
    command: [/bin/sh, -c, 'cd /sys/fs/cgroup; cat cpu/cpu.cfs_quota_us cpu.max 2>/dev/null; cat memory.max 2>/dev/null; echo runs']
    resources: {{limits: {{memory: 32Mi, cpu: 500m}}}}
"
    ));
    let ended = |pod: &serde_json::Value| ["Succeeded", "Failed"].contains(&&*text(pod, "/status/phase"));
    let pod = site.pod("limited", "it has ended", ended).await;
    assert_eq!(text(&pod, "/status/phase"), "Succeeded", "{pod}");
    let lines = site.logged("limited", 0);
    assert!(
        lines[0].starts_with("stdout F 50000"),
        "the limit of another controller is kept: {lines:?}"
    );
    assert_eq!(lines.last().unwrap(), "stdout F runs");
    assert!(!lines.iter().any(|line| line.contains("33554432")), "{lines:?}");
    site.finish().await;
}

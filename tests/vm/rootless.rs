//! An ordinary user's node on a kernel of its own, below a cgroup with every controller, as a service manager of a user has
//! it: pods are held to their limits, and what is left of one after kills is still in its hands.

use serde_json::Value;
use tests::machine::{Board, HOST, eventually};

use super::site::{ARCHIVE, FOREVER, Site, WEB, text};

const NODE: &str = "edge-2";
const CONTROLLERS: &str = "+cpu +memory +pids";

/// The user, and what systemd gives it: a cgroup with all below it, its processes in others inside.
const USER: &str = "echo pi:x:1000:1000::/home/pi:/bin/sh >>/etc/passwd
echo pi:x:1000: >>/etc/group
mkdir -p /home/pi/.config/edgehold /sys/fs/cgroup/user/unit
printf '[link]\\nbeat_s = 5\\n' >/home/pi/.config/edgehold/edgecore.toml
echo \"$CONTROLLERS\" >/sys/fs/cgroup/cgroup.subtree_control
echo \"$CONTROLLERS\" >/sys/fs/cgroup/user/cgroup.subtree_control
chown -R pi:pi /home/pi /sys/fs/cgroup/user
chmod 644 /run/token-2
touch /run/no-edgecore
kill $(cat /run/edgecore.pid)";

/// A container's own limits; the last one is killed for its own.
const PODS: &[(&str, &str, &str)] = &[
    (
        "limited",
        "resources: {requests: {cpu: 100m}, limits: {cpu: 250m, memory: 16Mi}}",
        "cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/memory.max
(echo max >/sys/fs/cgroup/memory.max) 2>/dev/null || echo its own limit stands
cut -d : -f 3 /proc/self/cgroup",
    ),
    ("lives", "resources: {limits: {memory: 32Mi}}", FOREVER),
    ("greedy", "resources: {limits: {memory: 16Mi}}", "exec tail /dev/zero"),
];

impl Site {
    /// Runs a command as the user, in its cgroup.
    fn as_user(&self, command: &str) -> String {
        self.machine.ok(&format!(
            "echo $$ >/sys/fs/cgroup/user/unit/cgroup.procs; cd /home/pi; exec busybox su pi -c 'HOME=/home/pi {command}'"
        ))
    }

    fn start_user_node(&self) {
        self.as_user("setsid edgecore run >>/home/pi/edge.log 2>&1 </dev/null &");
    }
}

#[tokio::test]
async fn arm64_a_users_pods_are_held_to_their_limits_and_outlive_all_that_held_them() {
    let site = Site::start(Board::Arm64, "user").await;
    site.machine.write(&site.cloud.token(NODE), "/run/token-2");
    site.machine.ok(&USER.replace("$CONTROLLERS", CONTROLLERS));
    let api = site.cloud.api;
    site.as_user(&format!("edgecore join https://{HOST}:{api} --token-file /run/token-2"));
    assert_eq!(site.as_user(&format!("edgecore image import {ARCHIVE}")), WEB);
    let checked = site.as_user("edgecore check");
    assert!(
        checked.contains("pods' are made below /user, with cpu, memory, pids"),
        "{checked}"
    );
    site.start_user_node();
    let pod = |(name, container, script): &(&str, &str, &str)| {
        // A text in JSON's quotes is one in YAML's.
        let script = Value::from(*script);
        format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeName: {NODE}
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  securityContext: {{runAsUser: 0}}
  containers: [{{name: c, image: '{WEB}', command: [/bin/sh, -c, {script}], {container}}}]
---
"
        )
    };
    site.kubectl.apply(&PODS.iter().map(pod).collect::<String>());
    let as_ended = (site.ended("limited").await, site.ended("greedy").await);
    assert_eq!(as_ended, (("Completed".into(), 0), ("OOMKilled".into(), 137)));
    let said = site.kubectl.run(&["logs", "limited"]);
    assert_eq!(
        said.lines().collect::<Vec<_>>(),
        ["25000 100000", "16777216", "its own limit stands", "/"]
    );

    let id = |container: &Value| {
        let id = container.pointer("/containerID")?;
        (container["ready"] == true).then(|| text(id))
    };
    let before = site.container("lives", "runs", id).await;
    let process = site.process("while true").await;
    // The edge core and every shim at once; what looks for them is gone by then.
    site.machine
        .ok("kill -9 $(grep -la -e edgecore -e pod-shim /proc/[0-9]*/cmdline | cut -d / -f 3) 2>/dev/null; true");
    site.start_user_node();
    // It answers for the container again, which is the one that there was: it can be told to end.
    eventually("the user's edge core answers", async || {
        let said = site.machine.exec(
            "cd /home/pi; busybox su pi -c 'HOME=/home/pi edgecore status --json' | grep -q '\"connected\": *true'",
        );
        said.status.success().then_some(())
    })
    .await;
    assert_eq!(site.container("lives", "runs", id).await, before);
    assert_eq!(site.process("while true").await, process);
    site.kubectl.run(&["delete", "pods", "--all"]);
    eventually("nothing is left of its pods", async || {
        let left = site
            .machine
            .ok("ls /home/pi/.local/share/edgehold/edge/embedded/pods /sys/fs/cgroup/user/edgehold | grep ^pod; true");
        left.is_empty().then_some(())
    })
    .await;
}

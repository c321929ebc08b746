//! A node on a container runtime of its own with a cloud core, and what tests ask of both.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tests::cores::{CloudCore, EdgeCore, Kubectl, eventually};
use tests::processes::{executed, parent_in};

use super::node::{Node, On, WEB};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A node with its cloud, and what both are made of.
pub(crate) struct Site {
    pub(crate) node: Box<Node>,
    pub(crate) cloud: CloudCore,
    pub(crate) edge: EdgeCore,
    pub(crate) kubectl: Kubectl,
}

impl Site {
    pub(crate) async fn start(name: &str) -> Self {
        Self::of(On::Containerd, name).await
    }

    pub(crate) async fn of(on: On, name: &str) -> Self {
        let mut site = Self::joined(Node::of(on, name).await).await;
        site.edge.start();
        site
    }

    /// A node that has joined, and whose edge core does not run yet.
    pub(crate) async fn joined(node: Node) -> Self {
        let cloud = CloudCore::start(&node.folder.join("c")).await;
        let edge = EdgeCore::join(&cloud, "edge-1", &node.edge_config());
        let kubectl = cloud.kubectl();
        Self { node: Box::new(node), cloud, edge, kubectl }
    }

    pub(crate) fn deploy(&self, replicas: u32) {
        self.kubectl.apply(&format!(
            "apiVersion: v1
kind: ConfigMap
metadata: {{name: settings}}
data: {{greeting: hello}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 1
      volumes: [{{name: settings, configMap: {{name: settings}}}}]
      containers:
      - name: web
        image: {WEB}
        command: [/bin/sh, -c, 'trap \"exit 0\" TERM; echo started; while true; do sleep 1; done']
        volumeMounts: [{{name: settings, mountPath: /settings}}]
        readinessProbe: {{exec: {{command: [/bin/sh, -c, 'test -f /settings/greeting']}}, periodSeconds: 1}}
"
        ));
    }

    /// Waits until so many pods are ready as the cloud has it, and returns their uids.
    pub(crate) async fn ready(&self, count: usize) -> BTreeSet<String> {
        eventually(&format!("{count} pods are ready"), async || {
            let pods = self.kubectl.pods("app=web");
            let all = pods.len() == count && pods.iter().all(is_ready);
            all.then(|| pods.iter().map(|pod| text(pod, "/metadata/uid")).collect())
        })
        .await
    }

    /// Waits until so many containers run on the node, by the shells that are their first processes.
    pub(crate) async fn running(&self, count: usize) -> BTreeSet<u32> {
        eventually(&format!("{count} containers run"), async || {
            let shells = self.shells();
            (shells.len() == count).then_some(shells)
        })
        .await
    }

    pub(crate) fn shells(&self) -> BTreeSet<u32> {
        self.inside("while true")
    }

    /// The processes in containers whose command line has this in it.
    pub(crate) fn inside(&self, mark: &str) -> BTreeSet<u32> {
        let line = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let contained = self.node.contained().into_iter();
        executed(contained.filter(|pid| line(pid).contains(mark)), |pid| {
            parent_in(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
        })
    }

    /// The one process in a container whose command line has this in it.
    pub(crate) async fn process(&self, mark: &str) -> u32 {
        eventually(&format!("{mark:?} runs"), async || {
            let pids = self.inside(mark);
            pids.first().copied().filter(|_| pids.len() == 1)
        })
        .await
    }

    /// The log processes of the node's containers.
    pub(crate) fn log_processes(&self) -> BTreeSet<u32> {
        let all = self.node.processes().into_iter();
        all.filter(|(_, line)| line.contains(" log-shim "))
            .map(|(pid, _)| pid)
            .collect()
    }

    /// Waits until a condition of the node is so, as the cloud has it, and returns its message.
    pub(crate) async fn node_says(&self, kind: &str, status: &str, reason: &str) -> String {
        eventually(&format!("{kind} is {status}, {reason}"), async || {
            let node = self.kubectl.json(&["node", "edge-1"])?;
            let conditions = node.pointer("/status/conditions")?.as_array()?;
            let condition = conditions.iter().find(|condition| condition["type"] == kind)?;
            let so = condition["status"] == status && condition["reason"] == reason;
            so.then(|| text(condition, "/message"))
        })
        .await
    }

    /// Waits until the cloud has a pod as it should be.
    pub(crate) async fn pod(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{name}: {what}"), async || {
            self.kubectl.json(&["pod", name]).filter(|pod| holds(pod))
        })
        .await
    }

    /// Applies a pod of one shell script that is bound to the node whatever the node's conditions are.
    pub(crate) fn script(&self, name: &str, policy: &str, script: &str) {
        self.kubectl.apply(&format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: web}}}}
spec:
  nodeName: edge-1
  restartPolicy: {policy}
  terminationGracePeriodSeconds: 1
  containers: [{{name: c, image: {WEB}, command: [/bin/sh, -c, '{script}']}}]
"
        ));
    }

    /// The lines a pod of [`Site::script`] has logged in one attempt, without their times.
    pub(crate) fn logged(&self, name: &str, attempt: u32) -> Vec<String> {
        let folders = std::fs::read_dir(self.node.folder.join("plogs"))
            .into_iter()
            .flatten()
            .flatten();
        let prefix = format!("default_{name}_");
        let folder = folders.map(|entry| entry.path()).find(|path| {
            path.file_name()
                .is_some_and(|file| file.to_string_lossy().starts_with(&prefix))
        });
        let log = folder.map(|folder| folder.join("c").join(format!("{attempt}.log")));
        let text = log
            .and_then(|log| std::fs::read_to_string(log).ok())
            .unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.map(|(_, line)| line.to_owned()).collect()
    }

    /// Whether the edge core's process still is.
    pub(crate) fn edge_lives(&self) -> bool {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", self.edge.pid())).unwrap_or_default();
        !state.is_empty() && !state.contains(") Z ")
    }

    pub(crate) async fn connected(&self) {
        eventually("the node is connected", async || {
            self.edge.status()["connected"]
                .as_bool()
                .filter(|connected| *connected)
                .map(drop)
        })
        .await;
    }

    /// The restarts of all containers, as the cloud has it.
    pub(crate) fn restarts(&self) -> i64 {
        let pods = self.kubectl.pods("app=web");
        pods.iter()
            .filter_map(|pod| pod.pointer("/status/containerStatuses/0/restartCount")?.as_i64())
            .sum()
    }

    /// Everything was deleted: nothing may be left.
    pub(crate) async fn finish(self) {
        self.kubectl.run(&["delete", "deployment", "web", "--ignore-not-found"]);
        self.kubectl.run(&["delete", "pod", "-l", "app=web", "--wait=false"]);
        self.running(0).await;
        eventually("the pods are gone", async || {
            self.kubectl.pods("app=web").is_empty().then_some(())
        })
        .await;
        eventually("the containers are gone", async || self.node.is_empty().then_some(())).await;
        let Self { node, cloud, edge, .. } = self;
        drop((edge, cloud));
        node.finish(&[], &[]).await;
    }
}

/// Another boot, as far as programs can see.
pub(crate) fn new_boot_id(folder: &Path, boot: u128) {
    let file = folder.join(format!("boot_id.{boot}"));
    let number = format!("{boot:032x}");
    let groups = [
        &number[..8],
        &number[8..12],
        &number[12..16],
        &number[16..20],
        &number[20..],
    ];
    std::fs::write(&file, groups.join("-")).unwrap();
    old_boot_id();
    assert!(
        Command::new("mount")
            .arg("--bind")
            .arg(&file)
            .arg(BOOT_ID)
            .status()
            .unwrap()
            .success()
    );
}

/// The machine's own again. A bind on top of another would make the lower one's file a mount point, which cannot go.
fn old_boot_id() {
    // Fails where nothing was bound.
    let _ = Command::new("umount").arg(BOOT_ID).stderr(Stdio::null()).status();
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    conditions.is_some_and(|conditions| {
        conditions
            .iter()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    })
}

pub(crate) fn text(object: &Value, path: &str) -> String {
    object
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

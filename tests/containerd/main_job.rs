//! The main job, end to end: real cloud core, real edge core, real containers, real kubectl.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tests::cores::{CloudCore, EdgeCore, Kubectl, eventually};

use super::node::{Node, WEB, kill, own_mounts};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A node with its cloud, and what both are made of.
struct Site {
    node: Node,
    cloud: CloudCore,
    edge: EdgeCore,
    kubectl: Kubectl,
}

impl Site {
    async fn start(name: &str) -> Self {
        let node = Node::new(name).await;
        let cloud = CloudCore::start(&node.folder.join("c")).await;
        let mut edge = EdgeCore::join(&cloud, "edge-1", &node.edge_config());
        edge.start();
        let kubectl = cloud.kubectl();
        Self { node, cloud, edge, kubectl }
    }

    fn deploy(&self, replicas: u32) {
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
    async fn ready(&self, count: usize) -> BTreeSet<String> {
        eventually(&format!("{count} pods are ready"), async || {
            let pods = self.kubectl.pods("app=web");
            let all = pods.len() == count && pods.iter().all(is_ready);
            all.then(|| pods.iter().map(|pod| text(pod, "/metadata/uid")).collect())
        })
        .await
    }

    /// Waits until so many containers run on the node, by the shells that are their first processes.
    async fn running(&self, count: usize) -> BTreeSet<u32> {
        eventually(&format!("{count} containers run"), async || {
            let shells = self.shells();
            (shells.len() == count).then_some(shells)
        })
        .await
    }

    fn shells(&self) -> BTreeSet<u32> {
        let line = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        self.node
            .contained()
            .into_iter()
            .filter(|pid| line(pid).contains("while true"))
            .collect()
    }

    async fn connected(&self) {
        eventually("the node is connected", async || {
            self.edge.status()["connected"]
                .as_bool()
                .filter(|connected| *connected)
                .map(drop)
        })
        .await;
    }

    /// The restarts of all containers, as the cloud has it.
    fn restarts(&self) -> i64 {
        let pods = self.kubectl.pods("app=web");
        pods.iter()
            .filter_map(|pod| pod.pointer("/status/containerStatuses/0/restartCount")?.as_i64())
            .sum()
    }

    /// Everything was deleted: nothing may be left.
    async fn finish(self) {
        self.kubectl.run(&["delete", "deployment", "web"]);
        self.running(0).await;
        eventually("the pods are gone", async || {
            self.kubectl.pods("app=web").is_empty().then_some(())
        })
        .await;
        eventually("the containers are gone", async || {
            self.node.ctr(&["containers", "ls", "-q"]).is_empty().then_some(())
        })
        .await;
        let Self { node, cloud, edge, .. } = self;
        drop((edge, cloud));
        node.finish(&[], &[]).await;
    }
}

/// Another boot, as far as programs can see.
fn new_boot_id(folder: &Path, boot: u128) {
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

fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    conditions.is_some_and(|conditions| {
        conditions
            .iter()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    })
}

fn text(object: &Value, path: &str) -> String {
    object
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

#[tokio::test]
async fn containerd_main_job_survives_kills_of_both_cores() {
    let mut site = Site::start("kills").await;
    site.deploy(2);
    let uids = site.ready(2).await;
    let shells = site.running(2).await;
    let pod = text(&site.kubectl.pods("app=web")[0], "/metadata/name");
    assert_eq!(site.kubectl.run(&["logs", &pod]), "started");

    // The edge core dies: its containers run on and are taken over.
    site.edge.kill();
    assert_eq!(site.shells(), shells);
    site.edge.start();
    site.connected().await;
    assert_eq!((site.shells(), site.restarts()), (shells.clone(), 0));

    // The cloud dies. A container that ends meanwhile comes back, and so does one after a cold start of the edge core.
    site.cloud.kill();
    kill(*shells.first().unwrap());
    let again = eventually("the container is back", async || {
        let now = site.shells();
        (now.len() == 2 && now != shells).then_some(now)
    })
    .await;
    site.edge.kill();
    kill(*again.last().unwrap());
    site.edge.start();
    let offline = eventually("the container is back after a cold start", async || {
        let now = site.shells();
        (now.len() == 2 && now != again).then_some(now)
    })
    .await;

    // The cloud is back: nothing restarts, and it learns what happened.
    site.cloud.start_again().await;
    site.connected().await;
    eventually("the cloud counts two restarts", async || {
        (site.restarts() == 2).then_some(())
    })
    .await;
    assert_eq!(site.ready(2).await, uids);
    assert_eq!(site.shells(), offline);
    site.finish().await;
}

#[tokio::test]
async fn containerd_main_job_applies_what_changed_meanwhile() {
    let mut site = Site::start("meanwhile").await;
    site.deploy(2);
    let before = site.ready(2).await;
    let shells = site.running(2).await;
    // While the node is away: one pod deleted by force and replaced, the config changed.
    site.edge.kill();
    let victim = text(&site.kubectl.pods("app=web")[0], "/metadata/name");
    site.kubectl
        .run(&["delete", "pod", &victim, "--grace-period=0", "--force"]);
    eventually("another pod takes its place", async || {
        (site.kubectl.pods("app=web").len() == 2).then_some(())
    })
    .await;
    site.kubectl.run(&[
        "patch",
        "configmap",
        "settings",
        "-p",
        r#"{"data":{"greeting":"changed"}}"#,
    ]);
    assert_eq!(site.shells(), shells);
    site.edge.start();
    let after = site.ready(2).await;
    assert_eq!(before.intersection(&after).count(), 1);
    // No second copy anywhere, and the one that stayed was not touched.
    let now = site.running(2).await;
    assert_eq!(shells.intersection(&now).count(), 1);
    let survivor = eventually("the survivor sees the change", async || {
        let pods = site.kubectl.pods("app=web");
        let survivor = pods.iter().find(|pod| before.contains(&text(pod, "/metadata/uid")))?;
        let uid = text(survivor, "/metadata/uid");
        let folder: PathBuf = site.node.folder.join("edge/pods").join(&uid).join("volumes");
        let found = Command::new("grep")
            .args(["-r", "changed"])
            .arg(folder)
            .output()
            .unwrap();
        found.status.success().then_some(uid)
    })
    .await;
    assert!(before.contains(&survivor));
    site.finish().await;
}

#[tokio::test]
async fn containerd_main_job_survives_a_restored_cloud() {
    let mut site = Site::start("restored").await;
    site.deploy(2);
    let uids = site.ready(2).await;
    let shells = site.running(2).await;
    let backup = site.node.folder.join("backup.db");
    site.cloud.command(&["backup", &backup.display().to_string()]);
    // Later than the back-up: it is lost with the restore.
    site.kubectl.run(&["scale", "deployment", "web", "--replicas=3"]);
    site.ready(3).await;
    site.cloud.kill();
    for file in ["cloud.db", "cloud.db-wal", "cloud.db-shm"] {
        let _ = std::fs::remove_file(site.cloud.folder.join(file));
    }
    std::fs::copy(&backup, site.cloud.folder.join("cloud.db")).unwrap();
    site.cloud.start_again().await;
    site.connected().await;
    assert_eq!(site.ready(2).await, uids);
    assert_eq!(site.running(2).await, shells);
    assert_eq!(site.restarts(), 0);
    // Later changes apply.
    site.kubectl.run(&["scale", "deployment", "web", "--replicas=1"]);
    site.ready(1).await;
    site.running(1).await;
    site.finish().await;
}

#[tokio::test]
async fn containerd_main_job_survives_reboots_without_a_link() {
    own_mounts();
    let mut site = Site::start("reboots").await;
    site.deploy(2);
    site.ready(2).await;
    site.running(2).await;
    site.cloud.kill();
    for boot in 1..=20 {
        site.edge.kill();
        site.node.kill_daemon();
        site.node.reboot();
        new_boot_id(&site.node.folder, boot);
        site.node.start_daemon();
        site.node.answers().await;
        site.edge.start();
        site.running(2).await;
    }
    site.cloud.start_again().await;
    site.connected().await;
    site.ready(2).await;
    // A reboot is no crash of a container: the count tells how often each was started anew, not 20 of a crash loop's.
    eventually("the cloud knows of the restarts", async || {
        (site.restarts() == 40).then_some(())
    })
    .await;
    site.finish().await;
}

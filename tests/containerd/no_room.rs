//! Full disks, as real small file systems: of the node's data, of its logs, of its images and containers.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tests::cores::{EdgeCore, eventually, program};

use super::host::{fill, kill};
use super::node::{Node, On, archive, on_both, on_both_in_full};
use super::registry::Registry;
use super::site::{Site, text};

on_both!(
    a_full_log_folder_costs_lines_and_stops_nothing,
    says_that_a_pull_found_no_room_and_pulls_when_there_is,
    says_that_a_container_found_no_room_and_makes_it_when_there_is,
);
on_both_in_full!(
    runs_on_over_a_full_data_folder_and_loses_nothing,
    starts_pods_from_a_store_on_a_full_disk,
);

/// How long it takes at most until a node notices by itself what nothing tells of, or asks again for what it had no room
/// for: a minute, and what the tests' machine needs.
const BY_ITSELF: Duration = Duration::from_secs(100);

/// A joined node whose data folder is a file system of its own, smaller than a write-ahead log gets before it is folded in
/// and used again: what is full stays full.
async fn cramped(on: On, name: &str) -> (Site, PathBuf) {
    // The others have room, however full the machine's disk is.
    let smalls = vec![
        ("edge", "size=4m,mode=0700"),
        ("plogs", "size=16m"),
        (Node::keeps(on), "size=64m"),
    ];
    let node = Node::small_of(on, name, smalls).await;
    let data = node.folder.join("edge");
    (Site::joined(node.with_image().await).await, data)
}

/// Like [`eventually`], for what takes up to a minute by design.
async fn by_itself<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let waited = tokio::time::timeout(BY_ITSELF, async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("still not so: {what}"))
}

fn bound(site: &Site) -> usize {
    let pods = site.kubectl.pods("app=web");
    pods.iter()
        .filter(|pod| text(pod, "/spec/nodeName") == "edge-1")
        .count()
}

fn is_full(site: &Site) -> bool {
    site.edge.status()["diskFull"] == true
}

/// Ends the edge core in good order.
async fn stop(edge: &mut EdgeCore) {
    let pid = edge.pid();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
    eventually("the edge core ends", async || {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (state.is_empty() || state.contains(") Z ")).then_some(())
    })
    .await;
    edge.kill();
}

async fn runs_on_over_a_full_data_folder_and_loses_nothing(on: On) {
    let (mut site, data) = Box::pin(cramped(on, "full")).await;
    site.edge.start();
    site.deploy(2);
    let uids = site.ready(2).await;
    let before = site.running(2).await;

    let filler = fill(&data);
    // What happens here is done and reported, durable or not.
    kill(*before.first().unwrap());
    let shells = eventually("the container is back", async || {
        let now = site.shells();
        (now.len() == 2 && now != before).then_some(now)
    })
    .await;
    assert_eq!(shells.intersection(&before).count(), 1, "the other one runs on");
    let message = site.node_says("DiskPressure", "True", "DiskFull").await;
    for part in ["no room", "0 bytes of 4096 KiB", data.to_str().unwrap()] {
        assert!(message.contains(part), "{part}: {message}");
    }
    eventually("the cloud counts the restart", async || {
        (site.restarts() == 1).then_some(())
    })
    .await;
    let status = site.edge.command(&["status"]);
    assert!(status.contains("DiskPressure, DiskFull"), "{status}");

    // What the cloud wants is not taken, and so not acknowledged.
    let revision = site.edge.status()["revision"].clone();
    site.kubectl.run(&["scale", "deployment", "web", "--replicas=3"]);
    eventually("the third pod is bound", async || (bound(&site) == 3).then_some(())).await;
    kill(*shells.last().unwrap());
    eventually("the cloud counts another restart", async || {
        (site.restarts() == 2).then_some(())
    })
    .await;
    assert_eq!(site.edge.status()["revision"], revision);
    let shells = site.running(2).await;
    assert!(site.edge_lives());

    // Killed and started again where there is no room: it takes over what runs.
    site.edge.kill();
    site.edge.start();
    site.connected().await;
    assert_eq!(site.shells(), shells);
    eventually("the new one says it, too", async || is_full(&site).then_some(())).await;
    assert!(site.edge_lives());

    std::fs::remove_file(filler).unwrap();
    by_itself("the third pod runs", async || (site.shells().len() == 3).then_some(())).await;
    let after = site.ready(3).await;
    assert!(uids.is_subset(&after));
    assert!(shells.is_subset(&site.shells()), "nothing was restarted for it");
    site.node_says("DiskPressure", "False", "EdgeHasNoDiskPressure").await;
    assert!(!is_full(&site));
    assert_eq!(site.restarts(), 2);
    site.finish().await;
}

async fn starts_pods_from_a_store_on_a_full_disk(on: On) {
    let (mut site, data) = Box::pin(cramped(on, "fullstart")).await;
    // Full before there is a store: it waits for room, and does not end.
    let filler = fill(&data);
    site.edge.start();
    let log = site.node.folder.join("edgecore.log");
    let waits = async || {
        std::fs::read_to_string(&log)
            .ok()?
            .contains("waiting for room")
            .then_some(())
    };
    eventually("it waits for room", waits).await;
    assert!(site.edge_lives());
    std::fs::remove_file(&filler).unwrap();
    site.deploy(2);
    site.ready(2).await;
    let before = site.running(2).await;

    // Stopped in good order, which leaves no log and no index behind, it comes back with no link and no room for one.
    site.cloud.kill();
    stop(&mut site.edge).await;
    assert!(!data.join("node.db-wal").exists() && !data.join("node.db-shm").exists());
    let filler = fill(&data);
    for shell in &before {
        kill(*shell);
    }
    eventually("they have ended", async || {
        site.shells().is_disjoint(&before).then_some(())
    })
    .await;
    site.edge.start();
    let shells = site.running(2).await;
    assert!(shells.is_disjoint(&before) && site.edge_lives());

    // The link comes back before the room does.
    site.cloud.start_again().await;
    site.connected().await;
    eventually("the cloud counts both", async || (site.restarts() == 2).then_some(())).await;
    site.node_says("DiskPressure", "True", "DiskFull").await;
    std::fs::remove_file(filler).unwrap();
    // The next thing that happens is written, and all that waited with it.
    kill(*shells.first().unwrap());
    eventually("the cloud counts the third", async || {
        (site.restarts() == 3).then_some(())
    })
    .await;
    site.node_says("DiskPressure", "False", "EdgeHasNoDiskPressure").await;
    let shells = site.running(2).await;
    site.edge.kill();
    site.edge.start();
    site.connected().await;
    site.ready(2).await;
    assert_eq!((site.shells(), site.restarts()), (shells, 3));
    site.finish().await;
}

async fn a_full_log_folder_costs_lines_and_stops_nothing(on: On) {
    let node = Node::small_of(on, "fulllogs", vec![("plogs", "size=4m,nr_inodes=64")]).await;
    let logs = node.folder.join("plogs");
    let mut site = Site::joined(node.with_image().await).await;
    site.edge.start();
    // Longer than what the file's last page may have left.
    let teller = "pad=$(printf %05000d); while true; do echo line $pad; sleep 0.2; done";
    site.script("teller", "Always", teller);
    let shell = site.process("echo line").await;
    eventually("it is heard", async || {
        (site.logged("teller", 0).len() > 3).then_some(())
    })
    .await;

    let filler = fill(&logs);
    // No room for a file more, either.
    let files = use_up_inodes(&logs);
    // A pod that is new has no place for its log at all.
    site.script("late", "Always", "while :; do echo heard; sleep 0.05; done");
    site.pod("late", "it runs", |pod| text(pod, "/status/phase") == "Running")
        .await;
    assert_eq!(site.logged("late", 0), Vec::<String>::new());
    let message = by_itself("the node says it", async || {
        let node = site.kubectl.json(&["node", "edge-1"])?;
        let conditions = node.pointer("/status/conditions")?.as_array()?;
        let pressure = conditions
            .iter()
            .find(|condition| condition["type"] == "DiskPressure")?;
        (pressure["status"] == "True").then(|| text(pressure, "/message"))
    })
    .await;
    assert!(
        message.contains(&*logs.to_string_lossy()) && message.contains("inodes"),
        "{message}"
    );

    for file in files.into_iter().chain([filler]) {
        std::fs::remove_file(file).unwrap();
    }
    eventually("lost lines are counted", async || {
        let lines = site.logged("teller", 0);
        lines
            .iter()
            .any(|line| line.contains("log lines found no room"))
            .then_some(())
    })
    .await;
    eventually("the new pod is heard", async || {
        site.logged("late", 0)
            .iter()
            .any(|line| line == "stdout F heard")
            .then_some(())
    })
    .await;
    assert_eq!(site.process("echo line").await, shell);
    assert_eq!(site.restarts(), 0);
    site.finish().await;
}

/// What a pod's container waits for, as the cloud has it.
fn waits(pod: &serde_json::Value) -> (String, String) {
    let of = |field: &str| text(pod, &format!("/status/containerStatuses/0/state/waiting/{field}"));
    (of("reason"), of("message"))
}

async fn says_that_a_pull_found_no_room_and_pulls_when_there_is(on: On) {
    let node = Node::small_of(on, "fullpull", vec![(Node::keeps(on), "size=48m")]).await;
    let root = node.folder.join(Node::keeps(on));
    let mut site = Site::joined(node).await;
    site.edge.start();
    let registry = Registry::start();
    registry.push(&archive("web"), "team/web", "1", |_| {});
    let filler = fill(&root);
    let script = "while true; do sleep 1; done";
    let pod = |image: &str| {
        site.kubectl.apply(&format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: pulled, labels: {{app: web}}}}
spec:
  nodeName: edge-1
  terminationGracePeriodSeconds: 1
  containers: [{{name: c, image: {image}, command: [/bin/sh, -c, '{script}']}}]
"
        ));
    };
    pod(&format!("{}/team/web:1", registry.host));
    let no_room = |pod: &serde_json::Value| {
        let (reason, message) = waits(pod);
        ["ErrImagePull", "ImagePullBackOff"].contains(&&*reason) && says_full(&message)
    };
    site.pod("pulled", "it says why", no_room).await;
    std::fs::remove_file(filler).unwrap();
    // After the back-off, which is 10 s and then 20 s.
    site.pod("pulled", "it runs", |pod| text(pod, "/status/phase") == "Running")
        .await;
    assert_eq!(site.running(1).await.len(), 1);
    site.finish().await;
}

fn says_full(message: &str) -> bool {
    message.contains("disk is full") || message.contains("no space left on device")
}

async fn says_that_a_container_found_no_room_and_makes_it_when_there_is(on: On) {
    let node = Node::small_of(on, "fullmake", vec![(Node::keeps(on), "size=48m,nr_inodes=2000")]).await;
    let root = node.folder.join(Node::keeps(on));
    let mut site = Site::joined(node.with_image().await).await;
    site.edge.start();
    site.script("first", "Always", "while true; do sleep 1; done");
    let first = site.running(1).await;
    let filler = fill(&root);
    let files = use_up_inodes(&root);
    site.script("second", "Always", "while true; do sleep 1; done");
    let pod = site
        .pod("second", "it says why", |pod| waits(pod).0 == "CreateContainerError")
        .await;
    assert!(says_full(&waits(&pod).1), "{pod}");
    assert_eq!(site.shells(), first, "what runs runs on");
    for file in files.into_iter().chain([filler]) {
        std::fs::remove_file(file).unwrap();
    }
    site.pod("second", "it runs", |pod| text(pod, "/status/phase") == "Running")
        .await;
    assert!(first.is_subset(&site.running(2).await));
    site.finish().await;
}

/// Makes files until there can be no more.
fn use_up_inodes(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    loop {
        let path = folder.join(format!("file.{}", files.len()));
        match std::fs::File::create(&path) {
            Ok(_) => files.push(path),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
                return files;
            }
        }
    }
}

#[tokio::test]
async fn a_log_that_finds_no_room_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("edgecore.toml");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = format!(
        "data = {:?}\nlogs = {:?}\nrun = {:?}\nruntime = \"fake\"\nlog = \"trace\"\n",
        path("data"),
        path("logs"),
        path("run"),
    );
    std::fs::write(&config, text).unwrap();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let edgecore = |word: &str| {
        let mut command = Command::new(program("edgecore"));
        command.arg("--config").arg(&config).arg(word);
        command
    };
    let mut edge = edgecore("run")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(full)
        .spawn()
        .unwrap();
    eventually("it answers", async || {
        let ended = edge.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}");
        let status = edgecore("status").output().unwrap();
        String::from_utf8_lossy(&status.stdout)
            .contains("edge core  running")
            .then_some(())
    })
    .await;
    edge.kill().unwrap();
    edge.wait().unwrap();
}

//! Each target's edge core checks, joins, runs a pod that the cloud sees, and ends when asked to; its store is good on a
//! machine of another kind; and a task of it that dies is named.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tests::cores::{CloudCore, EdgeCore, Kubectl, eventually, program};
use tests::processes::{cross_built, repository};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {nodeName: node, containers: [{name: c, image: 'x:1'}]}
";

#[tokio::test]
async fn aarch64() {
    runs("aarch64-unknown-linux-musl", "arm64").await;
}

#[tokio::test]
async fn armv7() {
    runs("armv7-unknown-linux-musleabihf", "arm").await;
}

#[tokio::test]
#[ignore = "scripts/test --full builds for it"]
async fn armv6() {
    runs("arm-unknown-linux-musleabihf", "arm").await;
}

#[tokio::test]
#[ignore = "scripts/test --full builds for it"]
async fn riscv64() {
    runs("riscv64gc-unknown-linux-musl", "riscv64").await;
}

#[tokio::test]
#[ignore = "scripts/test --full builds for it"]
async fn x86_64() {
    runs("x86_64-unknown-linux-musl", "amd64").await;
}

async fn runs(target: &str, architecture: &str) {
    let emulator = emulator(target);
    let folder = tempfile::tempdir().unwrap();
    let mut cloud = CloudCore::start(&folder.path().join("c")).await;
    let kubectl = cloud.kubectl();
    let config = configuration(folder.path());
    let built = cross_built(target);
    let foreign = [emulator.clone(), vec![built.clone().into()]].concat();

    let mut edge = EdgeCore::join_with(&cloud, "node", &config, foreign.clone());
    checks(&edge);
    edge.start();
    ready(&kubectl).await;
    let node = kubectl.json(&["node", "node"]).unwrap();
    assert_eq!(node["status"]["nodeInfo"]["architecture"], architecture);
    kubectl.apply(POD);
    runs_at_the_api(&kubectl).await;
    edge.stop().await;

    // The card of one machine is put into one of another kind, which makes changes of its own.
    let uid = pod(&kubectl)["metadata"]["uid"].clone();
    edge.becomes(vec![program("edgecore").into()]);
    edge.start();
    kubectl.apply(&POD.replace("name: web", "name: second"));
    settled(&edge, &["second", "web"]).await;
    edge.stop().await;

    // And back, where there is no cloud: what is in the store is all there is to go by.
    cloud.stop().await;
    edge.becomes(foreign);
    edge.start();
    settled(&edge, &["second", "web"]).await;
    cloud.start_again().await;
    ready(&kubectl).await;
    assert_eq!(pod(&kubectl)["metadata"]["uid"], uid);
    edge.stop().await;
    a_dead_task_is_named(folder.path(), edge, &built, &emulator).await;
}

/// A task of it panics, and it ends with a code and with the task's name: panics unwind in what is shipped, on every kind
/// of machine, and without a door made for this.
///
/// What panics is tokio, where the kernel grants no thread for what blocks: the task that looks for what is left of pods
/// needs the first one, and there may be no more than the two there are by then. Root may have as many as it likes, so it
/// runs as a user who may not.
async fn a_dead_task_is_named(folder: &Path, mut edge: EdgeCore, built: &Path, emulator: &[OsString]) {
    const USER: &str = "61000";
    // Its own, the store's, and one of the emulator.
    let threads = 2 + emulator.len().min(1);
    // What builds may lie where that user cannot look.
    let copy = folder.join("edgecore");
    fs::copy(built, &copy).unwrap();
    let owned = Command::new("chown").args(["-R", USER]).arg(folder).status().unwrap();
    assert!(owned.success(), "chown needs root");
    let limited = format!("--reuid {USER} --regid {USER} --clear-groups prlimit --nproc={threads}");
    let words = ["setpriv"].into_iter().chain(limited.split(' ')).map(OsString::from);
    edge.becomes([words.collect(), emulator.to_vec(), vec![copy.into()]].concat());
    edge.start();
    let (ended, said) = edge.ends().await;
    let last = said.lines().last().unwrap_or_default();
    assert_eq!(ended.code(), Some(1), "{said}");
    assert!(last.starts_with("edgecore: pods: task "), "{said}");
    assert!(
        last.contains("panicked with message \"OS can't spawn worker thread"),
        "{said}"
    );
}

/// The command that runs a target's programs here; nothing where they run by themselves.
fn emulator(target: &str) -> Vec<OsString> {
    let emulator = Command::new(repository().join("scripts/emulator"))
        .arg(target)
        .output()
        .unwrap();
    assert!(
        emulator.status.success(),
        "{}",
        String::from_utf8_lossy(&emulator.stderr)
    );
    let emulator = String::from_utf8(emulator.stdout).unwrap();
    emulator.split_whitespace().map(OsString::from).collect()
}

fn configuration(folder: &Path) -> PathBuf {
    let config = folder.join("node.toml");
    let path = |name: &str| folder.join(name);
    let (data, logs, run) = (path("node"), path("logs"), path("run"));
    let text = format!(
        "data = {data:?}\nlogs = {logs:?}\nrun = {run:?}\nruntime = \"fake\"\nlog = \"debug\"\n[link]\nbeat_s = 2\n"
    );
    fs::write(&config, text).unwrap();
    config
}

/// Nothing is missing, but what the user who tests may lack.
fn checks(edge: &EdgeCore) {
    let said = edge.prepared().arg("check").output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
    for part in ["data         ", "joined       as node", "answers over UDP"] {
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
    let missing: Vec<_> = said
        .lines()
        .filter(|line| line.starts_with("MISSING") && !line.contains("root"))
        .collect();
    assert!(missing.is_empty(), "{said}");
}

async fn ready(kubectl: &Kubectl) {
    eventually("the node is Ready", async || {
        let node = kubectl.json(&["node", "node"])?;
        let conditions = node["status"]["conditions"].as_array()?;
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
        (ready["status"] == "True").then_some(())
    })
    .await;
}

fn pod(kubectl: &Kubectl) -> Value {
    kubectl.json(&["pod", "web"]).expect("the pod is there")
}

async fn runs_at_the_api(kubectl: &Kubectl) {
    eventually("the cloud sees the pod run", async || {
        let status = &pod(kubectl)["status"];
        (status["phase"] == "Running" && status["containerStatuses"][0]["ready"] == true).then_some(())
    })
    .await;
}

/// Waits until the node has these pods, and all of them run. The fake runtime forgets them when it ends.
async fn settled(edge: &EdgeCore, wanted: &[&str]) {
    eventually(&format!("{wanted:?} run on the node"), async || {
        let status = edge.status();
        let mut pods: Vec<_> = status["pods"].as_array()?.iter().collect();
        pods.sort_by_key(|pod| pod["name"].as_str());
        let well = |pod: &&Value| pod["phase"] == "Running" && pod["ready"] == "1/1";
        let names: Vec<_> = pods.iter().filter_map(|pod| pod["name"].as_str()).collect();
        (status["running"] == true && names == wanted && pods.iter().all(well)).then_some(())
    })
    .await;
}

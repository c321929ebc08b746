//! A cloud core here, and a node on an emulated machine that reaches it over a network of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use tests::cores::{CloudCore, Kubectl};
use tests::machine::{Board, HOST, Machine, eventually};
use tests::processes::{executed, parent_in};

pub(crate) const NODE: &str = "edge-1";
pub(crate) const WEB: &str = "images.edgehold.dev/web:1";
pub(crate) const RUNTIME: &str = "embedded";
const CONFIG: &str = "/etc/edgehold/edgecore.toml";
pub(crate) const ARCHIVE: &str = "/usr/share/edgehold/web.tar";
pub(crate) const DATA: &str = "/var/lib/edgehold/edge";

pub(crate) struct Site {
    pub(crate) cloud: CloudCore,
    pub(crate) kubectl: Kubectl,
    pub(crate) machine: Machine,
    folder: TempDir,
}

impl Site {
    /// A machine that has joined, and whose edge core runs since it booted.
    pub(crate) async fn start(board: Board, name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("edgecore.toml");
        // A silent link is noticed after a few beats: short ones, so that the tests are.
        std::fs::write(&config, format!("runtime = \"{RUNTIME}\"\n[link]\nbeat_s = 5\n")).unwrap();
        let (edgecore, archive) = (board.edgecore(), archive(board));
        let machine = Machine::start(
            board,
            name,
            &[(&edgecore, "/usr/bin/edgecore"), (&config, CONFIG), (&archive, ARCHIVE)],
        );
        Self::join(machine, folder).await
    }

    /// A machine that `images/disk` made the disk of, joined.
    pub(crate) async fn of_image(board: Board, name: &str, image: &Path) -> Self {
        let machine = Machine::of_image(board, name, image);
        machine.put(&archive(board), ARCHIVE);
        Self::join(machine, tempfile::tempdir().unwrap()).await
    }

    async fn join(machine: Machine, folder: TempDir) -> Self {
        let cloud = CloudCore::start_behind(&folder.path().join("c"), HOST).await;
        let site = Self { kubectl: cloud.kubectl(), cloud, machine, folder };
        site.machine.write(&site.cloud.token(NODE), "/run/token");
        let joined = site.edgecore(&format!(
            "join https://{HOST}:{} --token-file /run/token",
            site.cloud.api
        ));
        assert!(joined.contains(NODE), "{joined}");
        let imported = site.edgecore(&format!("image import {ARCHIVE}"));
        assert_eq!(imported, WEB);
        site.ready("True").await;
        site
    }

    /// Runs `edgecore` on the machine, and returns what it says.
    fn edgecore(&self, words: &str) -> String {
        self.machine.ok(&format!("edgecore --config {CONFIG} {words}"))
    }

    /// A path for this test's own files.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Waits until the node's Ready condition has this status, as the cloud has it.
    pub(crate) async fn ready(&self, status: &str) {
        eventually(&format!("{NODE} is Ready: {status}"), async || {
            let node = self.kubectl.json(&["node", NODE])?;
            let conditions = node["status"]["conditions"].as_array()?;
            let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
            (ready["status"] == status).then_some(())
        })
        .await;
    }

    /// What `edgecore status` says on the machine; nothing while it does not answer.
    pub(crate) fn status(&self) -> Option<Value> {
        let said = self.machine.exec(&format!("edgecore --config {CONFIG} status --json"));
        serde_json::from_slice(&said.stdout).ok()
    }

    /// Waits until the machine says of itself what is wanted.
    pub(crate) async fn says(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("the node says: {what}"), async || {
            self.status().filter(&wanted)
        })
        .await
    }

    /// Waits until the node and the cloud have the same pods, nothing waits to be said, and all is as wanted.
    pub(crate) async fn settles(&self, what: &str, wanted: impl Fn(&[Line]) -> bool) -> Vec<Line> {
        eventually(&format!("node and cloud agree on {what}"), async || {
            let status = self.status()?;
            let settled = status["connected"] == true && status["pending"] == 0;
            let (here, there) = (lines(&status), self.shown()?);
            (settled && here == there && wanted(&here)).then_some(here)
        })
        .await
    }

    /// Waits until one process on the machine has this in an argument, and no other; returns its id.
    pub(crate) async fn process(&self, mark: &str) -> u32 {
        eventually(&format!("one process with {mark:?}"), async || {
            let found = self.processes(mark);
            found.first().copied().filter(|_| found.len() == 1)
        })
        .await
    }

    /// The processes on the machine that have this in an argument.
    pub(crate) fn processes(&self, mark: &str) -> BTreeSet<u32> {
        // The first letter in brackets: what looks for it is not to find itself.
        let (first, rest) = mark.split_at(1);
        let found = self.machine.exec(&format!(
            "grep -ls '[{first}]{rest}' /proc/[0-9]*/cmdline | sed s/cmdline/status/ | xargs -r grep -Hs PPid:"
        ));
        // /proc/12/status:PPid: 1
        let lines = String::from_utf8_lossy(&found.stdout).into_owned();
        let parents: BTreeMap<u32, u32> = lines
            .lines()
            .filter_map(|line| {
                let (path, status) = line.split_once(':')?;
                Some((path.split('/').nth(2)?.parse().ok()?, parent_in(status)?))
            })
            .collect();
        executed(parents.keys().copied(), |pid| parents.get(&pid).copied())
    }

    /// A pod as the cloud has it.
    pub(crate) fn pod(&self, name: &str) -> Value {
        self.kubectl.json(&["pod", name]).unwrap_or_default()
    }

    /// Waits until a pod's only container is as wanted.
    pub(crate) async fn container<T>(&self, pod: &str, what: &str, wanted: impl Fn(&Value) -> Option<T>) -> T {
        eventually(&format!("{pod} {what}"), async || {
            wanted(self.pod(pod).pointer("/status/containerStatuses/0")?)
        })
        .await
    }

    /// Waits for its end: why, and with which code.
    pub(crate) async fn ended(&self, pod: &str) -> (String, i64) {
        let terminated = |container: &Value| {
            let state = container.pointer("/state/terminated")?;
            Some((text(&state["reason"]), state["exitCode"].as_i64()?))
        };
        self.container(pod, "has ended", terminated).await
    }

    /// Makes a pod of one shell script, bound to the node whatever its conditions are.
    pub(crate) fn run(&self, name: &str, policy: &str, script: &str) {
        self.kubectl.apply(&format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeName: {NODE}
  restartPolicy: {policy}
  terminationGracePeriodSeconds: 1
  containers: [{{name: c, image: '{WEB}', command: [/bin/sh, -c, '{script}']}}]
"
        ));
    }

    /// The node's pods as the cloud has them.
    fn shown(&self) -> Option<Vec<Line>> {
        let list = self
            .kubectl
            .json(&["pods", "--field-selector", &format!("spec.nodeName={NODE}")])?;
        let mut lines: Vec<_> = list["items"].as_array()?.iter().map(Line::of_cloud).collect();
        lines.sort();
        Some(lines)
    }

    /// Takes what the store was made of out of the machine, and judges it as SQLite does.
    pub(crate) fn store_is_whole(&self, folder: &str) {
        let here = self.path("after-cut");
        std::fs::create_dir_all(&here).unwrap();
        for name in ["node.db", "node.db-wal"] {
            let to = here.join(name);
            if self.machine.exec(&format!("[ -e {folder}/{name} ]")).status.success() {
                self.machine.fetch(&format!("{folder}/{name}"), &to);
            } else {
                let _ = std::fs::remove_file(&to);
            }
        }
        assert_eq!(integrity(&here.join("node.db")), "ok");
        std::fs::remove_dir_all(&here).unwrap();
    }
}

impl Drop for Site {
    /// What a failed test leaves to be read: how the node and the cloud see it.
    #[expect(clippy::print_stderr, reason = "for whoever looks into the failure")]
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let said = self.machine.exec(&format!(
            "edgecore --config {CONFIG} status; ps | grep -v ']$'; df; free; cat /proc/loadavg"
        ));
        let printed = [said.stdout, said.stderr].concat();
        eprintln!("the node, as it sees itself:\n{}", String::from_utf8_lossy(&printed));
        let seen = self.kubectl.output(&["get", "nodes,pods", "-o", "wide"]);
        let printed = [seen.stdout, seen.stderr].concat();
        eprintln!("the cloud, as kubectl sees it:\n{}", String::from_utf8_lossy(&printed));
        eprintln!("the last of its log:\n{}", self.cloud.last_words());
    }
}

/// The image [`WEB`] for a machine.
fn archive(board: Board) -> PathBuf {
    tests::ship::archive(Path::new(env!("CARGO_TARGET_TMPDIR")), "web", board.arch())
}

fn integrity(database: &Path) -> String {
    let output = Command::new("sqlite3")
        .arg(database)
        .arg("PRAGMA integrity_check")
        .output()
        .unwrap();
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
    .trim()
    .to_owned()
}

/// A pod as the node or the cloud shows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) phase: String,
    pub(crate) restarts: i64,
}

impl Line {
    fn of_cloud(pod: &Value) -> Self {
        let containers = pod["status"]["containerStatuses"].as_array();
        let restarts = containers.map(|all| all.iter().filter_map(|one| one["restartCount"].as_i64()).sum());
        Self {
            name: text(&pod["metadata"]["name"]),
            phase: text(&pod["status"]["phase"]),
            restarts: restarts.unwrap_or_default(),
        }
    }
}

/// The pods of a node's own status.
pub(crate) fn lines(status: &Value) -> Vec<Line> {
    let pods = status["pods"].as_array().cloned().unwrap_or_default();
    let mut lines: Vec<_> = pods
        .iter()
        .map(|pod| Line {
            name: text(&pod["name"]),
            phase: text(&pod["phase"]),
            restarts: pod["restarts"].as_i64().unwrap_or_default(),
        })
        .collect();
    lines.sort();
    lines
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// So many pods, and all run.
pub(crate) fn all_run(count: usize) -> impl Fn(&[Line]) -> bool {
    move |lines| lines.len() == count && lines.iter().all(|line| line.phase == "Running")
}

/// A shell that does nothing until it is asked to end.
pub(crate) const FOREVER: &str = "trap \"exit 0\" TERM; while true; do sleep 1; done";

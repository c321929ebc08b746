//! A cloud core and its nodes as processes, whose pods run nothing: what tests of links, strangers and old copies share.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use tests::cores::{CloudCore, EdgeCore, Kubectl, eventually, program};
use tests::network::Host;

/// A cloud core, and a folder for all that belongs to the site.
pub(super) struct Site {
    pub(super) cloud: CloudCore,
    pub(super) kubectl: Kubectl,
    pub(super) folder: TempDir,
}

impl Site {
    pub(super) async fn start_at(host: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cloud = CloudCore::start_at(&folder.path().join("c"), host).await;
        Self { kubectl: cloud.kubectl(), cloud, folder }
    }

    pub(super) async fn start() -> Self {
        Self::start_at("127.0.0.1").await
    }

    /// What the cloud core logged.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.cloud.folder.with_extension("log")).unwrap()
    }

    /// How often a session of this node came up.
    pub(super) fn sessions(&self, node: &str) -> usize {
        let log = self.log();
        let lines = log
            .lines()
            .filter(|line| line.contains("session up") && line.contains(node));
        lines.count()
    }

    /// The status of a node's Ready condition.
    pub(super) fn ready(&self, node: &str) -> String {
        self.ready_condition(node)
            .map_or_else(String::new, |ready| text(&ready["status"]))
    }

    pub(super) fn ready_condition(&self, node: &str) -> Option<Value> {
        let node = self.kubectl.json(&["node", node])?;
        let conditions = node["status"]["conditions"].as_array()?;
        conditions
            .iter()
            .find(|condition| condition["type"] == "Ready")
            .cloned()
    }

    /// Runs `edgectl`, and returns what it prints.
    pub(super) fn edgectl(&self, args: &[&str]) -> String {
        let output = Command::new(program("edgectl"))
            .arg("--kubeconfig")
            .arg(self.cloud.folder.join("admin.kubeconfig"))
            .args(args)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "edgectl {args:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Makes a pod that is bound to a node.
    pub(super) fn run(&self, node: &str, pod: &str) {
        self.kubectl.apply(&format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {pod}}}
spec: {{nodeName: {node}, terminationGracePeriodSeconds: 1, containers: [{{name: c, image: 'x:1'}}]}}
"
        ));
    }

    pub(super) async fn is_ready(&self, node: &str, status: &str) {
        let what = format!("{node} is Ready: {status}");
        eventually(&what, async || (self.ready(node) == status).then_some(())).await;
    }

    /// The pods bound to a node as the cloud has them, by name.
    pub(super) fn pods(&self, node: &str) -> BTreeMap<String, Value> {
        let pods = self.kubectl.json(&["pods", "-A"]).unwrap_or_default();
        let pods = pods["items"].as_array().cloned().unwrap_or_default().into_iter();
        pods.filter(|pod| pod["spec"]["nodeName"] == node)
            .map(|pod| (text(&pod["metadata"]["name"]), pod))
            .collect()
    }

    /// The uids of a node's pods, by name.
    pub(super) fn uids(&self, node: &str) -> BTreeMap<String, String> {
        let pods = self.pods(node).into_iter();
        pods.map(|(name, pod)| (name, text(&pod["metadata"]["uid"]))).collect()
    }
}

impl Drop for Site {
    /// What a failed test leaves is kept: logs and stores.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.folder.disable_cleanup(true);
            eprintln!("what there was is kept in {}", self.folder.path().display());
        }
    }
}

/// An edge core whose pods run nothing, on a host of its own or on this one.
pub(super) struct Node {
    pub(super) name: String,
    pub(super) edge: EdgeCore,
    pub(super) data: PathBuf,
    pub(super) host: Option<Host>,
}

impl Node {
    /// Joins, and does not start yet. `link` is lines of the configuration's part of that name.
    pub(super) fn join(site: &Site, name: &str, host: Option<Host>, link: &str) -> Self {
        let (config, data) = configuration(site.folder.path(), name, link);
        let edge = on(host.as_ref(), || EdgeCore::join(&site.cloud, name, &config));
        Self { name: name.to_owned(), edge, data, host }
    }

    pub(super) async fn start(site: &Site, name: &str, link: &str) -> Self {
        let mut node = Self::join(site, name, None, link);
        node.go();
        site.is_ready(name, "True").await;
        node
    }

    pub(super) fn go(&mut self) {
        on(self.host.as_ref(), || self.edge.start());
    }

    /// Joins with a new key in the place of the one that was revoked.
    pub(super) fn join_again(&self, site: &Site) {
        let token = self.edge.config.with_extension("token");
        let made = site.cloud.command(&["token", "create", "--replace", &self.name]);
        fs::write(&token, made).unwrap();
        let url = format!("https://127.0.0.1:{}", site.cloud.api);
        let joined = self
            .edge
            .command(&["join", &url, "--token-file", &token.display().to_string()]);
        assert!(joined.contains(&self.name), "{joined}");
    }

    pub(super) fn host(&self) -> &Host {
        self.host.as_ref().expect("the node has a host of its own")
    }

    /// Waits until `edgecore status` says something.
    pub(super) async fn says(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{}: {what}", self.name), async || {
            Some(self.edge.status()).filter(&wanted)
        })
        .await
    }

    /// What the edge core logged.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.edge.config.with_extension("log")).unwrap()
    }

    /// The pods as the node has them.
    pub(super) fn pods(&self) -> BTreeSet<Line> {
        let status = self.edge.status();
        let pods = status["pods"].as_array().cloned().unwrap_or_default();
        let line = |pod: &Value| Line {
            name: text(&pod["name"]),
            phase: text(&pod["phase"]),
            ready: text(&pod["ready"]),
            restarts: pod["restarts"].as_i64().unwrap(),
        };
        pods.iter().map(line).collect()
    }

    /// Waits until the node and the cloud have the same pods, which are as wanted, and nothing is left to say.
    pub(super) async fn settles(&self, site: &Site, what: &str, wanted: impl Fn(&BTreeSet<Line>) -> bool) {
        eventually(&format!("{} and the cloud have {what}", self.name), async || {
            let shown: BTreeSet<_> = site.pods(&self.name).values().map(Line::of).collect();
            let status = self.edge.status();
            let settled = status["connected"] == true && status["pending"] == 0;
            (settled && wanted(&shown) && self.pods() == shown).then_some(())
        })
        .await;
    }

    /// Waits until the node and the cloud have these pods, and all are well.
    pub(super) async fn runs(&self, site: &Site, pods: &[&str]) {
        let wanted: BTreeSet<_> = pods.iter().copied().collect();
        self.settles(site, &format!("{pods:?}"), |lines| {
            let names: BTreeSet<_> = lines.iter().map(|line| line.name.as_str()).collect();
            names == wanted && lines.iter().all(Line::is_well)
        })
        .await;
    }

    /// Waits until a file of a pod's volumes says this.
    pub(super) async fn file_says(&self, uid: &str, path: &str, wanted: &str) {
        let path = self.data.join("pods").join(uid).join("volumes").join(path);
        let read = async || fs::read_to_string(&path).is_ok_and(|text| text == wanted).then_some(());
        eventually(&format!("{} says {wanted:?}", path.display()), read).await;
    }
}

/// One pod, as both sides show it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) phase: String,
    pub(super) ready: String,
    pub(super) restarts: i64,
}

impl Line {
    /// Whether it runs, and all of it is ready.
    pub(super) fn is_well(&self) -> bool {
        self.phase == "Running" && self.ready == "1/1"
    }

    /// Of a pod as the API shows it.
    fn of(pod: &Value) -> Self {
        let containers = pod["status"]["containerStatuses"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let ready = containers.iter().filter(|container| container["ready"] == true).count();
        Self {
            name: text(&pod["metadata"]["name"]),
            phase: text(&pod["status"]["phase"]),
            ready: format!("{ready}/{}", containers.len()),
            restarts: containers
                .iter()
                .filter_map(|container| container["restartCount"].as_i64())
                .sum(),
        }
    }
}

/// An edge core's configuration in a folder, and its data folder.
pub(super) fn configuration(folder: &Path, name: &str, link: &str) -> (PathBuf, PathBuf) {
    let (config, data) = (folder.join(format!("{name}.toml")), folder.join(name));
    let (logs, run) = (folder.join(format!("{name}-logs")), folder.join(format!("{name}-run")));
    let text = format!(
        "data = {data:?}\nlogs = {logs:?}\nrun = {run:?}\nruntime = \"fake\"\nlog = \"debug\"\n[link]\n{link}\n"
    );
    fs::write(&config, text).unwrap();
    (config, data)
}

fn on<T: Send>(host: Option<&Host>, work: impl FnOnce() -> T + Send) -> T {
    match host {
        Some(host) => host.inside(work),
        None => work(),
    }
}

/// Copies a folder with all that is in it.
pub(super) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

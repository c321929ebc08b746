//! A user with a node in its home, and what tests ask of both.

use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;
use tests::cores::{CloudCore, EdgeCore, Kubectl, eventually, program};
use tests::processes::{executed, parent_in};

use crate::host::kill;
use crate::node::{WEB, archive, mark};
use crate::site::is_ready;

/// Nobody's numbers.
const UID_MIN: u32 = 61_000;
/// Tests of one run, and runs whose processes may be there at once.
const TESTS: u32 = 8;
const RUNS: u32 = 500;
/// Where the users of their containers are, a range for each.
const RANGES_MIN: u32 = 100_000_000;
pub(super) const RANGE_COUNT: u32 = 65_536;

/// A number that is this test's alone.
pub(super) fn uid(test: u32) -> u32 {
    static RUN: LazyLock<u32> = LazyLock::new(|| u32::from_str_radix(mark(), 16).unwrap() % RUNS);
    assert!(test < TESTS);
    UID_MIN + *RUN * TESTS + test
}

/// The first of its range.
pub(super) fn range(uid: u32) -> u32 {
    RANGES_MIN + (uid - UID_MIN) * RANGE_COUNT
}

/// A user with an edge core in its home, and a cloud.
pub(super) struct Home {
    pub(super) folder: PathBuf,
    pub(super) uid: u32,
    _cloud: CloudCore,
    pub(super) edge: EdgeCore,
    pub(super) kubectl: Kubectl,
}

/// What starts a program as a user.
pub(super) fn as_user(home: &Path, uid: u32) -> Vec<OsString> {
    let id = uid.to_string();
    let path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
    let home = format!("HOME={}", home.display());
    let words = [
        "setpriv",
        "--reuid",
        &id,
        "--regid",
        &id,
        "--clear-groups",
        "env",
        "-i",
        path,
        &home,
    ];
    words.into_iter().map(OsString::from).collect()
}

pub(super) fn done(words: &[&str]) {
    let status = Command::new(words[0]).args(&words[1..]).status();
    assert!(status.unwrap().success(), "{words:?}");
}

impl Home {
    /// A joined node with the image [`WEB`].
    pub(super) async fn new(name: &str, number: u32) -> Self {
        let uid = uid(number);
        let folder = std::env::temp_dir().join(format!("eh-{}-rl-{name}", mark()));
        let home = folder.join("home");
        std::fs::create_dir_all(&home).unwrap();
        for folder in [&folder, &home] {
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        // Where tests are built may be closed to others.
        let own = folder.join("edgecore");
        let built = program("edgecore");
        if std::fs::hard_link(&built, &own).is_err() {
            std::fs::copy(&built, &own).unwrap();
        }
        std::fs::copy(archive("web"), home.join("web.tar")).unwrap();
        let config = home.join("edge.toml");
        std::fs::write(&config, "log = \"debug\"\n").unwrap();
        chown(&home, Some(uid), Some(uid)).unwrap();
        let cloud = CloudCore::start(&folder.join("c")).await;
        let mut words = as_user(&home, uid);
        words.push(own.into());
        let token = home.join("edge.token");
        std::fs::write(&token, "").unwrap();
        let edge = EdgeCore::join_with(&cloud, "edge-1", &config, words);
        assert_eq!(
            edge.command(&["image", "import", &home.join("web.tar").display().to_string()]),
            WEB
        );
        let kubectl = cloud.kubectl();
        Self { folder, uid, _cloud: cloud, edge, kubectl }
    }

    pub(super) fn data(&self) -> PathBuf {
        self.folder.join("home/.local/share/edgehold")
    }

    /// Applies a pod of one shell script; `pod` and `container` are more of the two.
    pub(super) fn pod(&self, name: &str, script: &str, pod: &str, container: &str) {
        self.image_pod(name, WEB, script, pod, container);
    }

    pub(super) fn image_pod(&self, name: &str, image: &str, script: &str, pod: &str, container: &str) {
        self.kubectl.apply(&format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: web}}}}
spec:
  nodeName: edge-1
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
{pod}
  containers:
  - name: c
    image: {image}
    command: [/bin/sh, -c, {script:?}]
{container}
"
        ));
    }

    /// Brings in the image with files that are somebody's, and with one that is gone.
    pub(super) fn import_owned(&self) -> String {
        let out = self.folder.join("owned.tar");
        let made = Command::new("python3")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("containerd/links.py"))
            .args([archive("web"), out.clone()])
            .args(["srv/owned@33", "srv/far@70000", "etc/.wh.group@0"])
            .status();
        assert!(made.unwrap().success());
        self.edge.command(&["image", "import", &out.display().to_string()])
    }

    pub(super) async fn until(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let found = async || self.kubectl.json(&["pod", name]).filter(|pod| holds(pod));
        tests::cores::within(tests::cores::DEADLINE, found)
            .await
            .unwrap_or_else(|| {
                panic!(
                    "{name}: still not so: {what}\n{}\n{}",
                    self.kubectl.json(&["pod", name]).unwrap_or_default()["status"],
                    std::fs::read_to_string(self.edge.config.with_extension("log")).unwrap_or_default()
                )
            })
    }

    pub(super) async fn ready(&self, name: &str) -> Value {
        self.until(name, "it is ready", is_ready).await
    }

    /// Waits for its end: with which code.
    pub(super) async fn ended(&self, name: &str) -> i64 {
        let code = |pod: &Value| {
            pod.pointer("/status/containerStatuses/0/state/terminated/exitCode")?
                .as_i64()
        };
        let pod = self.until(name, "it has ended", |pod| code(pod).is_some()).await;
        code(&pod).unwrap()
    }

    pub(super) fn logs(&self, name: &str) -> String {
        self.kubectl.run(&["logs", name])
    }

    /// The processes of the user and of its containers that have this in their command line.
    pub(super) fn processes(&self, mark: &str) -> Vec<u32> {
        let found = executed(self.all_processes(mark).into_iter(), |pid| {
            parent_in(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
        });
        found.into_iter().collect()
    }

    fn all_processes(&self, mark: &str) -> Vec<u32> {
        let range = range(self.uid)..range(self.uid) + RANGE_COUNT;
        let folders = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = folders.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let ours = |pid: &u32| {
            let Ok(about) = std::fs::metadata(format!("/proc/{pid}")) else {
                return false;
            };
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            (about.uid() == self.uid || range.contains(&about.uid())) && !line.is_empty() && line.contains(mark)
        };
        pids.filter(ours).collect()
    }

    /// Its edge core and every shim are killed, and the edge core is started again: the pod `lives`, whose process this is,
    /// has another shim, in the pod's own user namespace: it can be looked into and ended.
    pub(super) async fn loses_all_but(&mut self, process: u32) {
        self.edge.kill();
        for shim in self.processes("pod-shim") {
            kill(shim);
        }
        self.has_shims(0).await;
        self.edge.start();
        self.has_shims(1).await;
        self.ready("lives").await;
        assert_eq!(self.processes("while :; do"), [process]);
        let users = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/user")).unwrap();
        assert_eq!(users(self.edge.pid()), users(process));
    }

    async fn has_shims(&self, count: usize) {
        eventually(&format!("it has {count} shims"), async || {
            (self.processes("pod-shim").len() == count).then_some(())
        })
        .await;
    }

    /// Everything was deleted: nothing may be left.
    pub(super) async fn finish(mut self) {
        self.without_pods().await;
        self.edge.stop().await;
        eventually("no process is left", async || {
            self.all_processes("").is_empty().then_some(())
        })
        .await;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let here = self.folder.display().to_string();
        assert!(!mounts.contains(&here), "{mounts}");
        let folder = self.folder.clone();
        drop(self);
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// Deletes them all, and waits until nothing of them is left.
    pub(super) async fn without_pods(&self) {
        self.kubectl.run(&["delete", "pod", "-l", "app=web", "--wait=false"]);
        eventually("the pods are gone", async || {
            self.kubectl.pods("app=web").is_empty().then_some(())
        })
        .await;
        let empty = |folder: PathBuf| std::fs::read_dir(folder).map_or(0, Iterator::count) == 0;
        eventually("nothing is left of them", async || {
            let runs = std::fs::read_dir(self.data().join("run")).unwrap().flatten();
            let mut run = runs.map(|entry| entry.path());
            let all = run.all(|run| empty(run.join("shims")) && empty(run.join("pods")));
            (all && empty(self.data().join("edge/embedded/pods"))).then_some(())
        })
        .await;
    }
}

impl Drop for Home {
    /// A test that failed leaves nothing that runs.
    fn drop(&mut self) {
        self.edge.kill();
        for process in self.all_processes("") {
            kill(process);
        }
    }
}

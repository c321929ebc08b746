//! A store that is put back to an older copy of itself, at either end or at both: what differs is found out and set
//! right, nothing is made twice, and what changes later arrives.

use std::fs;
use std::path::{Path, PathBuf};

use tests::cores::eventually;

use super::site::{Node, Site};

/// How the cloud's store got its older state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cloud {
    /// Not at all.
    Stays,
    /// From a back-up, as it should be done.
    Backup,
    /// From a copy of the file, which does not know that it is one.
    Copy,
}

/// The files of an SQLite database.
fn database(folder: &Path, name: &str) -> Vec<PathBuf> {
    let files = ["", "-wal", "-shm"].map(|end| folder.join(format!("{name}{end}")));
    files.into_iter().filter(|file| file.exists()).collect()
}

/// Keeps a copy of a database of which nobody has hold.
fn keep(folder: &Path, name: &str, aside: &Path) {
    fs::create_dir_all(aside).unwrap();
    for file in database(folder, name) {
        fs::copy(&file, aside.join(file.file_name().unwrap())).unwrap();
    }
}

fn put_back(folder: &Path, name: &str, aside: &Path) {
    for file in database(folder, name) {
        fs::remove_file(file).unwrap();
    }
    for file in database(aside, name) {
        fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
    }
}

struct Pair {
    site: Site,
    node: Node,
    aside: PathBuf,
}

impl Pair {
    /// One node with a pod that stays and reads settings, and one that will be deleted.
    async fn start() -> Self {
        let site = Site::start().await;
        let node = Node::start(&site, "node", "beat_s = 2").await;
        site.kubectl.apply(
            "apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {greeting: hello}
---
apiVersion: v1
kind: Pod
metadata: {name: stays}
spec:
  nodeName: node
  volumes: [{name: settings, configMap: {name: settings}}]
  containers: [{name: c, image: 'x:1', volumeMounts: [{name: settings, mountPath: /settings}]}]
",
        );
        site.run("node", "doomed");
        node.runs(&site, &["doomed", "stays"]).await;
        let aside = site.folder.path().join("aside");
        let pair = Self { site, node, aside };
        pair.settings("hello").await;
        pair
    }

    async fn settings(&self, greeting: &str) {
        let uid = &self.site.uids("node")["stays"];
        self.node.file_says(uid, "settings/greeting", greeting).await;
    }

    fn greet(&self, greeting: &str) {
        let patch = format!(r#"{{"data":{{"greeting":"{greeting}"}}}}"#);
        self.site.kubectl.run(&["patch", "configmap", "settings", "-p", &patch]);
    }

    fn delete(&self, pod: &str) {
        self.site.kubectl.run(&["delete", "pod", pod, "--wait=false"]);
    }

    /// The node's event that a pod's container was started.
    async fn told_of(&self, pod: &str) {
        eventually(&format!("an event tells that {pod} started"), async || {
            let events = self.site.kubectl.json(&["events"])?;
            let started = events["items"].as_array()?.iter().any(|event| {
                event["reason"] == "Started"
                    && event["involvedObject"]["name"] == pod
                    && event["source"]["host"] == "node"
            });
            started.then_some(())
        })
        .await;
    }

    /// What either end may have of a later time than the other: all of it is undone by a copy from before.
    async fn go_on(&self) {
        self.delete("doomed");
        self.site.run("node", "later");
        self.greet("changed");
        self.node.runs(&self.site, &["later", "stays"]).await;
        self.settings("changed").await;
        self.told_of("later").await;
    }
}

async fn check(edge: bool, cloud: Cloud) {
    let mut pair = Pair::start().await;
    let before = pair.site.uids("node");
    let backup = pair.site.folder.path().join("backup.db");
    if edge {
        pair.node.edge.kill();
        keep(&pair.node.data, "node.db", &pair.aside);
        pair.node.go();
    }
    match cloud {
        Cloud::Stays => {}
        Cloud::Backup => drop(pair.site.cloud.command(&["backup", &backup.display().to_string()])),
        Cloud::Copy => {
            pair.site.cloud.kill();
            keep(&pair.site.cloud.folder, "cloud.db", &pair.aside);
            pair.site.cloud.start_again().await;
        }
    }
    pair.node.runs(&pair.site, &["doomed", "stays"]).await;
    pair.go_on().await;
    let after = pair.site.uids("node");
    let restarts = |pair: &Pair| pair.node.pods().iter().map(|pod| pod.restarts).sum::<i64>();
    let restarted = restarts(&pair);

    if edge {
        pair.node.edge.kill();
    }
    if cloud != Cloud::Stays {
        pair.site.cloud.kill();
    }
    if edge {
        put_back(&pair.node.data, "node.db", &pair.aside);
    }
    match cloud {
        Cloud::Stays => {}
        Cloud::Backup => {
            put_back(&pair.site.cloud.folder, "cloud.db", Path::new("/nonexistent"));
            fs::copy(&backup, pair.site.cloud.folder.join("cloud.db")).unwrap();
        }
        Cloud::Copy => put_back(&pair.site.cloud.folder, "cloud.db", &pair.aside),
    }
    if cloud != Cloud::Stays {
        pair.site.cloud.start_again().await;
    }
    if edge {
        pair.node.go();
    }

    // What the cloud has counts, whichever of the two is the older.
    let (pods, greeting, uids) = match cloud {
        Cloud::Stays => (["later", "stays"], "changed", after),
        Cloud::Backup | Cloud::Copy => (["doomed", "stays"], "hello", before),
    };
    pair.node.runs(&pair.site, &pods).await;
    pair.settings(greeting).await;
    assert_eq!(pair.site.uids("node"), uids);
    let kept = fs::read_dir(pair.node.data.join("pods"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let mut kept: Vec<_> = kept.map(|name| name.into_string().unwrap()).collect();
    kept.sort();
    let mut wanted: Vec<_> = uids.values().cloned().collect();
    wanted.sort();
    assert_eq!(kept, wanted, "nothing of others is left on the node");
    if !edge {
        assert_eq!(restarts(&pair), restarted, "what ran was touched");
    }

    // Later changes apply, in both directions.
    pair.delete(pods[0]);
    pair.site.run("node", "last");
    pair.greet("last");
    pair.node.runs(&pair.site, &["last", "stays"]).await;
    pair.settings("last").await;
    pair.told_of("last").await;
    assert_eq!(pair.site.uids("node")["stays"], uids["stays"]);
    assert_eq!(pair.site.ready("node"), "True");
}

#[tokio::test]
async fn an_older_card() {
    check(true, Cloud::Stays).await;
}

#[tokio::test]
async fn a_cloud_from_a_back_up() {
    check(false, Cloud::Backup).await;
}

#[tokio::test]
async fn a_cloud_from_a_copy_that_does_not_know() {
    check(false, Cloud::Copy).await;
}

#[tokio::test]
async fn an_older_card_and_a_cloud_from_a_back_up() {
    check(true, Cloud::Backup).await;
}

#[tokio::test]
async fn an_older_card_and_a_cloud_from_a_copy_that_does_not_know() {
    check(true, Cloud::Copy).await;
}

//! A pod's reconciler on real containers: everything between what the store wants and what a process sees.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use edgecore::pods::logs::{self, Options};
use edgecore::pods::{self, Config, Desired, Desk, Entries, Folders, Machine, PodEvent, Pods, Unreadable};
use edgecore::runtime::containerd::Containerd;
use edgecore::runtime::{Runtime as _, State};
use proto::object::{Key, Revision, Uid};
use proto::value::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::node::{Node, WEB, clock, eventually, pod};

/// The store as far as pods need one.
#[derive(Default)]
struct Papers {
    objects: BTreeMap<Key, Arc<Desired>>,
    memory: BTreeMap<Uid, Vec<u8>>,
    status: BTreeMap<Uid, Value>,
    events: Vec<PodEvent>,
    gone: Vec<Uid>,
}

#[derive(Default)]
struct Table(Mutex<Papers>);

impl Table {
    fn papers(&self) -> MutexGuard<'_, Papers> {
        self.0.lock().unwrap()
    }

    fn put(&self, uid: Uid, text: &str) -> Key {
        let value = json::parse(text.as_bytes()).unwrap();
        let key = Key::of(&value).unwrap();
        let desired = Desired { key: key.clone(), uid, revision: Revision(1), value };
        self.papers().objects.insert(key.clone(), Arc::new(desired));
        key
    }

    fn status(&self, uid: Uid) -> Value {
        self.papers().status.get(&uid).cloned().unwrap_or_default()
    }

    fn is_ready(&self, uid: Uid) -> bool {
        let status = self.status(uid);
        let mut conditions = status.list_at(&["conditions"]).iter();
        conditions.any(|one| one.text_at(&["type"]) == Some("Ready") && one.text_at(&["status"]) == Some("True"))
    }

    fn restarts(&self, uid: Uid) -> Option<i64> {
        self.status(uid).int_at(&["containerStatuses", "0", "restartCount"])
    }
}

impl Desk for Table {
    async fn desired_pods(&self) -> Entries {
        let papers = self.papers();
        let pods = papers.objects.values().filter(|object| object.key.kind.kind() == "Pod");
        Entries {
            list: pods.cloned().collect(),
            read_whole: true,
            synced: true,
        }
    }

    async fn desired(&self, key: &Key) -> Result<Option<Arc<Desired>>, Unreadable> {
        Ok(self.papers().objects.get(key).cloned())
    }

    async fn report(&self, pod: Uid, status: Value) {
        self.papers().status.insert(pod, status);
    }

    async fn gone(&self, pod: Uid) {
        let mut papers = self.papers();
        papers.objects.retain(|_, object| object.uid != pod);
        papers.gone.push(pod);
    }

    async fn event(&self, event: PodEvent) {
        self.papers().events.push(event);
    }

    async fn memory(&self, pod: Uid) -> Result<Option<Vec<u8>>, Unreadable> {
        Ok(self.papers().memory.get(&pod).cloned())
    }

    async fn remember(&self, pod: Uid, memory: Option<Vec<u8>>) {
        let mut papers = self.papers();
        match memory {
            Some(memory) => drop(papers.memory.insert(pod, memory)),
            None => drop(papers.memory.remove(&pod)),
        }
    }

    fn addresses(&self) -> Vec<String> {
        vec!["192.0.2.9".to_owned()]
    }
}

/// More than any test's container needs.
const PIDS_MAX: u32 = 77;

/// An edge core's pods, which can be killed.
struct Core {
    pods: Pods,
    tasks: JoinSet<anyhow::Result<()>>,
    folders: Folders,
}

impl Core {
    fn start(node: &Node, table: &Arc<Table>) -> Self {
        let folders = Folders {
            pods: node.folder.join("pods"),
            logs: node.folder.join("pod-logs"),
        };
        let config = Config {
            folders: folders.clone(),
            pids_max: PIDS_MAX,
            ..Config::default()
        };
        let runtime = Arc::new(Containerd::new(node.config.clone(), clock()).unwrap());
        let (pods, runner) = pods::new(config, runtime, Arc::clone(table), Arc::new(Machine));
        let mut tasks = JoinSet::new();
        tasks.spawn(runner.run(CancellationToken::new()));
        Self { pods, tasks, folders }
    }
}

async fn until(what: &str, table: &Table, holds: impl Fn() -> bool) {
    let waited = tokio::time::timeout(
        Duration::from_secs(60),
        eventually(what, async || holds().then_some(())),
    )
    .await;
    let papers = table.papers();
    assert!(waited.is_ok(), "{what}: {:?} {:?}", papers.status, papers.events);
}

async fn log(folder: PathBuf, previous: bool) -> String {
    let (sender, mut receiver) = mpsc::channel(16);
    let attempt = logs::attempt(&folder, previous).await.unwrap();
    logs::stream(&folder, attempt, Options::default(), || false, sender)
        .await
        .unwrap();
    let mut all = Vec::new();
    while let Some(piece) = receiver.recv().await {
        all.extend(piece);
    }
    String::from_utf8(all).unwrap()
}

#[tokio::test]
async fn containerd_pods_get_the_seccomp_profile_they_ask_for() {
    let node = Node::new("profile").await;
    let (uid, table) = (pod(), Arc::new(Table::default()));
    let script = "grep ^Seccomp: /proc/self/status; trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let container = |name: &str, security: &str| {
        format!(
            r#"{{"name":"{name}","image":"{WEB}","command":["/bin/sh","-c","{script}"],"securityContext":{security}}}"#
        )
    };
    let local = r#"{"seccompProfile":{"type":"Localhost","localhostProfile":"own/log.json"}}"#;
    let manifest = |extra: &str| {
        let containers = [
            container("default", "{}"),
            container("free", r#"{"seccompProfile":{"type":"Unconfined"}}"#),
            container("local", local),
            container("privileged", r#"{"privileged":true}"#),
        ];
        format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p","namespace":"n","uid":"{uid}"{extra}}},
            "spec":{{"terminationGracePeriodSeconds":5,"securityContext":{{"runAsUser":0,
            "seccompProfile":{{"type":"RuntimeDefault"}}}},"containers":[{}]}}}}"#,
            containers.join(",")
        )
    };
    let key = table.put(uid, &manifest(""));
    let mut core = Core::start(&node, &table);
    // A profile that is not there keeps its container from starting, and says where it should be.
    let profile = core.folders.seccomp().join("own/log.json");
    until("the missing profile is named", &table, || {
        let papers = table.papers();
        let said = |event: &PodEvent| event.message.contains(profile.to_str().unwrap());
        papers
            .events
            .iter()
            .any(|event| event.field_path == "spec.containers{local}" && said(event))
    })
    .await;
    assert!(!table.is_ready(uid));
    std::fs::create_dir_all(profile.parent().unwrap()).unwrap();
    std::fs::write(&profile, r#"{"defaultAction":"SCMP_ACT_LOG"}"#).unwrap();
    until("all run", &table, || table.is_ready(uid)).await;
    for (name, mode) in [("default", "2"), ("free", "0"), ("local", "2"), ("privileged", "0")] {
        let folder = core.folders.pod_logs("n", "p", uid).join(name);
        let said = eventually("it said so", async || {
            let said = log(folder.clone(), false).await;
            said.ends_with('\n').then_some(said)
        })
        .await;
        assert_eq!(said, format!("Seccomp:\t{mode}\n"), "{name}");
    }
    table.put(uid, &manifest(r#","deletionTimestamp":"2026-01-01T00:00:00Z""#));
    core.pods.wake(key);
    until("gone", &table, || table.papers().gone == [uid]).await;
    core.tasks.shutdown().await;
    node.finish(&[], &[]).await;
}

#[tokio::test]
async fn containerd_carries_a_pod_through_its_life() {
    let node = Node::new("pod").await;
    let uid = pod();
    let table = Arc::new(Table::default());
    let map = |value: &str| {
        let text = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"c","namespace":"n"}},"data":{{"k":"{value}"}}}}"#
        );
        table.put(Uid([1; 16]), &text)
    };
    map("one");
    let secret =
        r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"n"},"data":{"p":"aGlkZGVu"}}"#;
    table.put(Uid([2; 16]), secret);
    let script = "echo $GREETING; cat /map/k; echo; cat /secret/p; echo; hostname; cat /proc/self/limits > /dev/null; \
                  touch /scratch/here; id -u; trap 'exit 7' TERM; while :; do sleep 0.1; done";
    let manifest = |extra: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p","namespace":"n","uid":"{uid}","labels":{{"who":"world"}}{extra}}},
            "spec":{{"terminationGracePeriodSeconds":5,"securityContext":{{"runAsUser":1000,"fsGroup":2000}},
            "volumes":[{{"name":"m","configMap":{{"name":"c"}}}},{{"name":"s","secret":{{"secretName":"s","defaultMode":288}}}},
            {{"name":"e","emptyDir":{{}}}}],
            "containers":[{{"name":"a","image":"{WEB}","command":["/bin/sh","-c","{script}"],
            "env":[{{"name":"WHO","valueFrom":{{"fieldRef":{{"fieldPath":"metadata.labels['who']"}}}}}},
            {{"name":"GREETING","value":"hello $(WHO)"}}],"resources":{{"limits":{{"memory":"32Mi"}}}},
            "securityContext":{{"readOnlyRootFilesystem":true,"allowPrivilegeEscalation":false}},
            "readinessProbe":{{"exec":{{"command":["test","-f","/scratch/here"]}},"periodSeconds":1}},
            "volumeMounts":[{{"name":"m","mountPath":"/map"}},{{"name":"s","mountPath":"/secret"}},
            {{"name":"e","mountPath":"/scratch"}}]}}]}}}}"#
        )
    };
    let key = table.put(uid, &manifest(""));
    let mut core = Core::start(&node, &table);
    until("ready", &table, || table.is_ready(uid)).await;
    let folder = core.folders.pod_logs("n", "p", uid).join("a");
    let said = eventually("all said", async || {
        let said = log(folder.clone(), false).await;
        (said.lines().count() == 5).then_some(said)
    })
    .await;
    assert_eq!(said, "hello world\none\nhidden\np\n1000\n");
    let first = node.runtime.list().await.unwrap().remove(0);
    let limits = node.cgroup_files("pids.max");
    assert!(limits.contains(&format!("{PIDS_MAX}\n")), "{limits:?}");

    // A changed config map shows in the running container.
    core.pods.wake(map("two"));
    let show = ["cat".to_owned(), "/map/k".to_owned()];
    eventually("the new file", async || {
        let shown = node.runtime.exec(&first.id, &show, Duration::from_secs(5)).await.ok()?;
        (shown.output == "two").then_some(())
    })
    .await;

    // Another edge core adopts it.
    core.tasks.shutdown().await;
    table.papers().status.clear();
    core = Core::start(&node, &table);
    until("known again", &table, || table.is_ready(uid)).await;
    assert_eq!(node.runtime.list().await.unwrap()[0].id, first.id);
    assert_eq!(table.restarts(uid), Some(0));

    // One that ends is started again.
    node.runtime.signal(&first.id, 15).await.unwrap();
    until("restarted", &table, || {
        table.restarts(uid) == Some(1) && table.is_ready(uid)
    })
    .await;
    let code = ["containerStatuses", "0", "lastState", "terminated", "exitCode"];
    assert_eq!(table.status(uid).int_at(&code), Some(7));
    assert!(log(folder.clone(), true).await.starts_with("hello world\none\n"));
    let seen = node.runtime.list().await.unwrap();
    assert!(
        seen.len() == 1 && matches!(seen[0].state, State::Running { .. }),
        "{seen:?}"
    );

    // A deletion leaves nothing.
    table.put(uid, &manifest(r#","deletionTimestamp":"2026-01-01T00:00:00Z""#));
    core.pods.wake(key);
    until("gone", &table, || table.papers().gone == [uid]).await;
    assert!(!core.folders.pod(uid).exists() && !folder.exists());
    core.tasks.shutdown().await;
    node.finish(&[], &[]).await;
}

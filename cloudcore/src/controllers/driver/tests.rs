use proto::object::Uid;
use proto::value::json;
use tempfile::TempDir;
use tokio::time::timeout;

use super::super::sessions::{Contact, SessionState};
use super::super::{conditions, pods};
use super::*;

const DEADLINE: Duration = Duration::from_secs(20);

struct Cloud {
    store: Store,
    sessions: Sessions,
    _folder: TempDir,
}

impl Cloud {
    fn open() -> (Self, Supervisor) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(store::Config::new(folder.path())).unwrap();
        let (sessions, mut supervisor) = (Sessions::default(), Supervisor::default());
        let config = Config {
            root_ca: "PEM".to_owned(),
            event_ttl: Duration::from_secs(event_ttl::TTL_S.into()),
        };
        run(&store, &sessions, clock, &mut supervisor, config);
        (Self { store, sessions, _folder: folder }, supervisor)
    }

    /// What the API does with a new object.
    async fn create(&self, text: &str) -> Key {
        let mut value = json::parse(text.as_bytes()).unwrap();
        complete(&mut value);
        value.set(&["metadata", "uid"], Uid::random(daemon::random::bytes()).to_string());
        value.set(&["metadata", "creationTimestamp"], clock().wall.rfc3339());
        value.set(&["metadata", "generation"], 1);
        let key = Key::of(&value).unwrap();
        let ops = vec![Op::Create { key: key.clone(), value }];
        self.store.commit(store::Lane::Api, ops).await.unwrap();
        key
    }

    fn list(&self, kind: &str) -> Vec<Object> {
        StoreView { store: &self.store }.list(&kind.into(), None).into_objects()
    }

    /// Waits, change by change, until it is so.
    async fn until(&self, what: &str, test: impl Fn(&Self) -> bool) {
        let kinds = [
            "Pod",
            "Node",
            "Deployment.apps",
            "ReplicaSet.apps",
            "Namespace",
            "ConfigMap",
            "Event",
        ];
        let scopes = kinds.map(Scope::kind).into();
        let mut watch = self.store.watch_many(scopes, self.store.revision()).unwrap();
        let wait = async {
            while !test(self) {
                watch.next().await.unwrap();
            }
        };
        timeout(DEADLINE, wait)
            .await
            .unwrap_or_else(|_| panic!("never: {what}"));
    }

    fn connected(&self, node: &str) {
        let now = daemon::clock::mono();
        let state = SessionState {
            contact: Contact::Connected { since: now },
            beat: Duration::from_secs(30),
        };
        self.sessions.set(node, state, now);
    }

    async fn report(&self, pod: &Object) {
        let node = pods::node(&pod.value).unwrap().to_owned();
        let status = r#"{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}"#;
        let value = Some(json::parse(status.as_bytes()).unwrap());
        let ops = vec![Op::Report { uid: pod.uid, node, value }];
        self.store.commit(store::Lane::Status, ops).await.unwrap();
    }
}

#[tokio::test]
async fn a_deployment_comes_up_on_the_real_store() {
    let (cloud, supervisor) = Cloud::open();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let scene = async {
        cloud
            .until("every namespace is furnished", |cloud| {
                cloud.list("ConfigMap").len() == namespace::ALWAYS.len()
            })
            .await;
        cloud
            .create(r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"},"spec":{},"status":{"allocatable":{"cpu":"4","memory":"4Gi","pods":"110"}}}"#)
            .await;
        cloud.connected("a");
        cloud
            .until("the node is ready", |cloud| {
                let nodes = cloud.list("Node");
                conditions::is_true(&nodes[0].value, "Ready") && nodes[0].value.list_at(&["spec", "taints"]).is_empty()
            })
            .await;
        let key = cloud
            .create(
                r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"default"},
                    "spec":{"replicas":3,"selector":{"matchLabels":{"app":"web"}},
                    "template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"v1"}]}}}}"#,
            )
            .await;
        cloud
            .until("three pods are bound", |cloud| {
                let pods = cloud.list("Pod");
                pods.len() == 3 && pods.iter().all(|pod| pods::node(&pod.value) == Some("a"))
            })
            .await;
        for pod in cloud.list("Pod") {
            cloud.report(&pod).await;
        }
        let view = StoreView { store: &cloud.store };
        cloud
            .until("the deployment is complete", |_| {
                let deployment = view.get(&key).unwrap();
                let progress = conditions::get(&deployment.value, "Progressing");
                deployment.value.int_at(&["status", "availableReplicas"]) == Some(3)
                    && progress.is_some_and(|one| one.text_at(&["reason"]) == Some("NewReplicaSetAvailable"))
            })
            .await;
        cloud
            .until("it was told", |cloud| {
                let told = cloud.list("Event");
                told.iter()
                    .filter(|event| event.value.text_at(&["reason"]) == Some("Scheduled"))
                    .count()
                    == 3
            })
            .await;
        // Deleting the deployment takes everything with it; the pods wait for their node to say so.
        let stored = cloud.store.get(&key).unwrap();
        let ops = vec![Op::Delete { key: key.clone(), when: When::unchanged(&stored) }];
        cloud.store.commit(store::Lane::Api, ops).await.unwrap();
        cloud
            .until("its set is gone and its pods are to end", |cloud| {
                cloud.list("ReplicaSet.apps").is_empty() && cloud.list("Pod").iter().all(Object::is_deleting)
            })
            .await;
        assert_eq!(cloud.list("Pod").len(), 3);
        stop.send(()).unwrap();
    };
    let shutdown = async { drop(stopped.await) };
    let (result, ()) = tokio::join!(supervisor.run(shutdown, DEADLINE), scene);
    result.unwrap();
}

#[tokio::test]
async fn a_quiet_store_stays_quiet() {
    let (cloud, supervisor) = Cloud::open();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let scene = async {
        cloud
            .until("every namespace is furnished", |cloud| {
                cloud.list("ConfigMap").len() == namespace::ALWAYS.len()
            })
            .await;
        let before = cloud.store.revision();
        let mut watch = cloud.store.watch(Scope::kind("ConfigMap"), before).unwrap();
        let change = timeout(Duration::from_millis(300), watch.next()).await;
        assert!(change.is_err(), "nothing happened, so nothing is written");
        assert_eq!(cloud.store.revision(), before);
        stop.send(()).unwrap();
    };
    let shutdown = async { drop(stopped.await) };
    let (result, ()) = tokio::join!(supervisor.run(shutdown, DEADLINE), scene);
    result.unwrap();
}

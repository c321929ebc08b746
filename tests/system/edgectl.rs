//! `edgectl` against a running cloud core: what people type, what they read, and with which code it ends.

use tempfile::TempDir;
use tests::cores::CloudCore;
use tests::shell::{Shell, has};

const WEB: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: demo}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: demo, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: nginx:1.25
        env: [{name: A, value: \"1\"}, {name: B, value: \"2\"}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: demo}
data: {a: \"1\", b: \"2\"}
";

/// A cloud core, and the edgectl that speaks to it.
async fn start(folder: &TempDir) -> (CloudCore, Shell) {
    let core = CloudCore::start(folder.path()).await;
    let edgectl = core.edgectl();
    (core, edgectl)
}

#[tokio::test]
async fn objects_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let (mut core, shell) = start(&folder).await;
    has(&shell.ok("version").await, &["edgectl", "cloud core  v1."]);
    has(
        &shell.apply(WEB).await,
        &[
            "namespace/demo created",
            "deployment.apps/web created",
            "configmap/settings created",
        ],
    );
    let again = shell.apply(WEB).await;
    has(
        &again,
        &[
            "namespace/demo unchanged",
            "deployment.apps/web unchanged",
            "configmap/settings unchanged",
        ],
    );

    // What is no longer said goes, in maps and in lists; what was defaulted or set by others stays.
    let changed = WEB
        .replace(", b: \"2\"", "")
        .replace("{name: A, value: \"1\"}, ", "")
        .replace("nginx:1.25", "nginx:1.27");
    has(
        &shell.apply(&changed).await,
        &["deployment.apps/web configured", "configmap/settings configured"],
    );
    let yaml = shell.ok("get deploy web -n demo -o yaml").await;
    has(
        &yaml,
        &[
            "image: nginx:1.27",
            "- name: B",
            "terminationMessagePath: /dev/termination-log",
        ],
    );
    assert!(!yaml.contains("- name: A"), "{yaml}");
    has(&shell.ok("get cm settings -n demo -o json").await, &["\"a\": \"1\""]);

    // The controllers run, and with no node the pods wait.
    shell
        .until("get pods -n demo -l app=web", |out| out.contains("Pending"))
        .await;
    has(
        &shell.ok("get deploy,rs -n demo").await,
        &["deployment.apps/web", "replicaset.apps/web-"],
    );
    has(
        &shell.ok("get deploy -A -o wide").await,
        &["NAMESPACE", "demo", "IMAGES", "nginx:1.27"],
    );
    assert_eq!(
        shell.ok("get deployment/web cm/settings -n demo -o name").await,
        "deployment.apps/web\nconfigmap/settings\n"
    );
    has(
        &shell.ok("get pods").await,
        &["nothing found in namespace default; -A looks in all of them"],
    );

    has(
        &shell.ok("delete configmap settings -n demo").await,
        &["configmap/settings deleted"],
    );
    has(
        &shell.ok("delete deploy -l app=web -n demo").await,
        &["deployment.apps/web deleted"],
    );
    shell
        .until("get pods -n demo", |out| out.contains("nothing found"))
        .await;
    has(&shell.ok("delete ns demo").await, &["namespace/demo deleted"]);
    has(
        &shell.fails("get ns demo", 1).await,
        &["namespaces \"demo\" not found: look for it with"],
    );
    assert_eq!(shell.ok("delete ns demo --ignore-not-found").await, "");
    core.stop().await;
}

#[tokio::test]
async fn failures_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let (mut core, shell) = start(&folder).await;
    has(&shell.fails("fly", 64).await, &["fly", "Usage"]);
    has(
        &shell.fails("get things", 1).await,
        &["no resource \"things\"", "configmaps"],
    );
    has(&shell.fails("get pod ../x", 64).await, &["RESOURCE/NAME"]);
    has(&shell.fails("get pods a -A", 64).await, &["-n NAMESPACE"]);
    has(&shell.fails("get pods -o table", 64).await, &["json, yaml, name, wide"]);
    has(&shell.fails("delete pods", 64).await, &["say which pods"]);
    has(&shell.fails("backup here.db", 64).await, &["absolute"]);
    has(
        &shell.fails("get pods --kubeconfig nowhere", 78).await,
        &["no kubeconfig at nowhere", "admin.kubeconfig"],
    );
    let (code, out) = shell
        .run(
            "apply -f -",
            Some("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containrs: []}}"),
        )
        .await;
    assert_eq!(code, 1);
    has(&out, &["pod/a, in standard input", "unknown field \"spec.containrs\""]);
    let (code, out) = shell
        .run("apply -f -", Some("{apiVersion: v2, kind: Pod, metadata: {name: a}}"))
        .await;
    assert_eq!(code, 1);
    has(&out, &["no Pod in v2"]);
    has(&shell.fails("logs nobody", 1).await, &["pods \"nobody\" not found"]);

    core.stop().await;
    has(
        &shell.fails("get pods", 1).await,
        &["no cloud core answers at https://127.0.0.1:", "cloudcore serve"],
    );
}

#[tokio::test]
async fn administrators_get_their_answers() {
    let folder = tempfile::tempdir().unwrap();
    let (mut core, shell) = start(&folder).await;
    has(&shell.ok("token list").await, &["no join tokens"]);
    has(&shell.ok("node list").await, &["no nodes"]);
    let token = shell.ok("token create --ttl 2h --name edge-1 --label site=a").await;
    assert_eq!(token.lines().count(), 1, "{token}");
    let list = shell.ok("token list").await;
    has(&list, &["REPLACES", "edge-1", "site=a"]);
    let id = list
        .lines()
        .nth(1)
        .and_then(|line| line.split_whitespace().next())
        .unwrap()
        .to_owned();
    has(&shell.ok(&format!("token delete {id}")).await, &["deleted"]);
    has(&shell.ok("token list").await, &["no join tokens"]);
    has(&shell.fails("token create --ttl soon", 64).await, &["90s, 30m, 1h, 7d"]);

    shell
        .apply("{apiVersion: v1, kind: Node, metadata: {name: edge-1}}")
        .await;
    has(
        &shell.ok("node list").await,
        &["REACHABLE-WITHIN", "edge-1", "not seen", "no"],
    );
    has(&shell.fails("node revoke edge-1", 1).await, &["no enrolment"]);
    has(&shell.fails("node delete edge-2", 1).await, &["not found"]);
    has(&shell.ok("node delete edge-1").await, &["node edge-1 deleted"]);

    let file = folder.path().join("backup.db");
    has(
        &shell.ok(&format!("backup {}", file.display())).await,
        &["backed up at revision"],
    );
    assert!(file.exists());
    core.stop().await;
}

#[tokio::test]
async fn a_watch_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (mut core, shell) = start(&folder).await;
    shell
        .apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: first}}")
        .await;
    let mut watch = shell.start("get cm -w");
    watch.until("first").await;
    shell
        .apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: second}}")
        .await;
    let printed = watch.until("second").await;
    assert_eq!(printed.matches("NAME").count(), 1, "{printed}");
    core.stop().await;
}

#[tokio::test]
async fn what_is_stored_outlives_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let (mut core, shell) = start(&folder).await;
    shell
        .apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: kept}, data: {a: b}}")
        .await;
    core.kill();
    core.start_again().await;
    has(&shell.ok("get cm kept -o yaml").await, &["a: b"]);
    core.stop().await;
}

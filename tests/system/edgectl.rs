//! `edgectl` against a running cloud core: what people type, what they read, and with which code it ends.

use serde_json::{Value, json};
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
    has(&shell.fails("get deploymets", 1).await, &["did you mean deployments?"]);
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

    // Where a file is wrong, its line or its object is said.
    for (text, parts) in [
        ("a: 1\n b: [\n", &["bad.yaml: ", "line 2"][..]),
        (
            "apiVersion: v1\nkind: Pod\nkind: Pod\n",
            &["bad.yaml: ", "line 3", "kind"],
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a}}\n---\n{kind: Pod}\n",
            &["bad.yaml, object 2: ", "no apiVersion"],
        ),
        (
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {n: 1}}",
            &["configmap/a, in bad.yaml: ", "data"],
        ),
    ] {
        shell.file("bad.yaml", text);
        for line in ["apply -f bad.yaml", "create -f bad.yaml"] {
            has(&shell.fails(line, 1).await, parts);
        }
    }
    has(&shell.ok("get cm").await, &["kube-root-ca.crt"]);
    has(&shell.fails("get cm a", 1).await, &["not found"]);
    has(
        &shell.fails("apply -f nowhere.yaml", 1).await,
        &["reading nowhere.yaml", "No such file"],
    );

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
    let id = shell.ok("token list -o name").await.trim().to_owned();
    let listed: Value = serde_json::from_str(&shell.ok("token list -o json").await).unwrap();
    let whole = json!([{
        "id": id, "endsMs": listed[0]["endsMs"], "usesLeft": 1, "name": "edge-1", "labels": {"site": "a"}, "replace": false
    }]);
    assert_eq!(listed, whole);
    // Who is replaced must be there.
    let refused = shell.fails("token create --replace edge-1", 1).await;
    has(&refused, &["there is no node \"edge-1\"", "--name"]);
    has(&shell.ok(&format!("token delete {id}")).await, &["deleted"]);
    has(&shell.ok("token list").await, &["no join tokens"]);
    assert_eq!(shell.ok("token list --output json").await, "[]\n");
    assert_eq!(shell.ok("node list -o name").await, "");
    has(&shell.fails("token create --ttl soon", 64).await, &["90s, 30m, 1h, 7d"]);

    shell
        .apply("{apiVersion: v1, kind: Node, metadata: {name: edge-1}}")
        .await;
    has(
        &shell.ok("node list").await,
        &["REACHABLE-WITHIN", "edge-1", "not seen", "no"],
    );
    assert_eq!(shell.ok("node list -o name").await, "edge-1\n");
    has(
        &shell.ok("node list -o yaml").await,
        &["  connected: false\n", "  enrolled: false\n", "  name: edge-1\n"],
    );
    // One that was made by hand and has no key can be replaced as well.
    shell.ok("token create --replace edge-1").await;
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

#[tokio::test]
async fn a_name_that_is_not_there_has_a_near_one() {
    let folder = tempfile::tempdir().unwrap();
    let (mut core, shell) = start(&folder).await;
    shell.apply(WEB).await;
    let near = "configmaps \"setings\" not found: did you mean configmap/settings?";
    for line in [
        "get cm setings",
        "get cm/setings -o json",
        "delete cm setings",
        "get cm setings -w",
    ] {
        has(&shell.fails(&format!("{line} -n demo"), 1).await, &[near]);
    }
    let elsewhere = "configmaps \"settings\" not found: there is one in namespace demo; say -n demo";
    for line in ["get cm settings", "delete cm settings"] {
        has(&shell.fails(line, 1).await, &[elsewhere]);
    }
    has(
        &shell.fails("logs deploy/wbe -n demo", 1).await,
        &["did you mean deployment.apps/web?"],
    );
    has(
        &shell.fails("logs deploy/web", 1).await,
        &["there is one in namespace demo"],
    );
    has(
        &shell.fails("logs cm/settings -n demo", 64).await,
        &["configmap/settings has no pods of its own"],
    );
    has(
        &shell.fails("logs -l app=none -n demo", 1).await,
        &["no pod belongs to the labels app=none"],
    );
    has(&shell.fails("get ns dem", 1).await, &["did you mean namespace/demo?"]);
    // Several, of which one is there.
    let several = shell.fails("get cm settings setings -n demo -o name", 1).await;
    has(&several, &["configmap/settings\n", near]);
    has(
        &shell.fails("delete cm a b -n demo", 1).await,
        &["\"a\" not found", "\"b\" not found", "2 of 2"],
    );
    core.stop().await;
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut core, shell) = start(&folder).await;
    let map =
        |value: &str| format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: a}}, data: {{k: '{value}'}}}}");
    shell.file("a.yaml", &map("1"));
    for (how, said) in [("server", "(server dry run)"), ("client", "(dry run)")] {
        for line in ["apply", "create"] {
            let out = shell.ok(&format!("{line} -f a.yaml --dry-run={how}")).await;
            assert_eq!(out, format!("configmap/a created {said}\n"));
        }
        has(&shell.fails("get cm a", 1).await, &["not found"]);
    }
    shell.ok("create -f a.yaml").await;
    has(
        &shell.fails("create -f a.yaml", 1).await,
        &["configmap/a, in a.yaml: ", "already exists", "edgectl apply"],
    );
    let is = async |value: &str| has(&shell.ok("get cm a -o yaml").await, &[&format!("k: \"{value}\"")]);
    for (how, said) in [("server", "(server dry run)"), ("client", "(dry run)")] {
        shell.file("a.yaml", &map("2"));
        let out = shell.ok(&format!("apply -f a.yaml --dry-run={how}")).await;
        assert_eq!(out, format!("configmap/a configured {said}\n"));
        is("1").await;
        for line in ["delete cm a", "delete -f a.yaml"] {
            let out = shell.ok(&format!("{line} --dry-run={how}")).await;
            assert_eq!(out, format!("configmap/a deleted {said}\n"));
        }
        is("1").await;
        has(
            &shell.fails(&format!("delete cm b --dry-run={how}"), 1).await,
            &["not found"],
        );
    }
    // The server judges what this program does not.
    shell.file(
        "a.yaml",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, dta: {}}",
    );
    has(
        &shell.fails("apply -f a.yaml --dry-run=server", 1).await,
        &["unknown field \"dta\""],
    );
    has(
        &shell.fails("apply -f a.yaml --dry-run=maybe", 64).await,
        &["server, client"],
    );

    // A name that the server makes is made by `create` alone.
    shell.file(
        "b.yaml",
        "{apiVersion: v1, kind: ConfigMap, metadata: {generateName: made-}}",
    );
    has(&shell.ok("create -f b.yaml").await, &["configmap/made-"]);
    has(
        &shell.fails("apply -f b.yaml", 1).await,
        &["metadata.generateName", "edgectl create"],
    );
    core.stop().await;
}

#[tokio::test]
async fn what_is_owned_goes_first_or_after_or_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (mut core, shell) = start(&folder).await;
    for (how, stays) in [("background", false), ("foreground", false), ("orphan", true)] {
        shell.apply(WEB).await;
        shell
            .until("get pods -n demo -o name", |out| out.lines().count() == 2)
            .await;
        shell.ok(&format!("delete deploy web -n demo --cascade={how}")).await;
        has(&shell.fails("get deploy web -n demo", 1).await, &["not found"]);
        if stays {
            // Nobody owns the set any more, and what it owns is still its own.
            let orphan = |out: &str| out.contains("kind: ReplicaSet") && !out.contains("kind: Deployment");
            shell.until("get rs -n demo -o yaml", orphan).await;
            assert_eq!(shell.ok("get pods -n demo -o name").await.lines().count(), 2);
        } else {
            shell
                .until("get rs,pods -n demo", |out| out.contains("nothing found"))
                .await;
        }
    }
    has(
        &shell.fails("delete deploy web -n demo --cascade=later", 64).await,
        &["background, foreground, orphan"],
    );
    core.stop().await;
}

//! Real `kubectl` against the API: what people type, and what they read.
//!
//! `scripts/kubectl` fetches it; these tests are ignored unless asked for, because they need it.

use std::path::PathBuf;

use tempfile::TempDir;
use tests::api_server::{ApiServer, TOKEN};
use tests::processes::kubectl;
use tests::shell::{Shell, has};

const WEB: &str = "
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
        ports: [{containerPort: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: demo}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: demo}
data: {a: \"1\"}
";

/// A server, and the kubectl that speaks to it.
struct Bench {
    /// Goes when the test ends.
    _folder: TempDir,
    server: ApiServer,
    kubectl: Shell,
    path: PathBuf,
}

impl Bench {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let server = ApiServer::start(&path.join("store")).await.unwrap();
        std::fs::write(path.join("ca.pem"), &server.authority_pem).unwrap();
        let config = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
             clusters:\n- name: here\n  cluster: {{server: '{}', certificate-authority: ca.pem}}\n\
             users:\n- name: admin\n  user: {{token: {TOKEN}}}\n\
             contexts:\n- name: here\n  context: {{cluster: here, user: admin, namespace: demo}}\n",
            server.url()
        );
        std::fs::write(path.join("kubeconfig"), config).unwrap();
        let kubectl = Shell::new(kubectl(), &path, &path.join("kubeconfig"));
        Self { _folder: folder, server, kubectl, path }
    }
}

#[tokio::test]
#[ignore = "needs the kubectl that scripts/kubectl fetches"]
async fn what_people_type() {
    let bench = Bench::start().await;
    let shell = &bench.kubectl;
    has(&shell.ok("version").await, &["Server Version: v1."]);
    has(
        &shell.ok("api-resources").await,
        &["deployments", "deploy", "apps/v1", "pods"],
    );
    shell.ok("create namespace demo").await;
    shell.file("web.yaml", WEB);
    has(
        &shell.ok("apply -f web.yaml").await,
        &[
            "deployment.apps/web created",
            "service/web created",
            "configmap/settings created",
        ],
    );
    has(
        &shell.ok("apply -f web.yaml").await,
        &["deployment.apps/web unchanged", "configmap/settings unchanged"],
    );
    shell.file("web.yaml", &WEB.replace("replicas: 2", "replicas: 3"));
    has(
        &shell.refused("diff -f web.yaml").await,
        &["-  replicas: 2", "+  replicas: 3"],
    );
    has(
        &shell.ok("apply -f web.yaml").await,
        &["deployment.apps/web configured", "service/web unchanged"],
    );
    has(
        &shell.ok("get all").await,
        &["service/web", "deployment.apps/web", "0/3"],
    );
    has(
        &shell.ok("get deploy -A -o wide").await,
        &["NAMESPACE", "demo", "nginx:1.25", "app=web"],
    );
    has(
        &shell.ok("get deploy web -o yaml").await,
        &["kind: Deployment", "generation: 2"],
    );
    assert_eq!(shell.ok("get deploy -o name").await, "deployment.apps/web\n");
    has(&shell.ok("get deploy web -o json").await, &["\"replicas\": 3"]);
    has(
        &shell.ok("describe deploy web").await,
        &["Replicas:               3 desired"],
    );
    has(&shell.ok("describe svc web").await, &["Endpoints:"]);

    shell.ok("create deployment other --image=busybox").await;
    shell.ok("create configmap made --from-literal=a=b").await;
    shell.ok("create secret generic hidden --from-literal=p=q").await;
    assert_eq!(shell.ok("get secret hidden -o jsonpath={.data.p}").await, "cQ==");
    shell.file("dup.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: made}}");
    has(&shell.refused("create -f dup.yaml").await, &["already exists"]);

    has(
        &shell.ok("set image deploy/web web=nginx:1.27").await,
        &["image updated"],
    );
    has(&shell.ok("scale deploy web --replicas=5").await, &["scaled"]);
    has(
        &shell.ok("scale deploy web --current-replicas=5 --replicas=2").await,
        &["scaled"],
    );
    assert_eq!(shell.ok("get deploy web -o jsonpath={.spec.replicas}").await, "2");
    has(&shell.ok("rollout restart deploy/web").await, &["restarted"]);
    has(&shell.ok("rollout history deploy/web").await, &["deployment.apps/web"]);
    has(
        &shell.refused("rollout status deploy/web --timeout=1s").await,
        &["timed out"],
    );
    has(
        &shell
            .refused("wait deploy/web --for=condition=Available --timeout=1s")
            .await,
        &["timed out"],
    );

    shell.ok("label cm made x=y").await;
    shell.ok("annotate cm made n=m").await;
    has(&shell.ok("get cm -l x=y").await, &["made"]);
    shell.ok("patch cm made -p {\"data\":{\"z\":\"1\"}}").await;
    shell.ok("patch cm made --type=merge -p {\"data\":{\"z\":null}}").await;
    shell
        .ok("patch cm made --type=json -p [{\"op\":\"add\",\"path\":\"/data/k\",\"value\":\"v\"}]")
        .await;
    shell.file("editor", "#!/bin/sh\nsed -i 's/k: v/k: edited/' \"$1\"\n");
    let editor = format!("sh {}", bench.path.join("editor").display());
    has(&shell.ok_with("edit cm made", "KUBE_EDITOR", editor).await, &["edited"]);
    assert_eq!(
        shell.ok("get cm made -o jsonpath={.data}").await,
        r#"{"a":"b","k":"edited"}"#
    );

    shell.file("node.yaml", "{apiVersion: v1, kind: Node, metadata: {name: edge}}");
    shell.ok("create -f node.yaml").await;
    shell.ok("cordon edge").await;
    has(&shell.ok("get nodes").await, &["edge", "SchedulingDisabled"]);
    shell.ok("uncordon edge").await;
    shell.ok("taint node edge k=v:NoSchedule").await;
    has(
        &shell.ok("describe node edge").await,
        &["k=v:NoSchedule", "Non-terminated Pods"],
    );
    shell.ok("run one --image=busybox:1").await;
    has(
        &shell.ok("get pods -o wide").await,
        &["one", "Pending", "NOMINATED NODE"],
    );
    has(&shell.ok("describe pod one").await, &["Image:        busybox:1"]);
    has(&shell.refused("logs one").await, &["does not have a host assigned"]);

    shell.file(
        "bad.yaml",
        "{apiVersion: v1, kind: Pod, metadata: {name: bad}, spec: {containrs: []}}",
    );
    has(
        &shell.refused("apply -f bad.yaml").await,
        &["unknown field \"spec.containrs\""],
    );
    has(
        &shell.refused("apply --server-side -f node.yaml").await,
        &["server-side apply is not built yet"],
    );
    has(&shell.refused("get pods nobody").await, &["pods \"nobody\" not found"]);

    has(&shell.ok("delete pod one").await, &["pod \"one\" deleted"]);
    has(
        &shell.ok("delete deploy other --cascade=foreground --wait=false").await,
        &["deleted"],
    );
    assert_eq!(
        shell.ok("get deploy other -o jsonpath={.metadata.finalizers}").await,
        r#"["foregroundDeletion"]"#
    );
    has(&shell.ok("delete cm -l x=y").await, &["configmap \"made\" deleted"]);
    shell.ok("delete ns demo --wait=false").await;
    has(&shell.ok("get ns demo").await, &["Terminating"]);
    has(
        &shell.refused("create cm late -n demo").await,
        &["because it is being terminated"],
    );
    bench.server.stop().await;
}

#[tokio::test]
#[ignore = "needs the kubectl that scripts/kubectl fetches"]
async fn a_watch_prints_what_happens() {
    let bench = Bench::start().await;
    let shell = &bench.kubectl;
    shell.ok("create namespace demo").await;
    shell.ok("create configmap first").await;
    let mut watch = shell.start("get cm --watch");
    watch.until("first").await;
    shell.ok("create configmap second").await;
    watch.until("second").await;
    bench.server.stop().await;
}

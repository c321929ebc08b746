//! Real `kubectl` against the API: what people type, and what they read.
//!
//! `scripts/kubectl` fetches it; these tests are ignored unless asked for, because they need it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use tests::api_server::{ApiServer, TOKEN};

const ANSWER: Duration = Duration::from_secs(30);

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

/// A server and the kubectl that speaks to it.
struct Shell {
    folder: TempDir,
    server: ApiServer,
    kubectl: PathBuf,
}

impl Shell {
    async fn start() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let kubectl = root.join("target/tools/kubectl");
        assert!(
            kubectl.exists(),
            "scripts/kubectl has not fetched {}",
            kubectl.display()
        );
        let folder = tempfile::tempdir().unwrap();
        let server = ApiServer::start(&folder.path().join("store")).await.unwrap();
        std::fs::write(folder.path().join("ca.pem"), &server.authority_pem).unwrap();
        let config = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
             clusters:\n- name: here\n  cluster: {{server: '{}', certificate-authority: ca.pem}}\n\
             users:\n- name: admin\n  user: {{token: {TOKEN}}}\n\
             contexts:\n- name: here\n  context: {{cluster: here, user: admin, namespace: demo}}\n",
            server.url()
        );
        std::fs::write(folder.path().join("kubeconfig"), config).unwrap();
        Self { folder, server, kubectl }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.kubectl);
        command
            .args(line.split_whitespace())
            .current_dir(self.folder.path())
            .env("KUBECONFIG", self.folder.path().join("kubeconfig"))
            .env("HOME", self.folder.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs a command that has to succeed, and returns what it printed.
    async fn ok(&self, line: &str) -> String {
        self.ok_with(line, "KUBE_EDITOR", "true").await
    }

    async fn ok_with(&self, line: &str, variable: &str, value: impl AsRef<OsStr>) -> String {
        let (success, out) = self.run(self.command(line).env(variable, value)).await;
        assert!(success, "kubectl {line}: {out}");
        out
    }

    /// Runs a command that has to fail, and returns what it printed.
    async fn refused(&self, line: &str) -> String {
        let (success, out) = self.run(&mut self.command(line)).await;
        assert!(!success, "kubectl {line} passed: {out}");
        out
    }

    async fn run(&self, command: &mut Command) -> (bool, String) {
        let output = timeout(ANSWER, command.output())
            .await
            .expect("kubectl did not end")
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    }

    fn file(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }
}

#[track_caller]
fn has(out: &str, parts: &[&str]) {
    for part in parts {
        assert!(out.contains(part), "{part:?} is not in:\n{out}");
    }
}

#[tokio::test]
#[ignore = "needs the kubectl that scripts/kubectl fetches"]
async fn what_people_type() {
    let shell = Shell::start().await;
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
    let editor = format!("sh {}", shell.folder.path().join("editor").display());
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
    shell.server.stop().await;
}

#[tokio::test]
#[ignore = "needs the kubectl that scripts/kubectl fetches"]
async fn a_watch_prints_what_happens() {
    let shell = Shell::start().await;
    shell.ok("create namespace demo").await;
    shell.ok("create configmap first").await;
    let mut watch = shell.command("get cm --watch").stdout(Stdio::piped()).spawn().unwrap();
    let mut out = watch.stdout.take().unwrap();
    let mut printed = String::new();
    let mut wait_for = async |wanted: &str| {
        let mut piece = [0; 1024];
        while !printed.contains(wanted) {
            let read = timeout(ANSWER, out.read(&mut piece))
                .await
                .expect("nothing printed in time")
                .unwrap();
            assert!(read > 0, "the watch ended: {printed}");
            printed.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
    };
    wait_for("first").await;
    shell.ok("create configmap second").await;
    wait_for("second").await;
    watch.kill().await.unwrap();
    shell.server.stop().await;
}

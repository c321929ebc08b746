//! Real `kubectl` against a running `cloudcore serve`: its certificate, its controllers and its scheduler, with no node.

use tempfile::TempDir;
use tests::cores::CloudCore;
use tests::processes::kubectl;
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
        ports: [{containerPort: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: demo}
spec: {selector: {app: web}, ports: [{port: 80}]}
";

const AGENT: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: demo}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: agent, image: 'agent:1'}]}
";

/// A cloud core, and the kubectl that speaks to it.
async fn start(folder: &TempDir) -> (CloudCore, Shell) {
    let core = CloudCore::start(folder.path()).await;
    let kubectl = core.shell(kubectl());
    (core, kubectl)
}

fn lines(out: &str) -> usize {
    out.lines().count()
}

#[tokio::test]
#[ignore = "needs the kubectl that scripts/kubectl fetches"]
async fn a_deployment_lives_without_a_node() {
    let folder = tempfile::tempdir().unwrap();
    let (mut core, shell) = start(&folder).await;
    has(&shell.ok("version").await, &["Server Version: v1."]);
    shell.file("web.yaml", WEB);
    has(
        &shell.ok("apply -f web.yaml").await,
        &[
            "namespace/demo created",
            "deployment.apps/web created",
            "service/web created",
        ],
    );
    shell.ok("config set-context --current --namespace=demo").await;

    // Deployment, ReplicaSet, pods; the scheduler says why they wait.
    shell.until("get pods -o name", |out| lines(out) == 2).await;
    has(&shell.ok("get rs").await, &["web-", "DESIRED"]);
    let event = |out: &str| out.contains("FailedScheduling") && out.contains("no nodes available to schedule pods");
    shell.until("describe pods -l app=web", event).await;
    has(&shell.ok("get pods").await, &["Pending"]);
    shell
        .until(
            "get deploy web -o jsonpath={.status.observedGeneration}/{.status.replicas}/{.status.unavailableReplicas}",
            |out| out == "1/2/2",
        )
        .await;
    has(
        &shell.ok("describe deploy web").await,
        &["2 desired | 2 updated | 2 total | 0 available | 2 unavailable"],
    );
    has(
        &shell
            .refused("wait deploy/web --for=condition=Available --timeout=1s")
            .await,
        &["timed out"],
    );
    shell
        .until("get endpointslices -l kubernetes.io/service-name=web -o name", |out| {
            lines(out) == 1
        })
        .await;

    shell.ok("scale deploy web --replicas=4").await;
    shell.until("get pods -o name", |out| lines(out) == 4).await;
    shell.ok("scale deploy web --replicas=1").await;
    shell.until("get pods -o name", |out| lines(out) == 1).await;

    // A new image, its history, and back again.
    shell.ok("set image deploy/web web=nginx:1.27").await;
    shell.until("get rs -o name", |out| lines(out) == 2).await;
    has(
        &shell.refused("rollout status deploy/web --timeout=1s").await,
        &["timed out"],
    );
    shell
        .until("rollout history deploy/web", |out| out.contains("\n2 "))
        .await;
    has(
        &shell.ok("rollout history deploy/web --revision=2").await,
        &["nginx:1.27"],
    );
    has(&shell.ok("rollout undo deploy/web").await, &["rolled back"]);
    assert_eq!(
        shell
            .ok("get deploy web -o jsonpath={.spec.template.spec.containers[0].image}")
            .await,
        "nginx:1.25"
    );
    shell
        .until("rollout history deploy/web", |out| {
            out.contains("\n3 ") && !out.contains("\n1 ")
        })
        .await;
    has(&shell.ok("rollout restart deploy/web").await, &["restarted"]);
    shell
        .until("rollout history deploy/web", |out| out.contains("\n4 "))
        .await;

    // What it owned goes with it.
    has(&shell.ok("delete deploy web").await, &["deleted"]);
    shell
        .until("get rs,pods", |out| out.contains("No resources found"))
        .await;
    core.stop().await;
}

#[tokio::test]
#[ignore = "needs the kubectl that scripts/kubectl fetches"]
async fn a_namespace_is_emptied() {
    let folder = tempfile::tempdir().unwrap();
    let (mut core, shell) = start(&folder).await;
    shell.file("web.yaml", WEB);
    shell.ok("apply -f web.yaml").await;
    shell.ok("create configmap made -n demo --from-literal=a=b").await;
    shell
        .ok("create secret generic hidden -n demo --from-literal=p=q")
        .await;
    shell.until("get sa -n demo", |out| out.contains("default")).await;
    shell
        .until("get cm -n demo", |out| out.contains("kube-root-ca.crt"))
        .await;
    shell.until("get pods -n demo -o name", |out| lines(out) == 2).await;
    // This waits until it is gone.
    has(&shell.ok("delete ns demo").await, &["namespace \"demo\" deleted"]);
    has(&shell.refused("get ns demo").await, &["not found"]);
    has(&shell.ok("get all,cm,secret -A").await, &["kube-root-ca.crt"]);
    for gone in ["made", "hidden", "web"] {
        assert!(
            !shell.ok("get all,cm,secret -A").await.contains(gone),
            "{gone} is still there"
        );
    }
    has(&shell.ok("create namespace demo").await, &["created"]);
    core.stop().await;
}

#[tokio::test]
#[ignore = "needs the kubectl that scripts/kubectl fetches"]
async fn nodes_that_are_not_in_contact_keep_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let (mut core, shell) = start(&folder).await;
    shell.file(
        "node.yaml",
        "{apiVersion: v1, kind: Node, metadata: {name: edge, labels: {site: a}}}",
    );
    shell.ok("create -f node.yaml").await;
    shell.file("web.yaml", WEB);
    shell.ok("apply -f web.yaml").await;
    shell.ok("config set-context --current --namespace=demo").await;
    // With no other node to go to, work waits for the one that is away.
    shell
        .until("describe pods -l app=web", |out| out.contains("delivered on return"))
        .await;
    shell
        .until("get pods -l app=web -o jsonpath={..spec.nodeName}", |out| {
            out == "edge edge"
        })
        .await;
    has(&shell.ok("get nodes").await, &["edge", "NotReady"]);

    // What no node can run says how many nodes failed what.
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: b}, \
               spec: {nodeSelector: {site: b}, containers: [{name: b, image: 'b:1'}]}}";
    shell.file("pod.yaml", pod);
    shell.ok("create -f pod.yaml").await;
    let why = |out: &str| out.contains("FailedScheduling") && out.contains("0/1 nodes are available: 1 ");
    shell.until("describe pod b", why).await;

    shell.ok("cordon edge").await;
    has(&shell.ok("get nodes").await, &["SchedulingDisabled"]);
    shell.ok("uncordon edge").await;
    shell.ok("taint node edge k=v:NoSchedule").await;
    has(
        &shell.ok("describe node edge").await,
        &["k=v:NoSchedule", "Non-terminated Pods"],
    );

    // A daemon set has a pod for every node that may run it.
    shell.file("agent.yaml", AGENT);
    shell.ok("apply -f agent.yaml").await;
    shell
        .until(
            "get ds agent -o jsonpath={.status.observedGeneration}/{.status.desiredNumberScheduled}",
            |out| out == "1/0",
        )
        .await;
    shell.ok("taint node edge k-").await;
    shell
        .until("get pods -l app=agent -o jsonpath={..spec.nodeName}", |out| {
            out == "edge"
        })
        .await;

    // A deletion waits for the node's word; without the node there is nobody left to wait for.
    shell.ok("delete ds agent --wait=false").await;
    shell
        .until("get pods -l app=agent -o jsonpath={..deletionTimestamp}", |out| {
            !out.is_empty()
        })
        .await;
    has(&shell.ok("delete node edge").await, &["deleted"]);
    shell
        .until("get pods -l app=agent", |out| out.contains("No resources found"))
        .await;
    core.stop().await;
}

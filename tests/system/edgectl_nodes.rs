//! `edgectl node` with live sessions: a real cloud core and a real edge core, whose runtime runs nothing.

use tempfile::TempDir;
use tests::cores::{CloudCore, EdgeCore, eventually};
use tests::shell::{Shell, has};

const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: 'web:1'}]
";

async fn site(folder: &TempDir) -> (CloudCore, EdgeCore, Shell) {
    let cloud = CloudCore::start(folder.path()).await;
    let path = |name: &str| folder.path().join(name);
    let text = format!(
        "data = {:?}\nlogs = {:?}\nrun = {:?}\nruntime = \"fake\"\nlog = \"debug\"\n[link]\nbeat_s = 5\n",
        path("edge"),
        path("logs"),
        path("run"),
    );
    std::fs::write(path("edgecore.toml"), text).unwrap();
    let mut edge = EdgeCore::join(&cloud, "edge-1", &path("edgecore.toml"));
    edge.start();
    let edgectl = cloud.edgectl();
    (cloud, edge, edgectl)
}

/// The cells of a node's line, by their titles.
fn cells(list: &str, node: &str) -> Option<Vec<(String, String)>> {
    let parts = |line: &str| -> Vec<String> {
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.map(str::to_owned).collect()
    };
    let mut lines = list.lines().map(parts);
    let titles = lines.next()?;
    let line = lines.find(|line| line.first().is_some_and(|name| name == node))?;
    assert_eq!(titles.len(), line.len(), "{list}");
    Some(titles.into_iter().zip(line).collect())
}

fn cell(list: &str, node: &str, title: &str) -> String {
    let cells = cells(list, node).unwrap_or_default();
    let found = cells.into_iter().find(|(name, _)| name == title);
    found.map(|(_, cell)| cell).unwrap_or_default()
}

/// Waits until a node's link is so, and returns the list.
async fn link(shell: &Shell, wanted: &str) -> String {
    shell
        .until("node list", |out| cell(out, "edge-1", "LINK") == wanted)
        .await
}

#[tokio::test]
async fn nodes_are_shown_as_their_sessions_are() {
    let folder = tempfile::tempdir().unwrap();
    let (mut cloud, mut edge, shell) = site(&folder).await;
    let list = link(&shell, "connected").await;
    let is = |title: &str, right: fn(&str) -> bool| {
        let cell = cell(&list, "edge-1", title);
        assert!(right(&cell), "{title} is {cell:?} in:\n{list}");
    };
    let number = |text: &str, units: &[&str]| {
        let unit = units.iter().find_map(|unit| text.strip_suffix(unit));
        unit.is_some_and(|number| number.parse::<f64>().is_ok_and(|number| number >= 0.0))
    };
    assert!(number(&cell(&list, "edge-1", "FOR"), &["s"]), "{list}");
    for title in ["SENT", "RECEIVED"] {
        assert!(
            number(&cell(&list, "edge-1", title), &["kB", "MB", "B"]),
            "{title}: {list}"
        );
        assert_ne!(cell(&list, "edge-1", title), "0B", "{list}");
    }
    assert!(number(&cell(&list, "edge-1", "REACHABLE-WITHIN"), &["ms"]), "{list}");
    is("PENDING", |pending| pending.parse::<u32>().is_ok());
    is("ENROLLED", |enrolled| enrolled == "yes");

    // Work goes there and is told of; then nothing waits for the node.
    shell.apply(WEB).await;
    let running = |out: &str| out.matches("Running").count() == 2 && out.matches("edge-1").count() == 2;
    shell.until("get pods -l app=web -o wide", running).await;
    shell
        .until("node list", |out| cell(out, "edge-1", "PENDING") == "0")
        .await;
    has(&shell.ok("get nodes").await, &["edge-1", "Ready"]);

    // Without its edge core it is silent, and what only a session knows is not made up.
    edge.kill();
    let list = link(&shell, "silent").await;
    for title in ["PENDING", "SENT", "RECEIVED", "REACHABLE-WITHIN"] {
        assert_eq!(cell(&list, "edge-1", title), "-", "{list}");
    }
    edge.start();
    link(&shell, "connected").await;
    cloud.stop().await;
}

#[tokio::test]
async fn a_node_is_revoked_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let (mut cloud, edge, shell) = site(&folder).await;
    link(&shell, "connected").await;
    for line in ["node revoke egde-1", "node delete egde-1"] {
        has(
            &shell.fails(line, 1).await,
            &["nodes \"egde-1\" not found: did you mean node/edge-1?"],
        );
    }
    has(&shell.ok("node revoke edge-1").await, &["node edge-1 revoked"]);
    let list = link(&shell, "silent").await;
    assert_eq!(cell(&list, "edge-1", "ENROLLED"), "no", "{list}");
    eventually("the node knows that it has no session", async || {
        (edge.status()["connected"] == false).then_some(())
    })
    .await;
    has(&shell.fails("node revoke edge-1", 1).await, &["no enrolment"]);
    has(&shell.ok("node delete edge-1").await, &["node edge-1 deleted"]);
    has(&shell.ok("node list").await, &["no nodes"]);

    // With another key and a session it goes in one step.
    let config = edge.config.clone();
    drop(edge);
    for file in ["node.key", "enrolment.json"] {
        std::fs::remove_file(folder.path().join("edge").join(file)).unwrap();
    }
    let mut again = EdgeCore::join(&cloud, "edge-1", &config);
    again.start();
    link(&shell, "connected").await;
    has(
        &shell.ok("node delete edge-1").await,
        &["node edge-1 deleted; its key is barred"],
    );
    has(&shell.ok("node list").await, &["no nodes"]);
    cloud.stop().await;
}

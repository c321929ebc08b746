//! containerd missing, killed and started again under a running edge core: said in the node's conditions, waited for, and
//! healed by itself.

use tests::cores::eventually;

use super::node::Node;
use super::site::{Site, text};

/// Sends SIGTERM, which a script may answer with an exit code of its own.
fn terminate(pid: u32) {
    let sent = std::process::Command::new("kill")
        .args(["-TERM", &pid.to_string()])
        .status();
    assert!(sent.unwrap().success());
}

/// What `edgecore status` says is wrong; how full the disk of this machine is, is not this test's.
fn troubles(site: &Site) -> Vec<String> {
    let text = site.edge.command(&["status"]);
    let lines = text.lines().filter(|line| line.starts_with("trouble "));
    lines
        .filter(|line| !line.contains("DiskPressure"))
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn containerd_missing_at_the_start_is_said_and_waited_for() {
    let mut site = Site::joined(Node::new("missing").await).await;
    site.node.kill_daemon();
    let socket = site.node.config.socket.clone();
    std::fs::remove_file(&socket).unwrap();
    // One pod that is bound whatever the node says, and two that the scheduler keeps until it is ready.
    site.script("bound", "Never", "echo done; exit 0");
    site.deploy(2);
    site.edge.start();
    let message = site.node_says("RuntimeReady", "False", "RuntimeNotReady").await;
    site.connected().await;
    let socket = socket.display().to_string();
    for part in [socket.as_str(), "No such file", "systemctl start containerd"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(site.node_says("Ready", "False", "RuntimeNotReady").await, message);
    let troubles_now = troubles(&site);
    assert!(
        troubles_now.len() == 1 && troubles_now[0].contains("RuntimeReady") && troubles_now[0].contains(&socket),
        "{troubles_now:?}"
    );
    // The bound pod is here, and waits.
    eventually("the pod is on the node", async || {
        let status = site.edge.status();
        let pods = status["pods"].as_array()?;
        pods.iter()
            .any(|pod| pod["name"] == "bound" && pod["phase"] == "Pending")
            .then_some(())
    })
    .await;
    let phases: Vec<_> = site
        .kubectl
        .pods("app=web")
        .iter()
        .map(|pod| text(pod, "/status/phase"))
        .collect();
    assert_eq!(phases, ["Pending", "Pending", "Pending"]);

    let edge = site.edge.pid();
    site.node.start_daemon();
    site.pod("bound", "it runs to its end", |pod| {
        text(pod, "/status/phase") == "Succeeded"
    })
    .await;
    site.running(2).await;
    site.node_says("RuntimeReady", "True", "RuntimeReady").await;
    site.node_says("Ready", "True", "KubeletReady").await;
    assert_eq!(troubles(&site), Vec::<String>::new());
    assert!(site.edge.pid() == edge && site.edge_lives());
    site.kubectl.run(&["delete", "pod", "bound"]);
    site.ready(2).await;
    site.finish().await;
}

#[tokio::test]
async fn containerd_killed_and_started_again_touches_nothing_and_loses_no_exit() {
    let mut site = Site::start("away").await;
    site.script(
        "teller",
        "Always",
        "i=0; while true; do i=$((i+1)); echo line $i; sleep 0.1; done",
    );
    site.script(
        "once",
        "Never",
        "trap \"exit 7\" TERM; echo up; while :; do sleep 0.1; done; # once",
    );
    site.script(
        "again",
        "Always",
        "trap \"exit 3\" TERM; echo up; while :; do sleep 0.1; done; # again",
    );
    let teller = site.process("echo line").await;
    let (once, again) = (site.process("# once").await, site.process("# again").await);
    for name in ["teller", "once", "again"] {
        site.pod(name, "it runs", |pod| text(pod, "/status/phase") == "Running")
            .await;
    }
    eventually("both can be told to end", async || {
        let up = |name| site.logged(name, 0) == ["stdout F up"];
        (up("once") && up("again")).then_some(())
    })
    .await;
    let logging = site.log_processes();
    assert_eq!(logging.len(), 3);

    site.node.kill_daemon();
    let message = site.node_says("Ready", "False", "RuntimeNotReady").await;
    assert!(message.contains("c.sock"), "{message}");
    terminate(once);
    terminate(again);
    eventually("both have ended", async || {
        (site.inside("# once").is_empty() && site.inside("# again").is_empty()).then_some(())
    })
    .await;
    // Who still runs is still heard.
    let heard = site.logged("teller", 0).len();
    eventually("the log goes on", async || {
        (site.logged("teller", 0).len() > heard + 5).then_some(())
    })
    .await;
    assert_eq!(site.inside("echo line").first(), Some(&teller));
    let left = site.log_processes();
    assert!(!left.is_empty() && left.is_subset(&logging));

    site.node.start_daemon();
    site.node_says("Ready", "True", "KubeletReady").await;
    let ended = site
        .pod("once", "it has failed", |pod| text(pod, "/status/phase") == "Failed")
        .await;
    let code = "/status/containerStatuses/0/state/terminated/exitCode";
    assert_eq!(ended.pointer(code).and_then(serde_json::Value::as_i64), Some(7));
    let back = site
        .pod("again", "it was restarted", |pod| {
            pod.pointer("/status/containerStatuses/0/restartCount") == Some(&1.into())
                && pod.pointer("/status/containerStatuses/0/state/running").is_some()
        })
        .await;
    let code = "/status/containerStatuses/0/lastState/terminated/exitCode";
    assert_eq!(back.pointer(code).and_then(serde_json::Value::as_i64), Some(3));
    // The one that ran through all of it was not touched, and not a line of it is missing.
    assert_eq!(site.process("echo line").await, teller);
    let untouched = site
        .pod("teller", "it runs", |pod| text(pod, "/status/phase") == "Running")
        .await;
    let restarts = untouched.pointer("/status/containerStatuses/0/restartCount");
    assert_eq!(restarts, Some(&0.into()));
    let lines = site.logged("teller", 0);
    for (line, number) in lines.iter().zip(1..) {
        assert_eq!(line, &format!("stdout F line {number}"));
    }
    assert!(lines.len() > heard);
    site.finish().await;
}

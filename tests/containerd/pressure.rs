//! Memory and process ids running short, as the kernel's own files say it to the edge core: other files are mounted over
//! them, for nobody may use up the machine's.

use std::path::Path;
use std::process::Command;

use super::host::own_mounts;
use super::node::Node;
use super::site::Site;

/// Lets a file of the kernel's say something else.
fn says(site: &Site, file: &str, text: &str) {
    let other = site.node.folder.join(Path::new(file).file_name().unwrap());
    std::fs::write(&other, text).unwrap();
    let mut mount = Command::new("mount");
    assert!(
        mount
            .arg("--bind")
            .args([&other, Path::new(file)])
            .status()
            .unwrap()
            .success()
    );
}

fn says_the_truth(file: &str) {
    assert!(Command::new("umount").arg(file).status().unwrap().success());
}

/// A change of the node's own object: it looks at itself then.
fn nudge(site: &Site, value: &str) {
    site.kubectl
        .run(&["label", "node", "edge-1", "--overwrite", &format!("nudge={value}")]);
}

#[tokio::test]
async fn containerd_a_node_says_what_it_runs_short_of() {
    const MEMINFO: &str = "/proc/meminfo";
    const PID_MAX: &str = "/proc/sys/kernel/pid_max";
    own_mounts();
    let mut site = Site::joined(Node::empty("pressure").await).await;
    let text = |available: u32| format!("MemTotal: 524288 kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n");
    says(&site, MEMINFO, &text(51_200));
    site.edge.start();
    let message = site
        .node_says("MemoryPressure", "True", "EdgeHasInsufficientMemory")
        .await;
    assert_eq!(
        message,
        "memory: 50 MiB of 512 MiB are available, and 100 MiB should be"
    );
    site.node_says("PIDPressure", "False", "EdgeHasEnoughPids").await;
    // A node that is short of something is in contact and runs pods.
    site.node_says("Ready", "True", "KubeletReady").await;
    let status = site.edge.command(&["status"]);
    assert!(status.contains("MemoryPressure, EdgeHasInsufficientMemory"), "{status}");

    // A little more is not enough, and is not said either.
    says(&site, MEMINFO, &text(110 * 1024));
    says(&site, PID_MAX, "20\n");
    nudge(&site, "one");
    let pids = site.node_says("PIDPressure", "True", "EdgeHasInsufficientPIDs").await;
    assert!(pids.starts_with("process ids: 0 of 20 are available"), "{pids}");
    let again = site
        .node_says("MemoryPressure", "True", "EdgeHasInsufficientMemory")
        .await;
    assert_eq!(again, message);

    for file in [MEMINFO, MEMINFO, PID_MAX] {
        says_the_truth(file);
    }
    says(&site, MEMINFO, &text(300 * 1024));
    nudge(&site, "two");
    site.node_says("MemoryPressure", "False", "EdgeHasEnoughMemory").await;
    site.node_says("PIDPressure", "False", "EdgeHasEnoughPids").await;
    says_the_truth(MEMINFO);
    site.finish().await;
}

//! What is shipped, as people run it: the images of all machines, and packages replaced under running pods.
//!
//! Needs the static programs of `scripts/cross` for amd64, arm64 and armhf, and qemu-user-static.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use edgecore::runtime::Runtime as _;
use tests::cores::eventually;
use tests::debian::Root;
use tests::foreign::Foreign;
use tests::processes::Process;
use tests::ship::{AMD64, MACHINES, Machine, Programs, said};

use super::node::{Node, pod};
use super::site::Site;

/// Builds an image for all machines; returns the archive.
fn image(node: &Node, name: &str) -> PathBuf {
    let out = node.folder.join("images");
    said(&Programs::built().script("build", [out.to_str().unwrap(), "all", name]));
    out.join(format!("{name}.tar"))
}

fn platform(machine: Machine) -> String {
    let (architecture, variant) = machine.platform;
    let variant = variant.filter(|_| architecture == "arm");
    variant.map_or_else(
        || format!("linux/{architecture}"),
        |variant| format!("linux/{architecture}/{variant}"),
    )
}

#[tokio::test]
async fn containerd_runs_the_edge_core_of_every_machine() {
    let node = Node::empty("shipped").await;
    let archive = image(&node, "edgecore");
    let version = format!("edgecore {}", env!("CARGO_PKG_VERSION"));

    // Our own import takes the part that is for this machine.
    let names = node.runtime.import(&archive).await.unwrap();
    let [name] = names.as_slice() else { panic!("{names:?}") };
    let mut container = node.script(pod(), "version", "");
    container.image.clone_from(name);
    container.command = ["/usr/bin/edgecore", "--version"].map(str::to_owned).into();
    let id = node.run(&container).await;
    assert_eq!(node.exit_code(&id).await, 0);
    node.logs("version", &format!("stdout F {version}")).await;
    node.runtime.remove(&id).await.unwrap();
    node.runtime.release(container.labels.pod).await.unwrap();

    let _foreign = Foreign::arm();
    for machine in MACHINES {
        let platform = platform(machine);
        node.ctr(&["images", "import", "--platform", &platform, archive.to_str().unwrap()]);
        let ran = node.ctr(&[
            "run",
            "--rm",
            "--platform",
            &platform,
            name,
            machine.name,
            "/usr/bin/edgecore",
            "--version",
        ]);
        assert_eq!(ran, [version.as_str()], "{platform}");
    }
    node.finish(&[], &[]).await;
}

#[tokio::test]
async fn containerd_runs_a_cloud_core_that_is_nobody() {
    let node = Node::empty("nobody").await;
    node.ctr(&["images", "import", image(&node, "cloudcore").to_str().unwrap()]);
    let names = node.ctr(&["images", "ls", "-q"]);
    node.ctr(&["run", "--detach", &names[0], "cloud"]);
    let mut attempt = 0;
    let ctr = |words: &[&str]| {
        let mut command = Command::new("ctr");
        command
            .arg("-a")
            .arg(&node.config.socket)
            .args(["-n", &node.config.namespace])
            .args(words);
        command.output().unwrap()
    };
    eventually("the cloud core in the container answers", async || {
        attempt += 1;
        let id = format!("ask-{attempt}");
        let asked = ctr(&[
            "tasks",
            "exec",
            "--exec-id",
            &id,
            "cloud",
            "/usr/bin/edgectl",
            "version",
        ]);
        asked.status.success().then_some(())
    })
    .await;
    let token = node.ctr(&[
        "tasks",
        "exec",
        "--exec-id",
        "token",
        "cloud",
        "/usr/bin/cloudcore",
        "token",
        "create",
    ]);
    assert!(token[0].starts_with("edgehold-join.v1."), "{token:?}");
    // It ends when it is asked to, in good order.
    node.ctr(&["tasks", "kill", "--signal", "SIGTERM", "cloud"]);
    eventually("it has stopped", async || {
        node.ctr(&["tasks", "ls"])
            .iter()
            .any(|line| line.contains("STOPPED"))
            .then_some(())
    })
    .await;
    node.ctr(&["tasks", "rm", "cloud"]);
    node.ctr(&["containers", "rm", "cloud"]);
    node.finish(&[], &[]).await;
}

/// The processes of pods and of their logs, each with its start.
fn lives(site: &Site) -> BTreeMap<u32, String> {
    let start = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // Behind the name, which may hold anything.
        let rest = stat.rsplit(')').next().unwrap().to_owned();
        (pid, rest.split_whitespace().nth(19).unwrap().to_owned())
    };
    let shells = site.shells().into_iter();
    shells.chain(site.log_processes()).map(start).collect()
}

/// As the unit does: the program at its place, with the configuration.
fn start(program: &Path, site: &Site) -> Process {
    let mut command = Command::new(program);
    command.arg("--config").arg(&site.edge.config).arg("run");
    Process::start(&mut command, &site.edge.config.with_extension("log"))
}

#[tokio::test]
async fn containerd_pods_live_through_an_upgrade_and_a_downgrade_of_the_package() {
    let root = Root::new();
    let folder = tempfile::tempdir().unwrap();
    let versions = [("1.0", Programs::before()), ("1.1", Programs::built())];
    let [old, new] =
        versions.map(|(version, programs)| programs.package(folder.path(), "edgehold-edge", AMD64, version));
    let install = |package: &Path| root.ok(&format!("dpkg -i {}", root.bring(package)));
    install(&old);

    let mut site = Site::joined(Node::new("upgrade").await).await;
    let program = root.path("usr/bin/edgecore");
    let mut edge = start(&program, &site);
    site.deploy(2);
    site.script("ticks", "Always", "while true; do echo tick; sleep 0.1; done");
    site.ready(3).await;
    site.running(3).await;
    let before = lives(&site);
    assert_eq!(before.len(), 6, "three containers and their logs: {before:?}");

    for package in [&new, &old] {
        install(package);
        assert_eq!(lives(&site), before);
        // The package's last word is to start the unit anew, which ends the one process and no other.
        edge.stop().await;
        let ticks = site.logged("ticks", 0).len();
        eventually("the log goes on with no edge core", async || {
            (site.logged("ticks", 0).len() > ticks).then_some(())
        })
        .await;
        edge = start(&program, &site);
        site.connected().await;
        // It has taken over what runs: what is changed now is done, and what is not changed is left alone.
        site.kubectl.run(&["scale", "deployment/web", "--replicas=3"]);
        site.ready(4).await;
        site.kubectl.run(&["scale", "deployment/web", "--replicas=2"]);
        site.ready(3).await;
        site.running(3).await;
        let now = lives(&site);
        let kept = before.iter().filter(|(pid, start)| now.get(pid) == Some(start)).count();
        // Which of three pods goes is the controller's choice: the youngest.
        assert_eq!((kept, site.restarts()), (6, 0), "{before:?} {now:?}");
    }
    edge.stop().await;
    site.edge.start();
    site.finish().await;
}

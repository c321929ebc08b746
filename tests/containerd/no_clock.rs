//! A wall clock that is at 1970, or ten years ahead: the whole edge core on another clock, by a library under it.
//!
//! Only the edge core has that clock; the cloud core, containerd and the containers have the machine's.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use proto::time::rfc3339;
use tests::cores::{eventually, program};

use super::host::{kill, own_mounts};
use super::node::{Node, On, on_both};
use super::site::{Site, new_boot_id, text};

on_both!(an_edge_core_at_1970_runs_its_pods_and_learns_the_time);

const YEARS_10_S: i64 = 10 * 365 * 86_400;

/// The edge core's clock.
pub(crate) struct Wall {
    library: PathBuf,
    file: PathBuf,
}

impl Wall {
    pub(crate) fn new(folder: &Path) -> Self {
        let (library, file) = (folder.join("wall.so"), folder.join("wall"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("containerd/wall.c");
        let made = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
            .args([&library, &source])
            .status();
        assert!(made.unwrap().success());
        Self { library, file }
    }

    /// Shifts it against the machine's, by so many seconds. `right`: something keeps it right, or says so.
    fn shift(&self, seconds: i64, right: bool) {
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{seconds} {}", u8::from(right))).unwrap();
        std::fs::rename(new, &self.file).unwrap();
    }

    /// A minute past 1970, as a machine with no battery begins.
    pub(crate) fn set_to_1970(&self) {
        self.shift(60 - machine_s(), false);
    }

    /// `edgecore` with this clock.
    pub(crate) fn edgecore(&self, config: &Path) -> Command {
        let mut command = Command::new(program("edgecore"));
        command
            .arg("--config")
            .arg(config)
            .env("LD_PRELOAD", &self.library)
            .env("EDGEHOLD_TEST_WALL", &self.file);
        command
    }

    fn run(&self, config: &Path) -> Running {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(config.with_extension("log"));
        let log = log.unwrap();
        let process = self
            .edgecore(config)
            .arg("run")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        Running(process.unwrap())
    }
}

/// Waits until the edge core has logged something at a time that begins like this: it is on that clock.
async fn logs_at(config: &Path, begin: &str) {
    eventually(&format!("the edge core is at {begin}"), async || {
        let log = std::fs::read_to_string(config.with_extension("log")).ok()?;
        log.lines().any(|line| line.contains(begin)).then_some(())
    })
    .await;
}

/// The machine's time, in seconds since 1970.
fn machine_s() -> i64 {
    daemon::clock::wall().ms / 1000
}

struct Running(Child);

impl Running {
    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The year so many seconds from the machine's now.
fn year_in(seconds: i64) -> i64 {
    rfc3339(machine_s() + seconds)[..4].parse().unwrap()
}

/// When each container began to run, as the cloud has it: the years.
fn years(site: &Site) -> Vec<i64> {
    let pods = site.kubectl.pods("app=web");
    let years = pods
        .iter()
        .map(|pod| text(pod, "/status/containerStatuses/0/state/running/startedAt"));
    years.map(|time| time[..4].parse().unwrap()).collect()
}

/// The restarts of these pods, as far as they are still there.
fn restarts(site: &Site, uids: &BTreeSet<String>) -> i64 {
    let pods = site.kubectl.pods("app=web");
    let pods = pods.iter().filter(|pod| uids.contains(&text(pod, "/metadata/uid")));
    pods.filter_map(|pod| pod.pointer("/status/containerStatuses/0/restartCount")?.as_i64())
        .sum()
}

async fn an_edge_core_at_1970_runs_its_pods_and_learns_the_time(on: On) {
    own_mounts();
    let mut site = Site::of(on, "clock").await;
    site.deploy(2);
    let uids = site.ready(2).await;
    site.running(2).await;
    let wall = Wall::new(&site.node.folder);
    let config = site.edge.config.clone();

    // Power off; back with no link and no time.
    site.cloud.kill();
    site.edge.kill();
    site.node.kill_daemon();
    site.node.reboot().await;
    new_boot_id(&site.node.folder, 1);
    site.node.start_daemon();
    site.node.answers().await;
    wall.set_to_1970();
    let mut edge = wall.run(&config);
    let shells = site.running(2).await;
    logs_at(&config, "1970-01-01T00:").await;

    // The session gives the time: certificates are accepted before, and what happens after is labelled right.
    site.cloud.start_again().await;
    site.connected().await;
    assert_eq!(site.ready(2).await, uids);
    eventually("the cloud knows of the restarts", async || {
        (site.restarts() == 2).then_some(())
    })
    .await;
    assert_eq!(site.shells(), shells);
    kill(*shells.first().unwrap());
    kill(*shells.last().unwrap());
    eventually("the cloud counts them", async || (site.restarts() == 4).then_some(())).await;
    site.ready(2).await;
    let machine = year_in(0);
    for year in years(&site) {
        // Also at the turn of a year.
        assert!(year == machine || year + 1 == machine, "{year}");
    }
    let shells = site.running(2).await;

    // Ten years ahead at once: nothing that runs is stopped, and what is wanted is done. A new session is had, too.
    wall.shift(YEARS_10_S, false);
    site.kubectl.run(&["scale", "deployment", "web", "--replicas=3"]);
    site.ready(3).await;
    assert!(shells.is_subset(&site.running(3).await));
    logs_at(&config, &format!("{}-", year_in(YEARS_10_S))).await;
    site.cloud.kill();
    site.cloud.start_again().await;
    eventually("another session", async || {
        let status = site.edge.status();
        (status["connected"] == true && status["connectedS"].as_u64()? < 60).then_some(())
    })
    .await;
    site.kubectl.run(&["scale", "deployment", "web", "--replicas=4"]);
    site.ready(4).await;

    // The same with a time daemon that vouches for it, and back to 1970.
    wall.shift(YEARS_10_S, true);
    site.kubectl.run(&["scale", "deployment", "web", "--replicas=5"]);
    site.ready(5).await;
    wall.set_to_1970();
    site.kubectl.run(&["scale", "deployment", "web", "--replicas=6"]);
    site.ready(6).await;
    assert!(shells.is_subset(&site.running(6).await));
    assert_eq!(restarts(&site, &uids), 4, "nothing was restarted for a clock");
    assert!(edge.lives());
    drop(edge);
    site.edge.start();
    site.connected().await;
    site.finish().await;
}

#[tokio::test]
async fn a_node_joins_at_1970() {
    let site = Site::joined(Node::empty("clockjoin").await).await;
    let wall = Wall::new(&site.node.folder);
    wall.set_to_1970();
    let config = site.node.folder.join("second.toml");
    let path = |name: &str| site.node.folder.join(name).display().to_string();
    let text = format!(
        "data = {:?}\nlogs = {:?}\nrun = {:?}\nruntime = \"fake\"\n",
        path("second"),
        path("second-logs"),
        path("second-run"),
    );
    std::fs::write(&config, text).unwrap();
    let token = site.node.folder.join("second.token");
    std::fs::write(&token, site.cloud.token("edge-2")).unwrap();
    let url = format!("https://127.0.0.1:{}", site.cloud.api);
    let joined = wall
        .edgecore(&config)
        .args(["join", &url, "--token-file"])
        .arg(&token)
        .output()
        .unwrap();
    assert!(joined.status.success(), "{joined:?}");
    let mut edge = wall.run(&config);
    eventually("the node is ready", async || {
        let node = site.kubectl.json(&["node", "edge-2"])?;
        let conditions = node.pointer("/status/conditions")?.as_array()?;
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
        (ready["status"] == "True").then_some(())
    })
    .await;
    assert!(edge.lives());
    drop(edge);
    site.finish().await;
}

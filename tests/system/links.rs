//! Links that are cut, in either direction, for less and for more time than it takes to notice; and that move.
//!
//! Whatever happens meanwhile on both sides, afterwards both have the same, and no pod was made twice or restarted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;

use tests::cores::eventually;
use tests::network::{CLOUD, Cut, Host, own_network};

use super::site::{Line, Node, Site};

/// Where the readiness of the pod `NODE-probed` is asked for, on its node.
const PROBED: &str = "127.0.0.1:7000";

/// A node behind a link, with pods, and what makes one of them ready.
struct Linked {
    node: Node,
    probed: Option<TcpListener>,
    /// Its pods before anything was cut, by name.
    uids: BTreeMap<String, String>,
}

impl Linked {
    /// Joins and starts, and gives the node work: a deployment of two, a pod that will be deleted, and one with settings
    /// whose readiness the test has in hand.
    async fn start(site: &Site, number: u8, name: &str, link: &str) -> Self {
        let host = Host::new(number);
        let probed = host.inside(|| TcpListener::bind(PROBED).unwrap());
        let mut node = Node::join(site, name, Some(host), link);
        node.go();
        site.is_ready(name, "True").await;
        let container = "{name: c, image: 'x:1'}";
        site.kubectl.apply(&format!(
            "apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec: {{nodeSelector: {{kubernetes.io/hostname: {name}}}, containers: [{container}]}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: {name}}}
data: {{greeting: hello}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}-doomed}}
spec: {{nodeName: {name}, terminationGracePeriodSeconds: 1, containers: [{container}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}-probed}}
spec:
  nodeName: {name}
  volumes: [{{name: settings, configMap: {{name: {name}}}}}]
  containers:
  - name: c
    image: x:1
    volumeMounts: [{{name: settings, mountPath: /settings}}]
    readinessProbe: {{tcpSocket: {{host: 127.0.0.1, port: 7000}}, periodSeconds: 1, failureThreshold: 1}}
"
        ));
        let mut linked = Self { node, probed: Some(probed), uids: BTreeMap::new() };
        linked.settles(site, "four pods that are well", 4, true).await;
        linked.uids = site.uids(name);
        linked.settings(site, "hello").await;
        linked
    }

    /// Waits until both sides have so many pods, all running, none restarted; of one the readiness is said.
    async fn settles(&self, site: &Site, what: &str, count: usize, ready: bool) {
        let probed = format!("{}-probed", self.node.name);
        let wanted = |pods: &BTreeSet<Line>| {
            let well = |pod: &Line| pod.is_well() == (ready || pod.name != probed);
            pods.len() == count && pods.iter().all(|pod| pod.phase == "Running" && well(pod))
        };
        self.node.settles(site, what, wanted).await;
        assert!(self.node.pods().iter().all(|pod| pod.restarts == 0));
    }

    async fn settings(&self, site: &Site, greeting: &str) {
        let uid = &site.uids(&self.node.name)[&format!("{}-probed", self.node.name)];
        self.node.file_says(uid, "settings/greeting", greeting).await;
    }

    /// Changes at the cloud: a pod more, one less, other settings.
    fn change(&self, site: &Site) {
        let name = &self.node.name;
        site.kubectl.run(&["scale", "deployment", name, "--replicas=3"]);
        let doomed = format!("{name}-doomed");
        site.kubectl.run(&["delete", "pod", &doomed, "--wait=false"]);
        let patch = r#"{"data":{"greeting":"changed"}}"#;
        site.kubectl.run(&["patch", "configmap", name, "-p", patch]);
    }

    /// A change on the node: it sees that a pod is not ready.
    async fn unready(&mut self) {
        self.probed = None;
        let probed = format!("{}-probed", self.node.name);
        let seen = async || {
            let mut pods = self.node.pods().into_iter();
            pods.any(|pod| pod.name == probed && pod.ready == "0/1").then_some(())
        };
        eventually(&format!("{probed} is not ready"), seen).await;
    }

    /// All that [`Self::change`] and [`Self::unready`] did is where it belongs, and nothing else happened; later changes
    /// arrive in both directions.
    async fn converges(&mut self, site: &Site) {
        self.settles(site, "four pods, one of them not ready", 4, false).await;
        self.settings(site, "changed").await;
        let name = &self.node.name;
        let (after, doomed) = (site.uids(name), format!("{name}-doomed"));
        let stayed: BTreeMap<_, _> = self.uids.iter().filter(|(pod, _)| **pod != doomed).collect();
        assert!(
            stayed.iter().all(|(pod, uid)| after.get(*pod) == Some(*uid)),
            "{stayed:?}: {after:?}"
        );
        let probed = self.node.host().inside(|| TcpListener::bind(PROBED).unwrap());
        self.probed = Some(probed);
        site.kubectl.run(&["scale", "deployment", name, "--replicas=2"]);
        self.settles(site, "three pods that are well", 3, true).await;
    }
}

/// Cuts that are over before anybody can be sure of them: the session goes on.
#[tokio::test]
async fn a_short_cut_is_healed_within_the_session() {
    own_network();
    let site = Site::start_at(CLOUD).await;
    let mut nodes = Vec::new();
    for (number, (name, cut)) in (1..).zip([("dead", Cut::Both), ("mute", Cut::Up), ("deaf", Cut::Down)]) {
        // The default: 40 s of silence end a session.
        nodes.push((Linked::start(&site, number, name, "").await, cut));
    }
    for (linked, cut) in &mut nodes {
        let name = linked.node.name.clone();
        assert_eq!(site.sessions(&name), 1);
        linked.node.host().cut(*cut);
        linked.change(&site);
        linked.unready().await;
        linked.node.host().mend();
        linked.converges(&site).await;
        assert_eq!((site.sessions(&name), site.ready(&name).as_str()), (1, "True"));
    }
}

/// Cuts that both sides notice: the node is Unknown and its pods stay what they are.
#[tokio::test]
async fn a_long_cut_costs_a_session_and_nothing_else() {
    own_network();
    let site = Site::start_at(CLOUD).await;
    let mut nodes = Vec::new();
    let cuts = [
        ("dead", Cut::Both),
        ("mute", Cut::Up),
        ("deaf", Cut::Down),
        ("bare", Cut::Unplugged),
    ];
    for (number, (name, cut)) in (1..).zip(cuts) {
        nodes.push((Linked::start(&site, number, name, "beat_s = 2").await, cut));
    }
    let mut whole = Linked::start(&site, 9, "whole", "").await;
    for (linked, cut) in &nodes {
        linked.node.host().cut(*cut);
    }
    for (linked, _) in &mut nodes {
        linked.change(&site);
        linked.unready().await;
        linked.node.says("no link", |status| status["connected"] == false).await;
    }
    for (linked, _) in &nodes {
        let name = &linked.node.name;
        site.is_ready(name, "Unknown").await;
        // Nobody replaces anything, and what is to be deleted waits.
        let now = site.uids(name);
        assert!(
            linked.uids.iter().all(|(pod, uid)| now.get(pod) == Some(uid)),
            "{now:?}"
        );
        assert_eq!(now.len(), 5);
    }
    // A node whose link is whole notices nothing.
    assert_eq!((site.sessions("whole"), site.ready("whole").as_str()), (1, "True"));
    for (linked, cut) in &nodes {
        let seen = linked.node.log().len();
        linked.node.host().mend();
        if *cut == Cut::Unplugged {
            // This one need not wait for its next try.
            let hears = async || linked.node.log()[seen..].contains("the network changed").then_some(());
            eventually("the node hears that the plug is in", hears).await;
        }
    }
    for (linked, _) in &mut nodes {
        linked.converges(&site).await;
        site.is_ready(&linked.node.name, "True").await;
    }
    whole.change(&site);
    whole.unready().await;
    whole.converges(&site).await;
    assert_eq!(site.sessions("whole"), 1);
}

/// The node is elsewhere from one moment to the next, as behind a NAT that forgot it.
#[tokio::test]
async fn a_node_that_moves_stays_connected() {
    own_network();
    let site = Site::start_at(CLOUD).await;
    let mut linked = Linked::start(&site, 1, "moving", "").await;
    linked.node.host().take_address(77);
    linked.change(&site);
    linked.unready().await;
    linked.converges(&site).await;
    // And while nothing could be said.
    linked.node.host().cut(Cut::Both);
    linked.node.host().take_address(78);
    linked.probed = None;
    linked.node.host().mend();
    linked
        .settles(&site, "three pods, one of them not ready", 3, false)
        .await;
    assert_eq!((site.sessions("moving"), site.ready("moving").as_str()), (1, "True"));
}

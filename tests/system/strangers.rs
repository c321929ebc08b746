//! Those who do not belong, and those who speak nonsense: each is shown the door with a reason, and everybody else's
//! work goes on.

use std::fs;

use proto::digest::Digest;
use proto::frame::{Frame, Hello, Refusal, VERSION};
use proto::object::{Epoch, Revision};
use proto::time::BootId;
use quinn::SendStream;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde_json::Value;
use tests::cores::{DEADLINE, eventually};
use tokio::time::timeout;

use super::raw::{Client, MadHub, Shown, alert, code, frame, framed, hub, identity};
use super::site::{Node, Site, copy, text};

/// TLS's words for what is wrong with a client.
const UNKNOWN_CA: u64 = 48;
const CERTIFICATE_REVOKED: u64 = 44;
const CERTIFICATE_REQUIRED: u64 = 116;

/// A certificate of a CA that is not the cloud's, for the enrolment of a node that is.
fn foreign(enrolment: &str, expired: bool) -> Shown {
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = Issuer::new(ca, KeyPair::generate().unwrap());
    let key = KeyPair::generate().unwrap();
    let mut node = CertificateParams::new(Vec::new()).unwrap();
    node.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    node.distinguished_name.push(DnType::CommonName, enrolment);
    node.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    if expired {
        node.not_before = date_time_ymd(2020, 1, 1);
        node.not_after = date_time_ymd(2021, 1, 1);
    }
    let certificate: CertificateDer<'static> = node.signed_by(&key, &issuer).unwrap().der().clone();
    Some((vec![certificate], PrivatePkcs8KeyDer::from(key.serialize_der()).into()))
}

/// A node's session is the one it always had, and a pod still finds its way.
async fn undisturbed(site: &Site, node: &Node, with: &str) {
    site.run(&node.name, with);
    node.runs(site, &[with]).await;
    assert_eq!(
        (site.sessions(&node.name), site.ready(&node.name).as_str()),
        (1, "True")
    );
}

#[tokio::test]
async fn a_stranger_is_refused_and_sessions_go_on() {
    let site = Site::start().await;
    let node = Node::start(&site, "good", "").await;
    let enrolment = identity(&node.data).enrolment().to_string();
    let strangers = [
        (foreign(&enrolment, false), UNKNOWN_CA),
        (foreign(&enrolment, true), UNKNOWN_CA),
        (None, CERTIFICATE_REQUIRED),
    ];
    for (number, (shown, wanted)) in strangers.into_iter().enumerate() {
        // A client may think that it is in before the hub has looked.
        let error = match Client::stranger(&node.data, shown).await {
            Ok(client) => client.closed().await,
            Err(error) => error,
        };
        assert_eq!(alert(&error), Some(wanted), "{error:?}");
        eventually("the log says so", async || {
            (site.log().matches("not let in").count() > number).then_some(())
        })
        .await;
    }
    undisturbed(&site, &node, "after").await;
}

/// What a peer that has gone mad may say on the session's stream: its name, the bytes, whether the stream ends behind
/// them, and what the other end logs. None of it may be more than the end of that session.
fn nonsense(wrong_way: &Frame) -> Vec<(&'static str, Vec<u8>, bool, &'static str)> {
    let longest = u16::try_from(proto::frame::FRAME_MAX).unwrap();
    let mut garbage = vec![VERSION];
    garbage.extend([0xff; 200]);
    let mut trailing = Frame::Again { session: 1 }.encode();
    trailing.push(0);
    vec![
        ("garbage", framed(&garbage), false, "the frame cannot be read"),
        ("nothing", framed(&[]), false, "the frame is empty"),
        ("trailing", framed(&trailing), false, "1 bytes follow the frame"),
        (
            "version",
            framed(&[VERSION + 1, 0]),
            false,
            "frame version 2 is not spoken here",
        ),
        (
            "wrong way",
            framed(&wrong_way.encode()),
            false,
            "a frame that this end does not take",
        ),
        (
            "too long",
            (longest + 1).to_be_bytes().to_vec(),
            false,
            "frame of 16385 bytes exceeds the limit of 16384",
        ),
        (
            "far too long",
            vec![0xff, 0xff],
            false,
            "frame of 65535 bytes exceeds the limit of 16384",
        ),
        ("torn", vec![0, 100, VERSION, 0], true, "stream ended inside a frame"),
        ("torn length", vec![0], true, "stream ended inside a frame"),
    ]
}

async fn say(stream: &mut SendStream, bytes: &[u8], ends: bool) {
    stream.write_all(bytes).await.unwrap();
    if ends {
        stream.finish().unwrap();
    }
}

#[tokio::test]
async fn nonsense_of_a_node_ends_its_session_and_nothing_else() {
    let site = Site::start().await;
    let good = Node::start(&site, "good", "").await;
    let mut mad = Node::join(&site, "mad", None, "");
    for (what, bytes, ends, logged) in nonsense(&Frame::Again { session: 1 }) {
        let seen = site.log().len();
        let client = Client::node(&mad.data).await;
        let (mut send, _receive) = client.open().await;
        say(&mut send, &bytes, ends).await;
        let error = client.closed().await;
        assert!(code(&error).is_some(), "{what}: {error:?}");
        eventually(&format!("the log tells of {what}"), async || {
            let log = site.log().split_off(seen);
            let told = log
                .lines()
                .any(|line| line.contains("node=\"mad\"") && line.contains(logged));
            told.then_some(())
        })
        .await;
    }
    // Of a later time than ours, and from before it.
    for versions in [(VERSION + 1, VERSION + 8), (0, 0)] {
        let client = Client::node(&mad.data).await;
        let (mut send, mut receive) = client.open().await;
        say(&mut send, &framed(&hello(versions).encode()), false).await;
        let answer = Frame::decode(&frame(&mut receive).await).unwrap();
        assert_eq!(answer, Frame::Refuse(Refusal::Version));
    }
    let refused = "no frame version or dictionary in common";
    eventually("the log tells of both", async || {
        (site.log().matches(refused).count() == 2).then_some(())
    })
    .await;
    undisturbed(&site, &good, "after").await;
    // Nothing is held against the node.
    mad.go();
    site.is_ready("mad", "True").await;
}

#[tokio::test]
async fn nonsense_of_a_hub_ends_the_session_and_nothing_else() {
    let mut site = Site::start().await;
    let mut nodes = Vec::new();
    // Several, because each waits longer after each time.
    for name in ["one", "two", "three"] {
        let node = Node::start(&site, name, "beat_s = 2").await;
        site.run(name, &format!("{name}-pod"));
        node.runs(&site, &[&format!("{name}-pod")]).await;
        nodes.push(node);
    }
    site.cloud.kill();
    let keys = site.folder.path().join("keys");
    copy(&site.cloud.folder, &keys);
    let hub = MadHub::open(&keys, hub(&identity(&nodes[0].data))).await;
    for (what, bytes, ends, logged) in nonsense(&hello((VERSION, VERSION))) {
        let (connection, mut send, first) = hub.session().await;
        assert!(matches!(first, Frame::Hello(_)), "before {what}: {first:?}");
        say(&mut send, &bytes, ends).await;
        let error = timeout(DEADLINE, connection.closed()).await.unwrap();
        assert!(code(&error).is_some(), "{what}: {error:?}");
        eventually(&format!("a node's status tells of {what}"), async || {
            let tells = |node: &Node| text(&node.edge.status()["trouble"]).contains(logged);
            nodes.iter().any(tells).then_some(())
        })
        .await;
    }
    hub.close().await;
    site.cloud.start_again().await;
    for node in &nodes {
        node.runs(&site, &[&format!("{}-pod", node.name)]).await;
        assert!(node.pods().iter().all(|pod| pod.restarts == 0));
    }
}

/// The cloud's machine was set up anew, or somebody else sits at its address.
#[tokio::test]
async fn a_cloud_of_another_ca_is_refused_and_pods_run_on() {
    let mut site = Site::start().await;
    let mut node = Node::start(&site, "node", "beat_s = 2").await;
    site.run("node", "pod");
    node.runs(&site, &["pod"]).await;
    let (uids, sessions) = (site.uids("node"), site.sessions("node"));
    let (folder, aside) = (site.cloud.folder.clone(), site.folder.path().join("aside"));
    site.cloud.kill();
    fs::rename(&folder, &aside).unwrap();
    site.cloud.start_again().await;
    let refused = |status: &Value| status["connected"] == false && text(&status["trouble"]).contains("UnknownIssuer");
    let status = node.says("the cloud is not believed", refused).await;
    assert_eq!(status["pods"][0]["phase"], "Running");
    assert!(node.edge.command(&["status"]).contains("UnknownIssuer"));
    // Also from a cold start.
    node.edge.kill();
    node.go();
    let status = node.says("the cloud is still not believed", refused).await;
    assert_eq!((&status["running"], &status["node"]), (&true.into(), &"node".into()));
    node.says("its pod runs", |status| status["pods"][0]["phase"] == "Running")
        .await;
    assert_eq!(site.sessions("node"), sessions);
    site.cloud.kill();
    fs::remove_dir_all(&folder).unwrap();
    fs::rename(&aside, &folder).unwrap();
    site.cloud.start_again().await;
    node.runs(&site, &["pod"]).await;
    assert_eq!(site.uids("node"), uids);
}

#[tokio::test]
async fn a_node_that_was_revoked_or_deleted_is_out_at_once_and_for_good() {
    let site = Site::start().await;
    let mut nodes = Vec::new();
    for name in ["stays", "revoked", "deleted"] {
        let node = Node::start(&site, name, "").await;
        site.run(name, &format!("{name}-pod"));
        node.runs(&site, &[&format!("{name}-pod")]).await;
        nodes.push(node);
    }
    let uids = site.uids("revoked");
    site.edgectl(&["node", "revoke", "revoked"]);
    site.edgectl(&["node", "delete", "deleted"]);
    assert!(site.kubectl.json(&["node", "deleted"]).is_none());
    for node in &mut nodes[1..] {
        let is_out = |status: &Value| status["connected"] == false && status["refused"] == "revoked";
        node.says("it is out", is_out).await;
        let advice = node.edge.command(&["status"]);
        assert!(
            advice.contains("revoked") && advice.contains("token create"),
            "{advice}"
        );
        // Neither it nor whoever has its key gets in again.
        node.edge.kill();
        node.go();
        let status = node.says("it is still out", is_out).await;
        assert_eq!(status["running"], true);
        node.says("its pod runs", |status| status["pods"][0]["phase"] == "Running")
            .await;
        let error = Client::node(&node.data).await.closed().await;
        assert_eq!(alert(&error), Some(CERTIFICATE_REVOKED), "{error:?}");
        assert_eq!(site.sessions(&node.name), 1);
    }
    // What becomes of them at the cloud.
    eventually("the pods of the deleted node are gone", async || {
        site.pods("deleted").is_empty().then_some(())
    })
    .await;
    site.is_ready("revoked", "Unknown").await;
    assert_eq!(site.ready_condition("revoked").unwrap()["reason"], "NodeRevoked");
    assert_eq!(site.uids("revoked"), uids);
    assert_eq!((site.sessions("stays"), site.ready("stays").as_str()), (1, "True"));
    // An admin lets the machine in again, with a new key: its pod is the one that it always was.
    let mut node = nodes.swap_remove(1);
    node.edge.kill();
    for file in ["node.key", "enrolment.json"] {
        fs::remove_file(node.data.join(file)).unwrap();
    }
    node.join_again(&site);
    node.go();
    node.runs(&site, &["revoked-pod"]).await;
    assert_eq!(site.uids("revoked"), uids);
}

fn hello(versions: (u8, u8)) -> Frame {
    Frame::Hello(Hello {
        versions,
        dictionary: 0,
        dictionary_hash: [0; 8],
        boot: BootId([1; 16]),
        beat_s: 30,
        nonce: [2; 8],
        epoch: Epoch(0),
        applied: Revision(0),
        view: Digest([0; 8]),
        count: 0,
        incarnation: [3; 8],
        number: 0,
        reports: Digest([0; 8]),
    })
}

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use daemon::trust::{Bundle, built_ms};
use proto::time::Wall;
use rcgen::{CertificateParams, PublicKeyData as _};
use rustls::pki_types::CertificateDer;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::ledger::memory::Memory;
use super::*;

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

/// A PKI at work, for the tests here and of the hub.
#[derive(Debug)]
pub(crate) struct Office {
    pub(crate) pki: Pki,
    pub(crate) ledger: Arc<Memory>,
    now_ms: Arc<AtomicI64>,
    _tasks: JoinSet<anyhow::Result<()>>,
}

impl Office {
    pub(crate) async fn open() -> Self {
        Self::over(Arc::default()).await
    }

    pub(crate) async fn over(ledger: Arc<Memory>) -> Self {
        let now_ms = Arc::new(AtomicI64::new(built_ms() + DAY_MS));
        let clock: Clock = {
            let now_ms = now_ms.clone();
            Arc::new(move || Wall { ms: now_ms.load(Ordering::Relaxed), trusted: true })
        };
        let config = Config {
            addresses: vec!["hub.example:7443".to_owned()],
            names: vec!["api.example".to_owned(), "192.0.2.7".to_owned()],
        };
        let (pki, clerk) = Pki::open(ledger.clone(), config, clock).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(clerk.run(CancellationToken::new()));
        Self { pki, ledger, now_ms, _tasks: tasks }
    }

    pub(crate) fn pass(&self, ms: i64) {
        self.now_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// A node that came in with a token of its own.
    pub(crate) async fn enrolled(&self, node: &str) -> Node {
        let token = self.pki.create_token(TokenSpec::default()).await.unwrap();
        Node::new().join(self, &token, node).await.unwrap()
    }
}

/// A node with its key and, once it came in, the cloud's answer.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) key: KeyPair,
    pub(crate) answer: Option<proto::enrol::Answer>,
}

impl Node {
    pub(crate) fn new() -> Self {
        Self { key: KeyPair::generate().unwrap(), answer: None }
    }

    pub(crate) fn csr(&self) -> String {
        let request = CertificateParams::default().serialize_request(&self.key).unwrap();
        pem::write(pem::CERTIFICATE_REQUEST, request.der())
    }

    fn request(&self, token: &JoinToken, node: &str) -> Request {
        Request {
            token_id: token.id_text(),
            token_secret: proto::enrol::hex(&token.secret),
            csr: self.csr(),
            node: (!node.is_empty()).then(|| node.to_owned()),
            hostname: "Host-7".to_owned(),
            labels: BTreeMap::new(),
            arch: "arm64".to_owned(),
            os: "linux".to_owned(),
        }
    }

    pub(crate) async fn join(mut self, office: &Office, token: &JoinToken, node: &str) -> Result<Self, String> {
        let request = self.request(token, node);
        self.answer = Some(ask(office, &request).await?);
        Ok(self)
    }

    pub(crate) fn answer(&self) -> &proto::enrol::Answer {
        self.answer.as_ref().unwrap()
    }

    pub(crate) fn enrolment(&self) -> EnrolmentId {
        self.answer().enrolment
    }

    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        daemon::trust::certificates(&self.answer().credentials.chain).unwrap()
    }
}

/// The answer, or the reason of the refusal after its status.
async fn ask(office: &Office, request: &Request) -> Result<proto::enrol::Answer, String> {
    let answer = office.pki.enrol(&serde_json::to_vec(request).unwrap()).await;
    if answer.status == 200 {
        return Ok(serde_json::from_slice(&answer.body).unwrap());
    }
    let refused: proto::enrol::Refused = serde_json::from_slice(&answer.body).unwrap();
    assert!(!refused.message.is_empty());
    Err(format!("{} {}", answer.status, refused.reason))
}

fn refused<T>(result: Result<T, String>) -> String {
    result.err().unwrap_or_else(|| "admitted".to_owned())
}

#[tokio::test]
async fn the_ca_is_made_once_and_kept() {
    let office = Office::open().await;
    let hash = office.pki.authority().newest_hash();
    let again = Office::over(office.ledger.clone()).await;
    assert_eq!(again.pki.authority().newest_hash(), hash);
    assert_eq!(again.pki.authority().bundle().certificates().len(), 1);
    // What it signs now, a bundle read back believes for 20 years and more.
    let node = office.enrolled("a").await;
    assert!(again.pki.authority().bundle_pem().contains("BEGIN CERTIFICATE"));
    again.pass(25 * 365 * DAY_MS);
    let fresh = again.enrolled("b").await;
    let callers = again.pki.callers();
    assert!(matches!(
        callers.identify(&fresh.chain()),
        Ok(Caller::Node(Peer { expired: false, .. }))
    ));
    drop(node);
}

#[tokio::test]
async fn of_several_cas_the_newest_signs_and_all_are_believed() {
    let ledger = Arc::<Memory>::default();
    let old = Office::over(ledger.clone()).await;
    let old_node = old.enrolled("old").await;
    let newer = Authority::create(1, built_ms() + 2 * DAY_MS).unwrap();
    ledger.commit(newer).await.unwrap();
    let both = Office::over(ledger).await;
    let new_node = both.enrolled("new").await;
    assert_ne!(both.pki.authority().newest_hash(), old.pki.authority().newest_hash());
    for node in [&old_node, &new_node] {
        let caller = both.pki.callers().identify(&node.chain()).unwrap();
        assert_eq!(
            caller,
            Caller::Node(Peer { enrolment: node.enrolment(), expired: false })
        );
    }
    let bundle = Bundle::from_pem(&new_node.answer().credentials.bundle).unwrap();
    assert_eq!(bundle.certificates().len(), 2);
    assert_eq!(&bundle.certificates()[0], both.pki.authority().newest());
}

#[tokio::test]
async fn a_node_comes_in_with_what_the_token_gives() {
    let office = Office::open().await;
    let labels = [("site", "north"), ("rack", ANY), ("shelf", ANY)];
    let spec = TokenSpec {
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..TokenSpec::default()
    };
    let token = office.pki.create_token(spec).await.unwrap();
    let node = Node::new();
    let mut request = node.request(&token, "");
    request.labels = [("rack".to_owned(), "r7".to_owned())].into();
    let answer = ask(&office, &request).await.unwrap();
    assert_eq!(answer.node, "host-7");
    assert_eq!(answer.credentials.addresses, ["hub.example:7443"]);
    let object = office.ledger.node_value("host-7").unwrap();
    assert_eq!(
        object.text_at(&["metadata", "uid"]),
        Some(answer.node_uid.to_string().as_str())
    );
    let check = |label: &str, value: Option<&str>| {
        assert_eq!(object.text_at(&["metadata", "labels", label]), value, "{label}");
    };
    check("site", Some("north"));
    check("rack", Some("r7"));
    check("shelf", None);
    check("kubernetes.io/hostname", Some("host-7"));
    check("kubernetes.io/arch", Some("arm64"));
    check("kubernetes.io/os", Some("linux"));
    let enrolment = office.pki.roll().get(answer.enrolment).unwrap();
    assert_eq!(
        enrolment.key,
        daemon::trust::sha256(&node.key.subject_public_key_info())
    );
    assert_eq!((enrolment.serials.len(), enrolment.revoked), (1, false));
}

#[tokio::test]
async fn a_token_lets_in_what_it_says_and_no_more() {
    let office = Office::open().await;
    let spec = TokenSpec {
        uses: 2,
        ttl: Duration::from_secs(86_400),
        ..TokenSpec::default()
    };
    let token = office.pki.create_token(spec).await.unwrap();
    let first = Node::new().join(&office, &token, "a").await.unwrap();
    Node::new().join(&office, &token, "b").await.unwrap();
    let third = Node::new().join(&office, &token, "c").await;
    assert_eq!(refused(third), "401 TokenUsedUp");
    // The first one's answer was lost: the same key asks again, gets the same enrolment, and no use is counted.
    let again = ask(&office, &first.request(&token, "a")).await.unwrap();
    assert_eq!(
        (again.enrolment, again.node_uid),
        (first.enrolment(), first.answer().node_uid)
    );

    let ends = office.pki.create_token(TokenSpec::default()).await.unwrap();
    office.pass(HOUR_MS - 1);
    Node::new().join(&office, &ends, "d").await.unwrap();
    let ends = office.pki.create_token(TokenSpec::default()).await.unwrap();
    office.pass(HOUR_MS);
    assert_eq!(refused(Node::new().join(&office, &ends, "e").await), "401 TokenExpired");

    let mut forged = office.pki.create_token(TokenSpec::default()).await.unwrap();
    forged.secret[31] ^= 1;
    assert_eq!(
        refused(Node::new().join(&office, &forged, "f").await),
        "401 TokenUnknown"
    );
    let deleted = office.pki.create_token(TokenSpec::default()).await.unwrap();
    office.pki.delete_token(deleted.id_text()).await.unwrap();
    assert_eq!(
        refused(Node::new().join(&office, &deleted, "g").await),
        "401 TokenUnknown"
    );
    assert!(office.pki.delete_token(deleted.id_text()).await.is_err());
    // What was used outlives a restart.
    let restarted = Office::over(office.ledger.clone()).await;
    assert_eq!(
        refused(Node::new().join(&restarted, &token, "h").await),
        "401 TokenUsedUp"
    );
}

#[tokio::test]
async fn a_token_gives_only_its_name_and_labels() {
    let office = Office::open().await;
    let spec = TokenSpec { name: Some("pump".to_owned()), ..TokenSpec::default() };
    let token = office.pki.create_token(spec).await.unwrap();
    let other = Node::new().join(&office, &token, "valve").await;
    assert_eq!(refused(other), "403 NameNotGiven");
    let node = Node::new();
    let mut request = node.request(&token, "");
    request.labels = [("site".to_owned(), "x".to_owned())].into();
    assert_eq!(refused(ask(&office, &request).await), "403 LabelNotGiven");
    request.labels.clear();
    assert_eq!(ask(&office, &request).await.unwrap().node, "pump");
    let free = office.pki.create_token(TokenSpec::default()).await.unwrap();
    assert_eq!(
        refused(Node::new().join(&office, &free, "no name").await),
        "422 NameInvalid"
    );
}

#[tokio::test]
async fn a_name_that_exists_needs_its_key_or_an_admin() {
    let office = Office::open().await;
    let first = office.enrolled("a").await;
    let token = office.pki.create_token(TokenSpec::default()).await.unwrap();
    assert_eq!(refused(Node::new().join(&office, &token, "a").await), "409 NameTaken");
    // A Node object that was deleted does not free the name: its key still stands for it.
    office.ledger.delete_node("a");
    assert_eq!(refused(Node::new().join(&office, &token, "a").await), "409 NameTaken");
    // That key makes the Node anew, as another object of the same enrolment.
    let again = ask(&office, &first.request(&token, "a")).await.unwrap();
    assert_eq!(again.enrolment, first.enrolment());
    assert_ne!(again.node_uid, first.answer().node_uid);
    assert_eq!(
        office.pki.roll().get(first.enrolment()).unwrap().node_uid,
        again.node_uid
    );
    // The key stands for one node only.
    assert_eq!(refused(ask(&office, &first.request(&token, "b")).await), "409 KeyInUse");
    // The refusals cost nothing.
    Node::new().join(&office, &token, "c").await.unwrap();

    let spec = TokenSpec {
        name: Some("a".to_owned()),
        replace: true,
        ..TokenSpec::default()
    };
    let token = office.pki.create_token(spec).await.unwrap();
    let new = Node::new().join(&office, &token, "").await.unwrap();
    assert_eq!(new.answer().node_uid, again.node_uid, "the Node is kept, with its pods");
    assert_ne!(new.enrolment(), first.enrolment());
    assert!(office.pki.roll().is_revoked(first.enrolment()));
    assert_eq!(office.pki.roll().of_node("a").unwrap().id, new.enrolment());
    assert_eq!(
        refused(ask(&office, &first.request(&token, "a")).await),
        "403 KeyRevoked"
    );
}

#[tokio::test]
async fn a_node_made_by_hand_has_its_name() {
    let office = Office::open().await;
    let value = proto::value::Value::map();
    let write = ledger::Write::CreateNode { name: "a".to_owned(), value };
    office.ledger.commit(vec![write]).await.unwrap();
    // The object has no uid that the lookup could find; the commit finds it.
    let token = office.pki.create_token(TokenSpec::default()).await.unwrap();
    assert_eq!(refused(Node::new().join(&office, &token, "a").await), "409 NameTaken");
    Node::new().join(&office, &token, "b").await.unwrap();
}

#[tokio::test]
async fn a_store_that_fails_changes_nothing() {
    let office = Office::open().await;
    let token = office.pki.create_token(TokenSpec::default()).await.unwrap();
    office.ledger.fill();
    let node = Node::new();
    assert_eq!(
        refused(ask(&office, &node.request(&token, "a")).await),
        "503 Unavailable"
    );
    assert!(office.pki.roll().of_node("a").is_none());
    assert_eq!(office.pki.tokens().await.unwrap()[0].uses_left, 1);
}

#[tokio::test]
async fn malformed_requests_are_refused_without_repeating_them() {
    let office = Office::open().await;
    let token = office.pki.create_token(TokenSpec::default()).await.unwrap();
    let mut request = Node::new().request(&token, "a");
    let whole = serde_json::to_vec(&request).unwrap();
    for body in [
        &b""[..],
        b"{}",
        &whole[..whole.len() - 1],
        &vec![b' '; BODY_BYTES_MAX + 1],
    ] {
        let answer = office.pki.enrol(body).await;
        assert_eq!(answer.status, 400);
        let text = String::from_utf8(answer.body).unwrap();
        assert!(!text.contains(&request.token_secret));
    }
    request.csr = request.csr.replace('A', "B");
    assert_eq!(refused(ask(&office, &request).await), "400 Malformed");
}

#[tokio::test]
async fn renewal_takes_a_known_key_also_past_its_time() {
    let office = Office::open().await;
    let node = office.enrolled("a").await;
    office.pass(400 * DAY_MS);
    let callers = office.pki.callers();
    let peer = |expired| Caller::Node(Peer { enrolment: node.enrolment(), expired });
    assert_eq!(callers.identify(&node.chain()).unwrap(), peer(true));
    let renewed = office.pki.renew(node.enrolment(), &node.csr()).await.unwrap();
    let chain = daemon::trust::certificates(&renewed.chain).unwrap();
    assert_eq!(callers.identify(&chain).unwrap(), peer(false));
    assert_eq!(office.pki.roll().get(node.enrolment()).unwrap().serials.len(), 2);
    // Another key is not renewed, neither is an enrolment that is gone.
    let other = office.pki.renew(node.enrolment(), &Node::new().csr()).await;
    assert!(matches!(other, Err(PkiError::OtherKey)));
    assert!(office.pki.revoke("a").await.unwrap());
    let revoked = office.pki.renew(node.enrolment(), &node.csr()).await;
    assert!(matches!(revoked, Err(PkiError::Enrolment)));
    assert!(matches!(callers.identify(&chain), Err(CallerError::Enrolment)));
    assert!(!office.pki.revoke("a").await.unwrap());
    // A clock that fell back does not lock out the fleet.
    let node = office.enrolled("b").await;
    office.pass(-500 * DAY_MS);
    assert!(callers.identify(&node.chain()).is_ok());
}

#[tokio::test]
async fn a_certificate_is_worth_nothing_without_its_record() {
    let (office, other) = (Office::open().await, Office::open().await);
    let stranger = other.enrolled("a").await;
    let callers = office.pki.callers();
    assert!(matches!(
        callers.identify(&stranger.chain()),
        Err(CallerError::Certificate(_))
    ));
    // Signed by our CA, but for an enrolment that nobody knows.
    let key = KeyPair::generate().unwrap();
    let unknown = Profile::Node(stranger.enrolment());
    let issued = office.pki.authority().issue(&unknown, &key, built_ms()).unwrap();
    assert!(matches!(
        callers.identify(&[issued.certificate]),
        Err(CallerError::Enrolment)
    ));
    // Signed for a known enrolment, but another key.
    let node = office.enrolled("a").await;
    let issued = office
        .pki
        .authority()
        .issue(&Profile::Node(node.enrolment()), &key, built_ms());
    assert!(matches!(
        callers.identify(&[issued.unwrap().certificate]),
        Err(CallerError::Enrolment)
    ));
    // A server's certificate is no client's.
    let issued = office
        .pki
        .authority()
        .issue(&Profile::Server(Vec::new()), &key, built_ms());
    assert!(matches!(
        callers.identify(&[issued.unwrap().certificate]),
        Err(CallerError::Certificate(_))
    ));
    assert!(matches!(callers.identify(&[]), Err(CallerError::Missing)));
}

#[tokio::test]
async fn the_kubeconfig_holds_an_admin() {
    use std::os::unix::fs::PermissionsExt as _;

    use base64::Engine as _;

    let office = Office::open().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.kubeconfig");
    office.pki.write_kubeconfig(&path, "https://127.0.0.1:6443").unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let config = proto::value::json::parse(&std::fs::read(&path).unwrap()).unwrap();
    let text = config
        .text_at(&["users", "0", "user", "client-certificate-data"])
        .unwrap();
    let pem = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
    let chain = daemon::trust::certificates(std::str::from_utf8(&pem).unwrap()).unwrap();
    let callers = office.pki.callers();
    let admin = Caller::Person {
        name: "edgehold-admin".to_owned(),
        groups: vec!["system:masters".to_owned()],
    };
    assert_eq!(callers.identify(&chain).unwrap(), admin);
    office.pass(400 * DAY_MS);
    assert!(matches!(callers.identify(&chain), Err(CallerError::Expired)));
}

#[tokio::test]
async fn server_certificates_are_renewed_in_time() {
    let office = Office::open().await;
    let authority = office.pki.authority();
    let now_ms = built_ms() + DAY_MS;
    let identity = ServerIdentity::new(authority, Vec::new(), now_ms).unwrap();
    assert!(!identity.renew(authority, now_ms + 59 * DAY_MS).unwrap());
    assert!(identity.renew(authority, now_ms + 61 * DAY_MS).unwrap());
    assert!(!identity.renew(authority, now_ms + 62 * DAY_MS).unwrap());
    let wrong = ServerIdentity::new(authority, vec!["no name".to_owned()], now_ms);
    assert!(matches!(wrong, Err(DoorError::Issue(AuthorityError::Name { .. }))));
}

#[tokio::test]
async fn tokens_are_bounded_and_the_ended_make_room() {
    let office = Office::open().await;
    let make = |ttl| office.pki.create_token(TokenSpec { ttl, ..TokenSpec::default() });
    for _ in 0..TOKENS_MAX {
        make(Duration::from_secs(60)).await.unwrap();
    }
    assert!(matches!(
        make(Duration::from_secs(60)).await,
        Err(PkiError::Token(TokenError::TooMany))
    ));
    office.pass(60_000);
    make(Duration::from_secs(60)).await.unwrap();
    assert!(office.pki.tokens().await.unwrap().len() < TOKENS_MAX);
}

#[tokio::test]
async fn of_a_nodes_revoked_keys_the_last_are_remembered() {
    let office = Office::open().await;
    let mut revoked = Vec::new();
    for _ in 0..=roll::REVOKED_MAX {
        let node = office.enrolled("a").await;
        office.pki.revoke("a").await.unwrap();
        office.ledger.delete_node("a");
        office.pass(1000);
        revoked.push(node.enrolment());
    }
    let restarted = Office::over(office.ledger.clone()).await;
    for office in [&office, &restarted] {
        assert_eq!(office.pki.roll().count(), roll::REVOKED_MAX);
        assert!(office.pki.roll().get(revoked[0]).is_none());
        assert!(revoked.iter().all(|id| office.pki.roll().is_revoked(*id)));
    }
}

#[tokio::test]
async fn two_cores_that_start_together_make_one_ca() {
    let ledger = Arc::<Memory>::default();
    let made = Authority::create(0, built_ms()).unwrap();
    let too_late = Authority::create(0, built_ms()).unwrap();
    ledger.commit(made).await.unwrap();
    assert!(matches!(ledger.commit(too_late).await, Err(LedgerError::Changed)));
    let (one, other) = (Office::over(ledger.clone()).await, Office::over(ledger).await);
    assert_eq!(one.pki.authority().newest_hash(), other.pki.authority().newest_hash());
    // A token that one of them has used is not used by the other, which does not know.
    let token = one.pki.create_token(TokenSpec::default()).await.unwrap();
    let other = Office::over(one.ledger.clone()).await;
    Node::new().join(&one, &token, "a").await.unwrap();
    assert_eq!(refused(Node::new().join(&other, &token, "b").await), "503 Unavailable");
}

#[tokio::test]
async fn the_real_store_keeps_it_sealed() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Arc::new(crate::store::Store::open(crate::store::Config::new(folder.path())).unwrap());
    let clock: Clock = Arc::new(|| Wall { ms: built_ms(), trusted: true });
    let store = open();
    let (pki, clerk) = Pki::open(store.clone(), Config::default(), clock.clone())
        .await
        .unwrap();
    let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
    tasks.spawn(clerk.run(stop.clone()));
    let spec = TokenSpec { uses: 2, ..TokenSpec::default() };
    let token = pki.create_token(spec).await.unwrap();
    let node = Node::new();
    let body = |node: &Node, name| serde_json::to_vec(&node.request(&token, name)).unwrap();
    assert_eq!(pki.enrol(&body(&node, "a")).await.status, 200);
    assert_eq!(pki.enrol(&body(&Node::new(), "a")).await.status, 409);
    let object = store.get(&proto::object::Key::new("Node", "", "a")).unwrap();
    assert_eq!(pki.roll().of_node("a").unwrap().node_uid, object.uid);
    let hash = pki.authority().newest_hash();
    // Everything goes and comes back.
    stop.cancel();
    tasks.join_next().await.unwrap().unwrap().unwrap();
    drop((pki, store, object));
    let store = open();
    let (pki, _clerk) = Pki::open(store.clone(), Config::default(), clock).await.unwrap();
    assert_eq!(pki.authority().newest_hash(), hash);
    assert!(!pki.roll().is_revoked(pki.roll().of_node("a").unwrap().id));
    drop((pki, _clerk, store));
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        let holds = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
        assert!(!holds(b"PRIVATE KEY") && !holds(b"secret_hash"));
    }
}

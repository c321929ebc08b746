use std::os::unix::fs::PermissionsExt as _;
use std::sync::Mutex;
use std::time::Duration;

use daemon::random;
use daemon::trust::{Clock, built_ms};
use proto::enrol::{JoinToken, Request, SERVER_NAME};
use proto::time::Wall;
use rcgen::{BasicConstraints, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer};
use rustls::ServerConfig;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::*;

const DEADLINE: Duration = Duration::from_secs(10);

/// A CA that gives what a test asks for, right or wrong.
pub(crate) struct Ca {
    pub(crate) issuer: Issuer<'static, KeyPair>,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) pem: String,
}

/// A certificate with its key.
pub(crate) struct Held {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: KeyPair,
}

impl Ca {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        let name = proto::enrol::hex(&random::bytes::<8>());
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self {
            pem: pem::write(pem::CERTIFICATE, certificate.der()),
            certificate: certificate.into(),
            issuer: Issuer::new(params, key),
        }
    }

    pub(crate) fn server(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> Held {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let leaf = params.signed_by(&key, &self.issuer).unwrap();
        Held { chain: vec![leaf.into(), self.certificate.clone()], key }
    }

    /// What the cloud would answer to the holder of this key.
    pub(crate) fn answer(&self, key: &KeyPair, addresses: Vec<String>) -> Answer {
        let enrolment = EnrolmentId(random::uid());
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, enrolment.to_string());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Answer {
            enrolment,
            node: "a".to_owned(),
            node_uid: random::uid(),
            credentials: Credentials {
                chain: pem::write(pem::CERTIFICATE, params.signed_by(key, &self.issuer).unwrap().der()),
                bundle: self.pem.clone(),
                addresses,
            },
        }
    }

    /// A node that has joined.
    pub(crate) fn joined(&self, folder: &Path) -> Identity {
        let key = own_key(folder).unwrap();
        let answer = self.answer(&key, Vec::new());
        Identity::keep(folder, key, answer).unwrap()
    }

    fn token(&self) -> JoinToken {
        JoinToken {
            id: [1; 8],
            secret: [0x5a; 32],
            ca: sha256(&self.certificate),
        }
    }
}

/// The time on a node that was just switched on.
pub(crate) fn no_time() -> NodeTime {
    let clock: Clock = Arc::new(|| Wall { ms: 0, trusted: false });
    NodeTime { clock, floor_ms: 0 }
}

/// A cloud that answers one request after another, and remembers what it was told inside TLS.
struct Cloud {
    url: String,
    heard: Arc<Mutex<Vec<u8>>>,
    _tasks: JoinSet<()>,
}

impl Cloud {
    async fn open(held: Held, answer: impl Fn(Request) -> (u16, Vec<u8>) + Send + 'static) -> Self {
        let key = PrivatePkcs8KeyDer::from(held.key.serialize_der()).into();
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(held.chain, key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let heard = Arc::<Mutex<Vec<u8>>>::default();
        let (remember, mut tasks) = (heard.clone(), JoinSet::new());
        tasks.spawn(async move {
            let acceptor = TlsAcceptor::from(Arc::new(config));
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    continue;
                };
                let mut request = Vec::new();
                let body = loop {
                    let read = stream.read_buf(&mut request).await.unwrap_or(0);
                    let text = String::from_utf8_lossy(&request).into_owned();
                    let parsed = text
                        .split_once("\r\n\r\n")
                        .and_then(|(_, body)| serde_json::from_str(body).ok());
                    if read == 0 || parsed.is_some() {
                        break parsed;
                    }
                };
                remember.lock().unwrap().extend(&request);
                if let Some(body) = body {
                    let (status, body) = answer(body);
                    let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n", body.len());
                    drop(stream.write_all(&[head.as_bytes(), &body].concat()).await);
                    // The node has all it waits for; how it leaves does not matter.
                    drop(stream.shutdown().await);
                }
            }
        });
        Self { url, heard, _tasks: tasks }
    }

    fn heard(&self) -> String {
        String::from_utf8_lossy(&self.heard.lock().unwrap()).into_owned()
    }

    async fn join(&self, token: &JoinToken, folder: &TempDir) -> Result<Identity, JoinError> {
        let joining = join(&self.url, token, Wish::default(), folder.path(), no_time());
        tokio::time::timeout(DEADLINE, joining).await.unwrap()
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Answers as the cloud does, with a certificate for the key in this folder.
fn answers(ca: Ca, folder: &TempDir) -> impl Fn(Request) -> (u16, Vec<u8>) + Send + 'static {
    let path = folder.path().to_owned();
    move |_| {
        let key = load_key(&path).unwrap().unwrap();
        let answer = ca.answer(&key, vec!["hub:7443".to_owned()]);
        (200, serde_json::to_vec(&answer).unwrap())
    }
}

#[tokio::test]
async fn a_node_joins_and_remembers() {
    let (ca, folder) = (Ca::new(), folder());
    let token = ca.token();
    let cloud = Cloud::open(
        ca.server(SERVER_NAME, ExtendedKeyUsagePurpose::ServerAuth),
        answers(ca, &folder),
    )
    .await;
    assert!(Identity::load(folder.path()).unwrap().is_none());
    let joined = cloud.join(&token, &folder).await.unwrap();
    let heard = cloud.heard();
    assert!(heard.starts_with("POST /enrol/v1 HTTP/1.1\r\n"), "{heard}");
    assert!(heard.contains(&proto::enrol::hex(&token.secret)));
    let loaded = Identity::load(folder.path()).unwrap().unwrap();
    assert_eq!(loaded.enrolment, joined.enrolment);
    assert_eq!((loaded.node(), loaded.addresses()), ("a", &["hub:7443".to_owned()][..]));
    for file in [KEY_FILE, ENROLMENT_FILE] {
        let mode = fs::metadata(folder.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    // Joining again brings the same key.
    let again = cloud.join(&token, &folder).await.unwrap();
    assert_eq!(again.key.serialized_der(), joined.key.serialized_der());
}

fn with_chain(mut held: Held, chain: impl FnOnce(CertificateDer<'static>) -> Vec<CertificateDer<'static>>) -> Held {
    held.chain = chain(held.chain[0].clone());
    held
}

#[tokio::test]
async fn a_token_is_never_shown_to_another_server() {
    let (ca, other, folder) = (Ca::new(), Ca::new(), folder());
    let server = ExtendedKeyUsagePurpose::ServerAuth;
    let impostors = [
        // Another CA altogether.
        other.server(SERVER_NAME, server.clone()),
        // The right CA shown behind a certificate that it did not sign.
        with_chain(other.server(SERVER_NAME, server.clone()), |leaf| {
            vec![leaf, ca.certificate.clone()]
        }),
        // A node of the same cloud.
        ca.server(SERVER_NAME, ExtendedKeyUsagePurpose::ClientAuth),
        // A server of the same CA that is not the cloud.
        ca.server("elsewhere", server.clone()),
        // The right certificate without its CA: nothing proves that it is the token's.
        with_chain(ca.server(SERVER_NAME, server), |leaf| vec![leaf]),
    ];
    for (at, held) in impostors.into_iter().enumerate() {
        let token = ca.token();
        let cloud = Cloud::open(held, |_| (200, Vec::new())).await;
        let error = cloud.join(&token, &folder).await.unwrap_err();
        assert!(
            matches!(error, JoinError::Ask(HttpsError::Verify { .. })),
            "{at}: {error:?}"
        );
        assert!(!error.is_retryable());
        assert_eq!(cloud.heard(), "", "{at}");
    }
}

#[tokio::test]
async fn a_refusal_is_passed_on() {
    let (ca, folder) = (Ca::new(), folder());
    let held = || ca.server(SERVER_NAME, ExtendedKeyUsagePurpose::ServerAuth);
    let taken = br#"{"reason":"NameTaken","message":"node: a exists"}"#;
    let cloud = Cloud::open(held(), |_| (409, taken.to_vec())).await;
    let error = cloud.join(&ca.token(), &folder).await.unwrap_err();
    assert_eq!(error.to_string(), "the cloud refused with NameTaken: node: a exists");
    assert!(!error.is_retryable());
    let cloud = Cloud::open(held(), |_| (502, b"gateway".to_vec())).await;
    let error = cloud.join(&ca.token(), &folder).await.unwrap_err();
    assert!(matches!(error, JoinError::Status(502)) && error.is_retryable());
    let cloud = Cloud::open(held(), |_| (200, b"{}".to_vec())).await;
    let error = cloud.join(&ca.token(), &folder).await.unwrap_err();
    assert!(matches!(error, JoinError::Answer(_)));
    // The key is there by now, and nothing else.
    assert!(Identity::load(folder.path()).unwrap().is_none());
    assert!(load_key(folder.path()).unwrap().is_some());
}

#[tokio::test]
async fn no_cloud_is_worth_another_try() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    drop(listener);
    let folder = folder();
    let error = join(&url, &Ca::new().token(), Wish::default(), folder.path(), no_time())
        .await
        .unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
}

#[test]
fn parts_that_do_not_fit_are_refused_and_change_nothing() {
    let (ca, other, folder) = (Ca::new(), Ca::new(), folder());
    let mut identity = ca.joined(folder.path());
    let kept = fs::read(folder.path().join(ENROLMENT_FILE)).unwrap();
    let right = identity.enrolment.credentials.clone();
    let strangers_key = KeyPair::generate().unwrap();
    let wrong = [
        Credentials { chain: String::new(), ..right.clone() },
        Credentials { bundle: String::new(), ..right.clone() },
        // Our certificate is not believed by these CAs.
        Credentials { bundle: other.pem.clone(), ..right.clone() },
        // A certificate of another key, or of another enrolment for our key.
        ca.answer(&strangers_key, Vec::new()).credentials,
        ca.answer(&identity.key, Vec::new()).credentials,
    ];
    for (at, credentials) in wrong.into_iter().enumerate() {
        assert!(identity.renew(credentials).is_err(), "{at}");
        assert_eq!(fs::read(folder.path().join(ENROLMENT_FILE)).unwrap(), kept);
    }
    let both = Credentials {
        bundle: format!("{}{}", other.pem, ca.pem),
        addresses: vec!["new:1".to_owned()],
        ..right
    };
    identity.renew(both).unwrap();
    assert_eq!(identity.bundle.certificates().len(), 2);
    let loaded = Identity::load(folder.path()).unwrap().unwrap();
    assert_eq!(loaded.addresses(), ["new:1"]);
}

#[test]
fn a_damaged_folder_is_named() {
    let (ca, folder) = (Ca::new(), folder());
    ca.joined(folder.path());
    let path = folder.path().join(ENROLMENT_FILE);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(matches!(
        Identity::load(folder.path()),
        Err(IdentityError::Enrolment { .. })
    ));
    fs::write(&path, &whole).unwrap();
    fs::write(folder.path().join(KEY_FILE), "no key").unwrap();
    assert!(matches!(Identity::load(folder.path()), Err(IdentityError::Key { .. })));
    let key = pem::write(pem::PRIVATE_KEY, KeyPair::generate().unwrap().serialized_der());
    fs::write(folder.path().join(KEY_FILE), key).unwrap();
    assert!(matches!(Identity::load(folder.path()), Err(IdentityError::OtherKey)));
}

#[test]
fn renewal_is_due_when_a_third_is_left() {
    let (ca, folder) = (Ca::new(), folder());
    let mut identity = ca.joined(folder.path());
    let day_ms = 86_400_000;
    identity.period = Period { begins_ms: built_ms(), ends_ms: built_ms() + 300 * day_ms };
    let check = |days: i64, trusted, due| {
        let clock: Clock = Arc::new(move || Wall { ms: built_ms() + days * day_ms, trusted });
        assert_eq!(identity.is_due(&NodeTime { clock, floor_ms: 0 }), due, "{days}");
    };
    check(199, true, false);
    check(200, true, true);
    check(-1000, false, false);
    let floor = NodeTime { floor_ms: built_ms() + 250 * day_ms, ..no_time() };
    assert!(identity.is_due(&floor));
}

//! Why there is no connection, in words: certificates that expired, that are of somebody else, that may not.

use std::path::Path;
use std::sync::Arc;

use daemon::pem;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::Value;
use tests::cores::{CloudCore, EdgeCore, program};
use tests::shell::{Shell, has};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Writes a kubeconfig of PEM files in its folder.
fn kubeconfig(folder: &Path, name: &str, url: &str, files: [&Path; 3]) {
    let [ca, certificate, key] = files.map(|file| file.display().to_string());
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
         clusters:\n- name: here\n  cluster: {{server: '{url}', certificate-authority: '{ca}'}}\n\
         users:\n- name: me\n  user: {{client-certificate: '{certificate}', client-key: '{key}'}}\n\
         contexts:\n- name: here\n  context: {{cluster: here, user: me}}\n"
    );
    std::fs::write(folder.join(name), text).unwrap();
}

/// The kubeconfig that a cloud core wrote.
fn written(core: &CloudCore) -> Value {
    serde_json::from_slice(&std::fs::read(core.kubeconfig()).unwrap()).unwrap()
}

#[tokio::test]
async fn what_a_real_cloud_core_refuses_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut one = CloudCore::start(&path("one")).await;
    let mut other = CloudCore::start(&path("other")).await;
    let shell = Shell::new(program("edgectl"), folder.path(), &path("kubeconfig"));
    let (good, foreign) = (written(&one), written(&other));
    let check = async |change: &dyn Fn(&mut Value), parts: &[&str]| {
        let mut config = good.clone();
        change(&mut config);
        shell.file("kubeconfig", &config.to_string());
        has(&shell.fails("get pods", 1).await, parts);
    };

    let server = foreign["clusters"][0]["cluster"]["server"].clone();
    let wrong_place: &dyn Fn(&mut Value) = &|config| config["clusters"][0]["cluster"]["server"] = server.clone();
    check(
        wrong_place,
        &[
            "what answers at https://127.0.0.1:",
            "is not the cloud core of this kubeconfig: copy admin.kubeconfig",
        ],
    )
    .await;
    let wrong_user: &dyn Fn(&mut Value) = &|config| config["users"] = foreign["users"].clone();
    check(
        wrong_user,
        &[
            "does not accept the certificate in the kubeconfig",
            "copy admin.kubeconfig",
        ],
    )
    .await;
    let nobody: &dyn Fn(&mut Value) = &|config| config["users"][0]["user"] = Value::Object(serde_json::Map::new());
    check(nobody, &["Unauthorized", "use the admin.kubeconfig"]).await;
    let by_another_name: &dyn Fn(&mut Value) =
        &|config| config["clusters"][0]["cluster"]["tls-server-name"] = "elsewhere".into();
    check(
        by_another_name,
        &["does not name the host of https://127.0.0.1:", "`hosts`"],
    )
    .await;
    let plain = format!("http://127.0.0.1:{}", one.api);
    let without_tls: &dyn Fn(&mut Value) = &|config| config["clusters"][0]["cluster"]["server"] = plain.clone().into();
    check(without_tls, &["http://127.0.0.1:"]).await;

    // A node's own certificate may nothing here.
    let config = path("edgecore.toml");
    std::fs::write(&config, format!("data = {:?}\nruntime = \"fake\"\n", path("edge"))).unwrap();
    drop(EdgeCore::join(&one, "edge-1", &config));
    let enrolment: Value =
        serde_json::from_slice(&std::fs::read(path("edge").join("enrolment.json")).unwrap()).unwrap();
    for (field, file) in [("bundle", "ca.pem"), ("chain", "cert.pem")] {
        std::fs::write(path(file), enrolment["credentials"][field].as_str().unwrap()).unwrap();
    }
    kubeconfig(
        folder.path(),
        "kubeconfig",
        &format!("https://127.0.0.1:{}", one.api),
        [&path("ca.pem"), &path("cert.pem"), &path("edge").join("node.key")],
    );
    for line in ["get nodes -o name", "node list"] {
        has(
            &shell.fails(line, 1).await,
            &["forbidden", "use a kubeconfig with more rights"],
        );
    }
    one.stop().await;
    other.stop().await;
}

/// Certificates of one authority.
struct Office {
    issuer: Issuer<'static, KeyPair>,
    authority_pem: String,
    roots: RootCertStore,
}

impl Office {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        Self {
            issuer: Issuer::new(params, key),
            authority_pem: pem::write(pem::CERTIFICATE, authority.der()),
            roots,
        }
    }

    /// A certificate and its key, both in DER.
    fn issue(&self, usage: ExtendedKeyUsagePurpose, expired: bool) -> (Vec<u8>, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        if expired {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        }
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.der().to_vec(), key.serialize_der())
    }
}

#[tokio::test]
async fn certificates_that_expired_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let office = Office::new();
    std::fs::write(path("ca.pem"), &office.authority_pem).unwrap();
    let shell = Shell::new(program("edgectl"), folder.path(), &path("kubeconfig"));
    for (servers, clients, parts) in [
        (
            true,
            false,
            [
                "the certificate of the cloud core at https://127.0.0.1:",
                "has expired",
                "restart `cloudcore serve`",
            ],
        ),
        (
            false,
            true,
            [
                "the certificate in the kubeconfig has expired",
                "says the cloud core at",
                "copy admin.kubeconfig",
            ],
        ),
    ] {
        let (certificate, key) = office.issue(ExtendedKeyUsagePurpose::ServerAuth, servers);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(office.roots.clone()), Arc::clone(&provider));
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(
                vec![certificate.into()],
                PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key)),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let acceptor = TlsAcceptor::from(Arc::new(tls));
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                // One of the two ends it.
                let _ = acceptor.accept(socket).await;
            }
        });
        let (certificate, key) = office.issue(ExtendedKeyUsagePurpose::ClientAuth, clients);
        std::fs::write(path("cert.pem"), pem::write(pem::CERTIFICATE, &certificate)).unwrap();
        std::fs::write(path("key.pem"), pem::write(pem::PRIVATE_KEY, &key)).unwrap();
        kubeconfig(
            folder.path(),
            "kubeconfig",
            &url,
            [&path("ca.pem"), &path("cert.pem"), &path("key.pem")],
        );
        has(&shell.fails("get pods", 1).await, &parts);
    }
}

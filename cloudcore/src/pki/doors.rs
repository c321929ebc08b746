//! TLS at both doors, the API and the hub: what the server shows, and whom it lets in.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use daemon::trust::{Bundle, Clock, Now, TrustError, Usage, Validity, certificate_error, provider, subject, unix};
use proto::enrol::EnrolmentId;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};

use super::authority::{Authority, AuthorityError, NODES, Profile};
use super::roll::Roll;

/// Who is on the other side of a verified connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    Node(Peer),
    Person { name: String, groups: Vec<String> },
}

/// A node, by its enrolment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub enrolment: EnrolmentId,
    /// Its certificate is past its time: it may renew it, and nothing else.
    pub expired: bool,
}

/// Why a client certificate is not believed.
#[derive(Debug, thiserror::Error)]
pub enum CallerError {
    #[error("no client certificate")]
    Missing,
    #[error("client certificate is not believed")]
    Certificate(#[source] TrustError),
    #[error("client certificate is past its time")]
    Expired,
    #[error("enrolment is unknown, revoked, or of another key")]
    Enrolment,
}

/// Says who a client is by its certificates.
#[derive(Clone)]
pub struct Callers {
    bundle: Bundle,
    roll: Arc<Roll>,
    clock: Clock,
}

impl Callers {
    pub(super) fn new(bundle: Bundle, roll: Arc<Roll>, clock: Clock) -> Self {
        Self { bundle, roll, clock }
    }

    /// Who shows these certificates, as of now. Asked in the handshake, and again by whoever acts on it.
    pub fn identify(&self, chain: &[CertificateDer<'_>]) -> Result<Caller, CallerError> {
        let (leaf, rest) = chain.split_first().ok_or(CallerError::Missing)?;
        let at = unix((self.clock)().ms);
        let validity = self.bundle.judge(leaf, rest, Usage::Client, at);
        // A certificate from the future is one of our own from before this clock fell back.
        let expired = validity.map_err(CallerError::Certificate)? == Validity::Expired;
        let (subject, key) = subject(leaf).map_err(CallerError::Certificate)?;
        if subject.organisations.iter().any(|group| group == NODES) {
            let enrolment = subject.common_name.parse().map_err(|_| CallerError::Enrolment)?;
            let known = self.roll.get(enrolment).ok_or(CallerError::Enrolment)?;
            return if known.revoked || known.key != key {
                Err(CallerError::Enrolment)
            } else {
                Ok(Caller::Node(Peer { enrolment, expired }))
            };
        }
        if expired {
            return Err(CallerError::Expired);
        }
        Ok(Caller::Person { name: subject.common_name, groups: subject.organisations })
    }
}

impl fmt::Debug for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callers")
            .field("bundle", &self.bundle)
            .finish_non_exhaustive()
    }
}

/// Which door a client stands at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    /// People and nodes by certificate, others by token: a certificate is asked for and not demanded.
    Api,
    /// Nodes only.
    Hub,
}

#[derive(Debug)]
struct ClientVerifier {
    callers: Callers,
    door: Door,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.door == Door::Hub
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A client has one certificate or none; naming CAs would only cost bytes.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let chain: Vec<_> = [end_entity].into_iter().chain(intermediates).cloned().collect();
        let refused = match (self.callers.identify(&chain), self.door) {
            (Ok(Caller::Node(peer)), Door::Api) if peer.expired => CertificateError::Expired,
            (Ok(Caller::Node(_)), Door::Hub) | (Ok(_), Door::Api) => return Ok(ClientCertVerified::assertion()),
            (Ok(Caller::Person { .. }), Door::Hub) => CertificateError::InvalidPurpose,
            (Err(CallerError::Certificate(error)), _) => certificate_error(&error),
            (Err(CallerError::Expired), _) => CertificateError::Expired,
            (Err(CallerError::Enrolment), _) => CertificateError::Revoked,
            (Err(CallerError::Missing), _) => CertificateError::BadEncoding,
        };
        Err(rustls::Error::InvalidCertificate(refused))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// A server's own certificate, replaced while it is in use. Its key never leaves the process.
#[derive(Debug)]
pub struct ServerIdentity {
    profile: Profile,
    current: RwLock<Current>,
}

#[derive(Debug)]
struct Current {
    key: Arc<CertifiedKey>,
    renew_ms: i64,
}

impl ServerIdentity {
    pub(super) fn new(authority: &Authority, names: Vec<String>, now_ms: i64) -> Result<Self, DoorError> {
        let profile = Profile::Server(names);
        let current = RwLock::new(issue(authority, &profile, now_ms)?);
        Ok(Self { profile, current })
    }

    /// Replaces the certificate when two thirds of its life are over.
    pub(super) fn renew(&self, authority: &Authority, now_ms: i64) -> Result<bool, DoorError> {
        if now_ms < self.read().renew_ms {
            return Ok(false);
        }
        let next = issue(authority, &self.profile, now_ms)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(true)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResolvesServerCert for ServerIdentity {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.read().key.clone())
    }
}

/// Why a door cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    #[error("cannot make the server's certificate")]
    Issue(#[source] AuthorityError),
    #[error("cannot make the server's key")]
    Key(#[source] rcgen::Error),
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
}

fn issue(authority: &Authority, profile: &Profile, now_ms: i64) -> Result<Current, DoorError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(DoorError::Key)?;
    let issued = authority.issue(profile, &key, now_ms).map_err(DoorError::Issue)?;
    let chain = vec![issued.certificate, authority.newest().clone()];
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let key = rustls::crypto::ring::sign::any_ecdsa_type(&key).map_err(DoorError::Tls)?;
    Ok(Current {
        key: Arc::new(CertifiedKey::new(chain, key)),
        renew_ms: issued.ends_ms - (issued.ends_ms - issued.begins_ms) / 3,
    })
}

/// TLS for the API.
pub(super) fn api(callers: Callers, identity: Arc<ServerIdentity>) -> Result<ServerConfig, DoorError> {
    let mut config = config(callers, Door::Api, identity, rustls::DEFAULT_VERSIONS)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// TLS for the hub's QUIC.
pub(super) fn hub(callers: Callers, identity: Arc<ServerIdentity>) -> Result<ServerConfig, DoorError> {
    let mut config = config(callers, Door::Hub, identity, &[&rustls::version::TLS13])?;
    config.alpn_protocols = vec![daemon::carrier::ALPN.to_vec()];
    Ok(config)
}

fn config(
    callers: Callers,
    door: Door,
    identity: Arc<ServerIdentity>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Result<ServerConfig, DoorError> {
    let provider = provider();
    let verifier = ClientVerifier {
        callers,
        door,
        algorithms: provider.signature_verification_algorithms,
    };
    let mut config = ServerConfig::builder_with_details(provider, Arc::new(Now))
        .with_protocol_versions(versions)
        .map_err(DoorError::Tls)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(identity);
    // Nothing is resumed: a revoked key would come back without being looked at, and resumption saves no bytes.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

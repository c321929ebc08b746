//! Which certificates are believed: a bundle of CAs, what a certificate may be used for, and at what time it is judged.
//!
//! Both cores judge through [`Bundle::judge`], which says *who* signed apart from *when*, because what follows from a
//! certificate out of its time is not the same on both sides: a node ignores "not yet valid" while its clock is not
//! synchronised; the hub admits an expired certificate to renewal.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use proto::enrol::SERVER_NAME;
use proto::time::{Wall, parse_rfc3339};
use ring::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{CertificateError, DigitallySignedStruct, SignatureScheme};
use webpki::{EndEntityCert, KeyUsage};

use crate::der::{Der, DerError, tag};

/// The most CAs a bundle may hold: what overlaps during a rotation, and room for one that went wrong.
pub const BUNDLE_CAS_MAX: usize = 8;

/// When this source was last known to be built, in the form of [`parse_rfc3339`]; a release sets it. No correct clock
/// is earlier.
const BUILT: &str = "2026-11-30T00:00:00Z";

/// Where a judge takes its time from.
pub type Clock = Arc<dyn Fn() -> Wall + Send + Sync>;

/// The CAs to accept, the newest first.
#[derive(Clone)]
pub struct Bundle {
    certificates: Vec<CertificateDer<'static>>,
    anchors: Vec<TrustAnchor<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// What a certificate is shown for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    Server,
    Client,
}

/// A certificate's validity period against the time at which it was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    Early,
    Current,
    Expired,
}

/// When a certificate is valid, in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    pub begins_ms: i64,
    pub ends_ms: i64,
}

/// Why certificates cannot be used as a bundle, or a certificate is not believed.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("no CA in the bundle")]
    Empty,
    #[error("bundle of {0} CAs exceeds the limit of {BUNDLE_CAS_MAX}")]
    TooMany(usize),
    #[error("malformed PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    #[error("certificate is malformed or not vouched for by the bundle")]
    Certificate(#[source] webpki::Error),
    #[error("malformed name in a certificate")]
    Name(#[source] DerError),
}

impl Bundle {
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, TrustError> {
        match certificates.len() {
            0 => return Err(TrustError::Empty),
            many if many > BUNDLE_CAS_MAX => return Err(TrustError::TooMany(many)),
            _ => {}
        }
        let anchors = certificates
            .iter()
            .map(|ca| webpki::anchor_from_trusted_cert(ca).map(|anchor| anchor.to_owned()))
            .collect::<Result<_, _>>()
            .map_err(TrustError::Certificate)?;
        Ok(Self {
            certificates,
            anchors,
            algorithms: provider().signature_verification_algorithms,
        })
    }

    pub fn from_pem(text: &str) -> Result<Self, TrustError> {
        Self::new(certificates(text)?)
    }

    /// The CAs themselves, the newest first.
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// Whether a CA of the bundle signed `leaf` for this usage, and how the certificate's time stands to `at`.
    pub fn judge(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        usage: Usage,
        at: UnixTime,
    ) -> Result<Validity, TrustError> {
        let verify = |at| self.verify(leaf, intermediates, usage, at);
        // The whole chain is verified again at the edge of its own period, so that nothing but the time is forgiven.
        let (validity, result) = match verify(at) {
            Err(webpki::Error::CertExpired { not_after, .. }) => (Validity::Expired, verify(not_after)),
            Err(webpki::Error::CertNotValidYet { not_before, .. }) => (Validity::Early, verify(not_before)),
            other => (Validity::Current, other),
        };
        result.map_err(TrustError::Certificate)?;
        Ok(validity)
    }

    /// When a certificate that the bundle vouches for is valid.
    ///
    /// Asked of the verifier, which names the bound that a time outside it misses: so there is one reader of
    /// certificates.
    pub fn period(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        usage: Usage,
    ) -> Result<Period, TrustError> {
        let verify = |at| self.verify(leaf, intermediates, usage, at);
        let ms = |time: UnixTime| i64::try_from(time.as_secs()).unwrap_or(i64::MAX).saturating_mul(1000);
        let begins = match verify(UnixTime::since_unix_epoch(Duration::ZERO)) {
            Err(webpki::Error::CertNotValidYet { not_before, .. }) => not_before,
            _ => UnixTime::since_unix_epoch(Duration::ZERO),
        };
        // The time is looked at before the signatures: only here is it known that the bundle vouches for it.
        verify(begins).map_err(TrustError::Certificate)?;
        let ends_ms = match verify(UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX))) {
            Err(webpki::Error::CertExpired { not_after, .. }) => ms(not_after),
            Err(_) | Ok(()) => i64::MAX,
        };
        Ok(Period { begins_ms: ms(begins), ends_ms })
    }

    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        usage: Usage,
        at: UnixTime,
    ) -> Result<(), webpki::Error> {
        let usage = match usage {
            Usage::Server => KeyUsage::server_auth(),
            Usage::Client => KeyUsage::client_auth(),
        };
        EndEntityCert::try_from(leaf)?
            .verify_for_usage(self.algorithms.all, &self.anchors, intermediates, at, usage, None, None)
            .map(drop)
    }
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hashes = self.certificates.iter().map(|ca| proto::enrol::hex(&sha256(ca)));
        f.debug_list().entries(hashes).finish()
    }
}

/// How a node verifies the cloud: the one fixed name, the CAs it trusts, and the time as far as it knows it.
#[derive(Debug)]
pub struct CloudVerifier {
    trust: Trust,
    time: NodeTime,
    algorithms: WebPkiSupportedAlgorithms,
}

#[derive(Debug)]
enum Trust {
    Bundle(Bundle),
    /// The SHA-256 of a CA that the server must show.
    Pinned([u8; 32]),
}

/// What a node knows of the time.
#[derive(Clone)]
pub struct NodeTime {
    pub clock: Clock,
    /// The latest time, in milliseconds since 1970, that this node was ever sure of.
    pub floor_ms: i64,
}

impl NodeTime {
    /// The time at which to judge, in milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        (self.clock)().ms.max(self.floor_ms).max(built_ms())
    }

    /// When to judge a certificate, and whether "not yet valid" counts: not on a clock that nothing vouches for.
    fn moment(&self) -> (UnixTime, bool) {
        let now = (self.clock)();
        (unix(now.ms.max(self.floor_ms)), now.trusted)
    }
}

impl fmt::Debug for NodeTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeTime")
            .field("floor_ms", &self.floor_ms)
            .finish_non_exhaustive()
    }
}

impl CloudVerifier {
    pub fn bundle(bundle: Bundle, time: NodeTime) -> Self {
        Self::new(Trust::Bundle(bundle), time)
    }

    /// Trusts the one CA with this SHA-256, which the server shows behind its own certificate.
    pub fn pinned(ca: [u8; 32], time: NodeTime) -> Self {
        Self::new(Trust::Pinned(ca), time)
    }

    fn new(trust: Trust, time: NodeTime) -> Self {
        Self {
            trust,
            time,
            algorithms: provider().signature_verification_algorithms,
        }
    }

    fn judge(&self, leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>]) -> Result<(), CertificateError> {
        let (at, early_counts) = self.time.moment();
        let pinned;
        let bundle = match &self.trust {
            Trust::Bundle(bundle) => bundle,
            Trust::Pinned(hash) => {
                let ca = rest.iter().find(|ca| sha256(ca) == *hash);
                let ca = ca.ok_or(CertificateError::UnknownIssuer)?;
                pinned = Bundle::new(vec![ca.clone().into_owned()]).map_err(|_| CertificateError::BadEncoding)?;
                &pinned
            }
        };
        let validity = bundle.judge(leaf, rest, Usage::Server, at);
        match validity.map_err(|error| certificate_error(&error))? {
            Validity::Expired => return Err(CertificateError::Expired),
            Validity::Early if early_counts => return Err(CertificateError::NotValidYet),
            Validity::Early | Validity::Current => {}
        }
        let name = ServerName::try_from(SERVER_NAME).map_err(|_| CertificateError::NotValidForName)?;
        EndEntityCert::try_from(leaf)
            .and_then(|leaf| leaf.verify_is_valid_for_subject_name(&name))
            .map_err(|_| CertificateError::NotValidForName)
    }
}

impl ServerCertVerifier for CloudVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.judge(end_entity, intermediates)
            .map_err(rustls::Error::InvalidCertificate)?;
        Ok(ServerCertVerified::assertion())
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

/// The one cryptography provider of both cores.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The certificates of a PEM text, in its order.
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(TrustError::Pem)
}

/// SHA-256, by which CAs and keys are named.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// The time at which to judge: never earlier than this build.
pub fn unix(ms: i64) -> UnixTime {
    let ms = u64::try_from(ms.max(built_ms())).unwrap_or(0);
    UnixTime::since_unix_epoch(Duration::from_millis(ms))
}

/// When this program was built, in milliseconds since 1970; a machine's clock cannot be right before it.
pub fn built_ms() -> i64 {
    parse_rfc3339(BUILT).unwrap_or(0) * 1000
}

/// What TLS takes for now. It is not what certificates are judged by, but rustls asks for it in every handshake.
#[derive(Debug, Clone, Copy)]
pub struct Now;

impl TimeProvider for Now {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix(crate::clock::wall().ms))
    }
}

/// What TLS calls the reason.
pub fn certificate_error(error: &TrustError) -> CertificateError {
    match error {
        TrustError::Certificate(webpki::Error::UnknownIssuer) => CertificateError::UnknownIssuer,
        TrustError::Certificate(webpki::Error::InvalidSignatureForPublicKey) => CertificateError::BadSignature,
        TrustError::Certificate(webpki::Error::RequiredEkuNotFoundContext(_)) => CertificateError::InvalidPurpose,
        TrustError::Certificate(_)
        | TrustError::Empty
        | TrustError::TooMany(_)
        | TrustError::Pem(_)
        | TrustError::Name(_) => CertificateError::BadEncoding,
    }
}

/// Whom a certificate names: what Kubernetes reads as user and groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subject {
    pub common_name: String,
    pub organisations: Vec<String>,
}

/// The subject and the SHA-256 of the public key of a certificate that was verified already.
pub fn subject(certificate: &CertificateDer<'_>) -> Result<(Subject, [u8; 32]), TrustError> {
    let certificate = EndEntityCert::try_from(certificate).map_err(TrustError::Certificate)?;
    let subject = names(certificate.subject()).map_err(TrustError::Name)?;
    Ok((subject, sha256(&certificate.subject_public_key_info())))
}

fn names(name: &[u8]) -> Result<Subject, DerError> {
    const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    const ORGANISATION: &[u8] = &[0x55, 0x04, 0x0a];
    let mut subject = Subject::default();
    let mut sets = Der::new(name);
    while !sets.is_empty() {
        let mut set = Der::new(sets.expect(tag::SET)?.content);
        while !set.is_empty() {
            let mut attribute = Der::new(set.expect(tag::SEQUENCE)?.content);
            let (oid, value) = (attribute.expect(tag::OID)?, attribute.element()?);
            if !matches!(value.tag, tag::UTF8_STRING | tag::PRINTABLE_STRING) {
                continue;
            }
            let text = std::str::from_utf8(value.content).map_err(|_| DerError)?;
            match oid.content {
                COMMON_NAME => text.clone_into(&mut subject.common_name),
                ORGANISATION => subject.organisations.push(text.to_owned()),
                _ => {}
            }
        }
    }
    Ok(subject)
}

#[cfg(test)]
mod tests;

//! Who this node is: its key, and what the cloud gave it when it joined.
//!
//! Two files outside the databases, in the data folder. `node.key` is written before the node first asks to join and
//! never changes after: a join that was interrupted anywhere is simply asked again, with the same key. All the rest
//! (certificate, CAs, addresses, name) is one file, `enrolment.json`, replaced as a whole: its parts always fit each
//! other.

mod https;
mod join;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use daemon::files::{self, FileError};
use daemon::pem;
use daemon::trust::{
    Bundle, CloudVerifier, NodeTime, Now, Period, TrustError, Usage, certificates, provider, sha256, subject,
};
use proto::enrol::{Answer, Credentials, EnrolmentId};
use proto::object::Uid;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

pub use self::https::HttpsError;
pub use self::join::{JoinError, Wish, architecture, join};

const KEY_FILE: &str = "node.key";
const ENROLMENT_FILE: &str = "enrolment.json";

/// An enrolled node.
pub struct Identity {
    folder: PathBuf,
    key: KeyPair,
    enrolment: Answer,
    chain: Vec<CertificateDer<'static>>,
    bundle: Bundle,
    period: Period,
}

/// Why the node's identity cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot keep the identity")]
    Write(#[source] FileError),
    #[error("{} holds no P-256 key in PEM", path.display())]
    Key {
        path: PathBuf,
        #[source]
        source: rcgen::Error,
    },
    #[error("{} is malformed", path.display())]
    Enrolment {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("certificates cannot be used")]
    Certificates(#[source] TrustError),
    #[error("certificate is for another key or enrolment than this node's")]
    OtherKey,
    #[error("cannot make a key")]
    Generate(#[source] rcgen::Error),
    #[error("cannot make a certification request")]
    Request(#[source] rcgen::Error),
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
}

impl Identity {
    /// The identity kept in this folder; `None` when the node has not joined.
    pub fn load(folder: &Path) -> Result<Option<Self>, IdentityError> {
        let path = folder.join(ENROLMENT_FILE);
        let (Some(key), Some(text)) = (load_key(folder)?, read(&path)?) else {
            return Ok(None);
        };
        let enrolment = serde_json::from_slice(&text).map_err(|source| IdentityError::Enrolment { path, source })?;
        Self::new(folder, key, enrolment).map(Some)
    }

    /// Takes over what the cloud answered, after checking that its parts fit each other, and keeps it.
    fn keep(folder: &Path, key: KeyPair, enrolment: Answer) -> Result<Self, IdentityError> {
        let path = folder.join(ENROLMENT_FILE);
        let identity = Self::new(folder, key, enrolment)?;
        let text = serde_json::to_vec_pretty(&identity.enrolment)
            .map_err(|source| IdentityError::Enrolment { path: path.clone(), source })?;
        files::replace(&path, &text, 0o600).map_err(IdentityError::Write)?;
        Ok(identity)
    }

    fn new(folder: &Path, key: KeyPair, enrolment: Answer) -> Result<Self, IdentityError> {
        let Credentials { chain, bundle, .. } = &enrolment.credentials;
        let chain = certificates(chain).map_err(IdentityError::Certificates)?;
        let bundle = Bundle::from_pem(bundle).map_err(IdentityError::Certificates)?;
        let (leaf, rest) = chain.split_first().ok_or(IdentityError::OtherKey)?;
        let period = bundle
            .period(leaf, rest, Usage::Client)
            .map_err(IdentityError::Certificates)?;
        let (subject, key_hash) = subject(leaf).map_err(IdentityError::Certificates)?;
        if key_hash != sha256(&key.subject_public_key_info()) || subject.common_name != enrolment.enrolment.to_string()
        {
            return Err(IdentityError::OtherKey);
        }
        Ok(Self {
            folder: folder.to_owned(),
            key,
            enrolment,
            chain,
            bundle,
            period,
        })
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        &self.enrolment.node
    }

    pub fn node_uid(&self) -> Uid {
        self.enrolment.node_uid
    }

    pub fn enrolment(&self) -> EnrolmentId {
        self.enrolment.enrolment
    }

    /// Whether this is a CA of the cloud that it joined, by its hash.
    pub fn trusts(&self, ca: &[u8; 32]) -> bool {
        self.bundle.certificates().iter().any(|known| sha256(known) == *ca)
    }

    /// `host:port` of the hub, in the order in which to try them.
    pub fn addresses(&self) -> &[String] {
        &self.enrolment.credentials.addresses
    }

    /// When the certificate is valid.
    pub fn period(&self) -> Period {
        self.period
    }

    /// Whether it is time for a new certificate: two thirds of this one's life are over.
    pub fn is_due(&self, time: &NodeTime) -> bool {
        let Period { begins_ms, ends_ms } = self.period;
        time.now_ms() >= ends_ms - (ends_ms - begins_ms) / 3
    }

    /// A certification request for the same key, in PEM, to be sent over the session.
    pub fn csr(&self) -> Result<String, IdentityError> {
        csr(&self.key)
    }

    /// Takes over what came over the session: a new certificate, other CAs, other addresses. What does not fit this
    /// node is refused and changes nothing.
    pub fn renew(&mut self, credentials: Credentials) -> Result<(), IdentityError> {
        let enrolment = Answer { credentials, ..self.enrolment.clone() };
        *self = Self::keep(&self.folder, self.copy_of_key()?, enrolment)?;
        Ok(())
    }

    fn copy_of_key(&self) -> Result<KeyPair, IdentityError> {
        let der = PrivatePkcs8KeyDer::from(self.key.serialized_der());
        KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256).map_err(IdentityError::Generate)
    }

    /// TLS towards the hub.
    pub fn tls(&self, time: NodeTime) -> Result<ClientConfig, IdentityError> {
        let verifier = CloudVerifier::bundle(self.bundle.clone(), time);
        let key = PrivatePkcs8KeyDer::from(self.key.serialize_der()).into();
        let mut config = ClientConfig::builder_with_details(provider(), Arc::new(Now))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(IdentityError::Tls)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(self.chain.clone(), key)
            .map_err(IdentityError::Tls)?;
        config.alpn_protocols = vec![daemon::carrier::ALPN.to_vec()];
        Ok(config)
    }
}

/// Without the key.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("node", &self.enrolment.node)
            .field("enrolment", &self.enrolment.enrolment)
            .finish_non_exhaustive()
    }
}

/// The node's key: the one it has, or one made now and kept before anybody hears of it.
fn own_key(folder: &Path) -> Result<KeyPair, IdentityError> {
    if let Some(key) = load_key(folder)? {
        return Ok(key);
    }
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IdentityError::Generate)?;
    let text = pem::write(pem::PRIVATE_KEY, key.serialized_der());
    files::replace(&folder.join(KEY_FILE), text.as_bytes(), 0o600).map_err(IdentityError::Write)?;
    Ok(key)
}

fn load_key(folder: &Path) -> Result<Option<KeyPair>, IdentityError> {
    let path = folder.join(KEY_FILE);
    let Some(bytes) = read(&path)? else {
        return Ok(None);
    };
    PrivatePkcs8KeyDer::from_pem_slice(&bytes)
        .map_err(|_| rcgen::Error::CouldNotParseKeyPair)
        .and_then(|key| KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256))
        .map(Some)
        .map_err(|source| IdentityError::Key { path, source })
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, IdentityError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(IdentityError::Read { path: path.to_owned(), source }),
    }
}

fn csr(key: &KeyPair) -> Result<String, IdentityError> {
    let mut params = CertificateParams::default();
    // Only the key counts; every name is the cloud's to give.
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(key).map_err(IdentityError::Request)?;
    Ok(pem::write(pem::CERTIFICATE_REQUEST, request.der()))
}

#[cfg(test)]
pub(crate) mod tests;

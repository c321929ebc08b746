//! The certificate authority: it holds one CA, or several while they overlap. The newest signs, all are believed.

use std::fmt;
use std::net::IpAddr;

use daemon::trust::{Bundle, TrustError, built_ms, sha256};
use daemon::{pem, random};
use proto::enrol::{EnrolmentId, SERVER_NAME, hex};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber, date_time_ymd,
};
use ring::hmac;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, DnsName, InvalidDnsNameError, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};

use super::ledger::{CAS, Write};

const DAY_MS: i64 = 86_400_000;

/// Nodes stay away for months and live for decades.
const CA_LIFE_MS: i64 = 30 * 365 * DAY_MS;
const NODE_LIFE_MS: i64 = 365 * DAY_MS;
const SERVER_LIFE_MS: i64 = 90 * DAY_MS;
const ADMIN_LIFE_MS: i64 = 365 * DAY_MS;

/// How long before now a certificate begins, for peers whose clock is behind.
const BACKDATE_MS: i64 = DAY_MS;

/// The organisation of a node's certificate, its group in the API.
pub(super) const NODES: &str = "system:nodes";
/// The name and the group in the certificate of the kubeconfig.
const ADMIN: &str = "edgehold-admin";
const MASTERS: &str = "system:masters";

/// Every CA of this cloud, the newest first; there is always one.
pub struct Authority {
    newest: Issuer<'static, KeyPair>,
    newest_ends_ms: i64,
    bundle: Bundle,
    bundle_pem: String,
    secrets: hmac::Key,
}

/// Whom a certificate is for.
#[derive(Debug, Clone)]
pub enum Profile {
    Node(EnrolmentId),
    /// Every name and address under which clients reach the server, beside the fixed name and this host's own.
    Server(Vec<String>),
    Admin,
}

/// A fresh certificate.
#[derive(Debug, Clone)]
pub struct Issued {
    pub certificate: CertificateDer<'static>,
    pub pem: String,
    /// In hex.
    pub serial: String,
    pub begins_ms: i64,
    pub ends_ms: i64,
}

/// Why the authority cannot be opened, or did not sign.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("CA record {id} is malformed")]
    Record {
        id: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("key of the CA {id} cannot be used")]
    Key {
        id: String,
        #[source]
        source: rcgen::Error,
    },
    #[error("CAs cannot be used")]
    Bundle(#[source] TrustError),
    #[error("cannot make a key")]
    Generate(#[source] rcgen::Error),
    #[error("{name} is neither a host name nor an address")]
    Name {
        name: String,
        #[source]
        source: InvalidDnsNameError,
    },
    #[error("cannot sign a certificate")]
    Sign(#[source] rcgen::Error),
}

/// A CA as it is kept, sealed.
#[derive(Serialize, Deserialize)]
struct Record {
    name: String,
    created_ms: i64,
    ends_ms: i64,
    certificate: String,
    key: String,
}

impl Authority {
    /// A new CA, as the writes that keep it beside the `count` that there are. It is used only after it was committed
    /// and read back: of two cloud cores that make one together, one fails to commit, and both use the other's.
    pub fn create(count: usize, now_ms: i64) -> Result<Vec<Write>, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(AuthorityError::Generate)?;
        let created_ms = now_ms.max(built_ms());
        // Two CAs must never share a name, else a verifier cannot tell them apart.
        let name = format!("Edgehold CA {}", hex(&random::bytes::<8>()));
        let mut params = ca_params(&name);
        let ends_ms = created_ms + CA_LIFE_MS;
        period(&mut params, created_ms - BACKDATE_MS, ends_ms);
        params.serial_number = Some(serial().0);
        let certificate = params.self_signed(&key).map_err(AuthorityError::Sign)?;
        let id = format!("{count:04}");
        let record = Record {
            name,
            created_ms,
            ends_ms,
            certificate: pem::write(pem::CERTIFICATE, certificate.der()),
            key: pem::write(pem::PRIVATE_KEY, key.serialized_der()),
        };
        let bytes = serde_json::to_vec(&record).map_err(|source| AuthorityError::Record { id: id.clone(), source })?;
        let expect = Write::Expect { space: CAS, id: id.clone(), bytes: None };
        Ok(vec![expect, Write::Put { space: CAS, id, bytes }])
    }

    /// The authority from the records of [`CAS`]; `None` when there are none yet.
    pub fn open(records: Vec<(String, Vec<u8>)>) -> Result<Option<Self>, AuthorityError> {
        let read = |(id, bytes): (String, Vec<u8>)| {
            serde_json::from_slice::<Record>(&bytes)
                .map(|record| (id.clone(), record))
                .map_err(|source| AuthorityError::Record { id, source })
        };
        let mut records = records.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
        records.sort_by(|(a_id, a), (b_id, b)| (b.created_ms, b_id).cmp(&(a.created_ms, a_id)));
        let bundle_pem: String = records.iter().map(|(_, record)| record.certificate.as_str()).collect();
        let Some((id, newest)) = records.into_iter().next() else {
            return Ok(None);
        };
        let key = PrivatePkcs8KeyDer::from_pem_slice(newest.key.as_bytes())
            .map_err(|_| rcgen::Error::CouldNotParseKeyPair)
            .and_then(|key| KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256))
            .map_err(|source| AuthorityError::Key { id, source })?;
        Ok(Some(Self {
            secrets: hmac::Key::new(hmac::HMAC_SHA256, key.serialized_der()),
            newest: Issuer::new(ca_params(&newest.name), key),
            newest_ends_ms: newest.ends_ms,
            bundle: Bundle::from_pem(&bundle_pem).map_err(AuthorityError::Bundle)?,
            bundle_pem,
        }))
    }

    /// Every CA to believe.
    pub fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    pub fn bundle_pem(&self) -> &str {
        &self.bundle_pem
    }

    /// The CA that signs now; servers show it behind their own certificate, so that a join token can pin it.
    pub fn newest(&self) -> &CertificateDer<'static> {
        &self.bundle.certificates()[0]
    }

    /// By which a join token knows this cloud.
    pub fn newest_hash(&self) -> [u8; 32] {
        sha256(self.newest())
    }

    /// A secret for one purpose that is the same in every life of this cloud, until it has another CA.
    pub fn secret(&self, purpose: &str) -> [u8; 32] {
        let mut secret = [0; 32];
        secret.copy_from_slice(hmac::sign(&self.secrets, purpose.as_bytes()).as_ref());
        secret
    }

    /// Signs a certificate for a key.
    pub fn issue(&self, profile: &Profile, key: &impl PublicKeyData, now_ms: i64) -> Result<Issued, AuthorityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let mut subject = |kind, text: String| params.distinguished_name.push(kind, text);
        let (life_ms, usage) = match profile {
            Profile::Node(enrolment) => {
                subject(DnType::OrganizationName, NODES.to_owned());
                subject(DnType::CommonName, enrolment.to_string());
                (NODE_LIFE_MS, ExtendedKeyUsagePurpose::ClientAuth)
            }
            Profile::Admin => {
                subject(DnType::OrganizationName, MASTERS.to_owned());
                subject(DnType::CommonName, ADMIN.to_owned());
                (ADMIN_LIFE_MS, ExtendedKeyUsagePurpose::ClientAuth)
            }
            Profile::Server(names) => {
                subject(DnType::CommonName, SERVER_NAME.to_owned());
                params.subject_alt_names = alternative_names(names)?;
                (SERVER_LIFE_MS, ExtendedKeyUsagePurpose::ServerAuth)
            }
        };
        params.extended_key_usages = vec![usage];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let (number, serial) = serial();
        params.serial_number = Some(number);
        let now_ms = now_ms.max(built_ms());
        let (begins_ms, ends_ms) = (now_ms - BACKDATE_MS, (now_ms + life_ms).min(self.newest_ends_ms));
        period(&mut params, begins_ms, ends_ms);
        let certificate: Certificate = params.signed_by(key, &self.newest).map_err(AuthorityError::Sign)?;
        Ok(Issued {
            pem: pem::write(pem::CERTIFICATE, certificate.der()),
            certificate: certificate.into(),
            serial,
            begins_ms,
            ends_ms,
        })
    }
}

/// Without the keys.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Authority").field(&self.bundle).finish()
    }
}

fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// The names of a server: what was asked for, what every host calls itself, and the one name that nodes verify.
fn alternative_names(names: &[String]) -> Result<Vec<SanType>, AuthorityError> {
    let own = [SERVER_NAME, "localhost", "127.0.0.1", "::1"];
    let mut all = Vec::new();
    for name in own.into_iter().chain(names.iter().map(String::as_str)) {
        let wrong = |source| AuthorityError::Name { name: name.to_owned(), source };
        let san = match name.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => {
                let checked = DnsName::try_from(name).map_err(wrong)?;
                SanType::DnsName(checked.as_ref().try_into().map_err(AuthorityError::Sign)?)
            }
        };
        if !all.contains(&san) {
            all.push(san);
        }
    }
    Ok(all)
}

fn period(params: &mut CertificateParams, begins_ms: i64, ends_ms: i64) {
    let at = |ms: i64| {
        let since_1970 = std::time::Duration::from_millis(u64::try_from(ms).unwrap_or(0));
        date_time_ymd(1970, 1, 1) + since_1970
    };
    params.not_before = at(begins_ms);
    params.not_after = at(ends_ms);
}

/// A random serial number, positive as X.509 wants it. (The library's own would follow from the key, and a renewal has
/// the same key.)
fn serial() -> (SerialNumber, String) {
    let mut bytes = random::bytes::<16>();
    bytes[0] = bytes[0] & 0x7f | 0x40;
    (SerialNumber::from_slice(&bytes), hex(&bytes))
}

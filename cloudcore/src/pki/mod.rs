//! Who may speak to this cloud: its CA, join tokens, enrolments, certificates, revocation.
//!
//! [`Pki`] is the face: it answers what can be looked up, and hands what changes something to the one [`Clerk`], who
//! works alone. So a token is never used twice at once, and no decision is taken on what another is just changing.
//! Memory follows the ledger: a change is seen only after it was committed.

mod authority;
mod clerk;
mod csr;
mod doors;
mod enrol;
mod kubeconfig;
pub mod ledger;
mod roll;
mod tokens;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use daemon::files::{self, FileError};
use daemon::pem;
use daemon::trust::Clock;
use proto::enrol::{BODY_BYTES_MAX, Credentials, EnrolmentId, JoinToken, Request};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::ServerConfig;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

pub use self::authority::{Authority, AuthorityError, Issued, Profile};
pub use self::clerk::Clerk;
pub use self::csr::{CsrError, ProvenKey};
pub use self::doors::{Caller, CallerError, Callers, DoorError, Peer, ServerIdentity};
pub use self::roll::{ENROLMENTS_MAX, Enrolment, Roll};
pub use self::tokens::{ANY, LABELS_MAX, TOKENS_MAX, TTL_MAX, Token, TokenError, TokenSpec, USES_MAX};

use self::clerk::Order;
use self::enrol::Refusal;
use self::ledger::{CAS, ENROLMENTS, Ledger, LedgerError, TOKENS};

/// Orders waiting for the clerk; more wait in their callers.
const ORDERS_MAX: usize = 64;

/// What the PKI is told at the start.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// `host:port` of the hub as nodes reach it, in the order in which to try them.
    pub addresses: Vec<String>,
    /// Names and addresses under which clients reach the API, beside this host's own.
    pub names: Vec<String>,
}

/// The face of the PKI; cheap to clone.
#[derive(Clone)]
pub struct Pki {
    shared: Arc<Shared>,
    orders: mpsc::Sender<Order>,
}

/// What the face and the clerk both know.
struct Shared {
    config: Config,
    authority: Authority,
    roll: Arc<Roll>,
    clock: Clock,
    /// Certificates in use, for the clerk to renew.
    identities: Mutex<Vec<Weak<ServerIdentity>>>,
}

/// Why the PKI cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot read or write the ledger")]
    Ledger(#[source] LedgerError),
    #[error("cannot open the certificate authority")]
    Authority(#[source] AuthorityError),
    #[error("the certificate authority that was just made is not in the ledger")]
    Vanished,
    #[error("record {id} is malformed")]
    Record {
        id: String,
        #[source]
        source: serde_json::Error,
    },
}

/// Why the clerk did not do it.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("the cloud core is stopping")]
    Stopped,
    #[error("token cannot be made")]
    Token(#[source] TokenError),
    #[error("no such token")]
    NoToken,
    #[error("enrolment is unknown or revoked")]
    Enrolment,
    #[error("{ENROLMENTS_MAX} enrolments exist")]
    TooMany,
    #[error("certification request is refused")]
    Csr(#[source] CsrError),
    #[error("certification request is for another key than the enrolment's")]
    OtherKey,
    #[error("cannot sign")]
    Sign(#[source] AuthorityError),
    #[error("cannot write the ledger")]
    Ledger(#[source] LedgerError),
    #[error("cannot write a record")]
    Record(#[source] serde_json::Error),
    #[error("cannot make a key")]
    Key(#[source] rcgen::Error),
    #[error("cannot write the kubeconfig")]
    File(#[source] FileError),
}

/// An HTTP answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// JSON.
    pub body: Vec<u8>,
}

impl Pki {
    /// Opens the PKI from its ledger; the first time, it makes the CA. The clerk is to be run for as long as the process.
    pub async fn open(ledger: Arc<dyn Ledger>, config: Config, clock: Clock) -> Result<(Self, Clerk), OpenError> {
        let authority = match open_authority(&*ledger).await? {
            Some(authority) => authority,
            None => {
                let made = Authority::create(0, clock().ms).map_err(OpenError::Authority)?;
                match ledger.commit(made).await {
                    Ok(()) | Err(LedgerError::Changed) => {}
                    Err(error) => return Err(OpenError::Ledger(error)),
                }
                // Read back rather than kept: what signs is what a restart will find.
                open_authority(&*ledger).await?.ok_or(OpenError::Vanished)?
            }
        };
        let roll = Roll::new(read::<Enrolment>(&*ledger, ENROLMENTS).await?);
        let tokens = read::<Token>(&*ledger, TOKENS).await?;
        let shared = Arc::new(Shared {
            config,
            authority,
            roll: Arc::new(roll),
            clock,
            identities: Mutex::default(),
        });
        let (orders, queue) = mpsc::channel(ORDERS_MAX);
        let clerk = Clerk::new(shared.clone(), ledger, tokens, queue);
        Ok((Self { shared, orders }, clerk))
    }

    /// Makes a join token. Its text exists only in this answer.
    pub async fn create_token(&self, spec: TokenSpec) -> Result<JoinToken, PkiError> {
        self.order(|reply| Order::CreateToken { spec, reply }).await
    }

    /// The tokens that exist, also those that ended and were not yet cleared away.
    pub async fn tokens(&self) -> Result<Vec<Token>, PkiError> {
        self.order(|reply| Order::Tokens { reply }).await
    }

    /// Makes a token useless.
    pub async fn delete_token(&self, id: String) -> Result<(), PkiError> {
        self.order(|reply| Order::DeleteToken { id, reply }).await
    }

    /// Answers `POST /enrol/v1`. It needs no other authentication than what the body holds.
    pub async fn enrol(&self, body: &[u8]) -> Answer {
        match self.enrol_request(body).await {
            Ok(answer) => json(200, &answer),
            Err(refusal) => {
                tracing::warn!(reason = %refusal, "node not enrolled");
                json(refusal.status(), &refusal.body())
            }
        }
    }

    async fn enrol_request(&self, body: &[u8]) -> Result<proto::enrol::Answer, Refusal> {
        if body.len() > BODY_BYTES_MAX {
            return Err(Refusal::Malformed(format!("longer than {BODY_BYTES_MAX} bytes")));
        }
        // The parser's text names a place, never the content, which holds a secret.
        let request: Request = serde_json::from_slice(body)
            .map_err(|error| Refusal::Malformed(format!("line {}, column {}", error.line(), error.column())))?;
        let key = ProvenKey::from_pem(&request.csr).map_err(|error| Refusal::Malformed(format!("csr: {error}")))?;
        let request = Box::new(request);
        let answer = self.order(|reply| Order::Enrol { request, key, reply }).await;
        answer.map_err(|error| Refusal::Unavailable(error.to_string()))?
    }

    /// A new certificate for an enrolment that proved its key in the session's handshake, also when the old one is past
    /// its time. The request must be for the same key.
    pub async fn renew(&self, enrolment: EnrolmentId, csr: &str) -> Result<Credentials, PkiError> {
        let key = ProvenKey::from_pem(csr).map_err(PkiError::Csr)?;
        self.order(|reply| Order::Renew { enrolment, key, reply }).await
    }

    /// What travels in a session when the CAs or the addresses changed and the certificate did not.
    pub fn credentials(&self, chain: String) -> Credentials {
        self.shared.credentials(chain)
    }

    /// Bars the key that stands for a node, for good. Its sessions end at once, by [`Roll::changes`]. Returns whether
    /// there was one.
    pub async fn revoke(&self, node: &str) -> Result<bool, PkiError> {
        let node = node.to_owned();
        self.order(|reply| Order::Revoke { node, reply }).await
    }

    /// Every enrolment.
    pub fn roll(&self) -> &Arc<Roll> {
        &self.shared.roll
    }

    /// The CAs.
    pub fn authority(&self) -> &Authority {
        &self.shared.authority
    }

    /// Says who a client is by its certificates.
    pub fn callers(&self) -> Callers {
        let shared = &self.shared;
        Callers::new(
            shared.authority.bundle().clone(),
            shared.roll.clone(),
            shared.clock.clone(),
        )
    }

    /// TLS for the API's port: client certificates are asked for and not demanded. Certificates renew themselves.
    pub fn api_tls(&self) -> Result<ServerConfig, DoorError> {
        doors::api(self.callers(), self.identity(self.shared.config.names.clone())?)
    }

    /// TLS for the hub: nodes only, expired ones too.
    pub fn hub_tls(&self) -> Result<ServerConfig, DoorError> {
        doors::hub(self.callers(), self.identity(Vec::new())?)
    }

    fn identity(&self, names: Vec<String>) -> Result<Arc<ServerIdentity>, DoorError> {
        let now_ms = (self.shared.clock)().ms;
        let identity = Arc::new(ServerIdentity::new(&self.shared.authority, names, now_ms)?);
        let mut identities = self.shared.identities.lock().unwrap_or_else(PoisonError::into_inner);
        identities.push(Arc::downgrade(&identity));
        Ok(identity)
    }

    /// Writes the kubeconfig of the first admin, mode 0600, with a certificate of its own: `server` is the API's URL.
    pub fn write_kubeconfig(&self, path: &Path, server: &str) -> Result<(), PkiError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(PkiError::Key)?;
        let (authority, now_ms) = (&self.shared.authority, (self.shared.clock)().ms);
        let issued = authority.issue(&Profile::Admin, &key, now_ms).map_err(PkiError::Sign)?;
        let key = pem::write(pem::PRIVATE_KEY, key.serialized_der());
        let text = kubeconfig::text(server, authority.bundle_pem(), &issued.pem, &key);
        files::replace(path, text.as_bytes(), 0o600).map_err(PkiError::File)
    }

    async fn order<T>(&self, order: impl FnOnce(oneshot::Sender<Result<T, PkiError>>) -> Order) -> Result<T, PkiError> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(order(reply)).await.map_err(|_| PkiError::Stopped)?;
        answer.await.map_err(|_| PkiError::Stopped)?
    }
}

impl fmt::Debug for Pki {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pki").field(&self.shared.authority).finish()
    }
}

impl Shared {
    fn credentials(&self, chain: String) -> Credentials {
        Credentials {
            chain,
            bundle: self.authority.bundle_pem().to_owned(),
            addresses: self.config.addresses.clone(),
        }
    }
}

fn json(status: u16, body: &impl Serialize) -> Answer {
    serde_json::to_vec(body).map_or_else(
        |_| Answer { status: 500, body: b"{}".to_vec() },
        |body| Answer { status, body },
    )
}

async fn open_authority(ledger: &dyn Ledger) -> Result<Option<Authority>, OpenError> {
    let records = ledger.records(CAS).await.map_err(OpenError::Ledger)?;
    Authority::open(records).map_err(OpenError::Authority)
}

async fn read<T: serde::de::DeserializeOwned>(ledger: &dyn Ledger, space: &'static str) -> Result<Vec<T>, OpenError> {
    let records = ledger.records(space).await.map_err(OpenError::Ledger)?;
    (records.into_iter())
        .map(|(id, bytes)| serde_json::from_slice(&bytes).map_err(|source| OpenError::Record { id, source }))
        .collect()
}

#[cfg(test)]
pub(crate) mod tests;

//! Enrolment: what a node and the cloud tell each other once, before there is a session between them.
//!
//! It travels as JSON in one HTTPS exchange, `POST /enrol/v1`. The node sends its [`Request`] only after it has verified
//! the server against the CA hash in its [`JoinToken`], so that a token is never shown to a stranger.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::object::{Uid, UidError};

/// Where a node enrols.
pub const PATH: &str = "/enrol/v1";

/// The largest request or answer, in bytes; what is larger is refused unread.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

/// The one name under which nodes verify the cloud, whatever address they dial: a new address breaks nothing.
pub const SERVER_NAME: &str = "cloudcore.edgehold";

/// The longest node name: it is also the value of a label.
pub const NODE_NAME_BYTES_MAX: usize = 63;

const TOKEN_PREFIX: &str = "edgehold-join.v1.";

/// One enrolment: a key pair that was let in once. A certificate names it; which node it stands for is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EnrolmentId(pub Uid);

impl fmt::Display for EnrolmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for EnrolmentId {
    type Err = UidError;

    fn from_str(text: &str) -> Result<Self, UidError> {
        text.parse().map(Self)
    }
}

/// What an operator carries to a new node: the right to enrol, and how to know the right cloud.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// Public: names the token in lists and logs.
    pub id: [u8; 8],
    pub secret: [u8; 32],
    /// SHA-256 over the CA certificate (DER) that signs the cloud's own.
    pub ca: [u8; 32],
}

impl JoinToken {
    /// The id as people see it.
    pub fn id_text(&self) -> String {
        hex(&self.id)
    }
}

/// The whole token, secret included: for the one who asked for it.
impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{TOKEN_PREFIX}{}.{}.{}",
            hex(&self.id),
            hex(&self.secret),
            hex(&self.ca)
        )
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({})", self.id_text())
    }
}

/// Text that is no join token. It does not repeat the text, which may hold a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a join token: expected edgehold-join.v1.<id>.<secret>.<ca hash>, whole and in one line")]
pub struct JoinTokenError;

impl FromStr for JoinToken {
    type Err = JoinTokenError;

    fn from_str(text: &str) -> Result<Self, JoinTokenError> {
        let rest = text.trim().strip_prefix(TOKEN_PREFIX).ok_or(JoinTokenError)?;
        let mut parts = rest.split('.');
        let mut next = || parts.next().ok_or(JoinTokenError);
        let (id, secret, ca) = (next()?, next()?, next()?);
        if parts.next().is_some() {
            return Err(JoinTokenError);
        }
        let read = |ok: Option<()>| ok.ok_or(JoinTokenError);
        let mut token = Self { id: [0; 8], secret: [0; 32], ca: [0; 32] };
        read(unhex(id, &mut token.id))?;
        read(unhex(secret, &mut token.secret))?;
        read(unhex(ca, &mut token.ca))?;
        Ok(token)
    }
}

/// What a node asks for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub token_id: String,
    /// In hex. Only ever inside TLS, to a server that the token's CA hash vouches for.
    pub token_secret: String,
    /// PEM, PKCS #10, P-256. Its own signature proves the key; a known key proves an old enrolment.
    pub csr: String,
    /// The name the node would like; without it the token's, or the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(default)]
    pub hostname: String,
    /// Labels the node would like to have; the token says which it may.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// As `kubernetes.io/arch` has it.
    pub arch: String,
    /// As `kubernetes.io/os` has it.
    pub os: String,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("token_id", &self.token_id)
            .field("node", &self.node)
            .field("hostname", &self.hostname)
            .field("labels", &self.labels)
            .finish_non_exhaustive()
    }
}

/// What an enrolled node keeps, beside its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub enrolment: EnrolmentId,
    pub node: String,
    pub node_uid: Uid,
    pub credentials: Credentials,
}

/// The part of an [`Answer`] that is renewed over the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// PEM: the node's certificate, then what leads to a CA of the bundle.
    pub chain: String,
    /// PEM: every CA to accept, the newest first. It replaces the bundle the node had.
    pub bundle: String,
    /// `host:port` of the hub, in the order in which to try them.
    pub addresses: Vec<String>,
}

/// Why a node was not enrolled, with the HTTP status saying whose turn it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Stable, one word: `TokenUnknown`, `NameTaken`, …
    pub reason: String,
    /// For people: what is wrong and what to do.
    pub message: String,
}

/// Bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fills `bytes` from lower-case hex of exactly that length.
pub fn unhex(text: &str, bytes: &mut [u8]) -> Option<()> {
    let digits = text.as_bytes();
    if digits.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_as_it_writes() {
        let token = JoinToken { id: [1; 8], secret: [0xab; 32], ca: [0xff; 32] };
        let text = token.to_string();
        assert!(text.starts_with("edgehold-join.v1.0101010101010101.abab"), "{text}");
        assert_eq!(text.parse(), Ok(token.clone()));
        assert_eq!(format!("\n {text}\n").parse(), Ok(token.clone()));
        assert_eq!(format!("{token:?}"), "JoinToken(0101010101010101)");
        for wrong in [
            "",
            "edgehold-join.v1.",
            &text[1..],
            &text[..text.len() - 1],
            &format!("{text}0"),
            &format!("{text}.00"),
            &text.replace("v1", "v2"),
            &text.to_uppercase(),
        ] {
            assert_eq!(wrong.parse::<JoinToken>(), Err(JoinTokenError), "{wrong}");
        }
    }
}

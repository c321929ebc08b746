//! Joining: the one time a node speaks to the cloud without a certificate.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use daemon::trust::{CloudVerifier, NodeTime};
use proto::enrol::{Answer, JoinToken, PATH, Refused, Request, hex};

use super::https::{self, HttpsError, Url};
use super::{Identity, IdentityError, csr, own_key};

/// What a node would like to be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wish {
    /// Without it the token's name, or the host's.
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
}

/// Why a node did not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("identity of this node")]
    Identity(#[source] IdentityError),
    #[error(
        "this node has joined a cloud with another CA, whose pods it runs: to move it, stop the edge core, and remove node.db, node.key and enrolment.json from {}",
        folder.display()
    )]
    Elsewhere { folder: PathBuf },
    #[error("asking the cloud")]
    Ask(#[source] HttpsError),
    #[error("cannot write the request")]
    Request(#[source] serde_json::Error),
    #[error("the cloud refused with {reason}: {message}")]
    Refused { reason: String, message: String },
    #[error("the cloud answered with status {0} and no explanation")]
    Status(u16),
    #[error("the cloud's answer is malformed")]
    Answer(#[source] serde_json::Error),
}

impl JoinError {
    /// Whether the same join may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Ask(error) => matches!(
                error,
                HttpsError::Connect { .. } | HttpsError::Exchange(_) | HttpsError::Timeout
            ),
            Self::Refused { reason, .. } => reason == "Unavailable",
            Self::Status(status) => *status >= 500,
            Self::Identity(_) | Self::Elsewhere { .. } | Self::Request(_) | Self::Answer(_) => false,
        }
    }
}

/// Joins the cloud at `url` and keeps the identity in `folder`.
///
/// The token is shown only to a server whose certificate comes from the CA that the token names. Joining again, after
/// an answer was lost or for other reasons, uses the key that is there and costs the token nothing.
pub async fn join(
    url: &str,
    token: &JoinToken,
    wish: Wish,
    folder: &Path,
    time: NodeTime,
) -> Result<Identity, JoinError> {
    let url = Url::parse(url).map_err(JoinError::Ask)?;
    let before = Identity::load(folder).map_err(JoinError::Identity)?;
    if before.is_some_and(|before| !before.trusts(&token.ca)) {
        return Err(JoinError::Elsewhere { folder: folder.to_owned() });
    }
    let key = own_key(folder).map_err(JoinError::Identity)?;
    let request = Request {
        token_id: token.id_text(),
        token_secret: hex(&token.secret),
        csr: csr(&key).map_err(JoinError::Identity)?,
        node: wish.name,
        hostname: hostname(),
        labels: wish.labels,
        arch: architecture().to_owned(),
        os: std::env::consts::OS.to_owned(),
    };
    let body = serde_json::to_vec(&request).map_err(JoinError::Request)?;
    let verifier = CloudVerifier::pinned(token.ca, time);
    let response = https::post(&url, PATH, verifier, || body)
        .await
        .map_err(JoinError::Ask)?;
    if response.status != 200 {
        return Err(match serde_json::from_slice(&response.body) {
            Ok(Refused { reason, message }) => JoinError::Refused { reason, message },
            Err(_) => JoinError::Status(response.status),
        });
    }
    let answer: Answer = serde_json::from_slice(&response.body).map_err(JoinError::Answer)?;
    Identity::keep(folder, key, answer).map_err(JoinError::Identity)
}

fn hostname() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    text.trim().to_owned()
}

/// This machine's architecture as images and node labels call it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

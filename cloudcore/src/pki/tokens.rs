//! Join tokens: what they let in, and how they are kept.

use std::collections::BTreeMap;
use std::fmt;
use std::hint::black_box;
use std::time::Duration;

use daemon::random;
use daemon::trust::sha256;
use proto::enrol::{JoinToken, unhex};
use serde::{Deserialize, Serialize};

/// Tokens that may exist at one time.
pub const TOKENS_MAX: usize = 1000;
/// The longest life of a token.
pub const TTL_MAX: Duration = Duration::from_secs(366 * 86_400);
/// The most nodes one token lets in.
pub const USES_MAX: u32 = 100_000;
/// The most labels a token gives.
pub const LABELS_MAX: usize = 32;

/// As a label's value in a token: the node may choose.
pub const ANY: &str = "*";

/// What a token is to let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSpec {
    pub ttl: Duration,
    pub uses: u32,
    /// The one name it gives; without it the node chooses.
    pub name: Option<String>,
    /// Labels it gives; a value of [`ANY`] lets the node choose the value.
    pub labels: BTreeMap<String, String>,
    /// Whether the node that holds the name loses it to whoever comes with this token. Needs a name, and one use.
    pub replace: bool,
}

impl Default for TokenSpec {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(3600),
            uses: 1,
            name: None,
            labels: BTreeMap::new(),
            replace: false,
        }
    }
}

/// Why a token is not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("ttl: must be longer than zero and at most {} days", TTL_MAX.as_secs() / 86_400)]
    Ttl,
    #[error("uses: must be 1 to {USES_MAX}, and 1 for a token with a name")]
    Uses,
    #[error(
        "name: {0:?} is no node name: at most 63 of a-z, 0-9, - and ., a letter or digit at both ends of each part"
    )]
    Name(String),
    #[error("label: {0:?} cannot be given to a node by a token")]
    Label(String),
    #[error("labels: at most {LABELS_MAX}")]
    Labels,
    #[error("replace: needs the name of the node to replace")]
    ReplaceWhom,
    #[error("replace: there is no node {0:?} (`edgectl node list`); a token for a new one has --name")]
    ReplacesNobody(String),
    #[error("{TOKENS_MAX} join tokens exist; delete some first")]
    TooMany,
}

/// A token as it is kept: without its secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    pub id: String,
    secret_hash: [u8; 32],
    pub created_ms: i64,
    pub ends_ms: i64,
    pub uses_left: u32,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub replace: bool,
}

impl Token {
    /// Makes a token: the text for the operator, and what is kept.
    pub(super) fn create(spec: TokenSpec, ca: [u8; 32], now_ms: i64) -> Result<(JoinToken, Self), TokenError> {
        if spec.ttl.is_zero() || spec.ttl > TTL_MAX {
            return Err(TokenError::Ttl);
        }
        let uses_max = if spec.name.is_some() { 1 } else { USES_MAX };
        if !(1..=uses_max).contains(&spec.uses) {
            return Err(TokenError::Uses);
        }
        match &spec.name {
            Some(name) if !is_node_name(name) => return Err(TokenError::Name(name.clone())),
            None if spec.replace => return Err(TokenError::ReplaceWhom),
            Some(_) | None => {}
        }
        if spec.labels.len() > LABELS_MAX {
            return Err(TokenError::Labels);
        }
        for (key, value) in &spec.labels {
            if !is_label_key(key) || !(value == ANY || is_label_value(value)) {
                return Err(TokenError::Label(format!("{key}={value}")));
            }
        }
        let text = JoinToken { id: random::bytes(), secret: random::bytes(), ca };
        let token = Self {
            id: text.id_text(),
            secret_hash: sha256(&text.secret),
            created_ms: now_ms,
            ends_ms: now_ms.saturating_add(i64::try_from(spec.ttl.as_millis()).unwrap_or(i64::MAX)),
            uses_left: spec.uses,
            name: spec.name,
            labels: spec.labels,
            replace: spec.replace,
        };
        Ok((text, token))
    }

    /// Whether this is the token's secret, in a time that does not depend on where it differs.
    pub(super) fn is_secret(&self, secret_hex: &str) -> bool {
        let mut secret = [0; 32];
        let whole = unhex(secret_hex, &mut secret).is_some();
        let hash = sha256(&secret);
        let differing = (self.secret_hash.iter().zip(&hash)).fold(0, |bits, (a, b)| black_box(bits | (a ^ b)));
        whole & (differing == 0)
    }
}

/// Without the hash, which is of no use to anyone who reads a log.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("id", &self.id)
            .field("ends_ms", &self.ends_ms)
            .field("uses_left", &self.uses_left)
            .field("name", &self.name)
            .field("replace", &self.replace)
            .finish_non_exhaustive()
    }
}

/// Whether a node can be called this: a DNS name that is also the value of a label.
pub(super) fn is_node_name(name: &str) -> bool {
    let part = |part: &str| {
        let bytes = part.as_bytes();
        let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
        let outer = |byte: Option<&u8>| byte.is_some_and(|byte| *byte != b'-');
        bytes.iter().all(inner) && outer(bytes.first()) && outer(bytes.last())
    };
    name.len() <= proto::enrol::NODE_NAME_BYTES_MAX && name.split('.').all(part)
}

fn is_label_text(text: &str) -> bool {
    let bytes = text.as_bytes();
    let outer = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    bytes.len() <= 63 && bytes.iter().all(inner) && outer(bytes.first()) && outer(bytes.last())
}

pub(super) fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_label_text(value)
}

/// A label key that a token may give: what the node itself is, only the node says.
fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').unwrap_or(("", key));
    let dns = prefix.len() <= 253 && (prefix.is_empty() || prefix.split('.').all(is_node_name));
    let whole = !key.starts_with('/') && dns && is_label_text(name);
    whole
        && !matches!(
            key,
            "kubernetes.io/hostname" | "kubernetes.io/arch" | "kubernetes.io/os"
        )
}

#[cfg(test)]
mod tests {
    use proto::enrol::hex;

    use super::*;

    #[test]
    fn only_the_whole_secret_is_the_secret() {
        let (text, token) = Token::create(TokenSpec::default(), [0; 32], 0).unwrap();
        let secret = hex(&text.secret);
        assert!(token.is_secret(&secret));
        assert!(!token.is_secret(""));
        assert!(!token.is_secret(&secret[2..]));
        assert!(!token.is_secret(&hex(&[0; 32])));
        let kept = serde_json::to_string(&token).unwrap();
        assert!(!kept.contains(&secret) && !format!("{token:?}").contains("hash"));
    }

    #[test]
    fn limits() {
        let check = |change: fn(&mut TokenSpec), error: Option<TokenError>| {
            let mut spec = TokenSpec::default();
            change(&mut spec);
            assert_eq!(Token::create(spec, [0; 32], 0).err(), error);
        };
        let label = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        check(|_| {}, None);
        check(|spec| spec.ttl = Duration::ZERO, Some(TokenError::Ttl));
        check(|spec| spec.ttl = TTL_MAX, None);
        check(
            |spec| spec.ttl = TTL_MAX + Duration::from_millis(1),
            Some(TokenError::Ttl),
        );
        check(|spec| spec.uses = 0, Some(TokenError::Uses));
        check(|spec| spec.uses = USES_MAX, None);
        check(|spec| spec.uses = USES_MAX + 1, Some(TokenError::Uses));
        check(
            |spec| (spec.name, spec.uses) = (Some("a".to_owned()), 2),
            Some(TokenError::Uses),
        );
        check(|spec| spec.replace = true, Some(TokenError::ReplaceWhom));
        check(
            |spec| spec.name = Some("A".to_owned()),
            Some(TokenError::Name("A".to_owned())),
        );
        for (key, value, good) in [
            ("site", "north", true),
            ("edgehold.dev/site", ANY, true),
            ("site", "", true),
            ("site", "a b", false),
            ("kubernetes.io/hostname", "x", false),
            ("/site", "x", false),
            ("", "x", false),
        ] {
            let spec = TokenSpec { labels: label(key, value), ..TokenSpec::default() };
            assert_eq!(Token::create(spec, [0; 32], 0).is_ok(), good, "{key}={value}");
        }
        let many = |count| TokenSpec {
            labels: (0..count).map(|at| (format!("l{at}"), String::new())).collect(),
            ..TokenSpec::default()
        };
        assert!(Token::create(many(LABELS_MAX), [0; 32], 0).is_ok());
        assert_eq!(
            Token::create(many(LABELS_MAX + 1), [0; 32], 0).err(),
            Some(TokenError::Labels)
        );
    }

    #[test]
    fn node_names() {
        for name in ["a", "pump-7", "a.b", "7", &"a".repeat(63)] {
            assert!(is_node_name(name), "{name}");
        }
        for name in ["", "A", "-a", "a-", "a..b", "a_b", "a b", "ä", &"a".repeat(64)] {
            assert!(!is_node_name(name), "{name}");
        }
    }
}

//! Continue tokens: where the next page of a list begins, and at which revision. Clients treat them as opaque; the form
//! is the real server's.

use base64::DecodeError;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proto::value::{Value, json};

use crate::api::status::Refusal;

const FORM: &str = "meta.k8s.io/v1";

/// Where a list goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resume {
    /// `None` goes on at whatever is there now: the list is then not consistent, and the client was told so.
    pub(super) revision: Option<u64>,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Resume {
    pub(super) fn token(&self) -> String {
        let start = match self.namespace.as_str() {
            "" => format!("{}\0", self.name),
            namespace => format!("{namespace}/{}\0", self.name),
        };
        let revision = self.revision.map_or(Value::I64(-1), Value::from);
        let token = Value::from([("v", Value::from(FORM)), ("rv", revision), ("start", start.into())]);
        URL_SAFE_NO_PAD.encode(json::write(&token))
    }

    /// Reads a token of a list in this namespace (empty: of all of them, or of none).
    pub(super) fn parse(token: &str) -> Result<Self, Refusal> {
        let bad =
            |why: String| Refusal::bad_request(format!("invalid continue token: continue key is not valid: {why}"));
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|error| {
            let at = match error {
                DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => at,
                _ => token.len().saturating_sub(1),
            };
            bad(format!("illegal base64 data at input byte {at}"))
        })?;
        let value = json::parse(&bytes).map_err(|error| bad(error.detail()))?;
        if value.text_at(&["v"]) != Some(FORM) {
            return Err(bad(format!(
                "server does not recognize this encoded version {:?}",
                value.text_at(&["v"])
            )));
        }
        let start = value.text_at(&["start"]).and_then(|start| start.strip_suffix('\0'));
        let start = start.ok_or_else(|| bad("incorrectly encoded start key".to_owned()))?;
        let (namespace, name) = start.split_once('/').unwrap_or(("", start));
        let revision = match value.at(&["rv"]) {
            Some(Value::I64(-1)) => None,
            Some(Value::I64(revision)) => {
                Some(u64::try_from(*revision).map_err(|_| bad("incorrect resource version".to_owned()))?)
            }
            Some(Value::U64(revision)) => Some(*revision),
            _ => return Err(bad("incorrect resource version".to_owned())),
        };
        Ok(Self {
            revision,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back() {
        for (revision, namespace, name) in [(Some(7), "", "a"), (None, "n", "a"), (Some(u64::MAX), "n", "b.c")] {
            let resume = Resume { revision, namespace: namespace.into(), name: name.into() };
            assert_eq!(Resume::parse(&resume.token()).unwrap(), resume);
        }
    }

    #[test]
    fn bad_tokens() {
        let check = |token: &str, why: &str| {
            assert_eq!(
                Resume::parse(token).unwrap_err().message,
                format!("invalid continue token: continue key is not valid: {why}")
            );
        };
        check("bad-token", "illegal base64 data at input byte 8");
        check("a*", "illegal base64 data at input byte 1");
        let encoded = |json: &str| URL_SAFE_NO_PAD.encode(json);
        check(
            &encoded(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"a"}"#),
            "incorrectly encoded start key",
        );
        check(
            &encoded(r#"{"v":"meta.k8s.io/v1","rv":"x","start":"a\u0000"}"#),
            "incorrect resource version",
        );
    }
}

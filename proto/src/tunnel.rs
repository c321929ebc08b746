//! What the cloud asks for when it opens a tunnel to a node, beside the session's frames.

use serde::{Deserialize, Serialize};

use crate::object::Uid;

/// The version of every request here.
const VERSION: u8 = 1;

/// What a tunnel is for. Variants are only appended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TunnelRequest {
    Logs(LogRequest),
}

/// The log of one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRequest {
    pub pod: Uid,
    pub container: String,
    pub follow: bool,
    /// The log of the attempt before.
    pub previous: bool,
    pub timestamps: bool,
    pub tail_lines: Option<u64>,
    pub limit_bytes: Option<u64>,
    /// Only what is younger than so many seconds.
    pub since_s: Option<u64>,
    /// Only what is younger than this RFC 3339 time.
    pub since: Option<String>,
}

/// Bytes that are no request of this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TunnelError {
    #[error("tunnel version {0:?} is not spoken here")]
    Version(Option<u8>),
    #[error("the request cannot be read")]
    Malformed(#[source] postcard::Error),
}

impl TunnelRequest {
    /// The header of the tunnel.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![VERSION]).expect("a request is always writable")
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, TunnelError> {
        match bytes.split_first() {
            Some((&VERSION, body)) => postcard::from_bytes(body).map_err(TunnelError::Malformed),
            other => Err(TunnelError::Version(other.map(|(version, _)| *version))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let request = TunnelRequest::Logs(LogRequest {
            pod: Uid([7; 16]),
            container: "web".to_owned(),
            follow: true,
            previous: false,
            timestamps: false,
            tail_lines: Some(300),
            limit_bytes: None,
            since_s: None,
            since: Some("x".to_owned()),
        });
        let golden = [
            &[1, 0][..],
            &[7; 16],
            &[3],
            b"web",
            &[1, 0, 0, 1, 0xac, 2, 0, 0, 1, 1],
            b"x",
        ]
        .concat();
        assert_eq!(request.encode(), golden);
        assert_eq!(TunnelRequest::decode(&golden), Ok(request));
        assert_eq!(TunnelRequest::decode(&[2]), Err(TunnelError::Version(Some(2))));
        assert_eq!(TunnelRequest::decode(&[]), Err(TunnelError::Version(None)));
        assert!(matches!(
            TunnelRequest::decode(&golden[..9]),
            Err(TunnelError::Malformed(_))
        ));
    }
}

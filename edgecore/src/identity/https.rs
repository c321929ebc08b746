//! One HTTPS request: all the HTTP a node needs to join. A client library would cost more than the whole of this.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use daemon::trust::{CloudVerifier, Now, provider};
use proto::enrol::{BODY_BYTES_MAX, SERVER_NAME};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// The port of the API when a URL names none.
const PORT: u16 = 6443;
/// How long connecting, and then the whole exchange, may take.
const WAIT: Duration = Duration::from_secs(30);
/// The longest head of an answer.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Where to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Url {
    /// As TCP takes it and as the Host header has it.
    authority: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpsError {
    #[error("{0:?} is no address of the form https://host:port")]
    Url(String),
    #[error("cannot connect to {address}")]
    Connect {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot verify {address} as the cloud of this token")]
    Verify {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    #[error("connection broke during the exchange")]
    Exchange(#[source] io::Error),
    #[error("no answer within {} s", WAIT.as_secs())]
    Timeout,
    #[error("answer is not HTTP as the cloud speaks it")]
    Answer,
    #[error("answer is longer than {BODY_BYTES_MAX} bytes")]
    Oversize,
}

/// What came back.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self, HttpsError> {
        let wrong = || HttpsError::Url(text.to_owned());
        let rest = text.strip_prefix("https://").ok_or_else(wrong)?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
        if authority.is_empty() || !authority.chars().all(allowed) {
            return Err(wrong());
        }
        // A colon inside brackets belongs to the address.
        let after_host = authority.rfind(']').map_or(authority, |end| &authority[end..]);
        let authority = match after_host.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => authority.to_owned(),
            Some(_) => return Err(wrong()),
            None => format!("{authority}:{PORT}"),
        };
        Ok(Self { authority })
    }
}

/// Posts `body`, which is made only once the server is verified: nothing of it reaches anybody else.
pub(super) async fn post(
    url: &Url,
    path: &str,
    verifier: CloudVerifier,
    body: impl FnOnce() -> Vec<u8>,
) -> Result<Response, HttpsError> {
    let address = || url.authority.clone();
    let mut config = ClientConfig::builder_with_details(provider(), Arc::new(Now))
        .with_safe_default_protocol_versions()
        .map_err(HttpsError::Tls)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from(SERVER_NAME).map_err(|_| HttpsError::Answer)?;
    let connect = async {
        let stream = TcpStream::connect(&url.authority).await;
        let stream = stream.map_err(|source| HttpsError::Connect { address: address(), source })?;
        let tls = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        tls.map_err(|source| HttpsError::Verify { address: address(), source })
    };
    let mut stream = timeout(WAIT, connect).await.map_err(|_| HttpsError::Timeout)??;
    let exchange = async {
        let body = body();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            url.authority,
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&body).await?;
        stream.flush().await?;
        let mut bytes = Vec::new();
        // One more than is allowed, to tell "too long" from "just fits".
        let limit = HEAD_BYTES_MAX + BODY_BYTES_MAX + 1;
        let mut limited = (&mut stream).take(u64::try_from(limit).unwrap_or(u64::MAX));
        loop {
            let read = limited.read_buf(&mut bytes).await;
            match read {
                Ok(0) => return Ok(bytes),
                Ok(_) if matches!(parse(&bytes), Ok(Some(_)) | Err(_)) => return Ok(bytes),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
    };
    let bytes = timeout(WAIT, exchange).await.map_err(|_| HttpsError::Timeout)?;
    parse(&bytes.map_err(HttpsError::Exchange)?)?.ok_or(HttpsError::Answer)
}

/// The answer, once it is whole.
fn parse(bytes: &[u8]) -> Result<Option<Response>, HttpsError> {
    const END: &[u8] = b"\r\n\r\n";
    let Some(head_end) = bytes.windows(END.len()).position(|window| window == END) else {
        return if bytes.len() > HEAD_BYTES_MAX {
            Err(HttpsError::Answer)
        } else {
            Ok(None)
        };
    };
    let head = std::str::from_utf8(&bytes[..head_end]).map_err(|_| HttpsError::Answer)?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 "));
    let status = status
        .and_then(|line| line.get(..3)?.parse().ok())
        .ok_or(HttpsError::Answer)?;
    let mut length = None;
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(HttpsError::Answer)?;
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse::<usize>().ok();
        }
    }
    // The cloud knows the length of what it sends; who does not is something else.
    let length = length.ok_or(HttpsError::Answer)?;
    if length > BODY_BYTES_MAX {
        return Err(HttpsError::Oversize);
    }
    let body = &bytes[head_end + END.len()..];
    Ok(body.get(..length).map(|body| Response { status, body: body.to_vec() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let check = |text: &str, authority: Option<&str>| {
            let url = Url::parse(text).ok().map(|url| url.authority);
            assert_eq!(url.as_deref(), authority, "{text}");
        };
        check("https://cloud.example:7000", Some("cloud.example:7000"));
        check("https://cloud.example:7000/", Some("cloud.example:7000"));
        check("https://cloud.example", Some("cloud.example:6443"));
        check("https://192.0.2.1", Some("192.0.2.1:6443"));
        check("https://[2001:db8::1]", Some("[2001:db8::1]:6443"));
        check("https://[2001:db8::1]:7000", Some("[2001:db8::1]:7000"));
        for wrong in [
            "",
            "cloud.example:7000",
            "http://cloud.example",
            "https://",
            "https://cloud.example:",
            "https://cloud.example:70000",
            "https://cloud.example/path",
            "https://a\r\nb",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn answers() {
        let check = |text: &str, expected: Option<(u16, &str)>| {
            let parsed = parse(text.as_bytes()).unwrap();
            let expected = expected.map(|(status, body)| Response { status, body: body.as_bytes().to_vec() });
            assert_eq!(parsed, expected, "{text}");
        };
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", Some((200, "{}")));
        check("HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n", Some((409, "")));
        check("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}", None);
        check("HTTP/1.1 200 OK\r\n", None);
        for wrong in [
            "HTTP/1.1 200 OK\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 abc\r\ncontent-length: 0\r\n\r\n",
        ] {
            assert!(matches!(parse(wrong.as_bytes()), Err(HttpsError::Answer)), "{wrong}");
        }
        let of = |length: usize| parse(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").as_bytes());
        assert_eq!(of(BODY_BYTES_MAX).unwrap(), None);
        assert!(matches!(of(BODY_BYTES_MAX + 1), Err(HttpsError::Oversize)));
        assert!(parse(&vec![b'a'; HEAD_BYTES_MAX]).unwrap().is_none());
        assert!(parse(&vec![b'a'; HEAD_BYTES_MAX + 1]).is_err());
    }
}

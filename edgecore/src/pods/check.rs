//! Carries out one check of a probe.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::probe::{Action, ProbeSpec};
use crate::runtime::{Runtime, RuntimeError, explain};

/// An answer's head is read up to this.
const HEAD_BYTES_MAX: usize = 4096;
/// How much of a failed check's output is told.
const OUTPUT_CHARS_MAX: usize = 512;

const NO_ADDRESS: &str = "the pod has no address";

/// Where to look.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub container_id: String,
    /// The pod's primary address.
    pub address: Option<String>,
}

/// What a check came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    Well,
    /// What was found instead.
    Ill(String),
    /// Why it could not be carried out: that says nothing of the container, and counts for nothing, as with the kubelet.
    Unknown(String),
}

impl Found {
    /// Whether the container is well, where that was found out.
    pub(super) fn is_well(&self) -> Option<bool> {
        match self {
            Self::Well => Some(true),
            Self::Ill(_) => Some(false),
            Self::Unknown(_) => None,
        }
    }
}

/// Runs a check within its timeout.
pub(super) async fn check<R: Runtime>(runtime: Arc<R>, target: Target, probe: ProbeSpec) -> Found {
    let limit = probe.timeout;
    let found = match probe.action {
        Action::Exec(command) => match runtime.exec(&target.container_id, &command, limit).await {
            Ok(done) if done.code == 0 => Ok(()),
            Ok(done) => Err(format!("exit code {}: {}", done.code, shorten(&done.output))),
            Err(error @ RuntimeError::Timeout { .. }) => Err(error.to_string()),
            Err(error) => return Found::Unknown(explain(&error)),
        },
        Action::Tcp { host, port } => match host.or(target.address) {
            Some(host) => within(limit, connect(host, port)).await.map(drop),
            None => return Found::Unknown(NO_ADDRESS.to_owned()),
        },
        Action::Http { host, port, path, headers } => match host.or(target.address) {
            Some(host) => match within(limit, get(host, port, path, headers)).await {
                Ok(200..400) => Ok(()),
                Ok(code) => Err(format!("HTTP probe failed with statuscode: {code}")),
                Err(found) => Err(found),
            },
            None => return Found::Unknown(NO_ADDRESS.to_owned()),
        },
    };
    found.map_or_else(Found::Ill, |()| Found::Well)
}

async fn within<T>(limit: Duration, work: impl Future<Output = std::io::Result<T>>) -> Result<T, String> {
    match timeout(limit, work).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {limit:?}")),
    }
}

async fn connect(host: String, port: u16) -> std::io::Result<TcpStream> {
    TcpStream::connect((host.trim_matches(['[', ']']), port)).await
}

/// The status code of a GET.
async fn get(host: String, port: u16, path: String, headers: Vec<(String, String)>) -> std::io::Result<u16> {
    let mut stream = connect(host.clone(), port).await?;
    let clean = |text: &str| text.replace(['\r', '\n'], "");
    let own = |name: &str| headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
    let mut request = format!("GET {} HTTP/1.1\r\nConnection: close\r\n", clean(&absolute(&path)));
    for (name, value, given) in [
        ("Host", format!("{host}:{port}"), own("host")),
        ("User-Agent", "edgehold-probe".to_owned(), own("user-agent")),
        ("Accept", "*/*".to_owned(), own("accept")),
    ] {
        if !given {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    for (name, value) in &headers {
        request.push_str(&format!("{}: {}\r\n", clean(name), clean(value)));
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    let mut buffer = [0; 512];
    while head.len() < HEAD_BYTES_MAX && !head.contains(&b'\n') {
        match stream.read(&mut buffer).await? {
            0 => break,
            read => head.extend_from_slice(&buffer[..read]),
        }
    }
    status_code(&head).ok_or_else(|| std::io::Error::other("the answer is not HTTP"))
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    }
}

fn status_code(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let mut parts = line.split_ascii_whitespace();
    parts.next().filter(|version| version.starts_with("HTTP/1."))?;
    parts.next()?.parse().ok()
}

fn shorten(output: &str) -> String {
    output.trim().chars().take(OUTPUT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::runtime::fake::Fake;

    async fn serve(answer: &'static str) -> (u16, tokio::task::JoinSet<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 1024];
            let read = stream.read(&mut request).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8_lossy(&request[..read]).into_owned()
        });
        (port, tasks)
    }

    fn probe(action: Action) -> ProbeSpec {
        ProbeSpec {
            action,
            initial_delay: Duration::ZERO,
            period: Duration::from_secs(1),
            timeout: Duration::from_secs(5),
            success_threshold: 1,
            failure_threshold: 1,
            grace: None,
        }
    }

    async fn run(action: Action, address: Option<&str>) -> Found {
        let target = Target {
            container_id: "none".to_owned(),
            address: address.map(str::to_owned),
        };
        check(Arc::new(Fake::new()), target, probe(action)).await
    }

    fn http(port: u16) -> Action {
        Action::Http {
            host: None,
            port,
            path: "healthz".to_owned(),
            headers: vec![("X-A".to_owned(), "b\r\nEvil: 1".to_owned())],
        }
    }

    #[tokio::test]
    async fn http_by_status_code() {
        for (answer, good) in [
            ("HTTP/1.1 200 OK\r\n\r\n", true),
            ("HTTP/1.0 399 x\r\n\r\n", true),
            ("HTTP/1.1 400 x\r\n\r\n", false),
            ("HTTP/1.1 503 x\r\n\r\n", false),
            ("hello\r\n", false),
            ("", false),
        ] {
            let (port, mut tasks) = serve(answer).await;
            let found = run(http(port), Some("127.0.0.1")).await;
            assert_eq!(found.is_well(), Some(good), "{answer:?}: {found:?}");
            let request = tasks.join_next().await.unwrap().unwrap();
            assert!(request.starts_with("GET /healthz HTTP/1.1\r\n"), "{request}");
            assert!(request.contains("X-A: bEvil: 1\r\n"), "{request}");
        }
    }

    #[tokio::test]
    async fn tcp_by_connection() {
        let (port, _tasks) = serve("").await;
        let tcp = |port| Action::Tcp { host: None, port };
        assert_eq!(run(tcp(port), Some("127.0.0.1")).await, Found::Well);
        assert_eq!(run(tcp(1), Some("127.0.0.1")).await.is_well(), Some(false));
        assert_eq!(run(tcp(port), None).await, Found::Unknown(NO_ADDRESS.to_owned()));
    }

    #[tokio::test]
    async fn a_command_that_cannot_be_run_says_nothing_of_the_container() {
        let found = run(Action::Exec(vec!["x".to_owned()]), None).await;
        assert!(
            matches!(&found, Found::Unknown(why) if why.contains("none")),
            "{found:?}"
        );
    }
}

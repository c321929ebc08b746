use std::path::PathBuf;
use std::sync::Arc;

use proto::time::Wall;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use super::*;

/// A registry of canned answers: each request's line and headers go through `answer`.
async fn serve(answer: impl Fn(&str, &str) -> String + Send + Sync + 'static) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let answer = Arc::new(answer);
        let mut peers = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = answer.clone();
            peers.spawn(async move {
                let mut stream = BufReader::new(stream);
                loop {
                    let (mut line, mut headers) = (String::new(), String::new());
                    if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                        return;
                    }
                    while !headers.ends_with("\r\n\r\n") && headers != "\r\n" {
                        stream.read_line(&mut headers).await.unwrap();
                    }
                    let path = line.split(' ').nth(1).unwrap();
                    let reply = answer(path, &headers.to_ascii_lowercase());
                    stream.write_all(reply.as_bytes()).await.unwrap();
                }
            });
        }
    });
    (host, tasks)
}

fn reply(status: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
}

fn registry(host: &str, auth: &[RegistryAuth]) -> Registry {
    Registry::new(
        Reference::parse(&format!("{host}/team/web:1")).unwrap(),
        auth,
        trust(None, now(true)),
    )
}

fn trust(extra: Option<PathBuf>, now: Wall) -> Trust {
    Trust { extra, clock: Arc::new(move || now) }
}

/// Some time in 2026.
fn now(trusted: bool) -> Wall {
    Wall { ms: 1_780_000_000_000, trusted }
}

fn auth(password: &str) -> RegistryAuth {
    RegistryAuth { username: "u".into(), password: password.into() }
}

#[test]
fn challenges_are_read() {
    let text = r#"Bearer realm="https://auth.example/token",service="registry",scope="repository:a/b:pull,push""#;
    let expected = Challenge::Bearer {
        realm: Uri::from_static("https://auth.example/token"),
        query: "service=registry&scope=repository:a/b:pull,push".into(),
    };
    assert_eq!(Challenge::parse(text), expected);
    assert_eq!(Challenge::parse(r#"Basic realm="x""#), Challenge::Basic);
    for text in ["", "Digest", "Bearer", r#"Bearer realm=""#, r#"Bearer service="x""#] {
        assert_eq!(Challenge::parse(text), Challenge::Unknown, "{text}");
    }
}

#[test]
fn a_redirect_never_leaves_tls() {
    let from = Uri::from_static("https://a.example/v2/x");
    for (target, expected) in [
        ("/y?z", Some("https://a.example/y?z")),
        ("https://b.example/y", Some("https://b.example/y")),
        ("http://b.example/y", None),
        ("http://127.0.0.1:5000/y", Some("http://127.0.0.1:5000/y")),
        ("//b.example/y", None),
        ("ftp://b.example", None),
        ("", None),
    ] {
        assert_eq!(
            join(&from, target).map(|url| url.to_string()).as_deref(),
            expected,
            "{target}"
        );
    }
}

#[tokio::test]
async fn a_token_is_fetched_and_used() {
    let (host, _tasks) = serve(|path, headers| match path {
        "/token?service=s&scope=repository:team/web:pull" => {
            assert!(headers.contains("authorization: basic dtpw\r\n"), "{headers}");
            reply("200 OK", "", r#"{"token":"t0"}"#)
        }
        _ if headers.contains("authorization: bearer t0") => reply("200 OK", "", "{}"),
        _ => {
            let host = headers.split("host: ").nth(1).unwrap().split("\r\n").next().unwrap();
            let scope = "repository:team/web:pull";
            let challenge =
                format!("www-authenticate: Bearer realm=\"http://{host}/token\",service=\"s\",scope=\"{scope}\"\r\n");
            reply("401 Unauthorized", &challenge, "no")
        }
    })
    .await;
    let mut registry = registry(&host, &[auth("p")]);
    assert_eq!(registry.manifest("1").await.unwrap(), b"{}");
    assert_eq!(registry.manifest("1").await.unwrap(), b"{}");
}

#[tokio::test]
async fn each_credential_is_tried_in_turn() {
    let (host, _tasks) = serve(|_, headers| {
        // u:right
        if headers.contains("authorization: basic dtpyawdodA==".to_ascii_lowercase().as_str()) {
            reply("200 OK", "", "{}")
        } else {
            reply("401 Unauthorized", "www-authenticate: Basic realm=\"x\"\r\n", "")
        }
    })
    .await;
    assert_eq!(
        registry(&host, &[auth("wrong"), auth("right")])
            .manifest("1")
            .await
            .unwrap(),
        b"{}"
    );
    for credentials in [&[][..], &[auth("wrong")]] {
        let error = registry(&host, credentials).manifest("1").await.unwrap_err();
        assert!(matches!(error, ImageError::Denied { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_blob_goes_on_where_it_was_cut() {
    let (host, _tasks) = serve(|path, headers| {
        if headers.contains("range: bytes=3-") && path.contains("/blobs/") {
            reply("206 Partial Content", "", "lo")
        } else {
            reply("200 OK", "", "hello")
        }
    })
    .await;
    let digest = Digest::of(b"hello");
    let mut registry = registry(&host, &[]);
    for (asked, offset, content) in [(0, 0, "hello"), (3, 3, "lo"), (4, 0, "hello")] {
        let body = registry.blob(&digest, asked).await.unwrap();
        assert_eq!(body.offset(), offset);
        assert_eq!(body.all(10).await.unwrap(), content.as_bytes());
    }
}

#[tokio::test]
async fn credentials_do_not_follow_a_redirect() {
    let (other, _other) = serve(|_, headers| {
        assert!(!headers.contains("authorization"), "{headers}");
        reply("200 OK", "", "blob")
    })
    .await;
    let (host, _tasks) = serve(move |_, headers| {
        if headers.contains("authorization") {
            reply("307 Temporary Redirect", &format!("location: http://{other}/x\r\n"), "")
        } else {
            reply("401 Unauthorized", "www-authenticate: Basic realm=\"x\"\r\n", "")
        }
    })
    .await;
    let body = registry(&host, &[auth("p")]).blob(&Digest::of(b""), 0).await.unwrap();
    assert_eq!(body.all(10).await.unwrap(), b"blob");
}

#[tokio::test]
async fn an_endless_answer_is_cut() {
    let (host, _tasks) = serve(|_, _| reply("200 OK", "", &"x".repeat(1000))).await;
    let mut registry = registry(&host, &[]);
    let digest = Digest::of(b"");
    assert!(registry.blob(&digest, 0).await.unwrap().all(1000).await.is_ok());
    let error = registry.blob(&digest, 0).await.unwrap().all(999).await.unwrap_err();
    assert!(matches!(error, ImageError::TooLarge { .. }));
}

#[tokio::test]
async fn redirects_and_silence_end() {
    let (host, _tasks) = serve(|path, _| reply("302 Found", &format!("location: {path}\r\n"), "")).await;
    let error = registry(&host, &[]).manifest("1").await.unwrap_err();
    assert!(
        matches!(error, ImageError::Protocol { reason: "it redirects too often", .. }),
        "{error}"
    );
    let (host, _tasks) = serve(|_, _| reply("404 Not Found", "", "")).await;
    assert!(matches!(
        registry(&host, &[]).manifest("1").await,
        Err(ImageError::NotFound { .. })
    ));
    let error = registry("127.0.0.1:1", &[]).manifest("1").await.unwrap_err();
    assert!(matches!(error, ImageError::Unreachable { .. }), "{error}");
}

/// A TLS server on loopback that answers one request, and the file of the authority it is to be judged by.
async fn serve_tls() -> (Uri, PathBuf, JoinSet<()>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let file = std::env::temp_dir().join(format!("edgehold-trust-{}.pem", std::process::id()));
    let text = daemon::pem::write(daemon::pem::CERTIFICATE, made.cert.der());
    std::fs::write(&file, text).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/x", listener.local_addr().unwrap().port());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            stream
                .write_all(reply("200 OK", "", "secret").as_bytes())
                .await
                .unwrap();
        }
    });
    (url.parse().unwrap(), file, tasks)
}

#[tokio::test]
async fn an_authority_counts_when_the_operator_names_it() {
    let (url, file, _tasks) = serve_tls().await;
    let fetch = async |extra: Option<PathBuf>, now| {
        let reference = Reference::parse("registry.example/web:1").unwrap();
        let mut registry = Registry::new(reference, &[], trust(extra, now));
        registry.fetch(&url, HeaderMap::new(), 0).await?.all(10).await
    };
    assert_eq!(fetch(Some(file.clone()), now(true)).await.unwrap(), b"secret");
    let refused = |result| matches!(result, Err(ImageError::Unreachable { .. } | ImageError::NoTrust));
    assert!(refused(fetch(None, now(true)).await));
    // The certificate begins in 1975: that is forgiven to a clock that nobody vouches for, and only that.
    let early = |trusted| Wall { ms: 1000, trusted };
    assert_eq!(fetch(Some(file.clone()), early(false)).await.unwrap(), b"secret");
    assert!(refused(fetch(Some(file.clone()), early(true)).await));
    assert!(refused(fetch(None, early(false)).await));
    let late = Wall { ms: 100_000_000_000_000, trusted: false };
    assert!(refused(fetch(Some(file), late).await));
}

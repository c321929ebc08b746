//! The API over the wire: who gets in, what is bounded, what a watch sees, what a stop ends.

use std::time::Duration;

use cloudcore::api::Limits;
use cloudcore::api::codec::BODY_BYTES_MAX;
use cloudcore::api::seams::Contact;
use cloudcore::store::{Config, HistoryLimits};
use hyper::{Method, StatusCode};
use proto::time::Wall;
use proto::value::{Value, json};
use tempfile::TempDir;

use tests::api_server::{ApiServer, NODE_TOKEN, TOKEN};
use tests::http::{Answer, Client};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const SOON: Duration = Duration::from_secs(10);

async fn start() -> (TempDir, ApiServer, Client) {
    start_with(Limits::default()).await
}

async fn start_with(limits: Limits) -> (TempDir, ApiServer, Client) {
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::start_with(Config::new(folder.path()), "127.0.0.1:0", limits)
        .await
        .unwrap();
    let client = server.client(TOKEN).unwrap();
    (folder, server, client)
}

async fn send(client: &Client, method: Method, path: &str, body: impl Into<String>) -> Answer {
    let kind = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let headers = [("Content-Type".to_owned(), kind.to_owned())];
    client.call(&method, path, &headers, body.into()).await.unwrap()
}

fn value(answer: &Answer) -> Value {
    json::parse(&answer.body).unwrap()
}

fn map(name: &str) -> String {
    format!(r#"{{"metadata":{{"name":"{name}"}}}}"#)
}

async fn next(lines: &mut tests::http::Lines) -> Value {
    json::parse(&lines.next(SOON).await.unwrap().expect("an event")).unwrap()
}

#[tokio::test]
async fn nothing_is_open_without_credentials() {
    let (_folder, server, client) = start().await;
    for path in ["/version", "/healthz", "/api", "/apis", MAPS, "/openapi/v3", "/nope"] {
        for token in ["", "wrong"] {
            let answer = send(&server.client(token).unwrap(), Method::GET, path, "").await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
            assert_eq!(value(&answer).text_at(&["reason"]), Some("Unauthorized"));
        }
    }
    assert_eq!(send(&client, Method::GET, "/version", "").await.status, StatusCode::OK);
    let node = server.client(NODE_TOKEN).unwrap();
    for path in ["/version", MAPS, "/api/v1/nodes/edge"] {
        assert_eq!(
            send(&node, Method::GET, path, "").await.status,
            StatusCode::FORBIDDEN,
            "{path}"
        );
    }
    let open = send(&server.client("").unwrap(), Method::POST, "/echo/v1", "x").await;
    assert_eq!((open.status, open.body.as_ref()), (StatusCode::OK, b"x".as_slice()));
    assert_eq!(
        send(&client, Method::HEAD, MAPS, "").await.status,
        StatusCode::METHOD_NOT_ALLOWED
    );
    assert_eq!(
        send(&client, Method::POST, "/api/v1/configmaps", map("a")).await.status,
        StatusCode::METHOD_NOT_ALLOWED
    );
    server.stop().await;
}

#[tokio::test]
async fn a_certificate_is_as_good_as_a_token() {
    let (_folder, server, _) = start().await;
    let status = async |identity, headers: &[(String, String)]| {
        let client = Client::with_certificate(&server.url(), server.authority.clone(), identity).unwrap();
        client.call(&Method::GET, MAPS, headers, "").await.unwrap().status
    };
    assert_eq!(status(server.admin.clone(), &[]).await, StatusCode::OK);
    assert_eq!(status(server.stranger.clone(), &[]).await, StatusCode::UNAUTHORIZED);
    let wrong = [("Authorization".to_owned(), "Bearer wrong".to_owned())];
    assert_eq!(status(server.admin.clone(), &wrong).await, StatusCode::UNAUTHORIZED);
    server.stop().await;
}

#[tokio::test]
async fn what_is_compacted_is_gone_and_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::new(folder.path());
    config.history = HistoryLimits { age: Duration::ZERO, writes: 4, ..HistoryLimits::default() };
    let server = ApiServer::start_with(config, "127.0.0.1:0", Limits::default())
        .await
        .unwrap();
    let client = server.client(TOKEN).unwrap();
    send(&client, Method::POST, MAPS, map("a")).await;
    send(&client, Method::POST, MAPS, map("b")).await;
    let page = value(&send(&client, Method::GET, &format!("{MAPS}?limit=1"), "").await);
    let old = page.text_at(&["metadata", "resourceVersion"]).unwrap().to_owned();
    let token = page.text_at(&["metadata", "continue"]).unwrap().to_owned();
    for at in 0..500 {
        if server.store.oldest().0 > old.parse::<u64>().unwrap() {
            break;
        }
        send(&client, Method::POST, MAPS, map(&format!("m{at}"))).await;
    }
    let mut watch = client
        .lines(&format!("{MAPS}?watch=true&resourceVersion={old}"), &[])
        .await
        .unwrap();
    assert_eq!(watch.status, StatusCode::OK);
    let event = next(&mut watch).await;
    assert_eq!(event.text_at(&["type"]), Some("ERROR"));
    assert_eq!(event.text_at(&["object", "reason"]), Some("Expired"));
    assert_eq!(watch.next(SOON).await.unwrap(), None);
    let path = format!("{MAPS}?resourceVersion={old}&resourceVersionMatch=Exact");
    assert_eq!(send(&client, Method::GET, &path, "").await.status, StatusCode::GONE);
    let gone = send(&client, Method::GET, &format!("{MAPS}?limit=1&continue={token}"), "").await;
    assert_eq!(gone.status, StatusCode::GONE);
    let inconsistent = value(&gone).text_at(&["metadata", "continue"]).unwrap().to_owned();
    let rest = value(
        &send(
            &client,
            Method::GET,
            &format!("{MAPS}?limit=1&continue={inconsistent}"),
            "",
        )
        .await,
    );
    assert_eq!(rest.text_at(&["items", "0", "metadata", "name"]), Some("b"));
    server.stop().await;
}

#[tokio::test]
async fn bodies_have_a_limit() {
    let (_folder, server, client) = start().await;
    let padded = |bytes: usize| {
        let body = map("padded");
        let spaces = " ".repeat(bytes - body.len());
        body + &spaces
    };
    let answer = send(&client, Method::POST, MAPS, padded(BODY_BYTES_MAX)).await;
    assert_eq!(answer.status, StatusCode::CREATED);
    let answer = send(&client, Method::POST, MAPS, padded(BODY_BYTES_MAX + 1)).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    let answer = send(
        &server.client("").unwrap(),
        Method::POST,
        "/echo/v1",
        padded(BODY_BYTES_MAX + 1),
    )
    .await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    server.stop().await;
}

#[tokio::test]
async fn watches_have_a_limit_and_a_stop_ends_them() {
    let (_folder, server, client) = start_with(Limits { watches: 1, ..Limits::default() }).await;
    let path = format!("{MAPS}?watch=true");
    let mut first = client.lines(&path, &[]).await.unwrap();
    let second = client.lines(&path, &[]).await.unwrap();
    assert_eq!(second.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(second.headers.get("retry-after").unwrap(), "1");
    send(&client, Method::POST, MAPS, map("a")).await;
    assert_eq!(next(&mut first).await.text_at(&["type"]), Some("ADDED"));
    server.stop().await;
    assert_eq!(first.next(SOON).await.unwrap(), None);
}

#[tokio::test]
async fn connections_have_a_limit() {
    let (_folder, server, client) = start_with(Limits { connections: 1, ..Limits::default() }).await;
    let first = client.lines(&format!("{MAPS}?watch=true"), &[]).await.unwrap();
    let waiting = send(&client, Method::GET, "/version", "");
    let mut waiting = std::pin::pin!(waiting);
    let early = tokio::time::timeout(Duration::from_millis(300), waiting.as_mut()).await;
    assert!(early.is_err(), "a second connection was served");
    drop(first);
    assert_eq!(waiting.await.status, StatusCode::OK);
    server.stop().await;
}

#[tokio::test]
async fn requests_have_a_limit() {
    let (_folder, server, client) = start_with(Limits { requests: 0, ..Limits::default() }).await;
    let answer = send(&client, Method::GET, MAPS, "").await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(send(&client, Method::GET, "/readyz", "").await.status, StatusCode::OK);
    server.stop().await;
}

#[tokio::test]
async fn a_watch_goes_on_from_a_list_and_says_when_it_cannot() {
    let (_folder, server, client) = start().await;
    send(&client, Method::POST, MAPS, map("a")).await;
    let list = value(&send(&client, Method::GET, MAPS, "").await);
    let revision = list.text_at(&["metadata", "resourceVersion"]).unwrap().to_owned();
    send(&client, Method::POST, MAPS, map("b")).await;
    send(&client, Method::DELETE, &format!("{MAPS}/a"), "").await;
    let mut watch = client
        .lines(&format!("{MAPS}?watch=true&resourceVersion={revision}"), &[])
        .await
        .unwrap();
    for (kind, name) in [("ADDED", "b"), ("DELETED", "a")] {
        let event = next(&mut watch).await;
        assert_eq!(event.text_at(&["type"]), Some(kind));
        assert_eq!(event.text_at(&["object", "metadata", "name"]), Some(name));
    }
    let mut too_old = client
        .lines(&format!("{MAPS}?watch=true&resourceVersion=1"), &[])
        .await
        .unwrap();
    // Revision 1 is the empty store, which this one still knows.
    assert_eq!(next(&mut too_old).await.text_at(&["type"]), Some("ADDED"));
    let mut ends = client
        .lines(
            &format!("{MAPS}?watch=true&timeoutSeconds=1&allowWatchBookmarks=true"),
            &[],
        )
        .await
        .unwrap();
    let mut kinds = Vec::new();
    while let Some(line) = ends.next(SOON).await.unwrap() {
        kinds.push(json::parse(&line).unwrap().text_at(&["type"]).unwrap().to_owned());
    }
    assert_eq!(kinds, ["ADDED", "BOOKMARK", "BOOKMARK"]);
    server.stop().await;
}

#[tokio::test]
async fn a_list_of_the_future_waits_and_says_so() {
    let (_folder, server, client) = start().await;
    let answer = send(&client, Method::GET, &format!("{MAPS}?resourceVersion=1000000"), "").await;
    assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(
        value(&answer).text_at(&["details", "causes", "0", "reason"]),
        Some("ResourceVersionTooLarge")
    );
    server.stop().await;
}

#[tokio::test]
async fn writers_at_once_lose_nothing() {
    let (_folder, server, client) = start().await;
    send(&client, Method::POST, MAPS, map("shared")).await;
    let mut writers = tokio::task::JoinSet::new();
    for at in 0..20 {
        let client = client.clone();
        writers.spawn(async move {
            let patch = format!(r#"{{"data":{{"k{at}":"v"}}}}"#);
            send(&client, Method::PATCH, &format!("{MAPS}/shared"), patch)
                .await
                .status
        });
    }
    let mut done = 0;
    while let Some(status) = writers.join_next().await {
        match status.unwrap() {
            StatusCode::OK => done += 1,
            // Out of tries: the client hears of it, and nothing of its patch is there.
            other => assert_eq!(other, StatusCode::CONFLICT),
        }
    }
    let shared = value(&send(&client, Method::GET, &format!("{MAPS}/shared"), "").await);
    assert_eq!(
        shared.get("data").and_then(Value::as_map).map(|data| data.len()),
        Some(done)
    );
    server.stop().await;
}

#[tokio::test]
async fn a_bound_pod_goes_in_its_grace() {
    let (_folder, server, client) = start().await;
    let pod = r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"x:1"}]}}"#;
    assert_eq!(send(&client, Method::POST, PODS, pod).await.status, StatusCode::CREATED);
    let log = send(&client, Method::GET, &format!("{PODS}/p/log"), "").await;
    assert_eq!(log.status, StatusCode::BAD_REQUEST);
    let binding = r#"{"target":{"name":"edge"}}"#;
    let bound = send(&client, Method::POST, &format!("{PODS}/p/binding"), binding).await;
    assert_eq!(bound.status, StatusCode::CREATED);
    let marked = value(&send(&client, Method::DELETE, &format!("{PODS}/p"), "").await);
    assert_eq!(marked.int_at(&["metadata", "deletionGracePeriodSeconds"]), Some(30));
    let shorter = value(&send(&client, Method::DELETE, &format!("{PODS}/p?gracePeriodSeconds=5"), "").await);
    assert_eq!(shorter.int_at(&["metadata", "deletionGracePeriodSeconds"]), Some(5));
    let longer = value(&send(&client, Method::DELETE, &format!("{PODS}/p?gracePeriodSeconds=50"), "").await);
    assert_eq!(longer.int_at(&["metadata", "deletionGracePeriodSeconds"]), Some(5));
    send(&client, Method::DELETE, &format!("{PODS}/p?gracePeriodSeconds=0"), "").await;
    assert_eq!(
        send(&client, Method::GET, &format!("{PODS}/p"), "").await.status,
        StatusCode::NOT_FOUND
    );
    server.stop().await;
}

#[tokio::test]
async fn logs_come_from_the_node_or_not_at_all() {
    let (_folder, server, client) = start().await;
    let pod = r#"{"metadata":{"name":"p"},"spec":{"nodeName":"edge","containers":[{"name":"c","image":"x:1"}]}}"#;
    assert_eq!(send(&client, Method::POST, PODS, pod).await.status, StatusCode::CREATED);
    let path = format!("{PODS}/p/log?follow=true");
    let answer = send(&client, Method::GET, &path, "").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        value(&answer).text_at(&["message"]),
        Some("node edge cannot be reached: it has no session")
    );
    server.nodes.wrote("c", &["one\n", "two\n"]);
    let answer = send(&client, Method::GET, &path, "").await;
    assert_eq!(
        (answer.status, answer.body.as_ref()),
        (StatusCode::OK, b"one\ntwo\n".as_slice())
    );
    server.stop().await;
}

#[tokio::test]
async fn leases_of_nodes_are_made_up_and_never_stored() {
    let (_folder, server, client) = start().await;
    let node = r#"{"metadata":{"name":"edge"},"status":{"conditions":[{"type":"Ready","status":"True"}]}}"#;
    assert_eq!(
        send(&client, Method::POST, "/api/v1/nodes", node).await.status,
        StatusCode::CREATED
    );
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = format!("{leases}/edge");
    assert_eq!(
        send(&client, Method::GET, &lease, "").await.status,
        StatusCode::NOT_FOUND
    );
    let before = server.store.revision();
    let at = Wall { ms: 1_500, trusted: true };
    server.nodes.heard("edge", Contact { at, grace_s: 40 });
    let made = value(&send(&client, Method::GET, &lease, "").await);
    assert_eq!(
        made.text_at(&["spec", "renewTime"]),
        Some("1970-01-01T00:00:01.500000Z")
    );
    let list = value(&send(&client, Method::GET, leases, "").await);
    assert_eq!(list.list_at(&["items"]).len(), 1);
    let node = value(&send(&client, Method::GET, "/api/v1/nodes/edge", "").await);
    assert_eq!(
        node.text_at(&["status", "conditions", "0", "lastHeartbeatTime"]),
        Some("1970-01-01T00:00:01Z")
    );
    assert_eq!(server.store.revision(), before);
    server.stop().await;
}

#[tokio::test]
async fn a_terminating_namespace_takes_nothing_new() {
    let (_folder, server, client) = start().await;
    send(&client, Method::POST, "/api/v1/namespaces", map("n")).await;
    let maps = "/api/v1/namespaces/n/configmaps";
    assert_eq!(
        send(&client, Method::POST, maps, map("a")).await.status,
        StatusCode::CREATED
    );
    let marked = value(&send(&client, Method::DELETE, "/api/v1/namespaces/n", "").await);
    assert_eq!(marked.text_at(&["status", "phase"]), Some("Terminating"));
    let refused = send(&client, Method::POST, maps, map("b")).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert_eq!(
        value(&refused).text_at(&["details", "causes", "0", "reason"]),
        Some("NamespaceTerminating")
    );
    send(&client, Method::DELETE, &format!("{maps}/a"), "").await;
    let finalized = r#"{"metadata":{"name":"n"},"spec":{"finalizers":[]}}"#;
    let answer = send(&client, Method::PUT, "/api/v1/namespaces/n/finalize", finalized).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(
        send(&client, Method::GET, "/api/v1/namespaces/n", "").await.status,
        StatusCode::NOT_FOUND
    );
    let standing = send(&client, Method::DELETE, "/api/v1/namespaces/default", "").await;
    assert_eq!(standing.status, StatusCode::FORBIDDEN);
    server.stop().await;
}

#[tokio::test]
async fn a_finalizer_holds_until_it_is_taken_away() {
    let (_folder, server, client) = start().await;
    let held = r#"{"metadata":{"name":"a","finalizers":["x.io/y"]}}"#;
    send(&client, Method::POST, MAPS, held).await;
    let path = format!("{MAPS}/a");
    let wrong = r#"{"preconditions":{"uid":"11111111-1111-4111-8111-111111111111"}}"#;
    assert_eq!(
        send(&client, Method::DELETE, &path, wrong).await.status,
        StatusCode::CONFLICT
    );
    let marked = value(&send(&client, Method::DELETE, &path, "").await);
    assert!(marked.at(&["metadata", "deletionTimestamp"]).is_some());
    let more = r#"{"metadata":{"finalizers":["x.io/y","x.io/z"]}}"#;
    let refused = send(&client, Method::PATCH, &path, more).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    let none = r#"{"metadata":{"finalizers":null}}"#;
    assert_eq!(send(&client, Method::PATCH, &path, none).await.status, StatusCode::OK);
    assert_eq!(
        send(&client, Method::GET, &path, "").await.status,
        StatusCode::NOT_FOUND
    );
    server.stop().await;
}

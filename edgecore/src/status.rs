//! What `edgecore status` shows, with or without a cloud, with or without a running edge core.
//!
//! A running edge core answers on a socket in its data folder, which only its owner may open. Where none runs, the store
//! says what was last known.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use daemon::clock::{mono, sleep_until};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::identity::Identity;
use crate::link::session::LinkStatus;
use crate::node::Condition;
use crate::store::{self, NodeStore, PodReport};

const SOCKET: &str = "status.sock";

/// How long an edge core that has just been started may take until it answers, and how often it is asked.
const STARTING: Duration = Duration::from_secs(5);
const STARTING_LOOK: Duration = Duration::from_millis(20);

/// How long one that runs may take for its answer; a busy card holds up the store's.
const ANSWER: Duration = Duration::from_secs(5);

/// Between two attempts to make the socket.
const BIND_RETRY: Duration = Duration::from_secs(10);

/// The state of an edge core.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub running: bool,
    pub node: Option<String>,
    pub connected: bool,
    /// How long it has been connected, in seconds.
    pub connected_s: Option<u64>,
    pub cloud: Option<String>,
    pub revision: u64,
    pub pending: usize,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub disk_full: bool,
    pub refused: Option<String>,
    /// Why there is no link, as of the last try.
    pub trouble: Option<String>,
    pub events_dropped: u64,
    /// What the running edge core says of its node.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    pub pods: Vec<PodLine>,
}

/// One pod as the node last reported it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodLine {
    pub namespace: String,
    pub name: String,
    pub phase: String,
    pub ready: String,
    pub restarts: i64,
    /// It is being deleted.
    #[serde(default)]
    pub deleting: bool,
    /// Nothing is left of it on this node, and the cloud has not heard so yet.
    #[serde(default)]
    pub gone: bool,
}

impl PodLine {
    /// Of a report; without one it was not begun.
    fn new(pod: PodReport) -> Self {
        let PodReport { key, latest, deleting, gone } = pod;
        let report = latest.unwrap_or_default();
        let containers = report.list_at(&["containerStatuses"]);
        let ready = containers
            .iter()
            .filter(|container| container.flag_at(&["ready"]))
            .count();
        let restarts = containers
            .iter()
            .filter_map(|container| container.int_at(&["restartCount"]));
        Self {
            phase: report.text_at(&["phase"]).unwrap_or("Pending").to_owned(),
            ready: format!("{ready}/{}", containers.len()),
            restarts: restarts.sum(),
            namespace: key.namespace,
            name: key.name,
            deleting,
            gone,
        }
    }

    /// Its state in one word. What is gone has no phase any more: with its report went what it was.
    fn word(&self) -> &str {
        match (self.gone, self.deleting, self.phase.as_str()) {
            (true, ..) => "Gone",
            (_, true, "Pending" | "Running") => "Terminating",
            (.., phase) => phase,
        }
    }
}

/// Answers whoever asks on this host, until stopped.
pub async fn serve(
    folder: PathBuf,
    store: NodeStore,
    link: watch::Receiver<LinkStatus>,
    conditions: watch::Receiver<Vec<Condition>>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let path = folder.join(SOCKET);
    let Some(listener) = bound(&path, &stop).await else {
        return Ok(());
    };
    loop {
        let mut client = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => client,
                Err(error) => {
                    tracing::warn!("accepting a local client: {error}");
                    continue;
                }
            },
        };
        let pods = store.reported().await;
        let mut status = now(&folder, &link.borrow().clone(), pods);
        status.conditions.clone_from(&conditions.borrow());
        let text = serde_json::to_vec(&status)?;
        // Small: it fits the socket's buffer, so a client that does not read holds nobody up.
        if let Err(error) = client.write_all(&text).await {
            tracing::debug!("a local client: {error}");
        }
    }
    let _ = std::fs::remove_file(&path);
    Ok(())
}

/// The state of the edge core on this data folder.
pub async fn ask(folder: &Path) -> anyhow::Result<Status> {
    let socket = folder.join(SOCKET);
    let until = mono() + STARTING;
    loop {
        if let Ok(mut stream) = UnixStream::connect(&socket).await {
            let mut text = Vec::new();
            let read = tokio::select! {
                read = stream.read_to_end(&mut text) => read,
                () = sleep_until(Some(mono() + ANSWER)) => anyhow::bail!(
                    "an edge core runs on {} and has not answered for {} s: it hangs, or waits for its disk; its log may \
                     say why, and its unit starts one anew that hangs",
                    folder.display(),
                    ANSWER.as_secs()
                ),
            };
            read.context("reading the edge core's status")?;
            return serde_json::from_slice(&text).context("reading the edge core's status");
        }
        anyhow::ensure!(
            folder.join(store::DATABASE).exists(),
            "no edge core has run on {}{}",
            folder.display(),
            match Identity::load(folder) {
                Ok(Some(identity)) => format!(" yet; it joined as {}: edgecore run", identity.node()),
                Ok(None) | Err(_) => ": is this the data folder (--data)?".to_owned(),
            }
        );
        let stopped = |pods| Status { running: false, ..now(folder, &LinkStatus::default(), pods) };
        match store::read_reported(folder) {
            Ok(Some(pods)) => return Ok(stopped(pods)),
            Ok(None) => anyhow::ensure!(
                mono() < until,
                "an edge core runs on {} and does not answer on {}: its log says why",
                folder.display(),
                socket.display()
            ),
            // A full disk has no room for what a reader needs beside the file; an edge core that starts there does without.
            Err(error) if mono() >= until => {
                let trouble = format!("the pods are not known: {:#}", anyhow::Error::new(error));
                return Ok(Status { trouble: Some(trouble), ..stopped(Vec::new()) });
            }
            Err(_) => {}
        }
        sleep_until(Some(mono() + STARTING_LOOK)).await;
    }
}

/// The socket, as soon as it can be had: a node runs its pods also where nobody can ask how they are.
async fn bound(path: &Path, stop: &CancellationToken) -> Option<UnixListener> {
    let bind = || {
        // Left over from an earlier life: the folder's lock says that nobody else serves it.
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        std::io::Result::Ok(listener)
    };
    let mut said = false;
    loop {
        match bind() {
            Ok(listener) => return Some(listener),
            Err(error) if !std::mem::replace(&mut said, true) => {
                tracing::warn!("nobody can ask for the status at {}: {error}", path.display());
            }
            Err(_) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = sleep_until(Some(mono() + BIND_RETRY)) => {}
        }
    }
}

fn now(folder: &Path, link: &LinkStatus, pods: Vec<PodReport>) -> Status {
    let identity = Identity::load(folder).ok().flatten();
    let (bytes_sent, bytes_received) = link.bytes();
    Status {
        running: true,
        node: identity.map(|identity| identity.node().to_owned()),
        connected: link.up_since.is_some(),
        connected_s: link.up_since.map(|since| mono().since(since).as_secs()),
        cloud: link.remote.clone(),
        revision: link.applied.0,
        pending: link.pending,
        bytes_sent,
        bytes_received,
        disk_full: link.disk_full,
        refused: link.refused.clone(),
        trouble: link.trouble.clone(),
        events_dropped: link.events_dropped,
        conditions: Vec::new(),
        pods: pods.into_iter().map(PodLine::new).collect(),
    }
}

/// What to do about the cloud's refusal.
fn advice(refused: &str) -> &'static str {
    match refused {
        "revoked" => {
            "an admin must let this machine in again: cloudcore token create --replace NODE; then, with the edge core \
             stopped, remove node.key and enrolment.json, and edgecore join"
        }
        "DuplicateIdentity" => {
            "another machine holds this node's key and is connected: revoke the node, join both anew"
        }
        "Version" => "the two cores speak no frame version in common: update the older one",
        "Unknown" => "the cloud gives this key no new certificate: join again with a new token",
        _ => "the cloud is not ready; this is tried again",
    }
}

impl Status {
    /// The text for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let node = self
            .node
            .as_deref()
            .unwrap_or("not joined: edgecore join https://HOST:6443 --token-file FILE");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "node       {node}");
        let running = if self.running {
            "running"
        } else {
            "not running: what follows is what it last knew"
        };
        let _ = writeln!(text, "edge core  {running}");
        let link = match (&self.cloud, self.connected_s) {
            (Some(cloud), Some(seconds)) => format!("connected to {cloud} for {seconds} s"),
            (Some(cloud), None) => format!("greeting {cloud}"),
            (None, _) => "no link; pods run on".to_owned(),
        };
        let _ = writeln!(text, "cloud      {link}");
        if let Some(trouble) = &self.trouble {
            let _ = writeln!(text, "trouble    {trouble}");
        }
        if let Some(refused) = &self.refused {
            let _ = writeln!(text, "refused    {refused}: {}", advice(refused));
        }
        let _ = writeln!(text, "revision   {}", self.revision);
        let _ = writeln!(text, "to report  {}", self.pending);
        let _ = writeln!(
            text,
            "bytes      {} sent, {} received",
            self.bytes_sent, self.bytes_received
        );
        if self.disk_full {
            let _ = writeln!(text, "disk       full: what changes is not kept until there is room");
        }
        for condition in self.conditions.iter().filter(|condition| condition.is_bad()) {
            let Condition { kind, reason, message, .. } = condition;
            let _ = writeln!(text, "trouble    {kind}, {reason}: {message}");
        }
        if self.events_dropped > 0 {
            let _ = writeln!(text, "events     {} dropped unsent", self.events_dropped);
        }
        let _ = writeln!(
            text,
            "\n{:<20} {:<40} {:<11} {:<7} RESTARTS",
            "NAMESPACE", "POD", "STATUS", "READY"
        );
        for pod in &self.pods {
            let (word, PodLine { namespace, name, ready, restarts, .. }) = (pod.word(), pod);
            let _ = if pod.gone {
                writeln!(text, "{namespace:<20} {name:<40} {word:<11} {:<7} -", "-")
            } else {
                writeln!(text, "{namespace:<20} {name:<40} {word:<11} {ready:<7} {restarts}")
            };
        }
        if self.pods.iter().any(|pod| pod.gone) {
            text.push_str("\nGone: deleted here, and the cloud will hear so with the next session.\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use proto::object::Key;
    use proto::value::json;

    use super::*;

    #[tokio::test]
    async fn one_that_does_not_answer_is_not_waited_for_without_end() {
        let folder = tempfile::tempdir().unwrap();
        // Whoever connects is kept, and told nothing.
        let _listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let error = ask(folder.path()).await.unwrap_err().to_string();
        let here = folder.path().display().to_string();
        assert!(
            error.contains(&here) && error.contains("has not answered for 5 s"),
            "{error}"
        );
    }

    #[test]
    fn one_word_says_how_a_pod_is() {
        let check = |latest: Option<&str>, deleting: bool, gone: bool, expected: &str| {
            let latest = latest.map(|phase| {
                let text = format!(
                    r#"{{"phase":"{phase}","containerStatuses":[{{"ready":true,"restartCount":2}},{{"restartCount":1}}]}}"#
                );
                json::parse(text.as_bytes()).unwrap()
            });
            let pod = PodLine::new(PodReport { key: Key::new("Pod", "n", "p"), latest, deleting, gone });
            let status = Status { pods: vec![pod], ..Status::default() };
            let text = status.text();
            let line = text.lines().find(|line| line.starts_with("n ")).unwrap();
            let words: Vec<_> = line.split_whitespace().skip(2).collect();
            assert_eq!(words.join(" "), expected);
            assert_eq!(text.contains("the cloud will hear"), gone, "{text}");
        };
        check(None, false, false, "Pending 0/0 0");
        check(Some("Running"), false, false, "Running 1/2 3");
        check(Some("Running"), true, false, "Terminating 1/2 3");
        check(None, true, false, "Terminating 0/0 0");
        for phase in ["Succeeded", "Failed"] {
            check(Some(phase), true, false, &format!("{phase} 1/2 3"));
        }
        // Its report goes when nothing is left of it; an older one may still be there.
        check(None, true, true, "Gone - -");
        check(Some("Running"), true, true, "Gone - -");
    }
}

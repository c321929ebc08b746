//! Replays recorded requests on a server and compares its answers with the recorded ones.
//!
//! A folder holds one file per suite (`corpus/README.md` has the form). Files are replayed in the order they were
//! recorded in, because state carries over; within a file, symbols are bound by answers and put into later requests.

mod compare;
mod drive;
mod misses;
mod raw;
mod symbols;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use hyper::{Method, header};
use proto::value::{Map, Value, json};

use self::drive::{Drive, Step};
use self::misses::Listed;
use self::symbols::Symbols;
use crate::http::{Answer, Client};

/// The suites in the order of their recording; others follow by name.
const ORDER: [&str; 12] = [
    "discovery",
    "configmaps",
    "secrets",
    "pods",
    "deployments",
    "services",
    "nodes",
    "ssa",
    "watch",
    "crd",
    "auth",
    "expired",
];

/// The namespace the recordings use; it is made beforehand, with its default account.
const NAMESPACE: &str = "corpus";
const MAPS: &str = "/api/v1/namespaces/corpus/configmaps";
/// An event that was recorded has to come within this time.
const EVENT: Duration = Duration::from_secs(10);

/// How a record went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// Passed, but for a stated difference.
    PassedBut(String),
    /// What differs.
    Failed(Vec<String>),
}

/// What a replay found, by suite and record.
#[derive(Debug, Default)]
pub struct Report {
    pub records: Vec<(String, Outcome)>,
    listed: Listed,
}

impl Report {
    /// Records that failed and are not listed, and listed ones that passed.
    pub fn surprises(&self) -> Vec<String> {
        let surprise = self
            .records
            .iter()
            .filter_map(|(id, outcome)| match (outcome, self.listed.reason(id)) {
                (Outcome::Failed(differences), None) => {
                    Some(format!("{id} failed:\n    {}", differences.join("\n    ")))
                }
                (Outcome::Passed | Outcome::PassedBut(_), Some(_)) => {
                    Some(format!("{id} passed, but misses.toml lists it"))
                }
                _ => None,
            });
        let unknown = self
            .listed
            .ids()
            .filter(|id| self.records.iter().all(|(known, _)| known != id));
        surprise
            .chain(unknown.map(|id| format!("misses.toml lists {id}, which is no record")))
            .collect()
    }

    /// Passed and all, of the records that are not out of scope.
    pub fn in_scope(&self) -> (usize, usize) {
        let in_scope = || self.records.iter().filter(|(id, _)| !self.listed.is_out_of_scope(id));
        let passed = in_scope().filter(|(_, outcome)| !matches!(outcome, Outcome::Failed(_)));
        (passed.count(), in_scope().count())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut suites: BTreeMap<&str, (usize, usize, usize)> = BTreeMap::new();
        for (id, outcome) in &self.records {
            let suite = id.split('/').next().unwrap_or_default();
            let (passed, but, all) = suites.entry(suite).or_default();
            *passed += usize::from(!matches!(outcome, Outcome::Failed(_)));
            *but += usize::from(matches!(outcome, Outcome::PassedBut(_)));
            *all += 1;
        }
        for (suite, (passed, but, all)) in suites {
            writeln!(
                f,
                "{suite:12} {passed:3} of {all:3} passed, {but} of them with a stated difference"
            )?;
        }
        for (id, outcome) in &self.records {
            if let Outcome::Failed(differences) = outcome {
                let reason = self.listed.reason(id).unwrap_or("not listed");
                writeln!(f, "missed {id}: {reason}")?;
                if reason == "not listed" {
                    for difference in differences {
                        writeln!(f, "    {difference}")?;
                    }
                }
            }
        }
        let (passed, all) = self.in_scope();
        write!(f, "in scope: {passed} of {all}")
    }
}

/// Replays every suite of a folder.
pub async fn replay(folder: &Path, client: &Client) -> anyhow::Result<Report> {
    let listed = Listed::read(&folder.join("misses.toml"))?;
    let drive = Drive::read(&folder.join("drive.toml"))?;
    prepare(client).await?;
    let mut suites = Vec::new();
    for entry in std::fs::read_dir(folder).context("reading the folder")? {
        let path = entry.context("reading the folder")?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(suite) = name.strip_suffix(".jsonl").filter(|suite| !suite.contains('.')) {
            let place = ORDER.iter().position(|known| *known == suite).unwrap_or(ORDER.len());
            suites.push((place, suite.to_owned(), path.clone()));
        }
    }
    suites.sort();
    let mut records = Vec::new();
    for (_, suite, path) in suites {
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {suite}"))?;
        let mut run = Run {
            client,
            symbols: Symbols::default(),
            listed: &listed,
            drive: &drive,
        };
        for line in text.lines() {
            let record = json::parse(line.as_bytes()).with_context(|| format!("reading a record of {suite}"))?;
            let id = record.text_at(&["id"]).unwrap_or_default().to_owned();
            let outcome = match run.record(&id, &record, line).await {
                Ok(outcome) => outcome,
                Err(error) => Outcome::Failed(vec![format!("{error:#}")]),
            };
            records.push((id, outcome));
        }
    }
    Ok(Report { records, listed })
}

/// Makes what was there before the recording began.
async fn prepare(client: &Client) -> anyhow::Result<()> {
    let headers = [(header::CONTENT_TYPE.to_string(), "application/json".to_owned())];
    let namespace = format!(r#"{{"metadata":{{"name":"{NAMESPACE}"}}}}"#);
    let made = client
        .call(&Method::POST, "/api/v1/namespaces", &headers, namespace)
        .await?;
    anyhow::ensure!(
        matches!(made.status.as_u16(), 201 | 409),
        "making the namespace: {}",
        made.status
    );
    let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
    let account = r#"{"metadata":{"name":"default"}}"#;
    let made = client.call(&Method::POST, &path, &headers, account).await?;
    anyhow::ensure!(
        matches!(made.status.as_u16(), 201 | 409),
        "making the account: {}",
        made.status
    );
    Ok(())
}

/// The replay of one suite.
struct Run<'a> {
    client: &'a Client,
    symbols: Symbols,
    listed: &'a Listed,
    drive: &'a Drive,
}

impl Run<'_> {
    async fn record(&mut self, id: &str, record: &Value, line: &str) -> anyhow::Result<Outcome> {
        for step in self.drive.before(id) {
            self.step(step).await?;
        }
        let request = record.get("request").context("a record without a request")?;
        let recorded = record.get("response").context("a record without a response")?;
        let method: Method = request
            .text_at(&["method"])
            .unwrap_or("GET")
            .parse()
            .context("the method")?;
        self.bind_revisions(id, request).await?;
        let path = self.path(request);
        let headers = self.headers(request);
        let mut comparison = compare::Comparison::new(&mut self.symbols, self.listed.ignored(id));
        if recorded.flag_at(&["stream"]) {
            let mut lines = self.client.lines(&path, &headers).await?;
            comparison.head(recorded, lines.status, &lines.headers);
            for step in self.drive.during(id) {
                step_with(self.client, step).await?;
            }
            let events = recorded.list_at(&["events"]);
            for (at, event) in events.iter().enumerate() {
                let Ok(Some(line)) = lines.next(EVENT).await else {
                    comparison.differ(format!("event {at} did not come"));
                    break;
                };
                let found = json::parse(&line).context("an event")?;
                comparison.body(event, &found);
            }
            return Ok(comparison.outcome());
        }
        let sent = match request.get("body") {
            None | Some(Value::Null) => String::new(),
            Some(Value::Text(text)) => self.symbols.put(text),
            // As it was written: the order of fields shows in the answers.
            Some(_) => {
                let body = raw::field(line, "request").and_then(|request| raw::field(request, "body"));
                self.symbols
                    .put(&with_micro_times(body.context("a body that cannot be found")?))
            }
        };
        let mut comparison = compare::Comparison::new(&mut self.symbols, self.listed.ignored(id));
        let answer = self.client.call(&method, &path, &headers, sent).await?;
        comparison.head(recorded, answer.status, &answer.headers);
        compare_bodies(&mut comparison, id, recorded, &answer);
        Ok(comparison.outcome())
    }

    /// A revision that no answer has shown is the current one, or one that no store reaches.
    async fn bind_revisions(&mut self, id: &str, request: &Value) -> anyhow::Result<()> {
        let text = json::write(request);
        for symbol in self.symbols.unbound(&text, "rv") {
            let value = if id.ends_with("rv-future") {
                "999999999".to_owned()
            } else if request.text_at(&["query", "watch"]).is_some() {
                let list = self
                    .client
                    .call(&Method::GET, &format!("{MAPS}?limit=1"), &[], "")
                    .await?;
                let list = json::parse(&list.body).context("a list")?;
                list.text_at(&["metadata", "resourceVersion"])
                    .unwrap_or_default()
                    .to_owned()
            } else {
                // Some version that is not the current one of any object.
                "1".to_owned()
            };
            self.symbols.bind(&symbol, value);
        }
        Ok(())
    }

    fn path(&mut self, request: &Value) -> String {
        let mut path = self.symbols.put(request.text_at(&["path"]).unwrap_or_default());
        let query = request.get("query").and_then(Value::as_map).into_iter().flatten();
        for (name, value) in query {
            path.push(if path.contains('?') { '&' } else { '?' });
            let value = value.as_text().map_or_else(|| json::write(value), str::to_owned);
            path.push_str(&format!("{name}={}", encode(&self.symbols.put(&value))));
        }
        path
    }

    fn headers(&mut self, request: &Value) -> Vec<(String, String)> {
        let headers = request.get("headers").and_then(Value::as_map).into_iter().flatten();
        headers
            .filter_map(|(name, value)| {
                let value = self.symbols.put(value.as_text()?);
                Some((name.to_owned(), self.symbols.etag(name, &value)))
            })
            .collect()
    }

    async fn step(&self, step: &Step) -> anyhow::Result<()> {
        step_with(self.client, step).await
    }
}

async fn step_with(client: &Client, step: &Step) -> anyhow::Result<()> {
    let method: Method = step.method.parse().context("the method of a step")?;
    let content_type = match step.method.as_str() {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let headers = [(header::CONTENT_TYPE.to_string(), content_type.to_owned())];
    let path = format!("{MAPS}{}", step.path);
    let answer = client.call(&method, &path, &headers, step.body.clone()).await?;
    anyhow::ensure!(
        answer.status.is_success() || answer.status == 404,
        "{} {path}: {} {}",
        step.method,
        answer.status,
        String::from_utf8_lossy(&answer.body)
    );
    Ok(())
}

fn compare_bodies(comparison: &mut compare::Comparison<'_>, id: &str, recorded: &Value, answer: &Answer) {
    let Some(expected) = recorded.get("body") else { return };
    if expected.get("$truncated").is_some() || expected.get("$binary").is_some() {
        return;
    }
    // What was recorded as text is mostly JSON: a document, or the lines of a stream.
    if let Value::Text(text) = expected {
        let found = String::from_utf8_lossy(&answer.body);
        let parsed = |text: &str| -> Option<Vec<Value>> {
            let lines = text.lines().map(|line| json::parse(line.as_bytes()));
            lines
                .collect::<Result<Vec<_>, _>>()
                .ok()
                .filter(|lines| !lines.is_empty())
        };
        match (parsed(text), parsed(&found)) {
            (Some(expected), Some(found)) if expected.len() == found.len() => {
                for (expected, found) in expected.iter().zip(&found) {
                    comparison.body(&scoped(id, expected, found), found);
                }
            }
            _ => comparison.body(expected, &Value::from(found.into_owned())),
        }
        return;
    }
    match json::parse(&answer.body) {
        Ok(found) => comparison.body(&scoped(id, expected, &found), &found),
        Err(error) => comparison.differ(format!("the body is no JSON: {}", error.detail())),
    }
}

fn scoped(id: &str, expected: &Value, found: &Value) -> Value {
    if id.starts_with("discovery/") {
        built(expected, found)
    } else {
        expected.clone()
    }
}

/// Fields whose times have microseconds.
fn with_micro_times(body: &str) -> String {
    let mut body = body.to_owned();
    for field in ["renewTime", "acquireTime", "eventTime"] {
        for colon in [":", ": "] {
            let time = format!("\"{field}\":\"2026-01-02T03:04:05.000006Z\"");
            body = body.replace(&format!("\"{field}\"{colon}\"<ts>\""), &time);
        }
    }
    body
}

/// Of a recorded discovery document, what is built here: paths, and entries of lists by their name, that the server has
/// too.
fn built(expected: &Value, found: &Value) -> Value {
    match (expected, found) {
        (Value::Map(expected), Value::Map(found)) => {
            let kept = expected.iter().filter_map(|(field, value)| {
                let value = match (found.get(field), value) {
                    (Some(Value::List(known)), Value::List(paths)) if field == "paths" => {
                        paths.iter().filter(|path| known.contains(path)).cloned().collect()
                    }
                    (Some(found), value) => built(value, found),
                    (None, value) if value.get("serverRelativeURL").is_some() => return None,
                    (None, Value::List(entries)) if entries.iter().all(|entry| name(entry).is_some()) => return None,
                    (None, value) => value.clone(),
                };
                Some((field, value))
            });
            Value::Map(kept.collect::<Map>())
        }
        (Value::List(expected), Value::List(found)) => expected
            .iter()
            .enumerate()
            .filter_map(|(at, entry)| match (name(entry), found.get(at)) {
                (None, Some(found)) => Some(built(entry, found)),
                (None, None) => Some(entry.clone()),
                (Some(named), _) => {
                    let found = found.iter().find(|other| name(other) == Some(named))?;
                    Some(built(entry, found))
                }
            })
            .collect(),
        _ => expected.clone(),
    }
}

fn name(entry: &Value) -> Option<&str> {
    ["name", "resource", "subresource", "version"]
        .iter()
        .find_map(|field| entry.text_at(&[field]))
        .or_else(|| entry.text_at(&["metadata", "name"]))
}

fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

//! Subresources with a shape of their own: scale, binding and log.

use std::sync::Arc;

use hyper::body::Bytes;
use hyper::{Response, StatusCode};
use proto::value::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::Call;
use super::meta::{self, Place};
use super::patching::Patch;
use super::write::undecodable;
use crate::api::body::{self, Answer, BoxFuture, Cut, Fed, Feed};
use crate::api::codec;
use crate::api::kinds::Generation;
use crate::api::query::{self, WriteOptions};
use crate::api::schema::{self, KindSchema};
use crate::api::seams::{LogOptions, LogStream, LogsError};
use crate::api::status::{self, About, Cause, Refusal};
use crate::api::table::selector;
use crate::store::Stored;

/// A write without a version of its own is computed again this often.
const TRIES: usize = 8;

impl Call {
    pub(super) fn scale(&self) -> Result<Response<Answer>, Refusal> {
        Ok(self.answer_plain(StatusCode::OK, &scale_of(&self.found()?.value()), &[]))
    }

    pub(super) async fn rescale_by_update(self) -> Result<Response<Answer>, Refusal> {
        let options = WriteOptions::of(&self.query, "UpdateOptions")?;
        let decoded = codec::decode(
            self.content_type.as_deref(),
            &self.body,
            scale_schema()?,
            options.fields,
        );
        let sent = decoded.map_err(|error| undecodable(&error))?.value;
        self.rescale(options.dry_run, |_| Ok(sent.clone())).await
    }

    pub(super) async fn rescale_by_patch(self) -> Result<Response<Answer>, Refusal> {
        let options = WriteOptions::of(&self.query, "PatchOptions")?;
        let schema = scale_schema()?;
        let patch = Patch::of(self.content_type.as_deref(), &self.body)?;
        self.rescale(options.dry_run, |scale| {
            Ok(patch.apply(scale, schema, options.fields)?.value)
        })
        .await
    }

    async fn rescale(
        &self,
        dry_run: bool,
        compute: impl Fn(&Value) -> Result<Value, Refusal> + Send + Sync,
    ) -> Result<Response<Answer>, Refusal> {
        let name = self.name();
        for attempt in 1.. {
            let stored = self.found()?;
            let mut wanted = compute(&scale_of(&stored.value()))?;
            let namespace = self.target.namespace.as_deref();
            meta::place(&mut wanted, Place { namespace, name: Some(name) })?;
            let given = wanted.text_at(&["metadata", "resourceVersion"]).unwrap_or_default();
            if !given.is_empty() && query::revision(given).map_err(Refusal::unreasoned)? != stored.revision.0 {
                return Err(Refusal::modified(self.resource(name)));
            }
            let replicas = wanted.int_at(&["spec", "replicas"]).unwrap_or(0);
            if replicas < 0 {
                let detail = format!("{replicas}: must be greater than or equal to 0");
                let about = About { group: "autoscaling", kind: "Scale", name };
                return Err(Refusal::invalid(about, &[Cause::invalid("spec.replicas", &detail)]));
            }
            let mut new = stored.body();
            let changed = new.int_at(&["spec", "replicas"]) != Some(replicas);
            new.set(&["spec", "replicas"], replicas);
            if changed && self.kind.generation != Generation::None {
                meta::count(&mut new);
            }
            if dry_run {
                return Ok(self.answer_plain(StatusCode::OK, &scale_of(&new), &[]));
            }
            match self.replace(&stored, new).await {
                Ok(object) => return Ok(self.answer_plain(StatusCode::OK, &scale_of(&object), &[])),
                Err(error) if error.is_conflict() && attempt < TRIES => {}
                Err(error) => return Err(self.refused(&error, name)),
            }
        }
        Err(Refusal::internal("no more tries"))
    }

    /// Binds a pod to a node: once, and never to another.
    pub(super) async fn bind(self) -> Result<Response<Answer>, Refusal> {
        let options = WriteOptions::of(&self.query, "CreateOptions")?;
        let schema = schema::kind("", "v1", "Binding").ok_or_else(|| Refusal::internal("no schema for Binding"))?;
        let decoded = codec::decode(self.content_type.as_deref(), &self.body, schema, options.fields);
        let mut binding = decoded.map_err(|error| undecodable(&error))?.value;
        let name = self.name();
        let namespace = self.target.namespace.as_deref();
        meta::place(&mut binding, Place { namespace, name: Some(name) })?;
        let node = binding.text_at(&["target", "name"]).unwrap_or_default();
        if node.is_empty() {
            let about = About { group: "", kind: "Binding", name };
            let cause = Cause {
                reason: "FieldValueRequired",
                field: "target.name".to_owned(),
                message: "Required value".to_owned(),
            };
            return Err(Refusal::invalid(about, &[cause]));
        }
        let about = About { group: "", kind: "pods/binding", name };
        for attempt in 1.. {
            let stored = self.found()?;
            let mut pod = stored.body();
            if let Some(has) = stored.node() {
                let why = format!("pod {name} is already assigned to node {has:?}");
                return Err(Refusal::conflict(about, &why));
            }
            if pod.at(&["metadata", "deletionTimestamp"]).is_some() {
                let why = format!("pod {name} is being deleted, cannot be assigned to a host");
                return Err(Refusal::conflict(about, &why));
            }
            let wanted = binding.text_at(&["metadata", "uid"]).filter(|uid| !uid.is_empty());
            if wanted.is_some_and(|uid| uid != stored.uid.to_string()) {
                let why = format!("Precondition failed: the pod has the UID {}", stored.uid);
                return Err(Refusal::conflict(about, &why));
            }
            pod.set(&["spec", "nodeName"], node);
            let annotations = binding.at(&["metadata", "annotations"]).and_then(Value::as_map);
            for (key, value) in annotations.into_iter().flatten() {
                pod.set(&["metadata", "annotations", key], value.clone());
            }
            scheduled(&mut pod, daemon::clock::wall().rfc3339());
            let bound = if options.dry_run {
                Ok(pod)
            } else {
                self.replace(&stored, pod).await
            };
            match bound {
                Ok(_) => {
                    let status = status::success(StatusCode::CREATED, Value::Null);
                    return Ok(self.answer_plain(StatusCode::CREATED, &status, &[]));
                }
                Err(error) if error.is_conflict() && attempt < TRIES => {}
                Err(error) => return Err(self.refused(&error, name)),
            }
        }
        Err(Refusal::internal("no more tries"))
    }

    pub(super) async fn log(self) -> Result<Response<Answer>, Refusal> {
        let stored = self.found()?;
        let pod = stored.value();
        let container = container_of(&pod, self.query.text("container"))?;
        let options = LogOptions {
            container,
            follow: self.query.flag("follow"),
            previous: self.query.flag("previous"),
            timestamps: self.query.flag("timestamps"),
            tail_lines: self.query.number("tailLines"),
            limit_bytes: self.query.number("limitBytes"),
            since_s: self.query.number("sinceSeconds"),
            since: self.query.get("sinceTime").map(str::to_owned),
        };
        if stored.node().is_none() {
            let why = format!("pod {} does not have a host assigned", self.name());
            return Err(Refusal::bad_request(why));
        }
        let place = self.long_place()?;
        let opened = self.api.logs.open(Arc::<Stored>::clone(&stored), options).await;
        let stream = opened.map_err(|error| match error {
            LogsError::Unreachable { .. } => Refusal::unavailable(error.to_string()),
            LogsError::Refused(why) => Refusal::bad_request(why),
        })?;
        let mut response = body::bytes(StatusCode::OK, "text/plain", Bytes::new());
        let stop = self.stop.clone();
        *response.body_mut() = Answer::fed(Box::new(Log { stream, stop, _place: place }));
        Ok(response)
    }
}

/// A log on its way to the client.
struct Log {
    stream: LogStream,
    stop: CancellationToken,
    _place: OwnedSemaphorePermit,
}

impl Feed for Log {
    fn next(mut self: Box<Self>) -> BoxFuture<'static, Option<Fed>> {
        Box::pin(async move {
            let piece = tokio::select! {
                biased;
                () = self.stop.cancelled() => Some(Err(Cut)),
                piece = self.stream.recv() => piece,
            }?;
            Some(piece.map(|piece| (piece, self as Box<dyn Feed>)))
        })
    }
}

/// The container whose log is meant: the one named, or the only one.
fn container_of(pod: &Value, named: &str) -> Result<String, Refusal> {
    let pod_name = pod.text_at(&["metadata", "name"]).unwrap_or_default();
    let names = |field: &str| -> Vec<&str> {
        let containers = pod.list_at(&["spec", field]).iter();
        containers
            .filter_map(|container| container.text_at(&["name"]))
            .collect()
    };
    let (containers, init) = (names("containers"), names("initContainers"));
    if !named.is_empty() {
        let known = containers.contains(&named) || init.contains(&named);
        let why = || Refusal::bad_request(format!("container {named} is not valid for pod {pod_name}"));
        return if known { Ok(named.to_owned()) } else { Err(why()) };
    }
    match containers.as_slice() {
        [one] => Ok((*one).to_owned()),
        many => {
            let mut why = format!(
                "a container name must be specified for pod {pod_name}, choose one of: [{}]",
                many.join(" ")
            );
            if !init.is_empty() {
                why.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
            }
            Err(Refusal::bad_request(why))
        }
    }
}

/// Sets the condition `PodScheduled`.
fn scheduled(pod: &mut Value, now: String) {
    let mut conditions = pod.list_at(&["status", "conditions"]).to_vec();
    conditions.retain(|condition| condition.text_at(&["type"]) != Some("PodScheduled"));
    conditions.push(Value::from([
        ("type", Value::from("PodScheduled")),
        ("status", Value::from("True")),
        ("lastProbeTime", Value::Null),
        ("lastTransitionTime", Value::from(now)),
    ]));
    pod.set(&["status", "conditions"], conditions);
}

fn scale_schema() -> Result<&'static KindSchema, Refusal> {
    schema::kind("autoscaling", "v1", "Scale").ok_or_else(|| Refusal::internal("no schema for Scale"))
}

/// The `Scale` of an object with replicas.
fn scale_of(object: &Value) -> Value {
    let mut metadata = Value::map();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object.at(&["metadata", field]) {
            metadata.set(&[field], value.clone());
        }
    }
    let mut spec = Value::map();
    let replicas = object.int_at(&["spec", "replicas"]).unwrap_or(0);
    if replicas != 0 {
        spec.set(&["replicas"], replicas);
    }
    Value::from([
        ("kind", Value::from("Scale")),
        ("apiVersion", Value::from("autoscaling/v1")),
        ("metadata", metadata),
        ("spec", spec),
        (
            "status",
            Value::from([
                (
                    "replicas",
                    Value::from(object.int_at(&["status", "replicas"]).unwrap_or(0)),
                ),
                ("selector", Value::from(selector(object.at(&["spec", "selector"])))),
            ]),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_of_a_log() {
        let pod = |text: &str| proto::value::json::parse(text.as_bytes()).unwrap();
        let one = pod(r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"a"}]}}"#);
        assert_eq!(container_of(&one, "").unwrap(), "a");
        assert_eq!(
            container_of(&one, "b").unwrap_err().message,
            "container b is not valid for pod p"
        );
        let two = pod(
            r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"a"},{"name":"b"}],"initContainers":[{"name":"i"}]}}"#,
        );
        assert_eq!(container_of(&two, "i").unwrap(), "i");
        assert_eq!(
            container_of(&two, "").unwrap_err().message,
            "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i]"
        );
    }
}

//! `edgectl apply`: makes objects be as files say.
//!
//! What was applied is kept in the annotation that `kubectl apply` uses as well, so that either can go on where the
//! other stopped.

use http::Method;
use serde_json::{Value, json};

use crate::cli::{self, DryRun};
use crate::failure::{Failure, all_of};
use crate::manifest::{self, Manifest};
use crate::output::print;
use crate::resources::{Catalogue, Resource};
use crate::server::{JSON, Server, with_body, with_query};
use crate::three_way::{self, Lists};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// How this program calls itself where it writes.
pub(crate) const MANAGER: &str = "edgectl";

pub(crate) async fn run(server: &Server, args: &cli::Apply) -> Result<(), Failure> {
    let manifests = manifest::read(&args.filename)?;
    let catalogue = Catalogue::of_server(server).await?;
    // What files say has to make sense before anything is changed.
    let mut all = Vec::new();
    for manifest in &manifests {
        manifest.named()?;
        all.push((manifest, place(server, &catalogue, manifest)?));
    }
    let mut failures = Vec::new();
    for (manifest, (resource, namespace)) in &all {
        let name = resource.full_name(&manifest.name);
        match one(server, manifest, resource, namespace.as_deref(), args.dry_run).await {
            Ok(done) => print(format!("{name} {done}{}\n", DryRun::said(args.dry_run)))?,
            Err(error) => failures.push(Failure::Of {
                what: name,
                file: manifest.file.clone(),
                source: Box::new(error),
            }),
        }
    }
    all_of(failures, all.len())
}

/// Which resource an object is of, and in which namespace it belongs.
pub(crate) fn place<'a>(
    server: &Server,
    catalogue: &'a Catalogue,
    manifest: &Manifest,
) -> Result<(&'a Resource, Option<String>), Failure> {
    let resource = catalogue
        .of_kind(&manifest.api_version, &manifest.kind)
        .ok_or_else(|| Failure::UnknownKind {
            file: manifest.file.clone(),
            api_version: manifest.api_version.clone(),
            kind: manifest.kind.clone(),
        })?;
    if !resource.namespaced {
        return Ok((resource, None));
    }
    match &manifest.namespace {
        Some(own) if server.namespace_said && *own != server.namespace => Err(Failure::Usage(format!(
            "{}: {} says namespace {own}, the command line says {}: leave one of them out",
            manifest.file,
            resource.full_name(&manifest.name),
            server.namespace
        ))),
        Some(own) => Ok((resource, Some(own.clone()))),
        None => Ok((resource, Some(server.namespace.clone()))),
    }
}

async fn one(
    server: &Server,
    manifest: &Manifest,
    resource: &Resource,
    namespace: Option<&str>,
    dry_run: Option<DryRun>,
) -> Result<&'static str, Failure> {
    let wanted = with_last_applied(&manifest.object, namespace);
    let only_look = dry_run == Some(DryRun::Client);
    let query = [
        ("fieldManager", Some(MANAGER)),
        ("fieldValidation", Some("Strict")),
        ("dryRun", DryRun::query(dry_run)),
    ];
    let path = resource.path(namespace, Some(&manifest.name));
    let live = match server.get(&path).await {
        Ok(live) => live,
        Err(error) if error.is_not_found() => {
            if only_look {
                return Ok("created");
            }
            let path = with_query(&resource.path(namespace, None), &query);
            server.send(with_body(Method::POST, &path, JSON, &wanted)?).await?;
            return Ok("created");
        }
        Err(error) => return Err(error),
    };
    let (lists, content_type) = if is_strategic(&resource.group) {
        (Lists::ByKey, "application/strategic-merge-patch+json")
    } else {
        (Lists::Whole, "application/merge-patch+json")
    };
    let last = last_applied(&live);
    let Some(patch) = three_way::patch(last.as_ref(), &wanted, &live, lists) else {
        return Ok("unchanged");
    };
    if only_look {
        return Ok("configured");
    }
    let changed: Value = server
        .read(with_body(
            Method::PATCH,
            &with_query(&path, &query),
            content_type,
            &patch,
        )?)
        .await?;
    let revision = |object: &Value| object.pointer("/metadata/resourceVersion").cloned();
    // A patch that says the same in other words, such as 1000m for 1, changes nothing. What is only tried keeps its
    // revision whatever it changes.
    let same = match dry_run {
        None => revision(&changed) == revision(&live),
        Some(_) => changed == live,
    };
    Ok(if same { "unchanged" } else { "configured" })
}

/// Whether the server knows by which key this group's lists are merged.
fn is_strategic(group: &str) -> bool {
    matches!(group, "" | "apps" | "batch")
}

/// The object with the annotation that remembers it.
fn with_last_applied(object: &Value, namespace: Option<&str>) -> Value {
    let mut object = object.clone();
    // The file's own annotations stay, except for a copy of this one.
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = json!({});
    }
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.remove(LAST_APPLIED);
    }
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = namespace.into();
    }
    let text = format!("{object}\n");
    object["metadata"]["annotations"][LAST_APPLIED] = text.into();
    object
}

fn last_applied(live: &Value) -> Option<Value> {
    let text = live["metadata"]["annotations"][LAST_APPLIED].as_str()?;
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_applied_is_remembered() {
        let file = json!({"kind": "ConfigMap", "metadata": {"name": "a", "annotations": {"own": "1"}}});
        let sent = with_last_applied(&file, Some("demo"));
        assert_eq!(sent["metadata"]["namespace"], "demo");
        let mut expected = file.clone();
        expected["metadata"]["namespace"] = "demo".into();
        assert_eq!(last_applied(&sent), Some(expected));
        // Applying what was fetched does not nest it.
        assert_eq!(with_last_applied(&sent, Some("demo")), sent);
        // A second application of the same has nothing to say.
        assert_eq!(
            three_way::patch(last_applied(&sent).as_ref(), &sent, &sent, Lists::ByKey),
            None
        );
        assert_eq!(last_applied(&file), None);
    }
}

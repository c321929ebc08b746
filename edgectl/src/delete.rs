//! `edgectl delete`: takes objects away, and waits until they are gone.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::apply::place;
use crate::cli::{self, DryRun};
use crate::failure::{Failure, all_of};
use crate::manifest;
use crate::near::explained;
use crate::output::{print, remark};
use crate::resources::{Catalogue, Resource};
use crate::server::{JSON, Server, with_body, with_query};

/// Between looks at whether an object is gone.
const LOOK: Duration = Duration::from_millis(250);

/// After how many looks the reason for waiting is said.
const LOOKS_BEFORE_REMARK: u32 = 40;

pub(crate) async fn run(server: &Server, args: &cli::Delete) -> Result<(), Failure> {
    let catalogue = Catalogue::of_server(server).await?;
    let mut objects: Vec<(&Resource, Option<String>, String)> = Vec::new();
    if args.filename.is_empty() {
        let own = |resource: &Resource| resource.namespaced.then(|| server.namespace.clone());
        for (resource, names) in catalogue.targets(&args.what)? {
            let names = match (&args.selector, names.is_empty()) {
                (Some(_), false) => return Err(Failure::Usage("say either names or a selector".to_owned())),
                (Some(selector), true) => names_of(server, resource, selector).await?,
                (None, true) => {
                    let plural = &resource.plural;
                    return Err(Failure::Usage(format!(
                        "say which {plural} by their names, or by labels with -l"
                    )));
                }
                (None, false) => names,
            };
            objects.extend(names.into_iter().map(|name| (resource, own(resource), name)));
        }
    } else {
        for manifest in manifest::read(&args.filename)? {
            manifest.named()?;
            let (resource, namespace) = place(server, &catalogue, &manifest)?;
            objects.push((resource, namespace, manifest.name));
        }
    }
    let mut options = json!({"propagationPolicy": args.cascade.policy()});
    if let Some(grace) = args.grace_period {
        options["gracePeriodSeconds"] = grace.into();
    }
    if let Some(all) = DryRun::query(args.dry_run) {
        options["dryRun"] = json!([all]);
    }
    let mut failures = Vec::new();
    let mut waiting = Vec::new();
    for (resource, namespace, name) in &objects {
        let path = resource.path(namespace.as_deref(), Some(name));
        let called = resource.full_name(name);
        let deleted = match args.dry_run {
            Some(DryRun::Client) => server.get(&path).await.map(|_| None),
            Some(DryRun::Server) | None => delete(server, &path, &options).await,
        };
        match deleted {
            Ok(uid) => {
                print(format!("{called} deleted{}\n", DryRun::said(args.dry_run)))?;
                waiting.push((path, called, uid));
            }
            Err(error) if args.ignore_not_found && error.is_not_found() => {}
            Err(error) => failures.push(explained(server, resource, namespace.as_deref(), name, error).await),
        }
    }
    if !args.no_wait && args.dry_run.is_none() {
        for (path, called, uid) in &waiting {
            gone(server, path, called, uid.as_deref()).await?;
        }
    }
    all_of(failures, objects.len())
}

/// Deletes an object and returns its uid, as far as the answer says it.
pub(crate) async fn delete(server: &Server, path: &str, options: &Value) -> Result<Option<String>, Failure> {
    let mut options = options.clone();
    options["kind"] = "DeleteOptions".into();
    options["apiVersion"] = "v1".into();
    let answer: Value = server.read(with_body(Method::DELETE, path, JSON, &options)?).await?;
    // The object itself, or a Status about it.
    let uid = answer
        .pointer("/metadata/uid")
        .or_else(|| answer.pointer("/details/uid"));
    Ok(uid.and_then(Value::as_str).map(str::to_owned))
}

/// Waits until there is no object here, or another one.
async fn gone(server: &Server, path: &str, called: &str, uid: Option<&str>) -> Result<(), Failure> {
    let mut looks = 0;
    loop {
        match server.get(path).await {
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
            Ok(object) => {
                let now = object.pointer("/metadata/uid").and_then(Value::as_str);
                if uid.is_some() && now != uid {
                    return Ok(());
                }
                looks += 1;
                if looks == LOOKS_BEFORE_REMARK {
                    remark(&format!(
                        "{called} is still there: {}; it goes on by itself when you stop waiting",
                        why(&object)
                    ));
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What keeps an object that is being deleted.
fn why(object: &Value) -> String {
    let texts = |list: &Value| {
        let texts = list
            .as_array()
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .filter_map(Value::as_str);
        texts.map(str::to_owned).collect::<Vec<_>>().join(", ")
    };
    let finalizers = texts(&object["metadata"]["finalizers"]);
    let spec_finalizers = texts(&object["spec"]["finalizers"]);
    match (
        object["spec"]["nodeName"].as_str(),
        finalizers.is_empty(),
        spec_finalizers.is_empty(),
    ) {
        (_, false, _) => format!("it waits for {finalizers}"),
        (Some(node), ..) => format!("node {node} has not said yet that it stopped"),
        (None, true, false) => format!("it waits for {spec_finalizers}"),
        (None, true, true) => "nothing says why".to_owned(),
    }
}

async fn names_of(server: &Server, resource: &Resource, selector: &str) -> Result<Vec<String>, Failure> {
    let path = resource.path(Some(&server.namespace), None);
    let list = server
        .get(&with_query(&path, &[("labelSelector", Some(selector))]))
        .await?;
    let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(items
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .map(str::to_owned)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_has_a_reason() {
        let check = |object: Value, expected: &str| assert_eq!(why(&object), expected);
        check(
            json!({"metadata": {"finalizers": ["a", "b"]}, "spec": {"nodeName": "n"}}),
            "it waits for a, b",
        );
        check(
            json!({"metadata": {}, "spec": {"nodeName": "n"}}),
            "node n has not said yet that it stopped",
        );
        check(
            json!({"metadata": {}, "spec": {"finalizers": ["kubernetes"]}}),
            "it waits for kubernetes",
        );
        check(json!({"metadata": {}}), "nothing says why");
    }
}

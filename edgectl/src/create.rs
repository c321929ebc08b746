//! `edgectl create`: makes objects that must not be there yet.

use http::Method;
use serde_json::Value;

use crate::apply::{MANAGER, place};
use crate::cli::{self, DryRun};
use crate::failure::{Failure, all_of};
use crate::manifest::{self, Manifest};
use crate::output::print;
use crate::resources::{Catalogue, Resource};
use crate::server::{JSON, Server, with_body, with_query};

pub(crate) async fn run(server: &Server, args: &cli::Create) -> Result<(), Failure> {
    let manifests = manifest::read(&args.filename)?;
    let catalogue = Catalogue::of_server(server).await?;
    // What files say has to make sense before anything is made.
    let mut all = Vec::new();
    for manifest in &manifests {
        all.push((manifest, place(server, &catalogue, manifest)?));
    }
    let mut failures = Vec::new();
    for (manifest, (resource, namespace)) in &all {
        match one(server, manifest, resource, namespace.as_deref(), args.dry_run).await {
            Ok(name) => print(format!(
                "{} created{}\n",
                resource.full_name(&name),
                DryRun::said(args.dry_run)
            ))?,
            Err(error) => failures.push(Failure::Of {
                what: resource.full_name(&manifest.name),
                file: manifest.file.clone(),
                source: Box::new(error),
            }),
        }
    }
    all_of(failures, all.len())
}

/// Makes one object, and returns the name it got.
async fn one(
    server: &Server,
    manifest: &Manifest,
    resource: &Resource,
    namespace: Option<&str>,
    dry_run: Option<DryRun>,
) -> Result<String, Failure> {
    if dry_run == Some(DryRun::Client) {
        return Ok(manifest.name.clone());
    }
    let query = [
        ("fieldManager", Some(MANAGER)),
        ("fieldValidation", Some("Strict")),
        ("dryRun", DryRun::query(dry_run)),
    ];
    let path = with_query(&resource.path(namespace, None), &query);
    let made: Value = server
        .read(with_body(Method::POST, &path, JSON, &manifest.object)?)
        .await?;
    Ok(made["metadata"]["name"].as_str().unwrap_or(&manifest.name).to_owned())
}

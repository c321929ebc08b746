//! What is served, as clients discover it: the legacy documents, the aggregated one, and the least of OpenAPI v3 that
//! `kubectl` needs in order to leave validation to the server.
//!
//! Every document is a function of the kind table. It is made once; its ETag changes when its bytes do.

use std::collections::BTreeMap;

use hyper::body::Bytes;
use proto::value::{Value, json};
use ring::digest::{SHA512, digest};

use super::kinds::{KINDS, KindData, Subresource};

/// The release of Kubernetes whose API this follows.
const KUBERNETES_MINOR: &str = "36";

/// A document with the words that identify its content.
#[derive(Debug, Clone)]
pub struct Document {
    pub bytes: Bytes,
    /// A quoted entity tag.
    pub etag: String,
    pub value: Value,
}

impl Document {
    fn new(value: Value) -> Self {
        let text = json::write(&value);
        let hash: String = digest(&SHA512, text.as_bytes())
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02X}"))
            .collect();
        Self { bytes: Bytes::from(text), etag: format!("\"{hash}\""), value }
    }

    fn hash(&self) -> &str {
        self.etag.trim_matches('"')
    }
}

/// Every document of this server.
#[derive(Debug)]
pub struct Documents {
    pub version: Document,
    pub groups: Document,
    pub aggregated_core: Document,
    pub aggregated_groups: Document,
    pub openapi: Document,
    /// By path below `/openapi/v3/`.
    openapi_versions: BTreeMap<String, Document>,
    versions: BTreeMap<(&'static str, &'static str), Document>,
    group: BTreeMap<&'static str, Document>,
    pub pages: Document,
}

impl Documents {
    /// Of everything in the kind table.
    pub fn of_kinds() -> Self {
        let served = served();
        let named: Vec<&(&str, Vec<&str>)> = served.iter().filter(|(group, _)| !group.is_empty()).collect();
        let group_values: Vec<(&'static str, Value)> = named
            .iter()
            .map(|(group, versions)| (*group, group_value(group, versions)))
            .collect();
        let groups = Value::from([
            ("kind", Value::from("APIGroupList")),
            ("apiVersion", Value::from("v1")),
            ("groups", group_values.iter().map(|(_, group)| group.clone()).collect()),
        ]);
        let pairs = served
            .iter()
            .flat_map(|(group, versions)| versions.iter().map(move |version| (*group, *version)));
        let versions: BTreeMap<_, _> = pairs
            .map(|(group, version)| ((group, version), Document::new(resource_list(group, version))))
            .collect();
        let openapi_versions: BTreeMap<_, _> = versions
            .keys()
            .map(|(group, version)| (root(group, version), Document::new(openapi_of(group, version))))
            .collect();
        let openapi = openapi_versions
            .iter()
            .map(|(path, document)| {
                let url = format!("/openapi/v3/{path}?hash={}", document.hash());
                (path.clone(), Value::from([("serverRelativeURL", url)]))
            })
            .collect();
        let pages = ["/healthz", "/livez", "/openapi/v3", "/readyz", "/version"];
        let mut paths: Vec<String> = pages.iter().map(|page| (*page).to_owned()).collect();
        paths.extend(["/api", "/apis"].map(str::to_owned));
        paths.extend(named.iter().map(|(group, _)| format!("/apis/{group}")));
        paths.extend(openapi_versions.keys().map(|path| format!("/{path}")));
        paths.sort();
        Self {
            version: Document::new(version()),
            groups: Document::new(groups),
            aggregated_core: Document::new(aggregated(&served, true)),
            aggregated_groups: Document::new(aggregated(&served, false)),
            openapi: Document::new(Value::from([("paths", Value::Map(openapi))])),
            openapi_versions,
            versions,
            group: group_values
                .into_iter()
                .map(|(group, mut value)| {
                    value.set(&["kind"], "APIGroup");
                    value.set(&["apiVersion"], "v1");
                    (group, Document::new(value))
                })
                .collect(),
            pages: Document::new(Value::from([("paths", paths.into_iter().collect::<Value>())])),
        }
    }

    /// `/apis/{group}`
    pub fn group(&self, group: &str) -> Option<&Document> {
        self.group.get(group)
    }

    /// `/api/v1`, `/apis/{group}/{version}`
    pub fn version_of(&self, group: &str, version: &str) -> Option<&Document> {
        let mut served = self.versions.iter();
        let found = served.find(|((named, numbered), _)| *named == group && *numbered == version);
        found.map(|(_, document)| document)
    }

    /// `/openapi/v3/{path}`
    pub fn openapi_of(&self, path: &str) -> Option<&Document> {
        self.openapi_versions.get(path)
    }

    /// Whether anything of a group is served; the core group always is.
    pub fn knows(&self, group: &str) -> bool {
        group.is_empty() || self.group.contains_key(group)
    }
}

/// `/api`: the one legacy document that names the address it was asked at.
pub fn core_versions(authority: &str) -> Value {
    let address = Value::from([("clientCIDR", "0.0.0.0/0"), ("serverAddress", authority)]);
    Value::from([
        ("kind", Value::from("APIVersions")),
        ("versions", Value::from_iter(["v1"])),
        ("serverAddressByClientCIDRs", Value::List(vec![address])),
    ])
}

/// Groups in the order of the kind table, each with its versions.
fn served() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for kind in KINDS {
        match groups.iter_mut().find(|(group, _)| *group == kind.group) {
            Some((_, versions)) if versions.contains(&kind.version) => {}
            Some((_, versions)) => versions.push(kind.version),
            None => groups.push((kind.group, vec![kind.version])),
        }
    }
    groups
}

fn kinds_of<'a>(group: &'a str, version: &'a str) -> impl Iterator<Item = &'static KindData> {
    KINDS
        .iter()
        .filter(move |kind| kind.group == group && kind.version == version)
}

/// `api/v1`, `apis/apps/v1`
fn root(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

fn group_value(group: &str, versions: &[&str]) -> Value {
    let one = |version: &&str| {
        Value::from([
            ("groupVersion", group_version(group, version).as_str()),
            ("version", *version),
        ])
    };
    let mut value = Value::from([
        ("name", Value::from(group)),
        ("versions", versions.iter().map(one).collect()),
    ]);
    if let Some(first) = versions.first() {
        value.set(&["preferredVersion"], one(first));
    }
    value
}

fn words(words: &[&str]) -> Value {
    words.iter().copied().collect()
}

fn resource_list(group: &str, version: &str) -> Value {
    let mut resources = Vec::new();
    for kind in kinds_of(group, version) {
        let mut one = Value::from([
            ("name", Value::from(kind.plural)),
            ("singularName", Value::from(kind.singular)),
            ("namespaced", Value::from(kind.namespaced)),
            ("kind", Value::from(kind.kind)),
            ("verbs", words(kind.verbs)),
        ]);
        if !kind.short_names.is_empty() {
            one.set(&["shortNames"], words(kind.short_names));
        }
        if !kind.categories.is_empty() {
            one.set(&["categories"], words(kind.categories));
        }
        if !kind.storage_hash.is_empty() {
            one.set(&["storageVersionHash"], kind.storage_hash);
        }
        resources.push(one);
        resources.extend(kind.subresources.iter().map(|part| part_of(kind, part)));
    }
    let mut list = Value::from([
        ("kind", Value::from("APIResourceList")),
        ("groupVersion", Value::from(group_version(group, version))),
        ("resources", Value::List(resources)),
    ]);
    if !group.is_empty() {
        list.set(&["apiVersion"], "v1");
    }
    list
}

fn part_of(kind: &KindData, part: &Subresource) -> Value {
    let mut one = Value::from([
        ("name", Value::from(format!("{}/{}", kind.plural, part.name))),
        ("singularName", Value::from("")),
        ("namespaced", Value::from(kind.namespaced)),
        ("kind", Value::from(part.kind)),
        ("verbs", words(part.verbs)),
    ]);
    if !part.version.is_empty() {
        one.set(&["group"], part.group);
        one.set(&["version"], part.version);
    }
    one
}

fn aggregated(served: &[(&'static str, Vec<&'static str>)], core: bool) -> Value {
    let groups = served.iter().filter(|(group, _)| group.is_empty() == core);
    let items = groups.map(|(group, versions)| {
        let versions = versions.iter().map(|version| {
            Value::from([
                ("version", Value::from(*version)),
                ("resources", kinds_of(group, version).map(aggregated_resource).collect()),
                ("freshness", Value::from("Current")),
            ])
        });
        let metadata = if group.is_empty() {
            Value::map()
        } else {
            Value::from([("name", *group)])
        };
        Value::from([("metadata", metadata), ("versions", versions.collect())])
    });
    Value::from([
        ("kind", Value::from("APIGroupDiscoveryList")),
        ("apiVersion", Value::from("apidiscovery.k8s.io/v2")),
        ("metadata", Value::map()),
        ("items", items.collect()),
    ])
}

fn aggregated_resource(kind: &'static KindData) -> Value {
    let response =
        |group: &str, version: &str, kind: &str| Value::from([("group", group), ("version", version), ("kind", kind)]);
    let mut one = Value::from([
        ("resource", Value::from(kind.plural)),
        ("responseKind", response("", "", kind.kind)),
        (
            "scope",
            Value::from(if kind.namespaced { "Namespaced" } else { "Cluster" }),
        ),
        ("singularResource", Value::from(kind.singular)),
        ("verbs", words(kind.verbs)),
    ]);
    if !kind.short_names.is_empty() {
        one.set(&["shortNames"], words(kind.short_names));
    }
    if !kind.categories.is_empty() {
        one.set(&["categories"], words(kind.categories));
    }
    if !kind.subresources.is_empty() {
        let parts = kind.subresources.iter().map(|part| {
            Value::from([
                ("subresource", Value::from(part.name)),
                ("responseKind", response(part.group, part.version, part.kind)),
                ("verbs", words(part.verbs)),
            ])
        });
        one.set(&["subresources"], parts.collect::<Value>());
    }
    one
}

/// Which kinds can be patched where, and that the server validates fields: all that `kubectl` reads before it applies.
fn openapi_of(group: &str, version: &str) -> Value {
    let root = root(group, version);
    let paths = kinds_of(group, version).map(|kind| {
        let namespace = if kind.namespaced { "namespaces/{namespace}/" } else { "" };
        let parameter = Value::from([
            ("name", Value::from("fieldValidation")),
            ("in", Value::from("query")),
            ("schema", Value::from([("type", "string")])),
        ]);
        let identity = Value::from([("group", kind.group), ("kind", kind.kind), ("version", kind.version)]);
        let patch = Value::from([
            ("parameters", Value::List(vec![parameter])),
            ("responses", Value::map()),
            ("x-kubernetes-action", Value::from("patch")),
            ("x-kubernetes-group-version-kind", identity),
        ]);
        (
            format!("/{root}/{namespace}{}/{{name}}", kind.plural),
            Value::from([("patch", patch)]),
        )
    });
    Value::from([
        ("openapi", Value::from("3.0.0")),
        (
            "info",
            Value::from([("title", "Edgehold"), ("version", env!("CARGO_PKG_VERSION"))]),
        ),
        ("paths", Value::Map(paths.collect())),
        ("components", Value::from([("schemas", Value::map())])),
    ])
}

fn version() -> Value {
    let platform = match std::env::consts::ARCH {
        "x86_64" => "linux/amd64",
        "aarch64" => "linux/arm64",
        _ => "linux/other",
    };
    let release = format!("v1.{KUBERNETES_MINOR}.0+edgehold.{}", env!("CARGO_PKG_VERSION"));
    Value::from([
        ("major", "1"),
        ("minor", KUBERNETES_MINOR),
        ("emulationMajor", "1"),
        ("emulationMinor", KUBERNETES_MINOR),
        ("minCompatibilityMajor", "1"),
        ("minCompatibilityMinor", "35"),
        ("gitVersion", release.as_str()),
        ("gitCommit", ""),
        ("gitTreeState", "clean"),
        ("buildDate", "1970-01-01T00:00:00Z"),
        ("goVersion", ""),
        ("compiler", "rustc"),
        ("platform", platform),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_name_what_is_served() {
        let documents = Documents::of_kinds();
        let core = documents.version_of("", "v1").unwrap();
        assert_eq!(core.value.get("apiVersion"), None);
        let names: Vec<_> = core
            .value
            .list_at(&["resources"])
            .iter()
            .filter_map(|one| one.text_at(&["name"]))
            .collect();
        assert!(names.contains(&"pods/log") && names.contains(&"configmaps"));
        assert!(documents.version_of("apps", "v9").is_none());
        assert!(documents.knows("apps") && documents.knows("") && !documents.knows("nope"));
        let patch = documents.openapi_of("apis/apps/v1").unwrap();
        assert!(
            patch
                .value
                .at(&[
                    "paths",
                    "/apis/apps/v1/namespaces/{namespace}/deployments/{name}",
                    "patch"
                ])
                .is_some()
        );
        let url = documents
            .openapi
            .value
            .text_at(&["paths", "apis/apps/v1", "serverRelativeURL"]);
        assert_eq!(
            url,
            Some(format!("/openapi/v3/apis/apps/v1?hash={}", patch.hash()).as_str())
        );
        assert_eq!(patch.etag.len(), 130);
    }
}

//! What the server serves, and which of it a word means.

use kube::core::discovery::v2::APIGroupDiscoveryList;

use crate::failure::Failure;
use crate::near::closest;
use crate::server::Server;

/// One resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resource {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    listed: bool,
}

impl Resource {
    /// Its path, of one object or of a list; without a namespace, over all of them.
    pub(crate) fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let mut path = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if let Some(namespace) = namespace.filter(|_| self.namespaced) {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        for part in [Some(self.plural.as_str()), name].into_iter().flatten() {
            path.push('/');
            path.push_str(part);
        }
        path
    }

    /// How an object is called where several kinds are named: `pod/a`, `deployment.apps/b`.
    pub(crate) fn full_name(&self, name: &str) -> String {
        format!("{}{}/{name}", self.singular, self.dotted_group())
    }

    fn dotted_group(&self) -> String {
        if self.group.is_empty() {
            String::new()
        } else {
            format!(".{}", self.group)
        }
    }

    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    fn is_called(&self, word: &str) -> bool {
        // `deployments`, `deployments.apps`, `deployments.v1.apps`
        let (name, rest) = word.split_once('.').unwrap_or((word, ""));
        let group_fits =
            rest.is_empty() || rest == self.group || rest == format!("{}{}", self.version, self.dotted_group());
        group_fits
            && (name == self.plural
                || name == self.singular
                || name == self.kind.to_lowercase()
                || self.short_names.iter().any(|short| short == name))
    }
}

/// All of them, core first.
#[derive(Debug)]
pub(crate) struct Catalogue(Vec<Resource>);

impl Catalogue {
    pub(crate) async fn of_server(server: &Server) -> Result<Self, Failure> {
        const AGGREGATED: &str =
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
        let core = server.read(crate::server::get("/api", AGGREGATED)?).await?;
        let groups = server.read(crate::server::get("/apis", AGGREGATED)?).await?;
        Ok(Self::of_lists([core, groups]))
    }

    fn of_lists(lists: impl IntoIterator<Item = APIGroupDiscoveryList>) -> Self {
        let mut all = Vec::new();
        for group in lists.into_iter().flat_map(|list| list.items) {
            let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
            for version in group.versions {
                let of = version.version.unwrap_or_default();
                all.extend(version.resources.into_iter().map(|resource| {
                    let kind = resource.response_kind.and_then(|kind| kind.kind).unwrap_or_default();
                    Resource {
                        group: name.clone(),
                        version: of.clone(),
                        plural: resource.resource.unwrap_or_default(),
                        singular: resource
                            .singular_resource
                            .filter(|name| !name.is_empty())
                            .unwrap_or_else(|| kind.to_lowercase()),
                        kind,
                        short_names: resource.short_names,
                        categories: resource.categories,
                        namespaced: resource.scope.as_deref() == Some("Namespaced"),
                        listed: resource.verbs.iter().any(|verb| verb == "list"),
                    }
                }));
            }
        }
        Self(all)
    }

    /// The resource that a word means; the first group that has it wins.
    pub(crate) fn find(&self, word: &str) -> Result<&Resource, Failure> {
        let lower = word.to_lowercase();
        self.0
            .iter()
            .find(|resource| resource.is_called(&lower))
            .ok_or_else(|| {
                let listed = self.0.iter().filter(|resource| resource.listed);
                let known: Vec<&str> = listed.map(|resource| resource.plural.as_str()).collect();
                let near = closest(&lower, known.iter().copied()).map(str::to_owned);
                Failure::UnknownResource { word: word.to_owned(), known: known.join(", "), near }
            })
    }

    pub(crate) fn of_kind(&self, api_version: &str, kind: &str) -> Option<&Resource> {
        self.0
            .iter()
            .find(|resource| resource.kind == kind && resource.api_version() == api_version)
    }

    /// What `pods a b`, `pods,services`, `all` or `pod/a service/b` mean: resources, each with the names said.
    pub(crate) fn targets(&self, words: &[String]) -> Result<Vec<(&Resource, Vec<String>)>, Failure> {
        let usage = |text: String| Err(Failure::Usage(text));
        if words.iter().any(|word| word.contains('/')) {
            let mut targets: Vec<(&Resource, Vec<String>)> = Vec::new();
            for word in words {
                let Some((resource, name)) = word.split_once('/') else {
                    return usage(format!(
                        "{word} stands beside RESOURCE/NAME: write it as RESOURCE/NAME as well"
                    ));
                };
                let resource = self.find(resource)?;
                targets.push((resource, vec![checked(name)?]));
            }
            return Ok(targets);
        }
        let Some((first, names)) = words.split_first() else {
            return usage("say which resource is meant, as in `edgectl get pods`".to_owned());
        };
        let mut resources = Vec::new();
        for word in first.split(',') {
            let category: Vec<&Resource> = self
                .0
                .iter()
                .filter(|resource| resource.listed && resource.categories.iter().any(|category| category == word))
                .collect();
            if category.is_empty() {
                resources.push(self.find(word)?);
            } else {
                resources.extend(category);
            }
        }
        if resources.len() > 1 && !names.is_empty() {
            return usage("names go with one resource: write RESOURCE/NAME for each".to_owned());
        }
        let names = names.iter().map(|name| checked(name)).collect::<Result<Vec<_>, _>>()?;
        Ok(resources
            .into_iter()
            .map(|resource| (resource, names.clone()))
            .collect())
    }
}

/// A name that can stand in a path.
pub(crate) fn checked(name: &str) -> Result<String, Failure> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    if name.is_empty() || name.starts_with('.') || !name.bytes().all(fits) {
        return Err(Failure::Usage(format!(
            "{name:?} is not a name: it has letters, digits, `-` and `.` only"
        )));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogue() -> Catalogue {
        let list = |group: &str, resources: serde_json::Value| {
            serde_json::from_value(serde_json::json!({
                "items": [{"metadata": {"name": group}, "versions": [{"version": "v1", "resources": resources}]}],
            }))
            .unwrap()
        };
        let resource = |plural: &str, kind: &str, short: &[&str], scope: &str| {
            serde_json::json!({
                "resource": plural, "responseKind": {"kind": kind}, "scope": scope, "shortNames": short,
                "singularResource": kind.to_lowercase(), "verbs": ["get", "list"],
                "categories": if scope == "Namespaced" { vec!["all"] } else { vec![] },
            })
        };
        Catalogue::of_lists([
            list(
                "",
                serde_json::json!([
                    resource("pods", "Pod", &["po"], "Namespaced"),
                    resource("nodes", "Node", &["no"], "Cluster"),
                ]),
            ),
            list(
                "apps",
                serde_json::json!([resource("deployments", "Deployment", &["deploy"], "Namespaced")]),
            ),
        ])
    }

    #[test]
    fn a_resource_has_many_names() {
        let all = catalogue();
        for word in ["pods", "pod", "po", "Pod", "PODS", "pods.v1"] {
            assert_eq!(all.find(word).unwrap().kind, "Pod", "{word}");
        }
        for word in [
            "deployments",
            "deploy",
            "deployments.apps",
            "deploy.v1.apps",
            "Deployment",
        ] {
            assert_eq!(all.find(word).unwrap().kind, "Deployment", "{word}");
        }
        for word in ["pods.apps", "deployments.v2.apps", "things", ""] {
            let text = all.find(word).unwrap_err().to_string();
            assert!(text.ends_with("those there are: pods, nodes, deployments"), "{text}");
        }
        assert!(all.of_kind("apps/v1", "Deployment").is_some());
        assert!(all.of_kind("v1", "Deployment").is_none());
    }

    #[test]
    fn paths_follow_the_scope() {
        let all = catalogue();
        let check = |word: &str, namespace: Option<&str>, name: Option<&str>, expected: &str| {
            assert_eq!(all.find(word).unwrap().path(namespace, name), expected);
        };
        check("po", Some("d"), Some("a"), "/api/v1/namespaces/d/pods/a");
        check("po", None, None, "/api/v1/pods");
        check("no", Some("d"), Some("a"), "/api/v1/nodes/a");
        check("deploy", Some("d"), None, "/apis/apps/v1/namespaces/d/deployments");
    }

    #[test]
    fn words_become_targets() {
        let all = catalogue();
        let read = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            all.targets(&words).map(|targets| {
                let texts = targets
                    .iter()
                    .map(|(resource, names)| format!("{}:{}", resource.plural, names.join("+")));
                texts.collect::<Vec<_>>().join(" ")
            })
        };
        assert_eq!(read("po a b").unwrap(), "pods:a+b");
        assert_eq!(read("po,deploy").unwrap(), "pods: deployments:");
        assert_eq!(read("all").unwrap(), "pods: deployments:");
        assert_eq!(read("pod/a deploy/b").unwrap(), "pods:a deployments:b");
        for line in ["pod/a b", "po,deploy a", "pod/../x", "po a/b", "po a?b", "pod/", ""] {
            assert!(
                matches!(read(line), Err(Failure::Usage(_) | Failure::UnknownResource { .. })),
                "{line}"
            );
        }
    }
}

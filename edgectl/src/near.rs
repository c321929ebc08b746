//! What was probably meant, where a name is not there.

use serde_json::Value;

use crate::failure::Failure;
use crate::resources::Resource;
use crate::server::{Server, get, with_query};

/// Names only.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json";

/// How many names are looked at.
const NAMES_MAX: &str = "500";

/// The known word that is closest to one, when it is close: a slip or two, or all of it with something behind.
pub(crate) fn closest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let slips_max = (word.chars().count() / 3).clamp(1, 3);
    let far = |other: &str| match other.strip_prefix(word) {
        Some(rest) if rest.starts_with(['-', '.']) => 1,
        _ => distance(word, other),
    };
    let ranked = known.into_iter().map(|other| (far(other), other));
    ranked
        .filter(|(slips, _)| *slips <= slips_max)
        .min()
        .map(|(_, other)| other)
}

/// How many letters were left out, put in, replaced, or swapped with the next one.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows = vec![(0..=to.len()).collect::<Vec<_>>()];
    for (i, a) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in to.iter().enumerate() {
            let mut least = (rows[i][j] + usize::from(a != b))
                .min(rows[i][j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && *a == to[j - 1] && from[i - 1] == *b {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

/// A failure about one object; where the object is not there, with what may have been meant.
pub(crate) async fn explained(
    server: &Server,
    resource: &Resource,
    namespace: Option<&str>,
    name: &str,
    failure: Failure,
) -> Failure {
    let Failure::Refused(status) = failure else {
        return failure;
    };
    if status.code != 404 {
        return Failure::Refused(status);
    }
    let path = with_query(&resource.path(None, None), &[("limit", Some(NAMES_MAX))]);
    let Ok(request) = get(&path, METADATA) else {
        return Failure::Refused(status);
    };
    // It is the first failure that is to be told; this only adds to it.
    let list: Value = match server.read(request).await {
        Ok(list) => list,
        Err(_) => return Failure::Refused(status),
    };
    match step(&list, resource, namespace, name) {
        Some(step) => Failure::Missing { status, step },
        None => Failure::Refused(status),
    }
}

fn step(list: &Value, resource: &Resource, namespace: Option<&str>, name: &str) -> Option<String> {
    let field = |item: &'_ Value, field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
    let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
    let all: Vec<(String, String)> = items
        .iter()
        .map(|item| (field(item, "namespace"), field(item, "name")))
        .collect();
    let here = namespace.filter(|_| resource.namespaced).unwrap_or_default();
    let near = closest(
        name,
        all.iter()
            .filter(|(namespace, _)| namespace == here)
            .map(|(_, name)| name.as_str()),
    );
    let elsewhere = all.iter().find(|(_, other)| other == name);
    match (near, elsewhere) {
        (_, Some((namespace, _))) if resource.namespaced => Some(format!(
            "there is one in namespace {namespace}; say -n {namespace} if it is meant"
        )),
        (Some(near), _) => Some(format!("did you mean {}?", resource.full_name(near))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_close() {
        let known = ["web", "db", "settings", "web-7d9f-x2x", "worker"];
        let check = |word: &str, expected: Option<&str>| assert_eq!(closest(word, known), expected, "{word}");
        check("wbe", Some("web"));
        check("we", Some("web"));
        check("settigns", Some("settings"));
        check("setings", Some("settings"));
        check("web-7d9f", Some("web-7d9f-x2x"));
        check("worker1", Some("worker"));
        check("x", None);
        check("other", None);
        check("", None);
    }

    #[test]
    fn distances() {
        for (from, to, expected) in [
            ("", "", 0),
            ("a", "", 1),
            ("ab", "ba", 1),
            ("abc", "abd", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(
                (distance(from, to), distance(to, from)),
                (expected, expected),
                "{from} {to}"
            );
        }
    }
}

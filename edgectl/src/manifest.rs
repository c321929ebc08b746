//! Files of objects: YAML or JSON, several documents in one, lists taken apart.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::failure::Failure;

/// An object, and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Manifest {
    pub file: String,
    pub object: Value,
    pub api_version: String,
    pub kind: String,
    /// Its name, or what the name begins with that the server makes.
    pub name: String,
    /// Whether the server makes the name.
    generated: bool,
    pub namespace: Option<String>,
}

impl Manifest {
    fn of(file: &str, object: Value) -> Result<Self, Failure> {
        let wrong = |detail: String| Failure::Manifest { file: file.to_owned(), detail };
        let text = |path: &str| {
            let text = object
                .pointer(path)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty());
            text.map(str::to_owned)
        };
        let said = |path: &str| {
            let field = path.trim_start_matches('/').replace('/', ".");
            text(path).ok_or_else(|| {
                wrong(format!(
                    "an object has no {field}: every object has apiVersion, kind and metadata.name"
                ))
            })
        };
        // `n` and `on` are booleans in YAML, which is never what a namespace of that name means.
        let namespace = &object["metadata"]["namespace"];
        if !namespace.is_string() && !namespace.is_null() {
            return Err(wrong(format!("metadata.namespace is {namespace}: put it in quotes")));
        }
        let (api_version, kind) = (said("/apiVersion")?, said("/kind")?);
        let generated = text("/metadata/name").is_none() && text("/metadata/generateName").is_some();
        let name = if generated {
            said("/metadata/generateName")?
        } else {
            said("/metadata/name")?
        };
        let manifest = Self {
            file: file.to_owned(),
            api_version,
            kind,
            name: crate::resources::checked(&name).map_err(|error| wrong(format!("metadata.name: {error}")))?,
            generated,
            namespace: text("/metadata/namespace"),
            object,
        };
        if let Some(namespace) = &manifest.namespace {
            crate::resources::checked(namespace).map_err(|error| wrong(error.to_string()))?;
        }
        Ok(manifest)
    }

    /// Fails where the name is yet to be made.
    pub(crate) fn named(&self) -> Result<(), Failure> {
        if self.generated {
            let detail =
                "metadata.generateName names no object: give it metadata.name, or make it with `edgectl create`";
            return Err(Failure::Manifest { file: self.file.clone(), detail: detail.to_owned() });
        }
        Ok(())
    }
}

/// Every object of every file, in their order; folders by the names of their files.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<Manifest>, Failure> {
    let mut all = Vec::new();
    for path in paths {
        let file = path.display().to_string();
        let failed = |source: io::Error| Failure::Read { file: file.clone(), source };
        if path.as_os_str() == "-" {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map_err(failed)?;
            all.extend(objects("standard input", &text)?);
        } else if path.is_dir() {
            let entries = fs::read_dir(path).map_err(failed)?;
            let mut files = entries
                .map(|entry| Ok(entry?.path()))
                .collect::<io::Result<Vec<_>>>()
                .map_err(failed)?;
            files.retain(|file| is_manifest(file));
            files.sort();
            for path in files {
                let file = path.display().to_string();
                let text = fs::read_to_string(&path).map_err(|source| Failure::Read { file: file.clone(), source })?;
                all.extend(objects(&file, &text)?);
            }
        } else {
            all.extend(objects(&file, &fs::read_to_string(path).map_err(failed)?)?);
        }
    }
    if all.is_empty() {
        return Err(Failure::Usage("there is no object in what -f names".to_owned()));
    }
    Ok(all)
}

fn is_manifest(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("yaml" | "yml" | "json"))
}

fn objects(file: &str, text: &str) -> Result<Vec<Manifest>, Failure> {
    let mut all = Vec::new();
    for document in parse(file, text)? {
        let is_list = document["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
        match document {
            Value::Null => {}
            Value::Object(mut list) if is_list && list.get("items").is_some_and(Value::is_array) => {
                if let Some(Value::Array(items)) = list.remove("items") {
                    all.extend(items);
                }
            }
            object => all.push(object),
        }
    }
    // Where there are several, which one is meant has to be said.
    let several = all.len() > 1;
    let place = |at: usize| {
        if several {
            format!("{file}, object {}", at + 1)
        } else {
            file.to_owned()
        }
    };
    let all = all.into_iter().enumerate();
    all.map(|(at, object)| Manifest::of(&place(at), object)).collect()
}

/// The documents of a text. Scalars are read as `kubectl` reads them: `yes` is true, `0644` is octal.
pub(crate) fn parse(file: &str, text: &str) -> Result<Vec<Value>, Failure> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| Failure::Manifest { file: file.to_owned(), detail: error.to_string() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn scalars_are_read_as_kubectl_reads_them() {
        let text = "a: yes\nb: 0644\nc: \"yes\"\nd: 1.5\ne: 18446744073709551615\nf: ~\ng: 2024-01-01\nh: off\n";
        let expected = json!({
            "a": true, "b": 420, "c": "yes", "d": 1.5, "e": u64::MAX, "f": null, "g": "2024-01-01", "h": false,
        });
        assert_eq!(parse("x", text).unwrap(), [expected]);
        assert!(parse("x", "a: 1\na: 2\n").is_err(), "a key twice");
    }

    #[test]
    fn documents_and_lists_are_taken_apart() {
        let text = "---\n# nothing here\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n\
                    {apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: demo}}]}\n";
        let all = objects("x", text).unwrap();
        let names: Vec<_> = all
            .iter()
            .map(|one| (one.name.as_str(), one.namespace.as_deref()))
            .collect();
        assert_eq!(names, [("a", None), ("b", Some("demo"))]);
        let json = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"}}"#;
        assert_eq!(objects("x", json).unwrap()[0].name, "c");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("kind: Pod", "no apiVersion"),
            ("{apiVersion: v1, kind: Pod, metadata: {}}", "no metadata.name"),
            ("{apiVersion: v1, kind: Pod, metadata: {name: a/b}}", "not a name"),
            (
                "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: n}}",
                "metadata.namespace is false: put it in quotes",
            ),
            ("- 1", "no apiVersion"),
            ("a: 1\nb: [", "x: "),
            ("a: 1\nb: [", "line 2"),
            ("a: 1\na: 2", "line 2"),
            (
                "{apiVersion: v1, kind: Pod, metadata: {name: a}}\n---\nkind: Pod",
                "x, object 2: an object has no apiVersion",
            ),
        ] {
            let error = objects("x", text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

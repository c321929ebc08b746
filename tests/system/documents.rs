//! What the documents say of the programs is so.

use std::collections::BTreeMap;

use daemon::config::{Configuration, keys};
use serde_json::Value;

/// The keys of a configuration with their values, those of sections after their section's name.
fn flat(prefix: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
    match value.as_object() {
        Some(table) => {
            for (key, value) in table {
                let path = if prefix.is_empty() {
                    key.clone()
                } else {
                    format!("{prefix}.{key}")
                };
                flat(&path, value, into);
            }
        }
        None => drop(into.insert(prefix.to_owned(), value.clone())),
    }
}

/// The rows of the table below a heading: key and default, as they stand there.
fn rows(page: &str, heading: &str) -> BTreeMap<String, String> {
    let below = page
        .split_once(&format!("\n## {heading}\n"))
        .expect("the heading is there")
        .1;
    let section = below.split("\n## ").next().expect("what follows");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.map(|row| row.splitn(3, " | ").map(str::to_owned).collect::<Vec<_>>());
    cells
        .map(|cells| {
            (
                cells[0].trim_end_matches('`').to_owned(),
                cells[1].trim_matches('`').to_owned(),
            )
        })
        .collect()
}

fn is_told<C: Configuration>(heading: &str) {
    let page = include_str!("../../docs/operations/configuration.md");
    let told = rows(page, heading);
    let (mut all, mut defaults) = (BTreeMap::new(), BTreeMap::new());
    flat("", &serde_json::to_value(keys::<C>()).unwrap(), &mut all);
    flat("", &serde_json::to_value(C::default()).unwrap(), &mut defaults);
    let names = |keys: Vec<&String>| keys.into_iter().cloned().collect::<Vec<_>>();
    assert_eq!(
        names(told.keys().collect()),
        names(all.keys().collect()),
        "{heading}: the page and the program"
    );
    for (key, said) in told {
        let default = defaults.get(&key).filter(|default| !default.is_null());
        let said = (said != "-").then(|| serde_json::from_str::<Value>(&said).expect("a default is a value"));
        assert_eq!(said.as_ref(), default, "{heading}: {key}");
    }
}

#[test]
fn every_key_of_a_configuration_has_its_row_and_no_other() {
    is_told::<edgecore::config::Config>("edgecore.toml");
    is_told::<cloudcore::config::Config>("cloudcore.toml");
}

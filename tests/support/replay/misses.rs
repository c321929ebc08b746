//! What is known to differ, each with its reason.

use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

/// `misses.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listed {
    /// Records of what is not built.
    #[serde(default)]
    out_of_scope: Vec<Miss>,
    /// Records of what is built and answers otherwise.
    #[serde(default)]
    miss: Vec<Miss>,
    /// Parts of answers that differ by intent.
    #[serde(default)]
    differs: Vec<Differs>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Miss {
    id: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Differs {
    /// Ids, or their beginning before a `*`.
    records: Vec<String>,
    /// Field paths, with `*` for the elements of a list.
    paths: Vec<String>,
    reason: String,
}

/// A part of an answer that is not compared.
#[derive(Debug, Clone)]
pub(super) struct Ignored {
    pub(super) path: String,
    pub(super) reason: String,
}

impl Listed {
    /// Reads `misses.toml`; a folder may have none.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = std::fs::read_to_string(path).context("reading misses.toml")?;
        toml::from_str(&text).context("reading misses.toml")
    }

    pub(super) fn reason(&self, id: &str) -> Option<&str> {
        let mut all = self.out_of_scope.iter().chain(&self.miss);
        all.find(|miss| miss.id == id).map(|miss| miss.reason.as_str())
    }

    pub(super) fn is_out_of_scope(&self, id: &str) -> bool {
        self.out_of_scope.iter().any(|miss| miss.id == id)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.out_of_scope.iter().chain(&self.miss).map(|miss| miss.id.as_str())
    }

    pub(super) fn ignored(&self, id: &str) -> Vec<Ignored> {
        let fits = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => id.starts_with(start),
            None => pattern == id,
        };
        let differing = self.differs.iter().filter(|differs| differs.records.iter().any(fits));
        differing
            .flat_map(|differs| {
                differs
                    .paths
                    .iter()
                    .map(|path| Ignored { path: path.clone(), reason: differs.reason.clone() })
            })
            .collect()
    }
}

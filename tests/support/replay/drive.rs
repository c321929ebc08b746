//! The writes that recordings need and do not show.

use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

/// One write, below the path of the config maps.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    pub(super) method: String,
    #[serde(default)]
    pub(super) path: String,
    #[serde(default)]
    pub(super) body: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Steps {
    id: String,
    steps: Vec<Step>,
}

/// All of them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Drive {
    #[serde(default)]
    before: Vec<Steps>,
    #[serde(default)]
    during: Vec<Steps>,
}

impl Drive {
    /// Reads `drive.toml`; a folder may have none.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = std::fs::read_to_string(path).context("reading drive.toml")?;
        toml::from_str(&text).context("reading drive.toml")
    }

    pub(super) fn before(&self, id: &str) -> impl Iterator<Item = &Step> {
        of(&self.before, id)
    }

    pub(super) fn during(&self, id: &str) -> impl Iterator<Item = &Step> {
        of(&self.during, id)
    }
}

fn of<'a>(all: &'a [Steps], id: &str) -> impl Iterator<Item = &'a Step> {
    let found = all.iter().find(|steps| steps.id == id);
    found.into_iter().flat_map(|steps| &steps.steps)
}

//! Which runtime a node has, where its configuration leaves that open: containerd where it answers, else our own.
//!
//! A choice is remembered, and stands for as long as what was chosen may hold pods: containerd that is installed later
//! orphans nothing, and one that is slower at boot than the edge core is waited for.

use std::io;
use std::path::Path;

use daemon::files::{self, FileError};

use super::chosen::Chosen;
use super::containerd::Containerd;
use super::embedded::Embedded;
use super::fake::Fake;
use super::{Runtime as _, RuntimeError};
use crate::config::{Config, RuntimeName};
use crate::images::Clock;
use crate::run::{containerd_config, embedded_config};

/// In the data folder: the choice, as the configuration has it.
const FILE: &str = "runtime";

/// Why there is no runtime.
#[derive(Debug, thiserror::Error)]
pub enum ChoiceError {
    #[error("setting up the container runtime")]
    Runtime(#[from] RuntimeError),
    #[error("reading which runtime this node has")]
    Read(#[source] io::Error),
    #[error("writing down which runtime this node has")]
    Write(#[from] FileError),
    #[error("{file} says {found:?}, which is neither containerd nor embedded: remove it, or set `runtime`")]
    Unknown { file: String, found: String },
}

/// A runtime that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Containerd,
    Embedded,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::Embedded => "embedded",
        }
    }
}

/// What the choice depends on.
#[derive(Debug, Clone, Copy)]
struct Facts {
    remembered: Option<Kind>,
    containerd_answers: bool,
    embedded_holds_pods: bool,
}

/// Pure.
fn choose(facts: Facts) -> Kind {
    match facts.remembered {
        // One that does not answer may hold pods.
        Some(Kind::Containerd) => Kind::Containerd,
        Some(Kind::Embedded) | None if facts.embedded_holds_pods => Kind::Embedded,
        Some(Kind::Embedded) | None if facts.containerd_answers => Kind::Containerd,
        Some(Kind::Embedded) | None => Kind::Embedded,
    }
}

/// Which one it is, by the configuration or by what is found; nothing is remembered.
pub async fn kind(config: &Config) -> Result<Kind, ChoiceError> {
    match config.runtime {
        RuntimeName::Containerd => Ok(Kind::Containerd),
        RuntimeName::Embedded => Ok(Kind::Embedded),
        RuntimeName::Auto | RuntimeName::Fake => Ok(choose(facts(config).await?)),
    }
}

/// The runtime, whose choice is remembered.
pub async fn runtime(config: &Config, clock: Clock) -> Result<Chosen, ChoiceError> {
    if config.runtime == RuntimeName::Fake {
        return Ok(Chosen::Fake(Box::new(Fake::new())));
    }
    let (kind, remembered) = (kind(config).await?, remembered(&config.data)?);
    if remembered != Some(kind) {
        if let Some(old) = remembered {
            tracing::warn!(
                was = old.name(),
                is = kind.name(),
                "another container runtime; what the old one holds is left alone"
            );
        }
        files::replace(&config.data.join(FILE), format!("{}\n", kind.name()).as_bytes(), 0o600)?;
    }
    Ok(match kind {
        Kind::Containerd => Chosen::Containerd(Box::new(Containerd::new(containerd_config(config), clock)?)),
        Kind::Embedded => Chosen::Embedded(Box::new(Embedded::new(embedded_config(config), clock)?)),
    })
}

async fn facts(config: &Config) -> Result<Facts, ChoiceError> {
    let remembered = remembered(&config.data)?;
    let embedded_holds_pods = Embedded::holds_pods(&embedded_config(config));
    // Not asked for nothing: one that hangs takes its time.
    let decides = remembered != Some(Kind::Containerd) && !embedded_holds_pods && config.containerd.socket.exists();
    let containerd_answers = decides && {
        let containerd = Containerd::new(containerd_config(config), std::sync::Arc::new(daemon::clock::wall))?;
        containerd.version().await.is_ok()
    };
    Ok(Facts { remembered, containerd_answers, embedded_holds_pods })
}

fn remembered(data: &Path) -> Result<Option<Kind>, ChoiceError> {
    let file = data.join(FILE);
    let text = match std::fs::read_to_string(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(ChoiceError::Read)?,
    };
    match text.trim() {
        "containerd" => Ok(Some(Kind::Containerd)),
        "embedded" => Ok(Some(Kind::Embedded)),
        other => Err(ChoiceError::Unknown { file: file.display().to_string(), found: other.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_stands_while_it_may_hold_pods() {
        use Kind::{Containerd, Embedded};
        // Remembered, containerd answers, the embedded one holds pods.
        let cases = [
            (None, true, false, Containerd),
            (None, false, false, Embedded),
            (Some(Containerd), false, false, Containerd),
            (Some(Containerd), true, false, Containerd),
            (Some(Embedded), false, true, Embedded),
            (Some(Embedded), true, true, Embedded),
            (Some(Embedded), false, false, Embedded),
            (Some(Embedded), true, false, Containerd),
            // The file was lost: what is there is not orphaned.
            (None, true, true, Embedded),
        ];
        for (remembered, containerd_answers, embedded_holds_pods, expected) in cases {
            let facts = Facts { remembered, containerd_answers, embedded_holds_pods };
            assert_eq!(choose(facts), expected, "{facts:?}");
        }
    }

    #[tokio::test]
    async fn a_choice_is_remembered_and_what_is_written_is_understood() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config { data: folder.path().to_owned(), ..Config::default() };
        config.run = folder.path().join("run");
        config.containerd.socket = folder.path().join("none.sock");
        let clock: Clock = std::sync::Arc::new(daemon::clock::wall);
        let chosen = runtime(&config, clock.clone()).await.unwrap();
        assert!(matches!(chosen, Chosen::Embedded(_)));
        assert_eq!(remembered(folder.path()).unwrap(), Some(Kind::Embedded));
        config.runtime = RuntimeName::Containerd;
        runtime(&config, clock.clone()).await.unwrap();
        // It does not answer, and may hold pods.
        config.runtime = RuntimeName::Auto;
        assert_eq!(kind(&config).await.unwrap(), Kind::Containerd);
        std::fs::write(folder.path().join(FILE), "docker").unwrap();
        let said = kind(&config).await.unwrap_err().to_string();
        assert!(said.contains("\"docker\"") && said.contains("remove it"), "{said}");
    }
}

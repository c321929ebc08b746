//! Configuration files of the daemons: one TOML each, every key with a default.
//!
//! A file that cannot be used is refused with the line and what is wrong with it. A key that means nothing is only told
//! of, so that an older program starts on the file of a newer one.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// What an operator may set.
pub trait Configuration: Default + Serialize + DeserializeOwned {
    /// The file that is read where no other is named.
    const FILE: &'static str;

    /// The file of whoever runs this, who may not be root.
    fn file() -> PathBuf {
        Self::FILE.into()
    }

    /// What takes the place of defaults for whoever runs this: top-level keys.
    fn own_defaults() -> toml::Table {
        toml::Table::new()
    }

    /// The defaults, with something for every key that has none: what keys there are.
    fn every_key() -> Self;

    /// The data folder, which the command line may replace.
    fn data(&mut self) -> &mut PathBuf;

    /// The folders a daemon keeps things in, with their keys: they mean the same in whatever folder a process is.
    fn folders(&mut self) -> Vec<(&'static str, &mut PathBuf)> {
        vec![("data", self.data())]
    }

    /// What the types do not say about the values. The text names the key, the value and what may stand there.
    fn check(&self) -> Result<(), String>;
}

/// A configuration, and the keys of its file that mean nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded<C> {
    pub config: C,
    pub unknown: Vec<String>,
}

impl<C> Loaded<C> {
    /// Tells the log of the keys that mean nothing.
    pub fn warn(&self) {
        for key in &self.unknown {
            tracing::warn!(key, "the configuration has a key that means nothing here");
        }
    }
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("reading {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{}, {detail}", path.display())]
    Value { path: PathBuf, detail: String },
    #[error("{key}: {:?} is no folder; name one, best from / on", value.display().to_string())]
    Folder {
        key: &'static str,
        value: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// Reads a file, if there is one; what it says nothing of is as [`Configuration::own_defaults`] has it.
pub fn load<C: Configuration>(path: Option<&Path>) -> Result<Loaded<C>, ConfigError> {
    let named = path.unwrap_or_else(|| Path::new(C::FILE));
    let read = |source| ConfigError::Read { path: named.to_owned(), source };
    let text = path.map(std::fs::read_to_string).transpose().map_err(read)?;
    let parsed = parse_over(&text.unwrap_or_default(), C::own_defaults());
    parsed.map_err(|detail| ConfigError::Value { path: named.to_owned(), detail })
}

/// Reads the text of a file; what is wrong with it is a sentence.
pub fn parse<C: Configuration>(text: &str) -> Result<Loaded<C>, String> {
    parse_over(text, toml::Table::new())
}

/// The same over other defaults: top-level keys.
pub fn parse_over<C: Configuration>(text: &str, defaults: toml::Table) -> Result<Loaded<C>, String> {
    let wrong = |error: toml::de::Error| located(text, &error);
    let table: toml::Table = toml::from_str(text).map_err(wrong)?;
    // From the text, so that what is wrong has its line.
    let mut config: C = toml::from_str(text).map_err(wrong)?;
    if !defaults.is_empty() {
        let mut whole = defaults;
        whole.extend(table.clone());
        config = whole
            .try_into()
            .map_err(|error: toml::de::Error| error.message().to_owned())?;
    }
    config.check()?;
    let mut unknown = Vec::new();
    unknown_keys(&table, &keys::<C>(), "", &mut unknown);
    Ok(Loaded { config, unknown })
}

/// Every key there is, with something.
pub fn keys<C: Configuration>() -> toml::Table {
    // Configurations are structs of what TOML can hold.
    toml::Table::try_from(C::every_key()).unwrap_or_default()
}

fn located(text: &str, error: &toml::de::Error) -> String {
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        return error.message().to_owned();
    };
    let at = before.matches('\n').count();
    let line = text.lines().nth(at).unwrap_or_default().trim();
    format!("line {} ({line}): {}", at + 1, error.message())
}

fn unknown_keys(table: &toml::Table, known: &toml::Table, prefix: &str, unknown: &mut Vec<String>) {
    for (key, value) in table {
        match (value, known.get(key)) {
            (_, None) => unknown.push(format!("{prefix}{key}")),
            (toml::Value::Table(inner), Some(toml::Value::Table(known))) => {
                unknown_keys(inner, known, &format!("{prefix}{key}."), unknown);
            }
            (_, Some(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    struct Example {
        data: PathBuf,
        optional: Option<String>,
        inner: Inner,
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    struct Inner {
        small: u8,
    }

    impl Configuration for Example {
        const FILE: &'static str = "/etc/edgehold/example.toml";

        fn every_key() -> Self {
            Self { optional: Some(String::new()), ..Self::default() }
        }

        fn data(&mut self) -> &mut PathBuf {
            &mut self.data
        }

        fn check(&self) -> Result<(), String> {
            match self.inner.small {
                0..=9 => Ok(()),
                more => Err(format!("inner.small: {more} is more than 9")),
            }
        }
    }

    #[test]
    fn every_key_has_a_default() {
        assert_eq!(parse::<Example>("").unwrap(), Loaded::default());
        let loaded: Loaded<Example> = parse("optional = \"a\"\n[inner]\nsmall = 9").unwrap();
        assert_eq!((loaded.config.inner.small, loaded.unknown), (9, vec![]));
    }

    #[test]
    fn a_file_has_the_last_word_over_whoevers_defaults() {
        let own = || toml::from_str("data = \"/home/u\"").unwrap();
        let data = |text: &str| parse_over::<Example>(text, own()).unwrap().config.data;
        assert_eq!(data("optional = \"a\""), Path::new("/home/u"));
        assert_eq!(data("data = \"/d\""), Path::new("/d"));
        assert_eq!(parse::<Example>("").unwrap().config.data, Path::new(""));
        let loaded: Loaded<Example> = parse_over("dat = 1", own()).unwrap();
        assert_eq!(loaded.unknown, ["dat"]);
    }

    #[test]
    fn keys_that_mean_nothing_are_told_of_wherever_they_stand() {
        let loaded: Loaded<Example> = parse("dat = 1\n[inner]\nsmal = 1\n[other]\na = 1").unwrap();
        assert_eq!(loaded.unknown, ["dat", "inner.smal", "other"]);
    }

    #[test]
    fn what_is_wrong_has_its_line() {
        let check = |text: &str, parts: &[&str]| {
            let said = parse::<Example>(text).unwrap_err();
            for part in parts {
                assert!(said.contains(part), "{part:?} is not in {said:?}");
            }
        };
        check("# here\ndata = 1", &["line 2 (data = 1): ", "invalid type", "string"]);
        check("data = ", &["line 1 (data =): "]);
        check("data = \"a\"\ndata = \"b\"", &["line 2 (data = \"b\"): duplicate key"]);
        check("[inner]\nsmall = 300", &["line 2 (small = 300): ", "300"]);
        check("[inner]\nsmall = 10", &["inner.small: 10 is more than 9"]);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = load::<Example>(Some(Path::new("nowhere.toml"))).unwrap_err();
        assert_eq!(error.to_string(), "reading nowhere.toml");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.toml");
        std::fs::write(&file, "inner = 1").unwrap();
        let said = load::<Example>(Some(&file)).unwrap_err().to_string();
        assert!(said.contains("a.toml, line 1 (inner = 1): "), "{said}");
    }
}

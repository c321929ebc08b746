//! What objects are called and how they are chosen: kinds, keys, identities, revisions; selectors and quantities.

pub mod quantity;
pub mod references;
pub mod selector;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::value::Value;

/// A group and kind, written `Kind` for the core group and `Kind.group` for every other (`Deployment.apps`).
///
/// Versions are spellings of one object, so they are no part of this.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Kind(String);

impl Kind {
    pub fn new(group: &str, kind: &str) -> Self {
        Self(if group.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind}.{group}")
        })
    }

    /// The kind of an object from its `apiVersion` and `kind`.
    pub fn of(object: &Value) -> Option<Self> {
        let version = object.text_at(&["apiVersion"])?;
        let group = version.split_once('/').map_or("", |(group, _)| group);
        Some(Self::new(group, object.text_at(&["kind"])?))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The kind without its group.
    pub fn kind(&self) -> &str {
        self.0.split_once('.').map_or(self.0.as_str(), |(kind, _)| kind)
    }

    /// The group, empty for the core group.
    pub fn group(&self) -> &str {
        self.0.split_once('.').map_or("", |(_, group)| group)
    }
}

impl From<&str> for Kind {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where an object lives. What lives there can be deleted and made again; which one it is, the [`Uid`] says.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    pub kind: Kind,
    /// Empty for what is not namespaced.
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(kind: impl Into<Kind>, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The key of an object from its `apiVersion`, `kind` and metadata.
    pub fn of(object: &Value) -> Option<Self> {
        Some(Self {
            kind: Kind::of(object)?,
            namespace: object
                .text_at(&["metadata", "namespace"])
                .unwrap_or_default()
                .to_owned(),
            name: object.text_at(&["metadata", "name"])?.to_owned(),
        })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{}/{}", self.kind, self.name),
            namespace => write!(f, "{}/{namespace}/{}", self.kind, self.name),
        }
    }
}

/// Which object: 128 bits, never given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Uid(pub [u8; 16]);

impl Uid {
    /// A version 4 UUID from sixteen random bytes.
    pub fn random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Self(bytes)
    }

    /// The identity of an object from its metadata.
    pub fn of(object: &Value) -> Option<Self> {
        object.text_at(&["metadata", "uid"])?.parse().ok()
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uid({self})")
    }
}

/// Text that is no UUID in its usual form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a UUID of the form xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx in lower case")]
pub struct UidError;

impl FromStr for Uid {
    type Err = UidError;

    fn from_str(text: &str) -> Result<Self, UidError> {
        let mut bytes = [0; 16];
        let mut digits = text.bytes().filter(|byte| *byte != b'-');
        for byte in &mut bytes {
            let (high, low) = (digits.next().ok_or(UidError)?, digits.next().ok_or(UidError)?);
            *byte = nibble(high)? << 4 | nibble(low)?;
        }
        // One spelling only: what is written back must be what was read.
        let uid = Self(bytes);
        if uid.to_string() == text {
            Ok(uid)
        } else {
            Err(UidError)
        }
    }
}

fn nibble(digit: u8) -> Result<u8, UidError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(UidError),
    }
}

/// A place in the order of all writes of one store. Only comparable within one [`Epoch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One life of a store: random, new when the store is created and when it is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_keys() {
        let object = Value::from([
            ("apiVersion", Value::from("apps/v1")),
            ("kind", "Deployment".into()),
            ("metadata", [("name", "web"), ("namespace", "shop")].into()),
        ]);
        let key = Key::of(&object).unwrap();
        assert_eq!(key, Key::new("Deployment.apps", "shop", "web"));
        assert_eq!((key.kind.kind(), key.kind.group()), ("Deployment", "apps"));
        assert_eq!(key.to_string(), "Deployment.apps/shop/web");
        assert_eq!(Key::new("Node", "", "a").to_string(), "Node/a");
        assert_eq!(Kind::new("", "Pod").group(), "");
    }

    #[test]
    fn a_uid_has_one_spelling() {
        let uid = Uid::random([0xff; 16]);
        assert_eq!(uid.to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uid.to_string().parse(), Ok(uid));
        for text in [
            "",
            "ffffffff-ffff-4fff-bfff-fffffffffff",
            "FFFFFFFF-ffff-4fff-bfff-ffffffffffff",
        ] {
            assert_eq!(text.parse::<Uid>(), Err(UidError), "{text}");
        }
        assert_eq!("ffffffffffff4fffbfffffffffffffff".parse::<Uid>(), Err(UidError));
        assert_eq!(format!("{uid}0").parse::<Uid>(), Err(UidError));
    }
}

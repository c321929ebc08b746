//! What the objects hold that a pod refers to.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto::object::Key;
use proto::value::Value;

/// The objects that a pod refers to and that are here.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Objects(BTreeMap<Key, Value>);

impl Objects {
    pub fn insert(&mut self, key: Key, value: Value) {
        self.0.insert(key, value);
    }

    /// The entries of a config map or secret as bytes; `None` when it is not here.
    pub fn entries(&self, key: &Key) -> Option<BTreeMap<String, Vec<u8>>> {
        let object = self.0.get(key)?;
        let secret = key.kind.kind() == "Secret";
        let mut entries = BTreeMap::new();
        let fields = [("data", secret), ("binaryData", true), ("stringData", false)];
        for (field, encoded) in fields {
            for (name, value) in object.get(field).and_then(Value::as_map).into_iter().flatten() {
                let bytes = match value {
                    Value::Text(text) if encoded => STANDARD.decode(text.as_str()).unwrap_or_default(),
                    Value::Text(text) => text.as_bytes().to_vec(),
                    Value::Bytes(bytes) => bytes.to_vec(),
                    _ => continue,
                };
                entries.insert(name.to_owned(), bytes);
            }
        }
        Some(entries)
    }

    /// The entries that may become variables, as text.
    pub fn texts(&self, key: &Key) -> Option<Vec<(String, String)>> {
        let entries = self.entries(key)?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Some(entries.into_iter().map(|(name, bytes)| (name, text(bytes))).collect())
    }
}

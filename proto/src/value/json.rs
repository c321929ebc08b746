//! JSON in and out, as Kubernetes' own decoder reads it: integers stay integers, the last of two equal keys wins (and
//! is reported), nesting is bounded.

use std::fmt::{self, Write as _};

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Error as _, Serialize, Serializer};

use super::{Map, Text, Value};

/// A document that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("reading JSON")]
pub struct JsonError(#[source] serde_json::Error);

impl JsonError {
    /// What the reader says, with line and column.
    pub fn detail(&self) -> String {
        self.0.to_string()
    }
}

/// Reads one document; anything after it but white space is an error, and so is nesting deeper than 127.
pub fn parse(text: &[u8]) -> Result<Value, JsonError> {
    parse_noting(text, &mut Vec::new())
}

/// Reads one document and notes the path (`spec.containers[0].name`) of every key that stands twice in one map.
pub fn parse_noting(text: &[u8], twice: &mut Vec<String>) -> Result<Value, JsonError> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let mut path = String::new();
    let value = Seed { path: &mut path, twice }
        .deserialize(&mut reader)
        .map_err(JsonError)?;
    reader.end().map_err(JsonError)?;
    Ok(value)
}

/// Writes a document without white space.
pub fn write(value: &Value) -> String {
    serde_json::to_string(value).expect("a tree without non-text keys is always writable as JSON")
}

/// Reads any self-describing document (JSON, YAML) into a tree.
struct Seed<'a> {
    /// Where the reader is, as people write it.
    path: &'a mut String,
    twice: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Value, E> {
        Value::float(number).ok_or_else(|| E::custom("a number that is not finite"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        let length = self.path.len();
        loop {
            let _ = write!(self.path, "[{}]", list.len());
            let element = seq.next_element_seed(Seed { path: self.path, twice: self.twice })?;
            self.path.truncate(length);
            match element {
                Some(element) => list.push(element),
                None => {
                    list.shrink_to_fit();
                    return Ok(Value::List(list));
                }
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        let length = self.path.len();
        while let Some(field) = entries.next_key::<Text>()? {
            if length > 0 {
                self.path.push('.');
            }
            self.path.push_str(&field);
            let value = entries.next_value_seed(Seed { path: self.path, twice: self.twice })?;
            if map.insert(field, value).is_some() {
                self.twice.push(self.path.clone());
            }
            self.path.truncate(length);
        }
        Ok(Value::Map(map))
    }
}

impl<'de> de::Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        Seed { path: &mut String::new(), twice: &mut Vec::new() }.deserialize(reader)
    }
}

/// As JSON: bytes are refused, since no JSON form of them would be read back as bytes.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, writer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => writer.serialize_unit(),
            Self::Bool(flag) => writer.serialize_bool(*flag),
            Self::I64(number) => writer.serialize_i64(*number),
            Self::U64(number) => writer.serialize_u64(*number),
            Self::F64(number) => writer.serialize_f64(*number),
            Self::Text(text) => writer.serialize_str(text),
            Self::Bytes(_) => Err(S::Error::custom("bytes have no JSON form")),
            Self::List(list) => writer.collect_seq(list),
            Self::Map(map) => writer.collect_map(map),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_kubernetes_reads_them() {
        let check = |text: &str, value: Value| assert_eq!(parse(text.as_bytes()).unwrap(), value, "{text}");
        check("1", Value::I64(1));
        check("9007199254740993", Value::I64(9_007_199_254_740_993));
        check("-9223372036854775808", Value::I64(i64::MIN));
        check("18446744073709551615", Value::U64(u64::MAX));
        check("1.0", Value::I64(1));
        check("1e3", Value::I64(1000));
        check("0.25", Value::F64(0.25));
    }

    #[test]
    fn equal_keys_are_named_and_the_last_wins() {
        let mut twice = Vec::new();
        let text = br#"{"a":[{"b":1},{"b":1,"b":2}],"a2":{"c":{"d":0,"d":1}},"e":1,"e":2}"#;
        let value = parse_noting(text, &mut twice).unwrap();
        assert_eq!(twice, ["a[1].b", "a2.c.d", "e"]);
        assert_eq!(value.int_at(&["e"]), Some(2));
        assert_eq!(value.int_at(&["a", "1", "b"]), Some(2));
    }

    #[test]
    fn bad_documents_are_errors() {
        for text in ["", "{", "1 2", "{\"a\":1,}", "nul", "1e999", "{1:2}", "\"\u{1}\""] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse(b"\"\xff\"").is_err());
        let deep = |depth: usize| [b"[".repeat(depth), b"]".repeat(depth)].concat();
        assert!(parse(&deep(127)).is_ok());
        assert!(parse(&deep(128)).is_err());
    }

    #[test]
    fn writes_what_it_read() {
        let text = r#"{"a":[null,true,-1,18446744073709551615,0.5,"\"\n"],"b":{}}"#;
        assert_eq!(write(&parse(text.as_bytes()).unwrap()), text);
    }
}

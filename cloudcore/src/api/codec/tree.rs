//! A value tree read as a document, so that trees (from YAML, from a patch) and JSON text go through one reader.

use proto::value::Value;
use serde::de::value::{Error, MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

/// Reads a tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tree<'t>(pub(super) &'t Value);

impl<'de> Deserializer<'de> for Tree<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(*flag),
            Value::I64(number) => visitor.visit_i64(*number),
            Value::U64(number) => visitor.visit_u64(*number),
            Value::F64(number) => visitor.visit_f64(*number),
            Value::Text(text) => visitor.visit_str(text),
            Value::Bytes(bytes) => visitor.visit_borrowed_bytes(bytes),
            Value::List(list) => visitor.visit_seq(SeqDeserializer::new(list.iter().map(Tree))),
            Value::Map(map) => visitor.visit_map(MapDeserializer::new(
                map.iter().map(|(name, value)| (name, Tree(value))),
            )),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de> for Tree<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

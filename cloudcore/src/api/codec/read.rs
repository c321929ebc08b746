//! The schema-driven reader of JSON documents and of trees.
//!
//! It reads in the order of the document and tells three things apart, as Kubernetes' own decoder does: what is unknown
//! or stands twice (noted, then dropped; the last one wins), what is of the wrong type (the first is remembered and the
//! document is refused), and what cannot be read at all (an error of the document's own reader). What it returns is in
//! the form the API shows: no unknown fields, no nulls, no zero where a field is left out when zero, and the fields
//! that are always written.

use std::fmt;

use proto::value::{Map, Value};
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::scalar::{self, TimeForm};
use crate::api::quote::Quoted;
use crate::api::schema::{Element, Field, Presence, Scalar, Shape, Type};

/// Most notes on one document; what comes after them goes unsaid.
pub(super) const NOTES_MAX: usize = 100;

/// What was seen while one document was read.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Unknown and doubled fields, in the document's order.
    pub(super) strict: Vec<String>,
    /// The first value of the wrong type, in Go's words.
    pub(super) wrong: Option<String>,
}

impl Notes {
    pub(super) fn strict(&mut self, note: String) {
        if self.strict.len() < NOTES_MAX && !self.strict.contains(&note) {
            self.strict.push(note);
        }
    }
}

/// Where the reader is.
#[derive(Debug)]
struct Place {
    /// As people write it: `spec.containers[0].image`.
    path: String,
    /// As Go's decoder counts: field names only.
    fields: Vec<&'static str>,
    /// The Go type around the field.
    around: &'static str,
    notes: Notes,
}

impl Place {
    fn wrong(&mut self, words: impl FnOnce() -> String) {
        if self.notes.wrong.is_none() {
            self.notes.wrong = Some(words());
        }
    }

    /// Notes that a value has another type than its place.
    fn mismatch(&mut self, found: &str, expected: What) {
        if self.notes.wrong.is_some() {
            return;
        }
        let into = match self.fields.as_slice() {
            [] => "Go value".to_owned(),
            fields => format!("Go struct field {}.{}", self.around, fields.join(".")),
        };
        self.notes.wrong = Some(match expected {
            // These read themselves, so Go's decoder does not know the place.
            What::One(Element::Scalar(Scalar::Time | Scalar::MicroTime)) => {
                format!("json: cannot unmarshal {found} into Go value of type string")
            }
            What::One(Element::Scalar(Scalar::IntOrText)) => {
                format!("json: cannot unmarshal {found} into Go value of type int32")
            }
            What::One(Element::Scalar(Scalar::Quantity)) => scalar::QUANTITY_WORDS.to_owned(),
            expected => format!(
                "json: cannot unmarshal {found} into {into} of type {}",
                expected.go_name()
            ),
        });
    }
}

/// What stands at a place.
#[derive(Debug, Clone, Copy)]
enum What {
    One(Element),
    List(Element),
    Map(Element),
}

impl What {
    fn go_name(self) -> String {
        match self {
            Self::One(element) => element_name(element).to_owned(),
            Self::List(element) => format!("[]{}", element_name(element)),
            Self::Map(Element::Scalar(Scalar::Quantity)) => "v1.ResourceList".to_owned(),
            Self::Map(element) => format!("map[string]{}", element_name(element)),
        }
    }
}

impl From<Shape> for What {
    fn from(shape: Shape) -> Self {
        match shape {
            Shape::One(element) => Self::One(element),
            Shape::List(element) => Self::List(element),
            Shape::Map(element) => Self::Map(element),
        }
    }
}

fn element_name(element: Element) -> &'static str {
    match element {
        Element::Message(id) => id.get().go_name(),
        Element::Scalar(scalar) => match scalar {
            Scalar::Text => "string",
            Scalar::Bool => "bool",
            Scalar::Int32 => "int32",
            Scalar::Int64 => "int64",
            Scalar::Float => "float64",
            Scalar::Bytes => "[]uint8",
            Scalar::Quantity => "resource.Quantity",
            Scalar::IntOrText => "intstr.IntOrString",
            Scalar::Time => "v1.Time",
            Scalar::MicroTime => "v1.MicroTime",
            Scalar::Any => "runtime.RawExtension",
            Scalar::Texts => "[]string",
        },
    }
}

/// Reads a whole object of a type.
pub(super) fn object<'de, D: Deserializer<'de>>(root: &'static Type, reader: D) -> (Result<Map, D::Error>, Notes) {
    let mut place = Place {
        path: String::new(),
        fields: Vec::new(),
        around: "",
        notes: Notes::default(),
    };
    let read = MessageSeed { kind: root, place: &mut place }.deserialize(reader);
    let map = read.map(|map| map.unwrap_or_else(|| finish(Map::new(), root)));
    (map, place.notes)
}

/// Whether a value is the zero of its type, which most fields are left out for.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::I64(number) => *number == 0,
        Value::Text(text) => text.is_empty(),
        Value::List(list) => list.is_empty(),
        Value::Map(_) | Value::U64(_) | Value::F64(_) | Value::Bytes(_) => false,
    }
}

/// Brings a message to the form the API shows: leaves out zeros, adds what is always written.
pub(super) fn finish(mut map: Map, kind: &'static Type) -> Map {
    map.retain(|name, value| match kind.field(name) {
        Some(field) => {
            let kept = match field.shape {
                Shape::Map(_) => value.as_map().is_some_and(|map| !map.is_empty()),
                // Pointers in Go: there when somebody set them.
                Shape::One(Element::Scalar(Scalar::IntOrText | Scalar::Quantity | Scalar::Any)) => !value.is_null(),
                Shape::One(_) | Shape::List(_) => !is_zero(value),
            };
            kept || (field.presence == Presence::Kept && !value.is_null())
                || (matches!(field.presence, Presence::Always | Presence::Null) && !value.is_null())
        }
        None => kind.object,
    });
    for field in kind.fields() {
        if matches!(field.presence, Presence::Always | Presence::Null) && !map.contains_key(field.name) {
            map.insert(field.name.to_owned(), zero(field));
        }
    }
    map
}

/// What an unset field that is always written looks like.
pub(super) fn zero(field: &Field) -> Value {
    match (field.presence, field.shape) {
        (Presence::Always, Shape::One(Element::Message(id))) => Value::Map(finish(Map::new(), id.get())),
        (Presence::Always, Shape::One(Element::Scalar(scalar))) => match scalar {
            Scalar::Text => Value::from(""),
            Scalar::Bool => Value::Bool(false),
            Scalar::Int32 | Scalar::Int64 | Scalar::Float | Scalar::IntOrText => Value::I64(0),
            Scalar::Quantity => Value::from("0"),
            Scalar::Bytes | Scalar::Time | Scalar::MicroTime | Scalar::Any | Scalar::Texts => Value::Null,
        },
        _ => Value::Null,
    }
}

/// Reads a message; `None` when the document holds null or something else.
struct MessageSeed<'a> {
    kind: &'static Type,
    place: &'a mut Place,
}

impl<'de> DeserializeSeed<'de> for MessageSeed<'_> {
    type Value = Option<Map>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        let mut read = None;
        reader.deserialize_any(MessageVisitor { seed: self, read: &mut read })?;
        Ok(read)
    }
}

struct MessageVisitor<'a, 'r> {
    seed: MessageSeed<'a>,
    read: &'r mut Option<Map>,
}

impl MessageVisitor<'_, '_> {
    fn mismatch(self, found: &str) {
        let kind = self.seed.kind;
        let fields = self.seed.place.fields.join(".");
        let around = self.seed.place.around;
        self.seed.place.wrong(|| {
            if fields.is_empty() {
                format!(
                    "json: cannot unmarshal {found} into Go value of type {}",
                    kind.go_name()
                )
            } else {
                format!(
                    "json: cannot unmarshal {found} into Go struct field {around}.{fields} of type {}",
                    kind.go_name()
                )
            }
        });
    }
}

impl<'de> Visitor<'de> for MessageVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        self.mismatch("bool");
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        self.mismatch("number");
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.mismatch("number");
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        self.mismatch("number");
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        self.mismatch("string");
        Ok(())
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<(), E> {
        self.mismatch("string");
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.mismatch("array");
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Self { seed: MessageSeed { kind, place }, read } = self;
        let mut map = Map::new();
        let (length, around) = (place.path.len(), place.around);
        while let Some(name) = entries.next_key::<String>()? {
            if length > 0 {
                place.path.push('.');
            }
            place.path.push_str(&name);
            place.around = kind.name();
            if let Some(field) = kind.field(&name) {
                place.fields.push(field.name);
                let value = entries.next_value_seed(Seed { what: field.shape.into(), place: &mut *place })?;
                place.fields.pop();
                if map.insert(name, value).is_some() {
                    place.notes.strict(format!("duplicate field {}", Quoted(&place.path)));
                }
            } else if kind.object && matches!(name.as_str(), "apiVersion" | "kind") {
                let what = What::One(Element::Scalar(Scalar::Text));
                let value = entries.next_value_seed(Seed { what, place: &mut *place })?;
                if map.insert(name, value).is_some() {
                    place.notes.strict(format!("duplicate field {}", Quoted(&place.path)));
                }
            } else {
                place.notes.strict(format!("unknown field {}", Quoted(&place.path)));
                entries.next_value::<IgnoredAny>()?;
            }
            place.around = around;
            place.path.truncate(length);
        }
        *read = Some(finish(map, kind));
        Ok(())
    }
}

/// Reads what stands at a place; null when it is null or of another type.
struct Seed<'a> {
    what: What,
    place: &'a mut Place,
}

impl Seed<'_> {
    fn mismatch(self, found: &str) -> Value {
        self.place.mismatch(found, self.what);
        Value::Null
    }

    /// An element that Go would make from null: the zero of its type.
    fn element(element: Element, value: Value) -> Value {
        match (value, element) {
            (Value::Null, Element::Scalar(Scalar::Text)) => Value::from(""),
            (Value::Null, Element::Message(id)) => Value::Map(finish(Map::new(), id.get())),
            (value, _) => value,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        match self.what {
            What::One(Element::Message(id)) => {
                let map = MessageSeed { kind: id.get(), place: self.place }.deserialize(reader)?;
                Ok(map.map_or(Value::Null, Value::Map))
            }
            What::One(Element::Scalar(Scalar::Any)) => de::Deserialize::deserialize(reader),
            What::One(Element::Scalar(Scalar::Texts)) => Seed {
                what: What::List(Element::Scalar(Scalar::Text)),
                place: self.place,
            }
            .deserialize(reader),
            _ => reader.deserialize_any(self),
        }
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

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(match self.what {
            What::One(Element::Scalar(Scalar::Bool)) => Value::Bool(flag),
            _ => self.mismatch("bool"),
        })
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        let What::One(Element::Scalar(scalar)) = self.what else {
            return Ok(self.mismatch("number"));
        };
        Ok(match scalar {
            Scalar::Int64 | Scalar::Float => Value::I64(number),
            Scalar::Int32 | Scalar::IntOrText if i32::try_from(number).is_ok() => Value::I64(number),
            Scalar::Int32 | Scalar::IntOrText => self.mismatch(&format!("number {number}")),
            Scalar::Quantity => scalar::quantity(&number.to_string()).unwrap_or_default().into(),
            _ => self.mismatch("number"),
        })
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Value, E> {
        match (i64::try_from(number), self.what) {
            (Ok(number), _) => self.visit_i64(number),
            (Err(_), What::One(Element::Scalar(Scalar::Float))) => Ok(Value::from(number)),
            (Err(_), What::One(Element::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::IntOrText))) => {
                Ok(self.mismatch(&format!("number {number}")))
            }
            (Err(_), What::One(Element::Scalar(Scalar::Quantity))) => {
                Ok(scalar::quantity(&number.to_string()).map_or(Value::Null, Value::from))
            }
            (Err(_), _) => Ok(self.mismatch("number")),
        }
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Value, E> {
        match self.what {
            What::One(Element::Scalar(Scalar::Float)) => {
                Value::float(number).ok_or_else(|| E::custom("a number that is not finite"))
            }
            What::One(Element::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::IntOrText)) => {
                Ok(self.mismatch(&format!("number {number:?}")))
            }
            What::One(Element::Scalar(Scalar::Quantity)) => match scalar::quantity(&number.to_string()) {
                Some(text) => Ok(text.into()),
                None => Ok(self.mismatch("number")),
            },
            _ => Ok(self.mismatch("number")),
        }
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        let What::One(Element::Scalar(scalar)) = self.what else {
            return Ok(self.mismatch("string"));
        };
        let read = match scalar {
            Scalar::Text | Scalar::IntOrText => Ok(text.to_owned()),
            Scalar::Bytes => scalar::base64_text(text),
            Scalar::Quantity => scalar::quantity(text).ok_or_else(|| scalar::QUANTITY_WORDS.to_owned()),
            Scalar::Time => scalar::time(text, TimeForm::Seconds),
            Scalar::MicroTime => scalar::time(text, TimeForm::Micros),
            Scalar::Bool | Scalar::Int32 | Scalar::Int64 | Scalar::Float | Scalar::Any | Scalar::Texts => {
                return Ok(self.mismatch("string"));
            }
        };
        Ok(match read {
            Ok(text) => text.into(),
            Err(words) => {
                self.place.wrong(|| words);
                Value::Null
            }
        })
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Value, E> {
        Ok(match self.what {
            What::One(Element::Scalar(Scalar::Bytes)) => scalar::base64_of(bytes).into(),
            _ => self.mismatch("string"),
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let What::List(element) = self.what else {
            let mismatch = self.mismatch("array");
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(mismatch);
        };
        let place = self.place;
        let mut list = Vec::new();
        let length = place.path.len();
        loop {
            place.path.push('[');
            place.path.push_str(&list.len().to_string());
            place.path.push(']');
            let read = seq.next_element_seed(Seed { what: What::One(element), place: &mut *place })?;
            place.path.truncate(length);
            match read {
                Some(value) => list.push(Self::element(element, value)),
                None => return Ok(Value::List(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let What::Map(element) = self.what else {
            let mismatch = self.mismatch("object");
            while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(mismatch);
        };
        let place = self.place;
        let mut map = Map::new();
        let length = place.path.len();
        while let Some(name) = entries.next_key::<String>()? {
            place.path.push('.');
            place.path.push_str(&name);
            let value = entries.next_value_seed(Seed { what: What::One(element), place: &mut *place })?;
            if map.insert(name, Self::element(element, value)).is_some() {
                place.notes.strict(format!("duplicate field {}", Quoted(&place.path)));
            }
            place.path.truncate(length);
        }
        Ok(Value::Map(map))
    }
}

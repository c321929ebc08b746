//! Protobuf bodies: `k8s\0`, then a `runtime.Unknown` whose `raw` is the object, read by the schema's tags.
//!
//! Unknown tags are skipped, as protobuf asks. A value is brought to the same form as the reader of JSON brings it.

use proto::value::{Map, Value, json};

use super::read;
use super::scalar::{self, TimeForm};
use crate::api::schema::{Element, Field, Scalar, Shape, Type};

/// What every protobuf body of Kubernetes starts with.
pub(super) const MAGIC: &[u8] = b"k8s\0";

/// Deepest nesting of messages; the deepest type of Kubernetes that does not contain itself needs a fifth of it.
pub(super) const DEPTH_MAX: usize = 64;

/// Bytes that are not the message they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum WireError {
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    Magic,
    #[error("unexpected EOF")]
    Truncated,
    #[error("proto: integer overflow")]
    Overflow,
    #[error("proto: illegal tag 0")]
    Tag,
    #[error("proto: illegal wireType {0}")]
    WireType(u8),
    #[error("proto: wrong wireType = {found} for field {field}")]
    Mismatch { field: &'static str, found: u8 },
    #[error("proto: field {0} contains invalid UTF-8")]
    Utf8(&'static str),
    #[error("proto: field {0} holds no JSON document")]
    Json(&'static str),
    #[error("{}", scalar::QUANTITY_WORDS)]
    Quantity,
    #[error("proto: nested deeper than {DEPTH_MAX}")]
    Depth,
    #[error("proto: content encoding is not supported")]
    Encoding,
}

/// A body's envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Envelope<'b> {
    pub(super) api_version: &'b str,
    pub(super) kind: &'b str,
    pub(super) raw: &'b [u8],
}

/// Opens a body.
pub(super) fn open(body: &[u8]) -> Result<Envelope<'_>, WireError> {
    let rest = body.strip_prefix(MAGIC).ok_or(WireError::Magic)?;
    let mut envelope = Envelope::default();
    let mut message = Message { rest };
    while let Some((tag, part)) = message.next()? {
        match (tag, part) {
            (1, Part::Bytes(bytes)) => {
                let mut named = Message { rest: bytes };
                while let Some((tag, part)) = named.next()? {
                    match (tag, part) {
                        (1, Part::Bytes(bytes)) => envelope.api_version = text(bytes, "apiVersion")?,
                        (2, Part::Bytes(bytes)) => envelope.kind = text(bytes, "kind")?,
                        _ => {}
                    }
                }
            }
            (2, Part::Bytes(bytes)) => envelope.raw = bytes,
            (3, Part::Bytes(bytes)) if !bytes.is_empty() => return Err(WireError::Encoding),
            _ => {}
        }
    }
    Ok(envelope)
}

/// Reads a message of a type.
pub(super) fn object(kind: &'static Type, raw: &[u8]) -> Result<Map, WireError> {
    message(kind, raw, 0)
}

fn message(kind: &'static Type, raw: &[u8], depth: usize) -> Result<Map, WireError> {
    let mut map = Map::new();
    fields(kind, raw, depth, &mut map)?;
    Ok(read::finish(map, kind))
}

/// Reads the fields of a message into a map that may be its owner's.
fn fields(kind: &'static Type, raw: &[u8], depth: usize, map: &mut Map) -> Result<(), WireError> {
    if depth > DEPTH_MAX {
        return Err(WireError::Depth);
    }
    let mut parts = Message { rest: raw };
    while let Some((tag, part)) = parts.next()? {
        if let Some(field) = kind.field_by_tag(tag) {
            put(field, part, depth, map)?;
        } else if let (Some(spelled), Part::Bytes(bytes)) = (kind.spelled_out_by_tag(tag), part) {
            fields(spelled, bytes, depth + 1, map)?;
        }
    }
    Ok(())
}

fn put(field: &Field, part: Part<'_>, depth: usize, map: &mut Map) -> Result<(), WireError> {
    match field.shape {
        Shape::One(element) => {
            map.insert(field.name.to_owned(), one(field.name, element, part, depth)?);
        }
        Shape::List(element) if field.wrapped => {
            let Part::Bytes(bytes) = part else {
                return Err(part.mismatch(field.name));
            };
            map.insert(
                field.name.to_owned(),
                Value::List(wrapped(field.name, element, bytes, depth)?),
            );
        }
        Shape::List(element) => {
            let slot = map.get_or_insert_with(field.name, || Value::List(Vec::new()));
            let Value::List(list) = slot else { return Ok(()) };
            match (element, part) {
                // Numbers may come packed.
                (Element::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Bool), Part::Bytes(packed)) => {
                    let mut numbers = Message { rest: packed };
                    while !numbers.rest.is_empty() {
                        let number = Part::Varint(numbers.varint()?);
                        list.push(one(field.name, element, number, depth)?);
                    }
                }
                _ => list.push(one(field.name, element, part, depth)?),
            }
        }
        Shape::Map(element) => {
            let Part::Bytes(entry) = part else {
                return Err(part.mismatch(field.name));
            };
            let slot = map.get_or_insert_with(field.name, Value::map);
            let Value::Map(entries) = slot else { return Ok(()) };
            let (mut name, mut value) = ("", None);
            let mut parts = Message { rest: entry };
            while let Some((tag, part)) = parts.next()? {
                match (tag, part) {
                    (1, Part::Bytes(bytes)) => name = text(bytes, field.name)?,
                    (2, part) => value = Some(one(field.name, element, part, depth)?),
                    _ => {}
                }
            }
            let value = value.unwrap_or_else(|| match element {
                Element::Scalar(Scalar::Quantity) => Value::from("0"),
                Element::Scalar(Scalar::Text | Scalar::Bytes) => Value::from(""),
                _ => Value::Null,
            });
            entries.insert(name.to_owned(), value);
        }
    }
    Ok(())
}

/// The elements of a list that is a message of its own.
fn wrapped(name: &'static str, element: Element, raw: &[u8], depth: usize) -> Result<Vec<Value>, WireError> {
    let mut list = Vec::new();
    let mut parts = Message { rest: raw };
    while let Some((tag, part)) = parts.next()? {
        if tag == 1 {
            list.push(one(name, element, part, depth)?);
        }
    }
    Ok(list)
}

fn one(name: &'static str, element: Element, part: Part<'_>, depth: usize) -> Result<Value, WireError> {
    let scalar = match (element, part) {
        (Element::Message(id), Part::Bytes(bytes)) => return message(id.get(), bytes, depth + 1).map(Value::Map),
        (Element::Message(_), part) => return Err(part.mismatch(name)),
        (Element::Scalar(scalar), _) => scalar,
    };
    Ok(match (scalar, part) {
        (Scalar::Text, Part::Bytes(bytes)) => Value::from(text(bytes, name)?),
        (Scalar::Bytes, Part::Bytes(bytes)) => scalar::base64_of(bytes).into(),
        (Scalar::Bool, Part::Varint(number)) => Value::Bool(number != 0),
        (Scalar::Int32 | Scalar::Int64, Part::Varint(number)) => Value::I64(number.cast_signed()),
        (Scalar::Float, Part::Fixed64(bits)) => Value::float(f64::from_bits(bits)).unwrap_or_default(),
        (Scalar::Quantity, Part::Bytes(bytes)) => {
            let mut shown = "0".to_owned();
            let mut parts = Message { rest: bytes };
            while let Some((tag, part)) = parts.next()? {
                if let (1, Part::Bytes(bytes)) = (tag, part) {
                    shown = scalar::quantity(text(bytes, name)?).ok_or(WireError::Quantity)?;
                }
            }
            shown.into()
        }
        (Scalar::IntOrText, Part::Bytes(bytes)) => {
            let (mut textual, mut number, mut words) = (false, 0, "");
            let mut parts = Message { rest: bytes };
            while let Some((tag, part)) = parts.next()? {
                match (tag, part) {
                    (1, Part::Varint(kind)) => textual = kind != 0,
                    (2, Part::Varint(value)) => number = value.cast_signed(),
                    (3, Part::Bytes(bytes)) => words = text(bytes, name)?,
                    _ => {}
                }
            }
            if textual {
                Value::from(words)
            } else {
                Value::I64(number)
            }
        }
        (Scalar::Time, Part::Bytes(bytes)) => moment(bytes, TimeForm::Seconds)?,
        (Scalar::MicroTime, Part::Bytes(bytes)) => moment(bytes, TimeForm::Micros)?,
        (Scalar::Any, Part::Bytes(bytes)) => any(bytes, name)?,
        (Scalar::Texts, Part::Bytes(bytes)) => Value::List(wrapped(name, Element::Scalar(Scalar::Text), bytes, depth)?),
        (_, part) => return Err(part.mismatch(name)),
    })
}

/// A moment; the zero time is an empty message.
fn moment(raw: &[u8], form: TimeForm) -> Result<Value, WireError> {
    if raw.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut parts = Message { rest: raw };
    while let Some((tag, part)) = parts.next()? {
        match (tag, part) {
            (1, Part::Varint(number)) => seconds = number.cast_signed(),
            (2, Part::Varint(number)) => nanos = u32::try_from(number).unwrap_or(0),
            _ => {}
        }
    }
    Ok(form.write(seconds, nanos.min(999_999_999)).into())
}

/// A document inside a message, as JSON.
fn any(raw: &[u8], name: &'static str) -> Result<Value, WireError> {
    let mut value = Value::Null;
    let mut parts = Message { rest: raw };
    while let Some((tag, part)) = parts.next()? {
        if let (1, Part::Bytes(bytes)) = (tag, part)
            && !bytes.is_empty()
        {
            value = json::parse(bytes).map_err(|_| WireError::Json(name))?;
        }
    }
    Ok(value)
}

fn text<'b>(bytes: &'b [u8], name: &'static str) -> Result<&'b str, WireError> {
    std::str::from_utf8(bytes).map_err(|_| WireError::Utf8(name))
}

/// One field as it travels.
#[derive(Debug, Clone, Copy)]
enum Part<'b> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'b [u8]),
    Fixed32,
}

impl Part<'_> {
    fn mismatch(self, field: &'static str) -> WireError {
        let found = match self {
            Self::Varint(_) => 0,
            Self::Fixed64(_) => 1,
            Self::Bytes(_) => 2,
            Self::Fixed32 => 5,
        };
        WireError::Mismatch { field, found }
    }
}

/// The fields of a message, one by one.
struct Message<'b> {
    rest: &'b [u8],
}

impl<'b> Message<'b> {
    fn next(&mut self) -> Result<Option<(u32, Part<'b>)>, WireError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let tag = u32::try_from(key >> 3).map_err(|_| WireError::Overflow)?;
        if tag == 0 {
            return Err(WireError::Tag);
        }
        let part = match key & 7 {
            0 => Part::Varint(self.varint()?),
            1 => {
                let bytes = self.take(8)?.try_into().map_err(|_| WireError::Truncated)?;
                Part::Fixed64(u64::from_le_bytes(bytes))
            }
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| WireError::Overflow)?;
                Part::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                Part::Fixed32
            }
            other => return Err(WireError::WireType(u8::try_from(other).unwrap_or(u8::MAX))),
        };
        Ok(Some((tag, part)))
    }

    fn take(&mut self, length: usize) -> Result<&'b [u8], WireError> {
        let (head, rest) = self.rest.split_at_checked(length).ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    fn varint(&mut self) -> Result<u64, WireError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.rest.split_first().ok_or(WireError::Truncated)?;
            self.rest = rest;
            let part = u64::from(first & 0x7f);
            if shift == 63 && part > 1 {
                return Err(WireError::Overflow);
            }
            number |= part << shift;
            if first & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(WireError::Overflow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::schema;

    #[test]
    fn nesting_has_a_limit() {
        // No served type is that deep, so the reader is asked where it would be.
        let pod = schema::kind_of("v1", "Pod").unwrap().root();
        let metadata = [0x0a, 0x03, 0x0a, 0x01, b'x'];
        assert!(message(pod, &metadata, DEPTH_MAX - 1).is_ok());
        assert_eq!(message(pod, &metadata, DEPTH_MAX), Err(WireError::Depth));
    }

    #[test]
    fn numbers_may_come_packed() {
        let context = schema::kind_of("v1", "Pod").unwrap().root();
        let security = context
            .field("spec")
            .and_then(Field::message)
            .and_then(|spec| spec.field("securityContext"));
        let security = security.and_then(Field::message).unwrap();
        let groups = security.field("supplementalGroups").unwrap();
        let tag = u8::try_from(groups.tag << 3).unwrap();
        let packed = object(security, &[tag | 2, 3, 1, 0xac, 2]).unwrap();
        let plain = object(security, &[tag, 1, tag, 0xac, 2]).unwrap();
        assert_eq!(packed.get("supplementalGroups"), Some(&Value::from_iter([1, 300])));
        assert_eq!(packed, plain);
    }
}

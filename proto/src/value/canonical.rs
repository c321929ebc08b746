//! The one binary form of a value tree: what stores keep and what hashes cover.
//!
//! A form is a version byte and one node. A node is a tag byte and its body: lengths and integers are LEB128 varints in
//! their shortest form, negative integers as `-(n + 1)`, floats as eight little-endian bytes, map keys sorted as text.
//! Every tree has exactly one form, and [`decode`] refuses every other spelling of it, so equal hashes mean equal trees.

use super::{Text, Value};

/// The first byte of every form.
pub const VERSION: u8 = 1;

/// Deepest nesting of lists and maps; JSON's reader stops at the same depth.
pub const DEPTH_MAX: usize = 128;

/// Elements and fields that are given room before they are read: what a form says of its length is not yet believed.
const RESERVED_MAX: usize = 32;

/// Bytes that are not the form of any tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CanonicalError {
    #[error("the form ends in the middle of a value")]
    Truncated,
    #[error("{0} bytes follow the value")]
    Trailing(usize),
    #[error("form version {0} is not known")]
    Version(u8),
    #[error("tag {0} is not known")]
    Tag(u8),
    #[error("a number is not in its one form")]
    Number,
    #[error("text is not UTF-8")]
    Utf8,
    #[error("map keys are not sorted and distinct")]
    Order,
    #[error("nested deeper than {DEPTH_MAX}")]
    Depth,
}

mod tag {
    pub(super) const NULL: u8 = 0;
    pub(super) const FALSE: u8 = 1;
    pub(super) const TRUE: u8 = 2;
    pub(super) const POSITIVE: u8 = 3;
    pub(super) const NEGATIVE: u8 = 4;
    pub(super) const FLOAT: u8 = 5;
    pub(super) const TEXT: u8 = 6;
    pub(super) const BYTES: u8 = 7;
    pub(super) const LIST: u8 = 8;
    pub(super) const MAP: u8 = 9;
}

/// The form of a tree.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut out = vec![VERSION];
    write(value, &mut out);
    out
}

/// The tree of a form; the whole input must be one.
pub fn decode(form: &[u8]) -> Result<Value, CanonicalError> {
    let mut reader = Reader { rest: form };
    match reader.byte()? {
        VERSION => {}
        other => return Err(CanonicalError::Version(other)),
    }
    let value = reader.value(0)?;
    match reader.rest.len() {
        0 => Ok(value),
        more => Err(CanonicalError::Trailing(more)),
    }
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(tag::NULL),
        Value::Bool(flag) => out.push(if *flag { tag::TRUE } else { tag::FALSE }),
        Value::I64(number) => match u64::try_from(*number) {
            Ok(positive) => {
                out.push(tag::POSITIVE);
                varint(positive, out);
            }
            Err(_) => {
                out.push(tag::NEGATIVE);
                varint(!number.cast_unsigned(), out);
            }
        },
        Value::U64(number) => {
            out.push(tag::POSITIVE);
            varint(*number, out);
        }
        Value::F64(number) => match Value::float(*number) {
            Some(Value::F64(number)) => {
                out.push(tag::FLOAT);
                out.extend_from_slice(&number.to_le_bytes());
            }
            // A float that was built by hand against the rule of the type; its one form all the same.
            Some(integer) => write(&integer, out),
            None => out.push(tag::NULL),
        },
        Value::Text(text) => {
            out.push(tag::TEXT);
            sized(text.as_bytes(), out);
        }
        Value::Bytes(bytes) => {
            out.push(tag::BYTES);
            sized(bytes, out);
        }
        Value::List(list) => {
            out.push(tag::LIST);
            varint(list.len() as u64, out);
            for element in list {
                write(element, out);
            }
        }
        Value::Map(map) => {
            out.push(tag::MAP);
            varint(map.len() as u64, out);
            for (field, value) in map {
                sized(field.as_bytes(), out);
                write(value, out);
            }
        }
    }
}

fn sized(bytes: &[u8], out: &mut Vec<u8>) {
    varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Appends a LEB128 varint in its shortest form.
pub(crate) fn varint(mut number: u64, out: &mut Vec<u8>) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

/// Reads what [`varint`] and [`sized`] write. Shared with the other binary forms of this crate.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    pub(crate) rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn byte(&mut self) -> Result<u8, CanonicalError> {
        let (first, rest) = self.rest.split_first().ok_or(CanonicalError::Truncated)?;
        self.rest = rest;
        Ok(*first)
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], CanonicalError> {
        let (head, rest) = self.rest.split_at_checked(length).ok_or(CanonicalError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, CanonicalError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return Err(CanonicalError::Number);
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                // A last byte of zero says nothing: the number has a shorter spelling.
                return if byte == 0 && shift > 0 {
                    Err(CanonicalError::Number)
                } else {
                    Ok(number)
                };
            }
        }
        Err(CanonicalError::Number)
    }

    /// A count of things that take at least one byte each, so that no input makes the reader reserve more than it holds.
    pub(crate) fn count(&mut self) -> Result<usize, CanonicalError> {
        match usize::try_from(self.varint()?) {
            Ok(count) if count <= self.rest.len() => Ok(count),
            _ => Err(CanonicalError::Truncated),
        }
    }

    pub(crate) fn sized(&mut self) -> Result<&'a [u8], CanonicalError> {
        let length = self.count()?;
        self.take(length)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, CanonicalError> {
        std::str::from_utf8(self.sized()?).map_err(|_| CanonicalError::Utf8)
    }

    fn value(&mut self, depth: usize) -> Result<Value, CanonicalError> {
        if depth > DEPTH_MAX {
            return Err(CanonicalError::Depth);
        }
        Ok(match self.byte()? {
            tag::NULL => Value::Null,
            tag::FALSE => Value::Bool(false),
            tag::TRUE => Value::Bool(true),
            tag::POSITIVE => self.varint()?.into(),
            tag::NEGATIVE => match i64::try_from(self.varint()?) {
                Ok(number) => Value::I64(!number),
                Err(_) => return Err(CanonicalError::Number),
            },
            tag::FLOAT => {
                let bytes = self.take(8)?.try_into().map_err(|_| CanonicalError::Truncated)?;
                match Value::float(f64::from_le_bytes(bytes)) {
                    Some(Value::F64(number)) => Value::F64(number),
                    _ => return Err(CanonicalError::Number),
                }
            }
            tag::TEXT => self.text()?.into(),
            tag::BYTES => Value::Bytes(self.sized()?.into()),
            tag::LIST => {
                let count = self.count()?;
                let mut list = Vec::with_capacity(count.min(RESERVED_MAX));
                for _ in 0..count {
                    list.push(self.value(depth + 1)?);
                }
                list.shrink_to_fit();
                Value::List(list)
            }
            tag::MAP => {
                let count = self.count()?;
                let mut fields: Vec<(Text, Value)> = Vec::with_capacity(count.min(RESERVED_MAX));
                for _ in 0..count {
                    let field = self.text()?;
                    if fields.last().is_some_and(|(last, _)| last.as_str() >= field) {
                        return Err(CanonicalError::Order);
                    }
                    fields.push((field.into(), self.value(depth + 1)?));
                }
                Value::Map(fields.into_iter().collect())
            }
            other => return Err(CanonicalError::Tag(other)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::json;

    #[test]
    fn golden_form() {
        let tree = json::parse(br#"{"b":[null,true,300,-1,0.5,18446744073709551615],"a":"x"}"#).unwrap();
        let golden: &[u8] = &[
            1, 9, 2, 1, b'a', 6, 1, b'x', 1, b'b', 8, 6, 0, 2, 3, 0xac, 2, 4, 0, 5, 0, 0, 0, 0, 0, 0, 0xe0, 0x3f, 3,
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
        ];
        assert_eq!(encode(&tree), golden);
        assert_eq!(decode(golden), Ok(tree));
    }

    #[test]
    fn every_other_spelling_is_refused() {
        let check = |form: &[u8], error: CanonicalError| assert_eq!(decode(form), Err(error), "{form:?}");
        check(&[], CanonicalError::Truncated);
        check(&[2, 0], CanonicalError::Version(2));
        check(&[1, 0, 0], CanonicalError::Trailing(1));
        check(&[1, 10], CanonicalError::Tag(10));
        check(&[1, 3, 0x80, 0], CanonicalError::Number);
        check(
            &[1, 4, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            CanonicalError::Number,
        );
        check(&[1, 5, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f], CanonicalError::Number);
        check(&[1, 6, 1, 0xff], CanonicalError::Utf8);
        check(&[1, 8, 0xff, 0xff, 0xff, 0xff, 0x0f], CanonicalError::Truncated);
        check(&[1, 9, 2, 1, b'b', 0, 1, b'a', 0], CanonicalError::Order);
        check(&[1, 9, 2, 1, b'a', 0, 1, b'a', 0], CanonicalError::Order);
        let deep = |depth: usize| [vec![1], [8, 1].repeat(depth), vec![0]].concat();
        assert!(decode(&deep(DEPTH_MAX)).is_ok());
        check(&deep(DEPTH_MAX + 1), CanonicalError::Depth);
    }
}

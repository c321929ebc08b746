//! The coding of trees and patches on the wire: short, and whole in itself.
//!
//! A node is one byte and its body. Bytes from 128 are a text of the dictionary, from 32 a small number; see [`tag`].
//! Names of fields and texts that the dictionary lacks stand once and are referred to afterwards. Nothing outlives one
//! coding, so the same bytes serve every node that shares (base, new, dictionary length).

use std::collections::BTreeMap;

use super::{DeltaError, Patch, Piece};
use crate::dictionary::Dictionary;
use crate::time::{parse_rfc3339, rfc3339};
use crate::value::canonical::{CanonicalError, DEPTH_MAX, Reader, varint};
use crate::value::{Map, Text, Value};

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
    /// A text of the dictionary, by its code.
    pub(super) const KNOWN: u8 = 10;
    /// A text that stood before in this coding.
    pub(super) const AGAIN: u8 = 11;
    /// An RFC 3339 text of whole seconds, as seconds from [`super::TIME_BASE`], zigzag.
    pub(super) const TIME: u8 = 12;
    /// Patches. Every other byte in the place of a patch is a new value.
    pub(super) const FIELDS: u8 = 16;
    /// Fields, some of which go.
    pub(super) const FIELDS_REMOVED: u8 = 17;
    pub(super) const ELEMENTS: u8 = 18;
    pub(super) const SPLICE: u8 = 19;
    /// Pieces of a splice. Every other byte in the place of a piece is a new value.
    pub(super) const KEEP: u8 = 20;
    pub(super) const CHANGE: u8 = 21;
    /// The patch of the element before, which stood in full and took no more than [`super::SAME_BYTES_MAX`].
    pub(super) const SAME: u8 = 22;
    /// Numbers 0 to 95.
    pub(super) const SMALL: u8 = 32;
    /// Texts 0 to 127 of the dictionary.
    pub(super) const SHORT: u8 = 128;
}

/// 2028-01-01T00:00:00Z: times from October 2023 to March 2032 take four bytes.
const TIME_BASE: i64 = 1_830_297_600;

/// Texts longer than this are not worth looking for again.
const AGAIN_BYTES_MAX: usize = 256;

/// Conditions flip in pairs, so a patch may stand for the next element's as well. The limit keeps trees that a stranger's
/// coding makes near its own size, because a patch so short nests only few others.
const SAME_BYTES_MAX: usize = 32;

/// The coding of a whole tree.
pub fn encode_value(value: &Value, dictionary: Dictionary) -> Vec<u8> {
    let mut writer = Writer::new(dictionary);
    writer.value(value);
    writer.out
}

/// The coding of a patch.
pub fn encode_patch(patch: &Patch, dictionary: Dictionary) -> Vec<u8> {
    let mut writer = Writer::new(dictionary);
    writer.patch(patch);
    writer.out
}

/// The tree of a coding.
pub fn decode_value(coding: &[u8], dictionary: Dictionary) -> Result<Value, DeltaError> {
    Decoder::read(coding, dictionary, |decoder| decoder.value(0))
}

/// The patch of a coding.
pub fn decode_patch(coding: &[u8], dictionary: Dictionary) -> Result<Patch, DeltaError> {
    Decoder::read(coding, dictionary, |decoder| decoder.patch(0))
}

struct Writer {
    out: Vec<u8>,
    dictionary: Dictionary,
    /// Texts that stood in this coding, with their number.
    before: BTreeMap<String, u64>,
}

impl Writer {
    fn new(dictionary: Dictionary) -> Self {
        Self { out: Vec::new(), dictionary, before: BTreeMap::new() }
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.out.push(tag::NULL),
            Value::Bool(flag) => self.out.push(if *flag { tag::TRUE } else { tag::FALSE }),
            Value::I64(number) => match u64::try_from(*number) {
                Ok(number) => self.number(number),
                Err(_) => {
                    self.out.push(tag::NEGATIVE);
                    varint(!number.cast_unsigned(), &mut self.out);
                }
            },
            Value::U64(number) => self.number(*number),
            Value::F64(number) => {
                self.out.push(tag::FLOAT);
                self.out.extend_from_slice(&number.to_le_bytes());
            }
            Value::Text(text) => self.text(text),
            Value::Bytes(bytes) => {
                self.out.push(tag::BYTES);
                self.sized(bytes);
            }
            Value::List(list) => {
                self.out.push(tag::LIST);
                self.count(list.len());
                list.iter().for_each(|element| self.value(element));
            }
            Value::Map(map) => {
                self.out.push(tag::MAP);
                self.count(map.len());
                for (field, value) in map {
                    self.name(field);
                    self.value(value);
                }
            }
        }
    }

    fn patch(&mut self, patch: &Patch) {
        match patch {
            Patch::Set(value) => self.value(value),
            Patch::Fields { removed, changed } => {
                if removed.is_empty() {
                    self.out.push(tag::FIELDS);
                } else {
                    self.out.push(tag::FIELDS_REMOVED);
                    self.count(removed.len());
                    removed.iter().for_each(|field| self.name(field));
                }
                self.count(changed.len());
                for (field, patch) in changed {
                    self.name(field);
                    self.patch(patch);
                }
            }
            Patch::Elements(changed) => {
                self.out.push(tag::ELEMENTS);
                self.count(changed.len());
                let mut before = None;
                for (index, patch) in changed {
                    self.count(*index);
                    if before.take() == Some(patch) {
                        self.out.push(tag::SAME);
                        continue;
                    }
                    let from = self.out.len();
                    self.patch(patch);
                    before = (self.out.len() - from <= SAME_BYTES_MAX).then_some(patch);
                }
            }
            Patch::Splice(pieces) => {
                self.out.push(tag::SPLICE);
                self.count(pieces.len());
                for piece in pieces {
                    match piece {
                        Piece::Keep { from, count } => {
                            self.out.push(tag::KEEP);
                            self.count(*from);
                            self.count(*count);
                        }
                        Piece::Change { from, patch } => {
                            self.out.push(tag::CHANGE);
                            self.count(*from);
                            self.patch(patch);
                        }
                        Piece::New(value) => self.value(value),
                    }
                }
            }
        }
    }

    fn number(&mut self, number: u64) {
        match u8::try_from(number) {
            Ok(small) if small < tag::SHORT - tag::SMALL => self.out.push(tag::SMALL + small),
            _ => {
                self.out.push(tag::POSITIVE);
                varint(number, &mut self.out);
            }
        }
    }

    fn text(&mut self, text: &str) {
        if let Some(code) = self.dictionary.code(text) {
            match u8::try_from(code) {
                Ok(short) if short < 128 => self.out.push(tag::SHORT + short),
                _ => {
                    self.out.push(tag::KNOWN);
                    varint(u64::from(code), &mut self.out);
                }
            }
        } else if let Some(number) = self.before.get(text) {
            self.out.push(tag::AGAIN);
            varint(*number, &mut self.out);
        } else {
            self.remember(text);
            if let Some(seconds) = parse_rfc3339(text) {
                let offset = seconds - TIME_BASE;
                self.out.push(tag::TIME);
                varint((offset << 1 ^ offset >> 63).cast_unsigned(), &mut self.out);
            } else {
                self.out.push(tag::TEXT);
                self.sized(text.as_bytes());
            }
        }
    }

    /// A field's name: 0 and the name itself, or one more than its number among the dictionary and the texts before.
    fn name(&mut self, name: &str) {
        if let Some(code) = self.dictionary.code(name) {
            varint(u64::from(code) + 1, &mut self.out);
        } else if let Some(number) = self.before.get(name) {
            varint(*number + u64::from(self.dictionary.len()) + 1, &mut self.out);
        } else {
            self.remember(name);
            self.out.push(0);
            self.sized(name.as_bytes());
        }
    }

    fn remember(&mut self, text: &str) {
        if text.len() <= AGAIN_BYTES_MAX {
            self.before.insert(text.to_owned(), self.before.len() as u64);
        }
    }

    fn sized(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.out.extend_from_slice(bytes);
    }

    fn count(&mut self, count: usize) {
        varint(count as u64, &mut self.out);
    }
}

struct Decoder<'a> {
    reader: Reader<'a>,
    dictionary: Dictionary,
    before: Vec<Text>,
}

impl<'a> Decoder<'a> {
    fn read<T>(
        coding: &'a [u8],
        dictionary: Dictionary,
        read: impl FnOnce(&mut Self) -> Result<T, DeltaError>,
    ) -> Result<T, DeltaError> {
        let mut decoder = Self {
            reader: Reader { rest: coding },
            dictionary,
            before: Vec::new(),
        };
        let result = read(&mut decoder)?;
        match decoder.reader.rest.len() {
            0 => Ok(result),
            more => Err(CanonicalError::Trailing(more).into()),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, DeltaError> {
        let first = self.reader.byte()?;
        self.value_from(first, depth)
    }

    fn value_from(&mut self, first: u8, depth: usize) -> Result<Value, DeltaError> {
        if depth > DEPTH_MAX {
            return Err(CanonicalError::Depth.into());
        }
        Ok(match first {
            tag::NULL => Value::Null,
            tag::FALSE => Value::Bool(false),
            tag::TRUE => Value::Bool(true),
            tag::POSITIVE => self.reader.varint()?.into(),
            tag::NEGATIVE => match i64::try_from(self.reader.varint()?) {
                Ok(number) => Value::I64(!number),
                Err(_) => return Err(CanonicalError::Number.into()),
            },
            tag::FLOAT => {
                let bytes = self.reader.take(8)?.try_into().map_err(|_| CanonicalError::Truncated)?;
                Value::float(f64::from_le_bytes(bytes)).ok_or(CanonicalError::Number)?
            }
            tag::TEXT => {
                let text = Text::from(self.reader.text()?);
                self.remember(&text);
                Value::Text(text)
            }
            tag::BYTES => Value::Bytes(self.reader.sized()?.into()),
            tag::LIST => {
                let count = self.reader.count()?;
                Value::List((0..count).map(|_| self.value(depth + 1)).collect::<Result<_, _>>()?)
            }
            tag::MAP => {
                let count = self.reader.count()?;
                let fields = (0..count).map(|_| Ok((self.name()?, self.value(depth + 1)?)));
                Value::Map(fields.collect::<Result<Map, DeltaError>>()?)
            }
            tag::KNOWN => {
                let code = self.code()?;
                Value::Text(self.known(code)?)
            }
            tag::AGAIN => {
                let number = self.reader.varint()?;
                Value::Text(self.again(number)?)
            }
            tag::TIME => {
                let zigzag = self.reader.varint()?;
                let offset = (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed();
                let seconds = offset.checked_add(TIME_BASE).ok_or(CanonicalError::Number)?;
                let text = Text::from(rfc3339(seconds));
                // Only what the text form can hold: four-digit years.
                if parse_rfc3339(&text) != Some(seconds) {
                    return Err(CanonicalError::Number.into());
                }
                self.remember(&text);
                Value::Text(text)
            }
            tag::SMALL..tag::SHORT => Value::I64(i64::from(first - tag::SMALL)),
            tag::SHORT.. => Value::Text(self.known(u32::from(first - tag::SHORT))?),
            other => return Err(CanonicalError::Tag(other).into()),
        })
    }

    fn patch(&mut self, depth: usize) -> Result<Patch, DeltaError> {
        if depth > DEPTH_MAX {
            return Err(CanonicalError::Depth.into());
        }
        match self.reader.byte()? {
            tag::FIELDS => Ok(Patch::Fields { removed: Vec::new(), changed: self.changed(depth)? }),
            tag::FIELDS_REMOVED => {
                let count = self.reader.count()?;
                let removed = (0..count)
                    .map(|_| self.name().map(String::from))
                    .collect::<Result<_, _>>()?;
                Ok(Patch::Fields { removed, changed: self.changed(depth)? })
            }
            tag::ELEMENTS => self.elements(depth),
            tag::SPLICE => {
                let mut pieces = Vec::new();
                for _ in 0..self.reader.count()? {
                    pieces.push(match self.reader.byte()? {
                        tag::KEEP => Piece::Keep { from: self.index()?, count: self.index()? },
                        tag::CHANGE => Piece::Change { from: self.index()?, patch: self.patch(depth + 1)? },
                        first => Piece::New(self.value_from(first, depth + 1)?),
                    });
                }
                Ok(Patch::Splice(pieces))
            }
            first => Ok(Patch::Set(self.value_from(first, depth)?)),
        }
    }

    fn elements(&mut self, depth: usize) -> Result<Patch, DeltaError> {
        let mut changed: Vec<(usize, Patch)> = Vec::new();
        let mut may_repeat = false;
        for _ in 0..self.reader.count()? {
            let index = self.index()?;
            let before = changed.last().filter(|_| may_repeat);
            if self.reader.rest.first() == Some(&tag::SAME) {
                self.reader.byte()?;
                let (_, patch) = before.ok_or(DeltaError::NoElement)?;
                changed.push((index, patch.clone()));
                may_repeat = false;
            } else {
                let from = self.reader.rest.len();
                changed.push((index, self.patch(depth + 1)?));
                may_repeat = from - self.reader.rest.len() <= SAME_BYTES_MAX;
            }
        }
        Ok(Patch::Elements(changed))
    }

    fn changed(&mut self, depth: usize) -> Result<Vec<(String, Patch)>, DeltaError> {
        let count = self.reader.count()?;
        (0..count)
            .map(|_| Ok((self.name()?.into(), self.patch(depth + 1)?)))
            .collect()
    }

    fn name(&mut self) -> Result<Text, DeltaError> {
        let Some(number) = self.reader.varint()?.checked_sub(1) else {
            let name = Text::from(self.reader.text()?);
            self.remember(&name);
            return Ok(name);
        };
        match number.checked_sub(u64::from(self.dictionary.len())) {
            Some(number) => self.again(number),
            None => self.known(u32::try_from(number).map_err(|_| DeltaError::NoText)?),
        }
    }

    fn code(&mut self) -> Result<u32, DeltaError> {
        u32::try_from(self.reader.varint()?).map_err(|_| DeltaError::NoText)
    }

    fn known(&self, code: u32) -> Result<Text, DeltaError> {
        self.dictionary.text(code).map(Text::from).ok_or(DeltaError::NoText)
    }

    fn again(&self, number: u64) -> Result<Text, DeltaError> {
        let number = usize::try_from(number).map_err(|_| DeltaError::NoText)?;
        self.before.get(number).cloned().ok_or(DeltaError::NoText)
    }

    fn remember(&mut self, text: &Text) {
        if text.len() <= AGAIN_BYTES_MAX {
            self.before.push(text.clone());
        }
    }

    fn index(&mut self) -> Result<usize, DeltaError> {
        usize::try_from(self.reader.varint()?).map_err(|_| DeltaError::NoElement)
    }
}

//! A text in a tree: a number where the dictionary knows it, else its own bytes and none to spare.
//!
//! Names of fields are most of a tree's texts, and the dictionary knows nearly all of them. On the heap each would take
//! 32 bytes or more, whatever its length.

use std::borrow::{Borrow, Cow};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, Visitor};

use crate::dictionary;

/// A text that is not changed any more.
#[derive(Clone, PartialEq, Eq)]
pub struct Text(Form);

#[derive(Clone, PartialEq, Eq)]
enum Form {
    /// By its number in the dictionary.
    Known(u16),
    /// What the dictionary does not know, so that equal texts have equal forms.
    Own(Box<str>),
}

impl Text {
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Form::Known(code) => dictionary::text(*code),
            Form::Own(text) => text,
        }
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(match dictionary::code(text) {
            Some(code) => Form::Known(code),
            None => Form::Own(text.into()),
        })
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(match dictionary::code(&text) {
            Some(code) => Form::Known(code),
            None => Form::Own(text.into_boxed_str()),
        })
    }
}

impl From<&String> for Text {
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<Cow<'_, str>> for Text {
    fn from(text: Cow<'_, str>) -> Self {
        match text {
            Cow::Borrowed(text) => text.into(),
            Cow::Owned(text) => text.into(),
        }
    }
}

impl From<Text> for String {
    fn from(text: Text) -> Self {
        match text.0 {
            Form::Known(code) => dictionary::text(code).to_owned(),
            Form::Own(text) => text.into_string(),
        }
    }
}

impl Default for Text {
    fn default() -> Self {
        Self::from("")
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        self
    }
}

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        self
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

/// As a map's order and [`Borrow`] ask: by the text, never by its number.
impl Ord for Text {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other)
    }
}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        reader.deserialize_str(Read)
    }
}

struct Read;

impl Visitor<'_> for Read {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E>(self, text: &str) -> Result<Text, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Text, E> {
        Ok(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_the_same_whatever_it_came_from() {
        for text in ["metadata", "metadata.", "", "a", "node.kubernetes.io/not-ready", "ä"] {
            let made = Text::from(text);
            assert_eq!(made.as_str(), text);
            assert_eq!(made, Text::from(text.to_owned()));
            assert_eq!(String::from(made.clone()), text);
            assert_eq!(
                matches!(made.0, Form::Known(_)),
                dictionary::code(text).is_some(),
                "{text}"
            );
            assert_eq!(format!("{made} {made:?}"), format!("{text} {text:?}"));
        }
    }

    #[test]
    fn order_is_the_texts() {
        let mut texts = ["status", "b", "metadata", "a", "spec", "True"].map(Text::from);
        texts.sort();
        assert_eq!(texts, ["True", "a", "b", "metadata", "spec", "status"].map(Text::from));
    }
}

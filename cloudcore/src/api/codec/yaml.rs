//! YAML bodies: one document, read into a tree as Kubernetes' own YAML reader would turn it into JSON.
//!
//! Plain scalars follow YAML 1.1, as that reader does: `yes` and `on` are true, `0644` is octal. Everything that is no
//! truth word, null word or number is text. Aliases are copied, within a budget.

use super::read::NOTES_MAX;
use crate::api::quote::Quoted;
use proto::value::{Map, Value};
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

/// Deepest nesting of lists and maps, as in JSON.
pub(super) const DEPTH_MAX: usize = 127;

/// Most values of one document, counting what aliases copy.
pub(super) const VALUES_MAX: usize = 200_000;

/// A body that is no YAML document.
#[derive(Debug, thiserror::Error)]
pub(super) enum YamlError {
    #[error("yaml: the text is not UTF-8")]
    Utf8,
    #[error("yaml: line {line}: {info}")]
    Syntax { line: usize, info: String },
    #[error("yaml: nested deeper than {DEPTH_MAX}")]
    Depth,
    #[error("yaml: document contains excessive aliasing")]
    Aliases,
    #[error("yaml: line {0}: the alias names no anchor before it")]
    Alias(usize),
    #[error("yaml: line {0}: a map key is not text")]
    Key(usize),
    #[error("yaml: line {0}: a number is not finite")]
    Number(usize),
    #[error("yaml: the document ends in the middle of a value")]
    Truncated,
}

impl From<ScanError> for YamlError {
    fn from(error: ScanError) -> Self {
        Self::Syntax { line: error.marker().line(), info: error.info().to_owned() }
    }
}

/// The first document of a text, and the notes on keys that stand twice.
pub(super) fn parse(text: &[u8]) -> Result<(Value, Vec<String>), YamlError> {
    let text = std::str::from_utf8(text).map_err(|_| YamlError::Utf8)?;
    let mut reader = Reader {
        parser: Parser::new_from_str(text),
        anchors: Vec::new(),
        values: 0,
        twice: Vec::new(),
    };
    loop {
        match reader.next()? {
            (Event::StreamEnd, _) => return Ok((Value::Null, reader.twice)),
            (Event::DocumentStart(_), _) => {
                let (event, span) = reader.next()?;
                let value = reader.value(event, span, 0)?;
                return Ok((value, reader.twice));
            }
            _ => {}
        }
    }
}

struct Reader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    anchors: Vec<(usize, Value)>,
    values: usize,
    twice: Vec<String>,
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span), YamlError> {
        Ok(self.parser.next_event().ok_or(YamlError::Truncated)??)
    }

    fn spend(&mut self, values: usize) -> Result<(), YamlError> {
        self.values += values;
        if self.values > VALUES_MAX {
            Err(YamlError::Aliases)
        } else {
            Ok(())
        }
    }

    fn value(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Value, YamlError> {
        if depth > DEPTH_MAX {
            return Err(YamlError::Depth);
        }
        self.spend(1)?;
        let line = span.start.line();
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => (anchor, scalar(&text, style, tag.as_deref(), line)?),
            Event::SequenceStart(anchor, _) => {
                let mut list = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break,
                        (event, span) => list.push(self.value(event, span, depth + 1)?),
                    }
                }
                (anchor, Value::List(list))
            }
            Event::MappingStart(anchor, _) => (anchor, Value::Map(self.map(depth)?)),
            Event::Alias(id) => {
                let found = self.anchors.iter().rev().find(|(anchor, _)| *anchor == id);
                let value = found.map(|(_, value)| value.clone()).ok_or(YamlError::Alias(line))?;
                let (values, below) = measure(&value);
                if depth + below > DEPTH_MAX {
                    return Err(YamlError::Depth);
                }
                self.spend(values)?;
                return Ok(value);
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => return Err(YamlError::Truncated),
        };
        if anchor != 0 {
            let (values, _) = measure(&value);
            self.spend(values)?;
            self.anchors.push((anchor, value.clone()));
        }
        Ok(value)
    }

    fn map(&mut self, depth: usize) -> Result<Map, YamlError> {
        let mut map = Map::new();
        let mut merged: Vec<Value> = Vec::new();
        loop {
            let (event, span) = match self.next()? {
                (Event::MappingEnd, _) => break,
                next => next,
            };
            let line = span.start.line();
            let plain_merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, _) if text == "<<");
            let name = match self.value(event, span, depth + 1)? {
                Value::Text(text) => text.into(),
                Value::Bool(flag) => flag.to_string(),
                Value::I64(number) => number.to_string(),
                Value::U64(number) => number.to_string(),
                Value::F64(number) => number.to_string(),
                Value::Null => "null".to_owned(),
                Value::Bytes(_) | Value::List(_) | Value::Map(_) => return Err(YamlError::Key(line)),
            };
            let (event, span) = self.next()?;
            let value = self.value(event, span, depth + 1)?;
            if plain_merge {
                merged.push(value);
            } else {
                let note = format!("line {line}: key {} already set in map", Quoted(&name));
                if map.insert(name, value).is_some() && self.twice.len() < NOTES_MAX {
                    self.twice.push(note);
                }
            }
        }
        // `<<` gives what the map itself does not.
        for value in merged {
            let sources = match value {
                Value::List(list) => list,
                one => vec![one],
            };
            for (name, value) in sources.into_iter().filter_map(into_map).flatten() {
                map.get_or_insert_with(&name, || value);
            }
        }
        Ok(map)
    }
}

fn into_map(value: Value) -> Option<Map> {
    match value {
        Value::Map(map) => Some(map),
        _ => None,
    }
}

/// How many values a tree holds and how deep it is.
fn measure(value: &Value) -> (usize, usize) {
    let join = |(values, depth): (usize, usize), one: &Value| {
        let (more, below) = measure(one);
        (values + more, depth.max(below + 1))
    };
    match value {
        Value::List(list) => list.iter().fold((1, 0), join),
        Value::Map(map) => map.values().fold((1, 0), join),
        _ => (1, 0),
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, line: usize) -> Result<Value, YamlError> {
    let tag = tag
        .filter(|tag| tag.is_yaml_core_schema())
        .map(|tag| tag.suffix.as_str());
    if style != ScalarStyle::Plain || tag == Some("str") {
        return Ok(Value::from(text));
    }
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => Value::Bool(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => Value::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "-.inf" | "-.Inf" | "-.INF" | ".nan" | ".NaN" | ".NAN" => {
            return Err(YamlError::Number(line));
        }
        _ => number(text).unwrap_or_else(|| Value::from(text)),
    })
}

/// The number a plain scalar is, if it is one.
fn number(text: &str) -> Option<Value> {
    if !text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.')) {
        return None;
    }
    let plain = text.replace('_', "");
    let (negative, unsigned) = match plain.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, plain.strip_prefix('+').unwrap_or(&plain)),
    };
    let radix = |digits: &str, radix: u32| {
        let digits = digits
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric())
            .then_some(digits)?;
        u64::from_str_radix(digits, radix).ok()
    };
    let whole = if let Some(digits) = unsigned.strip_prefix("0x") {
        radix(digits, 16)
    } else if let Some(digits) = unsigned.strip_prefix("0b") {
        radix(digits, 2)
    } else if let Some(digits) = unsigned.strip_prefix("0o") {
        radix(digits, 8)
    } else if unsigned.len() > 1 && unsigned.starts_with('0') && unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
        // As in YAML 1.1: file modes are written so.
        radix(unsigned, 8)
    } else {
        radix(unsigned, 10)
    };
    if let Some(whole) = whole {
        return if negative {
            0i64.checked_sub_unsigned(whole).map(Value::I64)
        } else {
            Some(Value::from(whole))
        };
    }
    let floats = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-');
    if !unsigned.bytes().all(floats) || !unsigned.bytes().any(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Value::float(plain.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use proto::value::json;

    use super::*;

    fn read(text: &str) -> Value {
        parse(text.as_bytes()).unwrap().0
    }

    #[test]
    fn scalars_as_kubernetes_reads_them() {
        let check = |text: &str, json: &str| assert_eq!(json::write(&read(text)), json, "{text}");
        check("a: yes", r#"{"a":true}"#);
        check("a: 'yes'", r#"{"a":"yes"}"#);
        check("a: off", r#"{"a":false}"#);
        check("a:", r#"{"a":null}"#);
        check("a: 0644", r#"{"a":420}"#);
        check("a: 0x1F", r#"{"a":31}"#);
        check("a: -5", r#"{"a":-5}"#);
        check("a: 1.5", r#"{"a":1.5}"#);
        check("a: 1.25.0", r#"{"a":"1.25.0"}"#);
        check("a: 100m", r#"{"a":"100m"}"#);
        check("a: 18446744073709551615", r#"{"a":18446744073709551615}"#);
        check("a: !!str 5", r#"{"a":"5"}"#);
        check("1: x", r#"{"1":"x"}"#);
        check("- a\n- b: |\n    x\n    y\n", r#"["a",{"b":"x\ny\n"}]"#);
        check(
            "a: &x {k: 1}\nb: *x\nc:\n  <<: *x\n  l: 2",
            r#"{"a":{"k":1},"b":{"k":1},"c":{"k":1,"l":2}}"#,
        );
        check("", "null");
        check("a: 2026-01-01T00:00:00Z", r#"{"a":"2026-01-01T00:00:00Z"}"#);
    }

    #[test]
    fn doubled_keys_are_noted() {
        let (value, twice) = parse(b"a: 1\nb: 2\na: 3\n").unwrap();
        assert_eq!(value.int_at(&["a"]), Some(3));
        assert_eq!(twice, [r#"line 3: key "a" already set in map"#]);
    }

    #[test]
    fn what_is_no_document_is_refused() {
        for bad in ["a: [", "a: *x", "? [a]\n: b", "a: .inf", "a: \"", "\t- x: [}"] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
        let deep = |depth: usize| [b"[".repeat(depth), b"]".repeat(depth)].concat();
        assert!(parse(&deep(DEPTH_MAX)).is_ok());
        assert!(matches!(parse(&deep(DEPTH_MAX + 2)), Err(YamlError::Depth)));
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for at in 1..9 {
            let below = format!("*a{}", at - 1);
            bomb += &format!("a{at}: &a{at} [{}]\n", [below.as_str(); 10].join(","));
        }
        assert!(matches!(parse(bomb.as_bytes()), Err(YamlError::Aliases)));
        let many = |count: usize| "- \n".repeat(count);
        assert!(parse(many(VALUES_MAX - 1).as_bytes()).is_ok());
        assert!(parse(many(VALUES_MAX).as_bytes()).is_err());
    }
}

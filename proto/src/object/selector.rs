//! Label and field selectors: the text form of a query and the object form inside specs.

use std::collections::BTreeMap;

use crate::value::Value;

/// A set of requirements, all of which must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector(pub Vec<Requirement>);

/// One requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub test: Test,
}

/// What a label must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    In(Vec<String>),
    /// Also holds where the label is absent.
    NotIn(Vec<String>),
    Exists,
    Absent,
    /// Greater than, as integers.
    Above(i64),
    /// Less than, as integers.
    Below(i64),
}

/// A selector that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error("unable to parse requirement: {0}")]
    Syntax(String),
    #[error("{0:?} is not a valid label selector operator")]
    Operator(String),
    #[error("for 'in', 'notin' operators, values set can't be empty")]
    NoValues,
    #[error("for 'Gt', 'Lt' operators, the value must be an integer, not {0:?}")]
    NotInteger(String),
    #[error("invalid label key {0:?}")]
    Key(String),
    #[error("invalid label value {0:?}")]
    Value(String),
}

impl Selector {
    /// Reads the text form of a query: `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1,m<9`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        split(text).map(requirement).collect::<Result<_, _>>().map(Self)
    }

    /// The selector of a `metav1.LabelSelector`. Null matches nothing and is `None`; an empty one matches everything.
    pub fn of_labels(object: &Value) -> Result<Option<Self>, SelectorError> {
        if object.is_null() {
            return Ok(None);
        }
        let mut selector = Self::of_map(object.get("matchLabels").unwrap_or(&Value::Null));
        for expression in object.list_at(&["matchExpressions"]) {
            selector.0.push(Requirement::of_expression(expression)?);
        }
        Ok(Some(selector))
    }

    /// Equality on every label of a map, as services and node selectors have it.
    pub fn of_map(labels: &Value) -> Self {
        let labels = labels.as_map().into_iter().flatten();
        Self(
            labels
                .filter_map(|(key, value)| {
                    let test = Test::In(vec![value.as_text()?.to_owned()]);
                    Some(Requirement { key: key.to_owned(), test })
                })
                .collect(),
        )
    }

    /// Whether every requirement holds.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0
            .iter()
            .all(|requirement| requirement.matches(label(&requirement.key)))
    }

    /// Whether every requirement holds for the labels of an object.
    pub fn matches_object(&self, object: &Value) -> bool {
        self.matches(|key| object.text_at(&["metadata", "labels", key]))
    }

    /// Whether every requirement holds for a map of labels.
    pub fn matches_map(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches(|key| labels.get(key).map(String::as_str))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Requirement {
    /// One entry of `matchExpressions`, of a label selector or of a node selector term.
    pub fn of_expression(expression: &Value) -> Result<Self, SelectorError> {
        let key = expression.text_at(&["key"]).unwrap_or_default().to_owned();
        let values = || -> Vec<String> {
            let values = expression.list_at(&["values"]).iter();
            values.filter_map(|value| value.as_text().map(str::to_owned)).collect()
        };
        let test = match expression.text_at(&["operator"]).unwrap_or_default() {
            "In" => Test::In(some(values())?),
            "NotIn" => Test::NotIn(some(values())?),
            "Exists" => Test::Exists,
            "DoesNotExist" => Test::Absent,
            "Gt" => Test::Above(integer(&values().concat())?),
            "Lt" => Test::Below(integer(&values().concat())?),
            other => return Err(SelectorError::Operator(other.to_owned())),
        };
        Ok(Self { key: label_key(&key)?, test })
    }

    pub fn matches(&self, label: Option<&str>) -> bool {
        let number = || label.and_then(|label| label.parse::<i64>().ok());
        match &self.test {
            Test::In(values) => label.is_some_and(|label| values.iter().any(|value| value == label)),
            Test::NotIn(values) => label.is_none_or(|label| values.iter().all(|value| value != label)),
            Test::Exists => label.is_some(),
            Test::Absent => label.is_none(),
            Test::Above(bound) => number().is_some_and(|number| number > *bound),
            Test::Below(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

/// One requirement of a field selector: `field=value`, `field==value` or `field!=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRequirement {
    pub field: String,
    pub equal: bool,
    pub value: String,
}

/// Reads a field selector; which fields exist is for the kind to say.
pub fn parse_fields(text: &str) -> Result<Vec<FieldRequirement>, SelectorError> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (field, equal, value) = if let Some((field, value)) = part.split_once("!=") {
                (field, false, value)
            } else if let Some((field, value)) = part.split_once("==") {
                (field, true, value)
            } else if let Some((field, value)) = part.split_once('=') {
                (field, true, value)
            } else {
                return Err(SelectorError::Syntax(format!(
                    "invalid selector: '{text}'; can't understand '{part}'"
                )));
            };
            Ok(FieldRequirement {
                field: field.trim().to_owned(),
                equal,
                value: value.trim().to_owned(),
            })
        })
        .collect()
}

/// The parts between commas that stand in no parentheses. Empty text has none.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0usize;
    let parts = text.split(move |at: char| {
        match at {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at == ',' && depth == 0
    });
    parts.take(if text.trim().is_empty() { 0 } else { usize::MAX })
}

fn requirement(part: &str) -> Result<Requirement, SelectorError> {
    let part = part.trim();
    if let Some(error) = misplaced(part) {
        return Err(error);
    }
    let syntax = || SelectorError::Syntax(format!("found '{part}', expected: a label requirement"));
    let build = |key: &str, test| Ok(Requirement { key: label_key(key.trim())?, test });
    if let Some(key) = part.strip_prefix('!') {
        return build(key, Test::Absent);
    }
    if let Some((key, value)) = part.split_once("!=") {
        return build(key, Test::NotIn(vec![label_value(value)?]));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return build(key, Test::In(vec![label_value(value)?]));
    }
    if let Some((key, value)) = part.split_once('>') {
        return build(key, Test::Above(integer(value.trim())?));
    }
    if let Some((key, value)) = part.split_once('<') {
        return build(key, Test::Below(integer(value.trim())?));
    }
    let Some((head, set)) = part.split_once('(') else {
        return build(part, Test::Exists);
    };
    let set = set.trim_end().strip_suffix(')').ok_or_else(syntax)?;
    let values = set.split(',').map(label_value).collect::<Result<Vec<_>, _>>()?;
    match head.trim().rsplit_once(char::is_whitespace) {
        Some((key, "in")) => build(key, Test::In(values)),
        Some((key, "notin")) => build(key, Test::NotIn(values)),
        _ => Err(syntax()),
    }
}

/// A word where an operator has to be, said as a real server says it.
fn misplaced(part: &str) -> Option<SelectorError> {
    let (key, rest) = part.split_once(char::is_whitespace)?;
    let is_word = |byte: char| byte.is_ascii_alphanumeric() || "-_./".contains(byte);
    let rest = rest.trim_start();
    let end = rest.find(|byte| !is_word(byte)).unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    if word.is_empty() || !key.chars().all(is_word) {
        return None;
    }
    let after = after.trim_start();
    let found = match word {
        "in" | "notin" if after.starts_with('(') => return None,
        "in" | "notin" => format!(
            "found '{}' expected: '('",
            after.split_whitespace().next().unwrap_or_default()
        ),
        word => format!("found '{word}', expected: in, notin, =, ==, !=, gt, lt"),
    };
    Some(SelectorError::Syntax(found))
}

fn some(values: Vec<String>) -> Result<Vec<String>, SelectorError> {
    if values.is_empty() {
        Err(SelectorError::NoValues)
    } else {
        Ok(values)
    }
}

fn integer(text: &str) -> Result<i64, SelectorError> {
    text.parse().map_err(|_| SelectorError::NotInteger(text.to_owned()))
}

fn label_value(text: &str) -> Result<String, SelectorError> {
    let text = text.trim();
    if is_label_value(text) {
        Ok(text.to_owned())
    } else {
        Err(SelectorError::Value(text.to_owned()))
    }
}

fn label_key(text: &str) -> Result<String, SelectorError> {
    if is_label_key(text) {
        Ok(text.to_owned())
    } else {
        Err(SelectorError::Key(text.to_owned()))
    }
}

/// At most 63 letters, digits, `-`, `_`, `.`, beginning and ending with a letter or digit; or nothing.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_qualified(text)
}

/// A qualified name, optionally after a DNS subdomain and a slash.
pub fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        None => is_qualified(text),
        Some((domain, name)) => is_subdomain(domain) && is_qualified(name),
    }
}

fn is_qualified(text: &str) -> bool {
    let alphanumeric = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && alphanumeric(bytes.first())
        && alphanumeric(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// An RFC 1123 subdomain: at most 253 bytes of dot-separated labels.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|part| {
            let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            !part.is_empty()
                && part.bytes().all(|byte| alphanumeric(byte) || byte == b'-')
                && !part.starts_with('-')
                && !part.ends_with('-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(selector: &str, labels: &[(&str, &str)]) -> bool {
        let selector = Selector::parse(selector).unwrap();
        selector.matches(|key| labels.iter().find(|(name, _)| *name == key).map(|(_, value)| *value))
    }

    #[test]
    fn text_selectors() {
        let labels = [("app", "web"), ("tier", "2"), ("a.b/c", "")];
        for yes in [
            "",
            "app=web",
            "app==web",
            "app!=db",
            "none!=x",
            "app in (db, web)",
            "app notin (db)",
            "none notin (db)",
            "app,!none",
            "tier>1,tier<3",
            "a.b/c=",
            "app in (web),tier in (1,2)",
        ] {
            assert!(holds(yes, &labels), "{yes}");
        }
        for no in [
            "app=db",
            "app!=web",
            "none",
            "!app",
            "app notin (web)",
            "tier>2",
            "app>1",
            "app=web,tier=1",
        ] {
            assert!(!holds(no, &labels), "{no}");
        }
        for bad in [
            "=x",
            "app=web,",
            "app in (web",
            "app on (web)",
            "app=we b",
            "tier>x",
            "-a=b",
            "app in web",
        ] {
            assert!(Selector::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_misplaced_word_is_named() {
        let check = |text: &str, message: &str| assert_eq!(Selector::parse(text).unwrap_err().to_string(), message);
        check("idx in", "unable to parse requirement: found '' expected: '('");
        check("idx in web", "unable to parse requirement: found 'web' expected: '('");
        check(
            "a b=c",
            "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
        );
    }

    #[test]
    fn object_selectors() {
        let labels: BTreeMap<_, _> = [("app".to_owned(), "web".to_owned())].into();
        let check = |json: &str, holds: bool| {
            let object = crate::value::json::parse(json.as_bytes()).unwrap();
            let selector = Selector::of_labels(&object).unwrap();
            assert_eq!(
                selector.is_some_and(|selector| selector.matches_map(&labels)),
                holds,
                "{json}"
            );
        };
        check("null", false);
        check("{}", true);
        check(r#"{"matchLabels":{"app":"web"}}"#, true);
        check(r#"{"matchLabels":{"app":"db"}}"#, false);
        check(
            r#"{"matchExpressions":[{"key":"app","operator":"NotIn","values":["db"]}]}"#,
            true,
        );
        check(r#"{"matchExpressions":[{"key":"x","operator":"DoesNotExist"}]}"#, true);
        let bad = |json: &str| Selector::of_labels(&crate::value::json::parse(json.as_bytes()).unwrap()).unwrap_err();
        assert_eq!(
            bad(r#"{"matchExpressions":[{"key":"x","operator":"In"}]}"#),
            SelectorError::NoValues
        );
        assert!(matches!(
            bad(r#"{"matchExpressions":[{"key":"x","operator":"Has"}]}"#),
            SelectorError::Operator(_)
        ));
    }

    #[test]
    fn field_selectors() {
        let parsed = parse_fields("metadata.name=a,spec.nodeName!=,status.phase==Running").unwrap();
        let flat: Vec<_> = parsed
            .iter()
            .map(|one| (one.field.as_str(), one.equal, one.value.as_str()))
            .collect();
        assert_eq!(
            flat,
            [
                ("metadata.name", true, "a"),
                ("spec.nodeName", false, ""),
                ("status.phase", true, "Running")
            ]
        );
        assert!(parse_fields("metadata.name").is_err());
    }

    #[test]
    fn limits_of_names() {
        assert!(is_label_value(&"a".repeat(63)) && !is_label_value(&"a".repeat(64)));
        let longest = [&"a".repeat(63), &"b".repeat(63), &"c".repeat(63), &*"d".repeat(61)].join(".");
        assert!(is_subdomain(&longest) && !is_subdomain(&format!("{longest}d")));
        assert!(!is_subdomain("a..b") && !is_subdomain("A") && !is_subdomain("-a"));
    }
}

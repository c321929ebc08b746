//! Whether an answer is the recorded one.

use std::collections::BTreeSet;

use hyper::{HeaderMap, StatusCode, header};
use proto::value::{Value, json};

use super::Outcome;
use super::misses::Ignored;
use super::symbols::Symbols;

/// How much of a value a difference shows.
const SHOWN_MAX: usize = 240;

/// The comparison of one answer.
pub(super) struct Comparison<'a> {
    symbols: &'a mut Symbols,
    ignored: Vec<Ignored>,
    used: BTreeSet<usize>,
    differences: Vec<String>,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(symbols: &'a mut Symbols, ignored: Vec<Ignored>) -> Self {
        Self {
            symbols,
            ignored,
            used: BTreeSet::new(),
            differences: Vec::new(),
        }
    }

    pub(super) fn differ(&mut self, difference: String) {
        self.differences.push(difference);
    }

    pub(super) fn outcome(self) -> Outcome {
        if !self.differences.is_empty() {
            return Outcome::Failed(self.differences);
        }
        let reasons: BTreeSet<&str> = self.used.iter().map(|at| self.ignored[*at].reason.as_str()).collect();
        if reasons.is_empty() {
            Outcome::Passed
        } else {
            Outcome::PassedBut(reasons.into_iter().collect::<Vec<_>>().join("; "))
        }
    }

    /// Compares the status and the headers that were recorded.
    pub(super) fn head(&mut self, recorded: &Value, status: StatusCode, headers: &HeaderMap) {
        let expected = recorded.int_at(&["status"]).unwrap_or(0);
        if expected != i64::from(status.as_u16()) {
            self.differ(format!("status: recorded {expected}, found {status}"));
        }
        let recorded = recorded.get("headers").and_then(Value::as_map).into_iter().flatten();
        for (name, value) in recorded {
            let Some(value) = value.as_text() else { continue };
            let found: Vec<&str> = headers
                .get_all(name)
                .iter()
                .filter_map(|value| value.to_str().ok())
                .collect();
            let same = match name {
                "etag" => {
                    if let Some(found) = found.first() {
                        self.symbols.bind_etag(value, found);
                    }
                    !found.is_empty()
                }
                "content-type" => {
                    let media = |text: &str| text.split("; charset").next().unwrap_or_default().to_owned();
                    found.first().is_some_and(|found| media(found) == media(value))
                }
                // Of several headers of one name the recording kept one.
                _ => found.iter().any(|found| self.symbols.same(value, found)),
            };
            if !same && name != header::TRANSFER_ENCODING.as_str() {
                self.differ(format!("header {name}: recorded {value:?}, found {found:?}"));
            }
        }
    }

    /// Compares bodies. Field managers are not tracked here, and descriptions of columns are nobody's business.
    pub(super) fn body(&mut self, recorded: &Value, found: &Value) {
        let (mut recorded, mut found) = (recorded.clone(), found.clone());
        for value in [&mut recorded, &mut found] {
            strip(value);
        }
        self.value("", &recorded, &found);
    }

    fn value(&mut self, path: &str, recorded: &Value, found: &Value) {
        if let Some(at) = self.ignored.iter().position(|ignored| ignored.path == path) {
            if recorded != found {
                self.used.insert(at);
            }
            return;
        }
        match (recorded, found) {
            (Value::Map(before), Value::Map(now)) => {
                let fields: BTreeSet<&str> = before.keys().chain(now.keys()).collect();
                for field in fields {
                    let inner = if path.is_empty() {
                        field.to_owned()
                    } else {
                        format!("{path}.{field}")
                    };
                    match (before.get(field), now.get(field)) {
                        (Some(before), Some(now)) => self.field(&inner, field, before, now),
                        (before, now) => self.lone(&inner, before, now),
                    }
                }
            }
            (Value::List(before), Value::List(now)) => {
                if before.len() != now.len() {
                    self.unequal(path, recorded, found);
                    return;
                }
                let inner = format!("{path}.*");
                if path.ends_with("causes") {
                    self.multiset(path, before, now);
                } else {
                    for (before, now) in before.iter().zip(now) {
                        self.value(&inner, before, now);
                    }
                }
            }
            (Value::Text(before), Value::Text(now)) => {
                let ages = path.ends_with("cells.*") && is_age(before) && is_age(now);
                if !ages && !self.symbols.same(before, now) && !same_parts(before, now) {
                    self.unequal(path, recorded, found);
                }
            }
            // A port was recorded as its symbol.
            (Value::Text(before), Value::I64(now)) if before.starts_with("<port:") => {
                if !self.symbols.same(before, &now.to_string()) {
                    self.unequal(path, recorded, found);
                }
            }
            _ if recorded == found => {}
            _ => self.unequal(path, recorded, found),
        }
    }

    fn field(&mut self, path: &str, field: &str, recorded: &Value, found: &Value) {
        if field != "resourceVersion" {
            self.value(path, recorded, found);
            return;
        }
        let (Some(symbol), Some(revision)) = (recorded.as_text(), found.as_text()) else {
            self.unequal(path, recorded, found);
            return;
        };
        if !symbol.contains(':') {
            self.value(path, recorded, found);
            return;
        }
        // The revision of a list is the store's and moves with everything; that of an object is its own.
        let of_list = path == "metadata.resourceVersion" || path == "object.metadata.resourceVersion";
        match self.symbols.get(symbol).map(str::to_owned) {
            Some(bound) if bound == revision => {}
            Some(bound) if of_list && number(&bound) <= number(revision) => {}
            Some(_) => self.unequal(path, recorded, found),
            None => {
                let taken = self.symbols.of_kind("rv").any(|(_, value)| value == revision);
                if taken && !of_list || number(revision) == 0 {
                    self.differ(format!("{path}: {symbol} is {revision}, which another symbol is too"));
                }
                self.symbols.bind(symbol, revision.to_owned());
            }
        }
    }

    /// A field that only one side has.
    fn lone(&mut self, path: &str, recorded: Option<&Value>, found: Option<&Value>) {
        if let Some(at) = self.ignored.iter().position(|ignored| ignored.path == path) {
            self.used.insert(at);
            return;
        }
        let shown = |value: Option<&Value>| value.map_or_else(|| "nothing".to_owned(), shorten);
        self.differ(format!("{path}: recorded {}, found {}", shown(recorded), shown(found)));
    }

    fn multiset(&mut self, path: &str, recorded: &[Value], found: &[Value]) {
        let sorted = |list: &[Value]| {
            let mut texts: Vec<String> = list.iter().map(json::write).collect();
            texts.sort();
            texts
        };
        for (before, now) in sorted(recorded).iter().zip(&sorted(found)) {
            if !self.symbols.same(before, now) {
                self.differ(format!("{path}: recorded {before}, found {now}"));
            }
        }
    }

    fn unequal(&mut self, path: &str, recorded: &Value, found: &Value) {
        self.differ(format!(
            "{path}: recorded {}, found {}",
            shorten(recorded),
            shorten(found)
        ));
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

fn shorten(value: &Value) -> String {
    let text = json::write(value);
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// `5s`, `3m10s`: some age, which was not made a symbol everywhere.
fn is_age(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_digit())
        && text.ends_with(['s', 'm', 'h', 'd', 'y'])
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || b"smhdy".contains(&byte))
}

/// Messages that join several: the same parts in another order.
fn same_parts(recorded: &str, found: &str) -> bool {
    let parts = |text: &str| {
        let (head, list) = text.split_once('[')?;
        let mut parts: Vec<String> = list.trim_end_matches(']').split(", ").map(str::to_owned).collect();
        parts.sort();
        Some((head.to_owned(), parts))
    };
    parts(recorded).is_some() && parts(recorded) == parts(found)
}

fn strip(value: &mut Value) {
    match value {
        Value::Map(map) => {
            map.remove("managedFields");
            for (field, value) in map.iter_mut() {
                if field == "columnDefinitions"
                    && let Value::List(columns) = value
                {
                    for column in columns {
                        column.remove(&["description"]);
                    }
                } else {
                    strip(value);
                }
            }
        }
        Value::List(list) => list.iter_mut().for_each(strip),
        _ => {}
    }
}

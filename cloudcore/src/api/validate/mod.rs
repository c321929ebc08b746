//! What an object must obey beyond its schema, with the words of a real server.
//!
//! Pure: everything that is wrong is found in one pass, in the order in which a real server says it, each with the path
//! of its field. Expects objects as `codec` and `defaults` give them.

mod container;
mod meta;
mod misc;
mod names;
mod node;
mod pod;
mod selector;
mod service;
#[cfg(test)]
mod tests;
mod volume;
mod workload;

use std::fmt::Display;

use proto::value::{Value, json};

pub use self::pod::warnings;
use super::kinds::KindData;
use super::quote::Quoted;

/// Most faults that are listed; an object with more is wrong enough.
pub const FAULTS_MAX: usize = 1000;

/// What is wrong with one field: a cause of a `Status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    pub fault: Fault,
    /// Its path: `spec.containers[0].image`.
    pub field: String,
    /// The message of the cause.
    pub message: String,
}

/// The sort of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Required,
    Invalid,
    Duplicate,
    NotSupported,
    NotFound,
    Forbidden,
    TooLong,
    TooMany,
}

impl Fault {
    /// The reason of the cause.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotSupported => "FieldValueNotSupported",
            Self::NotFound => "FieldValueNotFound",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
        }
    }
}

impl FieldError {
    /// As a cause in the details of a `Status`.
    pub fn cause(&self) -> Value {
        Value::from([
            ("reason", self.fault.reason()),
            ("message", &self.message),
            ("field", &self.field),
        ])
    }

    /// As one line: path and message.
    pub fn line(&self) -> String {
        format!("{}: {}", self.field, self.message)
    }
}

/// The message of the `Status` for an object with faults: `ConfigMap "a" is invalid: …`.
pub fn invalid_message(group: &str, kind: &str, name: &str, faults: &[FieldError]) -> String {
    let mut lines: Vec<String> = Vec::with_capacity(faults.len());
    for fault in faults {
        let line = fault.line();
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    let said = match lines.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    let dot = if group.is_empty() { "" } else { "." };
    format!("{kind}{dot}{group} {} is invalid: {said}", Quoted(name))
}

/// What is wrong with a new object.
pub fn validate_create(kind: &KindData, object: &Value) -> Vec<FieldError> {
    let mut faults = Faults::default();
    meta::create(kind, object, &mut faults);
    body(kind, object, &mut faults);
    faults.found
}

/// What is wrong with a change of an object.
pub fn validate_update(kind: &KindData, old: &Value, new: &Value) -> Vec<FieldError> {
    let mut faults = Faults::default();
    meta::update(kind, old, new, &mut faults);
    match (kind.group, kind.kind) {
        ("", "Pod") => pod::update(old, new, &mut faults),
        ("", "Node") => {
            node::body(new, &mut faults);
            node::update(old, new, &mut faults);
        }
        ("", "ConfigMap") => {
            misc::immutable(old, new, &["data", "binaryData"], &mut faults);
            misc::config_map(new, &mut faults);
        }
        ("", "Secret") => misc::secret_update(old, new, &mut faults),
        ("", "Service") => service::update(old, new, &mut faults),
        ("apps", _) => workload::update(kind, old, new, &mut faults),
        ("discovery.k8s.io", "EndpointSlice") => {
            misc::unchanged(old, new, "addressType", &mut faults);
            misc::endpoint_slice(new, &mut faults);
        }
        _ => body(kind, new, &mut faults),
    }
    faults.found
}

fn body(kind: &KindData, object: &Value, faults: &mut Faults) {
    match (kind.group, kind.kind) {
        ("", "Namespace") => misc::namespace(object, faults),
        ("", "Pod") => pod::body(object, faults),
        ("", "Node") => node::body(object, faults),
        ("", "ConfigMap") => misc::config_map(object, faults),
        ("", "Secret") => misc::secret(object, faults),
        ("", "Service") => service::body(object, faults),
        ("" | "events.k8s.io", "Event") => misc::event(object, faults),
        ("apps", _) => workload::body(kind, object, faults),
        ("coordination.k8s.io", "Lease") => misc::lease(object, faults),
        ("discovery.k8s.io", "EndpointSlice") => misc::endpoint_slice(object, faults),
        _ => {}
    }
}

/// Collects faults.
#[derive(Debug, Default)]
struct Faults {
    found: Vec<FieldError>,
}

impl Faults {
    fn add(&mut self, fault: Fault, field: impl Display, message: String) {
        if self.found.len() < FAULTS_MAX {
            self.found.push(FieldError { fault, field: field.to_string(), message });
        }
    }

    fn required(&mut self, field: impl Display, detail: &str) {
        self.add(Fault::Required, field, with_detail("Required value".to_owned(), detail));
    }

    fn invalid(&mut self, field: impl Display, value: &Value, detail: &str) {
        self.add(
            Fault::Invalid,
            field,
            with_detail(format!("Invalid value: {}", shown(value)), detail),
        );
    }

    fn invalid_text(&mut self, field: impl Display, text: &str, detail: &str) {
        self.invalid(field, &Value::from(text), detail);
    }

    /// One fault for each detail about a text.
    fn invalid_texts(&mut self, field: impl Display, text: &str, details: Vec<String>) {
        for detail in details {
            self.invalid_text(&field, text, &detail);
        }
    }

    fn duplicate(&mut self, field: impl Display, value: &Value) {
        self.add(Fault::Duplicate, field, format!("Duplicate value: {}", shown(value)));
    }

    fn not_found(&mut self, field: impl Display, text: &str) {
        self.add(Fault::NotFound, field, format!("Not found: {}", Quoted(text)));
    }

    fn forbidden(&mut self, field: impl Display, detail: &str) {
        self.add(Fault::Forbidden, field, format!("Forbidden: {detail}"));
    }

    fn not_supported(&mut self, field: impl Display, text: &str, supported: &[&str]) {
        let supported: Vec<String> = supported.iter().map(|one| Quoted(one).to_string()).collect();
        let message = format!(
            "Unsupported value: {}: supported values: {}",
            Quoted(text),
            supported.join(", ")
        );
        self.add(Fault::NotSupported, field, message);
    }

    fn too_long(&mut self, field: impl Display, bytes_max: usize) {
        self.add(
            Fault::TooLong,
            field,
            format!("Too long: may not be more than {bytes_max} bytes"),
        );
    }

    /// A text that must be one of a few; empty is missing.
    fn one_of(&mut self, field: impl Display, text: &str, supported: &[&str]) {
        if text.is_empty() {
            self.required(field, "");
        } else if !supported.contains(&text) {
            self.not_supported(field, text, supported);
        }
    }

    /// A number that must not be negative, where it is set.
    fn not_negative(&mut self, field: impl Display, number: Option<&Value>) {
        if let Some(value) = number
            && value.as_i64().is_some_and(|number| number < 0)
        {
            self.invalid(field, value, "must be greater than or equal to 0");
        }
    }
}

fn with_detail(message: String, detail: &str) -> String {
    if detail.is_empty() {
        message
    } else {
        format!("{message}: {detail}")
    }
}

/// A value as messages show it.
fn shown(value: &Value) -> String {
    match value {
        Value::Text(text) => Quoted(text).to_string(),
        other => json::write(other),
    }
}

/// The text of a field; empty when it is not set.
fn text<'o>(object: &'o Value, field: &str) -> &'o str {
    object.get(field).and_then(Value::as_text).unwrap_or_default()
}

/// The elements of a field; none when it is not set.
fn list<'o>(object: &'o Value, field: &str) -> &'o [Value] {
    object.list_at(&[field])
}

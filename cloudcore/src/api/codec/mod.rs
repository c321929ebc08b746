//! Request bodies to objects: JSON, YAML and protobuf, checked against the schema of the kind that is expected.
//!
//! Whatever the format, the object comes out in the one form the API shows: `apiVersion` and `kind` set, unknown fields
//! gone, quantities and times in their one spelling, zeros left out where Kubernetes leaves them out. The words of every
//! refusal are those of a real server, since people and programs know them.

mod event;
mod read;
mod scalar;
#[cfg(test)]
mod tests;
mod tree;
mod wire;
mod yaml;

use proto::value::{Map, Value};

pub use self::event::{from_stored, to_stored};
pub use self::scalar::{TimeForm, quantity, time};
use crate::api::quote::Quoted;
use crate::api::schema::{self, KindSchema, Presence};

/// Largest body that is read.
pub const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

/// How much of a body an error quotes.
const QUOTE_BYTES_MAX: usize = 30;

/// What becomes of unknown and doubled fields; they never reach the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Nothing is said.
    Ignore,
    /// Each is a warning.
    #[default]
    Warn,
    /// The body is refused.
    Strict,
}

impl FieldValidation {
    /// The value of the query parameter; `None` when it is not known. Empty is the default.
    pub fn of_query(text: &str) -> Option<Self> {
        match text {
            "" | "Warn" => Some(Self::Warn),
            "Ignore" => Some(Self::Ignore),
            "Strict" => Some(Self::Strict),
            _ => None,
        }
    }
}

/// An object and what is to be said about its body.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    pub value: Value,
    /// Texts of `Warning` headers, without code and quotes.
    pub warnings: Vec<String>,
}

/// A body that is no object of the expected kind. The text is the message of the `Status`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error(
        "the body of the request was in an unknown format - accepted media types include: application/json, \
         application/yaml, application/vnd.kubernetes.protobuf"
    )]
    MediaType,
    #[error("Request entity too large: limit is {BODY_BYTES_MAX}")]
    TooLarge,
    /// Not even the kind could be read.
    #[error("the object provided is unrecognized (must be of type {expected}): {detail} ({quote})")]
    Unrecognized { expected: &'static str, detail: String, quote: String },
    #[error("{kind} in version {} cannot be handled as a {expected}: {detail}", Quoted(version))]
    Refused {
        kind: String,
        version: String,
        expected: &'static str,
        detail: String,
    },
}

impl DecodeError {
    /// The HTTP status.
    pub fn code(&self) -> u16 {
        match self {
            Self::MediaType => 415,
            Self::TooLarge => 413,
            Self::Unrecognized { .. } | Self::Refused { .. } => 400,
        }
    }

    /// The reason of the `Status`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::MediaType => "UnsupportedMediaType",
            Self::TooLarge => "RequestEntityTooLarge",
            Self::Unrecognized { .. } | Self::Refused { .. } => "BadRequest",
        }
    }

    /// What is wrong with the object, without the words around it; answers to patches hold only this.
    pub fn detail(&self) -> String {
        match self {
            Self::Unrecognized { detail, .. } | Self::Refused { detail, .. } => detail.clone(),
            Self::MediaType | Self::TooLarge => self.to_string(),
        }
    }
}

/// How Go spells the struct into which the kind of a body is read first.
const TYPE_META: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// What a JSON document is when it is neither an object nor null.
fn no_object(body: &[u8]) -> Option<&'static str> {
    match body.trim_ascii_start().first()? {
        b'{' | b'n' => None,
        b'[' => Some("array"),
        b'"' => Some("string"),
        b't' | b'f' => Some("bool"),
        _ => Some("number"),
    }
}

/// The formats of bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Yaml,
    Protobuf,
}

impl Format {
    fn of(content_type: Option<&str>) -> Option<Self> {
        let named = content_type.unwrap_or_default();
        let media = named.split(';').next().unwrap_or_default().trim();
        match media.to_ascii_lowercase().as_str() {
            "" | "application/json" => Some(Self::Json),
            "application/yaml" => Some(Self::Yaml),
            "application/vnd.kubernetes.protobuf" => Some(Self::Protobuf),
            _ => None,
        }
    }
}

/// Reads a request body as an object of the expected kind.
pub fn decode(
    content_type: Option<&str>,
    body: &[u8],
    expect: &'static KindSchema,
    validation: FieldValidation,
) -> Result<Decoded, DecodeError> {
    let format = Format::of(content_type).ok_or(DecodeError::MediaType)?;
    if body.len() > BODY_BYTES_MAX {
        return Err(DecodeError::TooLarge);
    }
    let unrecognized = |detail: String| DecodeError::Unrecognized { expected: expect.kind, detail, quote: quote(body) };
    let (map, notes) = match format {
        Format::Json => {
            let mut reader = serde_json::Deserializer::from_slice(body);
            let (read, notes) = read::object(expect.root(), &mut reader);
            let read = read.and_then(|map| reader.end().map(|()| map));
            let map = read.map_err(|error| unrecognized(no_kind(&words_of(body, &error))))?;
            if let Some(found) = no_object(body) {
                return Err(unrecognized(no_kind(&format!(
                    "json: cannot unmarshal {found} into Go value of type {TYPE_META}"
                ))));
            }
            (map, notes)
        }
        Format::Yaml => {
            let (value, twice) = yaml::parse(body).map_err(|error| unrecognized(no_kind(&error.to_string())))?;
            let (read, mut notes) = read::object(expect.root(), tree::Tree(&value));
            let map = read.map_err(|error| unrecognized(no_kind(&error.to_string())))?;
            if !twice.is_empty() {
                let doubled = format!("yaml: unmarshal errors:\n  {}", twice.join("\n  "));
                notes.strict.insert(0, doubled);
            }
            (map, notes)
        }
        Format::Protobuf => {
            let envelope = wire::open(body).map_err(|error| unrecognized(error.to_string()))?;
            let mut map = Map::new();
            for (name, text) in [("apiVersion", envelope.api_version), ("kind", envelope.kind)] {
                if !text.is_empty() {
                    map.insert(name.to_owned(), Value::from(text));
                }
            }
            named(&mut map, expect)?;
            let object = wire::object(expect.root(), envelope.raw);
            map.extend(object.map_err(|error| refused(expect, error.to_string()))?);
            (map, read::Notes::default())
        }
    };
    conclude(map, notes, expect, validation)
}

/// Brings a tree that is already here (the result of a patch) to the form of a decoded body.
pub fn conform(
    value: &Value,
    expect: &'static KindSchema,
    validation: FieldValidation,
) -> Result<Decoded, DecodeError> {
    let (read, notes) = read::object(expect.root(), tree::Tree(value));
    let map = read.map_err(|error| refused(expect, error.to_string()))?;
    conclude(map, notes, expect, validation)
}

/// What an unset field of a kind looks like, if it is always written.
pub fn unset(kind: &KindSchema, field: &str) -> Option<Value> {
    let field = kind.root().field(field)?;
    let written = matches!(field.presence, Presence::Always | Presence::Null);
    written.then(|| read::zero(field))
}

/// Says what is to be said about an object that was read.
fn conclude(
    mut map: Map,
    notes: read::Notes,
    expect: &'static KindSchema,
    validation: FieldValidation,
) -> Result<Decoded, DecodeError> {
    named(&mut map, expect)?;
    if let Some(words) = notes.wrong {
        return Err(refused(expect, words));
    }
    let warnings = match validation {
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn => notes.strict,
        FieldValidation::Strict if notes.strict.is_empty() => Vec::new(),
        FieldValidation::Strict => {
            return Err(refused(
                expect,
                format!("strict decoding error: {}", notes.strict.join(", ")),
            ));
        }
    };
    Ok(Decoded { value: Value::Map(map), warnings })
}

/// Sets `apiVersion` and `kind` where the body left them out, and refuses a body of another kind.
fn named(map: &mut Map, expect: &'static KindSchema) -> Result<(), DecodeError> {
    let text = |name: &str| map.get(name).and_then(Value::as_text).filter(|text| !text.is_empty());
    let expected_version = expect.api_version();
    let kind = text("kind").unwrap_or(expect.kind).to_owned();
    let api_version = text("apiVersion").unwrap_or(&expected_version).to_owned();
    // Delete options go by any group's name.
    let any_group = expect.kind == "DeleteOptions" && kind == expect.kind;
    if !any_group && (kind != expect.kind || api_version != expected_version) {
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let detail = if schema::kind(group, version, &kind).is_some() {
            format!(
                "converting ({version}.{kind}) to ({}.{}): unknown conversion",
                internal(expect),
                expect.kind
            )
        } else {
            format!(
                "no kind {} is registered for version {} in scheme \"pkg/runtime/scheme.go:111\"",
                Quoted(&kind),
                Quoted(&api_version)
            )
        };
        return Err(DecodeError::Refused {
            version: version.to_owned(),
            kind,
            expected: expect.kind,
            detail,
        });
    }
    map.insert("kind".to_owned(), Value::from(expect.kind));
    map.insert("apiVersion".to_owned(), Value::from(expected_version));
    Ok(())
}

/// The Go package of a kind's form inside a real server.
fn internal(expect: &KindSchema) -> &'static str {
    match expect.group {
        "" | "events.k8s.io" => "core",
        group => group.split('.').next().unwrap_or(group),
    }
}

fn refused(expect: &'static KindSchema, detail: String) -> DecodeError {
    DecodeError::Refused {
        kind: expect.kind.to_owned(),
        version: expect.version.to_owned(),
        expected: expect.kind,
        detail,
    }
}

fn no_kind(words: &str) -> String {
    format!("couldn't get version/kind; json parse error: {words}")
}

/// The start of a body, as text when it may be a JSON object, else in hexadecimal.
fn quote(body: &[u8]) -> String {
    let head = body.get(..QUOTE_BYTES_MAX).unwrap_or(body);
    let more = if body.len() > QUOTE_BYTES_MAX { " ..." } else { "" };
    match body {
        [] => "<empty>".to_owned(),
        [b'{', ..] => format!("{}{more}", String::from_utf8_lossy(head)),
        _ => {
            let digits: String = head.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{digits}{more}")
        }
    }
}

/// What Go says of a text that is no JSON document.
pub fn json_words(text: &[u8]) -> String {
    match serde_json::from_slice::<serde::de::IgnoredAny>(text) {
        Ok(_) => "exceeded max depth".to_owned(),
        Err(error) => words_of(text, &error),
    }
}

/// A JSON reader's complaint in Go's words.
fn words_of(body: &[u8], error: &serde_json::Error) -> String {
    use serde_json::error::Category;
    match error.classify() {
        Category::Eof => return "unexpected end of JSON input".to_owned(),
        Category::Io | Category::Data => return error.to_string(),
        Category::Syntax => {}
    }
    let text = error.to_string();
    if text.starts_with("recursion limit") {
        return "exceeded max depth".to_owned();
    }
    let line = body.split(|byte| *byte == b'\n').nth(error.line().saturating_sub(1));
    let at = line.and_then(|line| line.get(error.column().saturating_sub(1)));
    let Some(at) = at.copied() else { return text };
    let place = match text.split(" at line").next().unwrap_or_default() {
        "expected `:`" => "after object key",
        "expected `,` or `}`" => "after object key:value pair",
        "expected `,` or `]`" => "after array element",
        "key must be a string" => "looking for beginning of object key string",
        "trailing characters" => "after top-level value",
        _ => "looking for beginning of value",
    };
    format!("invalid character {:?} {place}", char::from(at))
}

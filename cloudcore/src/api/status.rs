//! What the API says when it says no: `Status` objects in the words Kubernetes' clients know.
//!
//! Clients branch on code and reason, people read the message, tools read the causes. All three are therefore part of
//! the interface, and every refusal in this module tree is made here.

use std::fmt;

use hyper::StatusCode;
use proto::value::{Map, Value};

use super::quote::Quoted;
use super::validate::FieldError;

/// A refusal, ready to be sent.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub code: StatusCode,
    /// Empty where the real server gives none.
    pub reason: &'static str,
    pub message: String,
    /// `details` of the `Status`, null when there is none.
    pub details: Value,
    /// The token with which an expired list may go on.
    pub resume: Option<String>,
    /// Seconds after which trying again makes sense.
    pub retry_after: Option<u32>,
    /// Said as plain text instead of a `Status`.
    pub plain: bool,
}

/// One field that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub reason: &'static str,
    pub field: String,
    pub message: String,
}

impl Cause {
    pub fn forbidden(field: &str, detail: &str) -> Self {
        Self {
            reason: "FieldValueForbidden",
            field: field.to_owned(),
            message: format!("Forbidden: {detail}"),
        }
    }

    pub fn unsupported(field: &str, value: &str, supported: &str) -> Self {
        Self {
            reason: "FieldValueNotSupported",
            field: field.to_owned(),
            message: format!("Unsupported value: {value}: supported values: {supported}"),
        }
    }

    pub fn invalid(field: &str, detail: &str) -> Self {
        Self {
            reason: "FieldValueInvalid",
            field: field.to_owned(),
            message: format!("Invalid value: {detail}"),
        }
    }
}

impl From<&FieldError> for Cause {
    fn from(error: &FieldError) -> Self {
        Self {
            reason: error.fault.reason(),
            field: error.field.clone(),
            message: error.message.clone(),
        }
    }
}

/// What a refusal is about: the resource (`pods`) or the kind (`Pod`), with its group.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    pub group: &'a str,
    pub kind: &'a str,
    pub name: &'a str,
}

/// `deployments.apps "web"`, with the name as Go quotes it.
impl fmt::Display for About<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.qualified(), Quoted(self.name))
    }
}

impl About<'_> {
    /// `pods`, `deployments.apps`.
    fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.kind.to_owned()
        } else {
            format!("{}.{}", self.kind, self.group)
        }
    }

    fn details(&self) -> Map {
        let fields = [("name", self.name), ("group", self.group), ("kind", self.kind)];
        let given = fields.into_iter().filter(|(_, text)| !text.is_empty());
        given.map(|(field, text)| (field.to_owned(), text.into())).collect()
    }
}

impl Refusal {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: Value::Null,
            resume: None,
            retry_after: None,
            plain: false,
        }
    }

    fn about(mut self, about: About<'_>) -> Self {
        self.details = about.details().into();
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// `who` is not allowed to do `verb` on this. The namespace is empty for what has none.
    pub fn not_allowed(who: &str, verb: &str, about: About<'_>, resource: &str, namespace: &str) -> Self {
        let scope = match namespace {
            "" => " at the cluster scope".to_owned(),
            namespace => format!(" in the namespace {namespace:?}"),
        };
        let what = match about.name {
            "" => about.qualified(),
            _ => about.to_string(),
        };
        let message = format!(
            "{what} is forbidden: User {who:?} cannot {verb} resource {resource:?} in API group {:?}{scope}",
            about.group
        );
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about(about)
    }

    /// `who` is not allowed to use a path that is no resource.
    pub fn path_not_allowed(who: &str, verb: &str, path: &str) -> Self {
        let message = format!("forbidden: User {who:?} cannot {verb} path {path:?}");
        let mut refusal = Self::new(StatusCode::FORBIDDEN, "Forbidden", message);
        refusal.details = Value::map();
        refusal
    }

    pub fn forbidden(about: About<'_>, why: &str) -> Self {
        let message = format!("{about} is forbidden: {why}");
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about(about)
    }

    /// Forbidden, with one cause, as admission says it.
    pub fn forbidden_because(about: About<'_>, why: &str, cause: &Cause) -> Self {
        let mut refusal = Self::forbidden(about, why);
        refusal.details.set(&["causes"], causes(std::slice::from_ref(cause)));
        refusal
    }

    pub fn not_found(about: About<'_>) -> Self {
        let message = format!("{about} not found");
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about(about)
    }

    /// A group, version or resource that is not served.
    pub fn no_resource() -> Self {
        let message = "the server could not find the requested resource";
        let mut refusal = Self::new(StatusCode::NOT_FOUND, "NotFound", message);
        refusal.details = Value::map();
        refusal
    }

    /// A path nothing is served at.
    pub fn no_page() -> Self {
        let mut refusal = Self::new(StatusCode::NOT_FOUND, "", "404 page not found\n");
        refusal.plain = true;
        refusal
    }

    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        let mut refusal = Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message);
        refusal.details = Value::map();
        refusal
    }

    pub fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json, application/yaml, \
                       application/vnd.kubernetes.protobuf";
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    pub fn already_exists(about: About<'_>) -> Self {
        let message = format!("{about} already exists");
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(about)
    }

    pub fn conflict(about: About<'_>, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {about}: {why}");
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(about)
    }

    pub fn modified(about: About<'_>) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(about, why)
    }

    /// The fields of an object, or of the options of a request, are wrong. There is at least one cause.
    pub fn invalid(about: About<'_>, wrong: &[Cause]) -> Self {
        let mut each: Vec<String> = Vec::with_capacity(wrong.len());
        for cause in wrong {
            let line = match cause.field.as_str() {
                "" => cause.message.clone(),
                field => format!("{field}: {}", cause.message),
            };
            // What is said twice of one field is two causes and one message.
            if !each.contains(&line) {
                each.push(line);
            }
        }
        let all = match each.as_slice() {
            [one] => one.clone(),
            all => format!("[{}]", all.join(", ")),
        };
        let message = format!("{about} is invalid: {all}");
        let mut refusal = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).about(about);
        refusal.details.set(&["causes"], causes(wrong));
        refusal
    }

    /// Options of a request that are wrong.
    pub fn options(kind: &str, wrong: &[Cause]) -> Self {
        let about = About { group: "meta.k8s.io", kind, name: "" };
        Self::invalid(about, wrong)
    }

    /// What the real server says, without saying more, when a JSON patch does not apply.
    pub fn unpatchable() -> Self {
        let message = "the server rejected our request due to an error in our request";
        let mut refusal = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message);
        refusal.details = Value::map();
        refusal
    }

    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    pub fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// The revision asked for has not been reached in the time the request had.
    pub fn too_new(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let mut refusal = Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message);
        refusal.retry_after = Some(1);
        let cause = Value::from([
            ("reason", Value::from("ResourceVersionTooLarge")),
            ("message", Value::from("Too large resource version")),
        ]);
        refusal.details = Value::from([
            ("causes", Value::List(vec![cause])),
            ("retryAfterSeconds", Value::from(1i64)),
        ]);
        refusal
    }

    pub fn too_many_requests(message: impl Into<String>) -> Self {
        let mut refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        refusal.retry_after = Some(1);
        refusal.details = Value::from([("retryAfterSeconds", 1i64)]);
        refusal
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        let mut refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message);
        refusal.retry_after = Some(1);
        refusal
    }

    /// Errors the real server leaves without a reason, though some of them are the client's.
    pub fn unreasoned(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// The `Status` object.
    pub fn status(&self) -> Value {
        let mut status = Value::from([
            ("kind", Value::from("Status")),
            ("apiVersion", Value::from("v1")),
            ("metadata", Value::map()),
            ("status", Value::from("Failure")),
            ("message", Value::from(self.message.as_str())),
            ("code", Value::from(u32::from(self.code.as_u16()))),
        ]);
        if let Some(token) = &self.resume {
            status.set(&["metadata", "continue"], token.as_str());
        }
        if !self.reason.is_empty() {
            status.set(&["reason"], self.reason);
        }
        if !self.details.is_null() {
            status.set(&["details"], self.details.clone());
        }
        status
    }
}

/// The `Status` of something that went well; `details` is null when there is nothing to say.
pub fn success(code: StatusCode, details: Value) -> Value {
    let mut status = Value::from([
        ("kind", Value::from("Status")),
        ("apiVersion", Value::from("v1")),
        ("metadata", Value::map()),
        ("status", Value::from("Success")),
    ]);
    if details.is_null() {
        status.set(&["code"], u32::from(code.as_u16()));
    } else {
        status.set(&["details"], details);
    }
    status
}

fn causes(wrong: &[Cause]) -> Value {
    wrong
        .iter()
        .map(|cause| {
            let mut one = Value::from([("reason", cause.reason), ("message", cause.message.as_str())]);
            if !cause.field.is_empty() {
                one.set(&["field"], cause.field.as_str());
            }
            one
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_real_server() {
        let pods = About { group: "", kind: "pods", name: "a" };
        let deployments = About { group: "apps", kind: "deployments", name: "" };
        let check = |refusal: Refusal, message: &str| assert_eq!(refusal.message, message);
        check(Refusal::not_found(pods), r#"pods "a" not found"#);
        check(
            Refusal::not_allowed("u", "list", deployments, "deployments", ""),
            r#"deployments.apps is forbidden: User "u" cannot list resource "deployments" in API group "apps" at the cluster scope"#,
        );
        check(
            Refusal::not_allowed("u", "get", pods, "pods", "n"),
            r#"pods "a" is forbidden: User "u" cannot get resource "pods" in API group "" in the namespace "n""#,
        );
        let one = Cause::forbidden("spec", "no");
        check(
            Refusal::invalid(pods, std::slice::from_ref(&one)),
            r#"pods "a" is invalid: spec: Forbidden: no"#,
        );
        check(
            Refusal::invalid(pods, &[one, Cause::unsupported("x", "\"y\"", "\"z\"")]),
            r#"pods "a" is invalid: [spec: Forbidden: no, x: Unsupported value: "y": supported values: "z"]"#,
        );
    }

    #[test]
    fn a_status_leaves_out_what_it_has_not() {
        let status = Refusal::unreasoned("x").status();
        assert_eq!(status.get("reason"), None);
        assert_eq!(status.get("details"), None);
        assert_eq!(status.int_at(&["code"]), Some(500));
        let status = Refusal::unpatchable().status();
        assert_eq!(status.get("details"), Some(&Value::map()));
    }
}

//! A patch as it came: which kind of patch it is, and what it says of the version it was made for.

use hyper::body::Bytes;
use proto::value::{Value, json};

use crate::api::codec::{self, DecodeError, FieldValidation};
use crate::api::patch::{self, PatchError, PatchKind};
use crate::api::schema::KindSchema;
use crate::api::status::{About, Cause, Refusal};

const APPLY: &str = "application/apply-patch+yaml";

/// A patch that can be applied to any version.
#[derive(Debug)]
pub(super) struct Patch {
    kind: PatchKind,
    bytes: Bytes,
    /// It names a resource version, and so one version only.
    pub(super) conditional: bool,
}

impl Patch {
    /// Takes the body of a PATCH.
    pub(super) fn of(content_type: Option<&str>, bytes: &Bytes) -> Result<Self, Refusal> {
        let content_type = content_type.unwrap_or_default();
        if content_type.split(';').next() == Some(APPLY) {
            let why = "server-side apply is not built yet: use client-side apply, or one of \
                       application/strategic-merge-patch+json, application/merge-patch+json, application/json-patch+json";
            return Err(Refusal::unsupported_media_type(why));
        }
        let kind = PatchKind::of_content_type(content_type).ok_or_else(|| {
            let mut refusal = Refusal::unsupported_media_type("415: Unsupported Media Type");
            refusal.details = Value::map();
            refusal
        })?;
        Ok(Self {
            conditional: names_revision(bytes),
            bytes: bytes.clone(),
            kind,
        })
    }

    /// The patched object, in the form of a decoded body, and what is to be warned of.
    pub(super) fn apply(
        &self,
        base: &Value,
        schema: &'static KindSchema,
        fields: FieldValidation,
    ) -> Result<codec::Decoded, Refusal> {
        let patched = patch::apply(self.kind, schema, base, &self.bytes).map_err(|error| refused(&error))?;
        codec::conform(&patched, schema, fields).map_err(|error| unfit(&patched, &error))
    }
}

fn names_revision(bytes: &[u8]) -> bool {
    match json::parse(bytes) {
        Ok(Value::List(steps)) => steps
            .iter()
            .any(|step| step.text_at(&["path"]) == Some("/metadata/resourceVersion")),
        Ok(patch) => patch
            .at(&["metadata", "resourceVersion"])
            .is_some_and(|given| !given.is_null()),
        Err(_) => false,
    }
}

fn refused(error: &PatchError) -> Refusal {
    match error.code() {
        422 => Refusal::unpatchable(),
        415 => Refusal::unsupported_media_type(error.to_string()),
        413 => Refusal::too_large(codec::BODY_BYTES_MAX),
        400 => Refusal::bad_request(error.to_string()),
        _ => Refusal::unreasoned(error.to_string()),
    }
}

/// The patch applied, but what came out is no object of the kind.
fn unfit(patched: &Value, error: &DecodeError) -> Refusal {
    let about = About { group: "", kind: "", name: "" };
    let shown = json::write(&Value::from(json::write(patched)));
    let cause = Cause::invalid("patch", &format!("{shown}: {}", error.detail()));
    Refusal::invalid(about, &[cause])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_that_name_a_version() {
        let check = |text: &str, expected: bool| assert_eq!(names_revision(text.as_bytes()), expected, "{text}");
        check(r#"{"metadata":{"resourceVersion":"1"}}"#, true);
        check(r#"{"metadata":{"resourceVersion":null}}"#, false);
        check(
            r#"[{"op":"test","path":"/metadata/resourceVersion","value":"1"}]"#,
            true,
        );
        check(r#"[{"op":"add","path":"/data/a","value":"1"}]"#, false);
        check("{", false);
    }

    #[test]
    fn server_side_apply_is_refused_in_words() {
        let refusal = Patch::of(Some(APPLY), &Bytes::new()).unwrap_err();
        assert_eq!(refusal.code, 415);
        assert!(refusal.message.contains("server-side apply"));
        assert_eq!(
            Patch::of(Some("application/json"), &Bytes::new()).unwrap_err().message,
            "415: Unsupported Media Type"
        );
    }
}

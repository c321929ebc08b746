//! Which objects of a kind a list, a watch or a collective delete means.

use proto::object::selector::{FieldRequirement, Selector, parse_fields};
use proto::value::Value;

use crate::api::kinds::{KindData, Selectable};
use crate::api::status::Refusal;

/// A label selector and a field selector of one kind.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter {
    labels: Selector,
    fields: Vec<(Field, FieldRequirement)>,
}

#[derive(Debug, Clone, Copy)]
enum Field {
    Name,
    Namespace,
    Of(&'static Selectable),
}

impl Filter {
    /// Reads both selectors; a field that the kind does not offer is refused.
    pub(super) fn new(kind: &'static KindData, labels: &str, fields: &str) -> Result<Self, Refusal> {
        let bad = |error: &dyn std::error::Error| Refusal::bad_request(error.to_string());
        let labels = Selector::parse(labels).map_err(|error| bad(&error))?;
        let fields = parse_fields(fields).map_err(|error| bad(&error))?;
        let fields = fields.into_iter().map(|one| Ok((field(kind, &one.field)?, one)));
        Ok(Self { labels, fields: fields.collect::<Result<_, Refusal>>()? })
    }

    /// Also asks for this name.
    pub(super) fn named(mut self, name: &str) -> Self {
        let requirement = FieldRequirement {
            field: "metadata.name".to_owned(),
            equal: true,
            value: name.to_owned(),
        };
        self.fields.push((Field::Name, requirement));
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let fields = self.fields.iter().all(|(field, wanted)| {
            let text = match field {
                Field::Name => object.text_at(&["metadata", "name"]).unwrap_or_default().to_owned(),
                Field::Namespace => object
                    .text_at(&["metadata", "namespace"])
                    .unwrap_or_default()
                    .to_owned(),
                Field::Of(selectable) => selectable.text(object),
            };
            (text == wanted.value) == wanted.equal
        });
        fields && self.labels.matches_object(object)
    }

    /// The one value that a field must have, when the selector says so: what an index can answer.
    fn only(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter();
        let found = found.find(|(_, wanted)| wanted.equal && wanted.field == name);
        found.map(|(_, wanted)| wanted.value.as_str())
    }

    pub(super) fn namespace(&self) -> Option<&str> {
        self.only("metadata.namespace")
    }

    /// The node that pods must be bound to.
    pub(super) fn node(&self) -> Option<&str> {
        self.only("spec.nodeName").filter(|node| !node.is_empty())
    }
}

fn field(kind: &'static KindData, name: &str) -> Result<Field, Refusal> {
    match name {
        "metadata.name" => return Ok(Field::Name),
        "metadata.namespace" if kind.namespaced => return Ok(Field::Namespace),
        _ => {}
    }
    let found = kind.selectable.iter().find(|selectable| selectable.name == name);
    found.map(Field::Of).ok_or_else(|| {
        Refusal::bad_request(if kind.selectable.is_empty() {
            format!("{name:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
        } else {
            format!("field label not supported: {name}")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kinds;

    #[test]
    fn fields_of_a_kind() {
        let pods = kinds::kind("", "v1", "Pod").unwrap();
        let check = |fields: &str, json: &str, expected: bool| {
            let object = proto::value::json::parse(json.as_bytes()).unwrap();
            assert_eq!(
                Filter::new(pods, "", fields).unwrap().matches(&object),
                expected,
                "{fields} {json}"
            );
        };
        check("spec.nodeName=a", r#"{"spec":{"nodeName":"a"}}"#, true);
        check("spec.nodeName=", r#"{"spec":{}}"#, true);
        check(
            "spec.nodeName!=a,status.phase=Running",
            r#"{"status":{"phase":"Running"}}"#,
            true,
        );
        check("spec.hostNetwork=false", "{}", true);
        check("spec.hostNetwork=true", r#"{"spec":{"hostNetwork":true}}"#, true);
        check("metadata.name=a", r#"{"metadata":{"name":"b"}}"#, false);
        let filter = Filter::new(pods, "", "spec.nodeName=a,metadata.namespace!=x").unwrap();
        assert_eq!((filter.node(), filter.namespace()), (Some("a"), None));
        assert!(Filter::new(pods, "", "spec.x=a").is_err());
        let maps = kinds::kind("", "v1", "ConfigMap").unwrap();
        assert_eq!(
            Filter::new(maps, "", "data.k=v").unwrap_err().message,
            "\"data.k\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        );
    }
}

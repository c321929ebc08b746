//! Server-side tables: what `kubectl get` prints. Columns are data of the kind; cells are made here.

mod age;
mod cells;
mod pod;

use proto::time::Wall;
use proto::value::Value;

use super::kinds::KindData;

pub use cells::selector;

/// What the object of a row carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    Metadata,
    Object,
    Nothing,
}

impl Include {
    /// The option `includeObject`; what is unknown is refused by the real server and means metadata here.
    pub fn of(text: &str) -> Self {
        match text {
            "Object" => Self::Object,
            "None" => Self::Nothing,
            _ => Self::Metadata,
        }
    }
}

/// A table of objects. `metadata` is that of the list, or of the one object.
pub fn table(kind: &KindData, metadata: Value, objects: &[Value], include: Include, columns: bool, now: Wall) -> Value {
    let definitions = if columns {
        kind.columns
            .iter()
            .map(|column| {
                Value::from([
                    ("name", Value::from(column.name)),
                    ("type", Value::from(column.kind)),
                    ("format", Value::from(column.format)),
                    ("description", Value::from("")),
                    ("priority", Value::from(i64::from(column.priority))),
                ])
            })
            .collect()
    } else {
        Value::Null
    };
    let rows = objects.iter().map(|object| {
        let cells = Value::List(cells::cells(kind, object, now));
        let mut row = Value::from([("cells", cells)]);
        match include {
            Include::Nothing => {}
            Include::Object => row.set(&["object"], object.clone()),
            Include::Metadata => row.set(&["object"], metadata_of(object)),
        }
        row
    });
    Value::from([
        ("kind", Value::from("Table")),
        ("apiVersion", Value::from("meta.k8s.io/v1")),
        ("metadata", metadata),
        ("columnDefinitions", definitions),
        ("rows", rows.collect()),
    ])
}

/// The `PartialObjectMetadata` of an object.
pub fn metadata_of(object: &Value) -> Value {
    Value::from([
        ("kind", Value::from("PartialObjectMetadata")),
        ("apiVersion", Value::from("meta.k8s.io/v1")),
        ("metadata", object.get("metadata").cloned().unwrap_or_else(Value::map)),
    ])
}

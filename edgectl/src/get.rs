//! `edgectl get`: objects as tables, or as they are.

use serde_json::{Value, json};

use crate::cli;
use crate::failure::{Failure, all_of};
use crate::lines::Lines;
use crate::near::explained;
use crate::output::{self, Format, print, remark};
use crate::resources::{Catalogue, Resource};
use crate::server::{JSON, Server, get, with_query};
use crate::table::Table;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// How many objects one answer may hold.
const PAGE: &str = "500";

/// What is shown, and how.
struct Shown<'a> {
    server: &'a Server,
    args: &'a cli::Get,
    /// Whether names are told apart by their kind.
    several: bool,
}

pub(crate) async fn run(server: &Server, args: &cli::Get) -> Result<(), Failure> {
    let catalogue = Catalogue::of_server(server).await?;
    let targets = catalogue.targets(&args.what)?;
    let named = targets.iter().any(|(_, names)| !names.is_empty());
    if named && args.all_namespaces {
        return Err(Failure::Usage(
            "a name is of one namespace: say -n NAMESPACE instead of -A".to_owned(),
        ));
    }
    if named && args.selector.is_some() {
        return Err(Failure::Usage("say either names or a selector".to_owned()));
    }
    let shown = Shown { server, args, several: targets.len() > 1 };
    if args.watch {
        return match targets.as_slice() {
            [(resource, names)] if names.len() <= 1 => shown.watch(resource, names.first().map(String::as_str)).await,
            _ => Err(Failure::Usage(
                "--watch follows one object, or the objects of one resource".to_owned(),
            )),
        };
    }
    match args.output {
        None | Some(Format::Wide) => shown.tables(&targets).await,
        Some(format) => shown.objects(&targets, format).await,
    }
}

impl Shown<'_> {
    fn namespace(&self) -> Option<&str> {
        (!self.args.all_namespaces).then_some(self.server.namespace.as_str())
    }

    async fn tables(&self, targets: &[(&Resource, Vec<String>)]) -> Result<(), Failure> {
        let (mut empty, mut printed, mut failures, mut total) = (true, None, Vec::new(), 0);
        let mut table = Table::default();
        for (resource, names) in targets {
            // A kind has a table of its own, below the one before.
            if printed.is_some_and(|kind| kind != &resource.kind) {
                table = Table::default();
            }
            let answers = if names.is_empty() {
                vec![self.list(resource, TABLE).await.map(|(list, _)| list)]
            } else {
                let mut answers = Vec::new();
                for name in names {
                    answers.push(self.named(resource, name, TABLE).await);
                }
                answers
            };
            for answer in answers {
                total += 1;
                match answer {
                    Ok(rows) => {
                        let text = self.render(&mut table, resource, &rows);
                        if !text.is_empty() {
                            let gap = if printed.is_some_and(|kind| kind != &resource.kind) {
                                "\n"
                            } else {
                                ""
                            };
                            print(format!("{gap}{text}"))?;
                            (empty, printed) = (false, Some(&resource.kind));
                        }
                    }
                    Err(error) => failures.push(error),
                }
            }
        }
        if empty && failures.is_empty() {
            remark(&match self
                .namespace()
                .filter(|_| targets.iter().any(|(resource, _)| resource.namespaced))
            {
                Some(namespace) => format!("nothing found in namespace {namespace}; -A looks in all of them"),
                None => "nothing found".to_owned(),
            });
        }
        all_of(failures, total)
    }

    fn render(&self, table: &mut Table, resource: &Resource, rows: &Value) -> String {
        let wide = self.args.output == Some(Format::Wide);
        let namespaces = self.args.all_namespaces && resource.namespaced;
        table.render(rows, wide, namespaces, |name| {
            if self.several {
                resource.full_name(name)
            } else {
                name.to_owned()
            }
        })
    }

    async fn objects(&self, targets: &[(&Resource, Vec<String>)], format: Format) -> Result<(), Failure> {
        let (mut all, mut failures, mut total) = (Vec::new(), Vec::new(), 0);
        for (resource, names) in targets {
            if names.is_empty() {
                total += 1;
                match self.list(resource, JSON).await {
                    Ok((mut list, _)) => {
                        let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
                        all.extend(items.into_iter().map(|item| (*resource, typed(resource, item))));
                    }
                    Err(error) => failures.push(error),
                }
            }
            for name in names {
                total += 1;
                match self.named(resource, name, JSON).await {
                    Ok(object) => all.push((*resource, object)),
                    Err(error) => failures.push(error),
                }
            }
        }
        let single = targets.len() == 1 && targets[0].1.len() == 1;
        if format == Format::Name {
            for (resource, object) in &all {
                print(format!("{}\n", name_of(resource, object)))?;
            }
        } else if !(single && all.is_empty()) {
            let mut objects: Vec<Value> = all.into_iter().map(|(_, object)| object).collect();
            let whole = if single {
                objects.remove(0)
            } else {
                json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": objects})
            };
            print(written(format, &whole)?)?;
        }
        all_of(failures, total)
    }

    /// One object.
    async fn named(&self, resource: &Resource, name: &str, accept: &str) -> Result<Value, Failure> {
        let namespace = self.namespace();
        match self
            .server
            .read(get(&resource.path(namespace, Some(name)), accept)?)
            .await
        {
            Ok(object) => Ok(object),
            Err(error) => Err(explained(self.server, resource, namespace, name, error).await),
        }
    }

    /// A list, all pages of it, and the revision it is of.
    async fn list(&self, resource: &Resource, accept: &str) -> Result<(Value, String), Failure> {
        let path = resource.path(self.namespace(), None);
        let selector = self.args.selector.as_deref();
        let mut whole: Option<Value> = None;
        let mut next: Option<String> = None;
        loop {
            let parts = [
                ("limit", Some(PAGE)),
                ("labelSelector", selector),
                ("continue", next.as_deref()),
            ];
            let mut page: Value = self.server.read(get(&with_query(&path, &parts), accept)?).await?;
            next = page["metadata"]["continue"]
                .as_str()
                .filter(|text| !text.is_empty())
                .map(str::to_owned);
            match &mut whole {
                None => whole = Some(page),
                Some(whole) => {
                    for field in ["items", "rows"] {
                        if let (Some(all), Some(more)) = (whole[field].as_array_mut(), page[field].as_array_mut()) {
                            all.append(more);
                        }
                    }
                }
            }
            if next.is_none() {
                break;
            }
        }
        let whole = whole.unwrap_or_default();
        let revision = whole["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        Ok((whole, revision))
    }

    /// Prints what there is and then what changes, for as long as there is somebody to read it.
    async fn watch(&self, resource: &Resource, name: Option<&str>) -> Result<(), Failure> {
        let accept = if matches!(self.args.output, None | Some(Format::Wide)) {
            TABLE
        } else {
            JSON
        };
        let field = name.map(|name| format!("metadata.name={name}"));
        let path = resource.path(self.namespace(), None);
        let mut table = Table::default();
        loop {
            let mut revision = match name {
                None => {
                    let (list, revision) = self.list(resource, accept).await?;
                    self.print_watched(&mut table, resource, list)?;
                    revision
                }
                Some(name) => {
                    let object = self.named(resource, name, accept).await?;
                    let revision = object["metadata"]["resourceVersion"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned();
                    self.print_watched(&mut table, resource, object)?;
                    revision
                }
            };
            // A watch ends by itself now and then and goes on from where it was; only a revision that is too old, or
            // of another store, needs a new list.
            loop {
                let parts = [
                    ("watch", Some("true")),
                    ("allowWatchBookmarks", Some("true")),
                    ("resourceVersion", Some(revision.as_str())),
                    ("labelSelector", self.args.selector.as_deref()),
                    ("fieldSelector", field.as_deref()),
                ];
                let request = get(&with_query(&path, &parts), accept)?;
                let (mut lines, mut seen) = (Lines::default(), revision.clone());
                let watched = self.server.pieces(request, |piece| {
                    lines.add(piece, |line| {
                        if line.trim_ascii().is_empty() {
                            return Ok(());
                        }
                        let event: Event = serde_json::from_slice(line)
                            .map_err(|source| Failure::Answer { what: format!("a watch of {path}"), source })?;
                        if let Some(revision) = revision_of(&event.object) {
                            seen = revision;
                        }
                        match event.event_type.as_str() {
                            "BOOKMARK" => Ok(()),
                            "ERROR" => Err(refused(event.object)),
                            _ => self.print_watched(&mut table, resource, event.object),
                        }
                    })
                });
                match watched.await {
                    Ok(()) => revision = seen,
                    Err(error) if error.is_expired() => break,
                    Err(error) => return Err(error),
                }
            }
        }
    }

    fn print_watched(&self, table: &mut Table, resource: &Resource, object: Value) -> Result<(), Failure> {
        let objects = match object {
            Value::Object(mut list) if list.contains_key("items") => list
                .remove("items")
                .and_then(|items| items.as_array().cloned())
                .unwrap_or_default(),
            other => vec![other],
        };
        for object in objects {
            let object = typed(resource, object);
            match self.args.output {
                None | Some(Format::Wide) => print(self.render(table, resource, &object))?,
                Some(Format::Name) => print(format!("{}\n", name_of(resource, &object)))?,
                Some(Format::Yaml) => print(format!("---\n{}", output::yaml(&object)?))?,
                Some(Format::Json) => print(output::json(&object))?,
            }
        }
        Ok(())
    }
}

#[derive(serde::Deserialize)]
struct Event {
    #[serde(rename = "type")]
    event_type: String,
    object: Value,
}

/// The revision of an event's object: of the object itself, or of the last row of a table.
fn revision_of(object: &Value) -> Option<String> {
    let of_row = object["rows"]
        .as_array()
        .and_then(|rows| rows.last())
        .map(|row| &row["object"]["metadata"]);
    let metadata = of_row.unwrap_or_else(|| &object["metadata"]);
    metadata["resourceVersion"]
        .as_str()
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

fn refused(status: Value) -> Failure {
    match serde_json::from_value(status) {
        Ok(status) => Failure::Refused(Box::new(status)),
        Err(source) => Failure::Answer { what: "a watch".to_owned(), source },
    }
}

/// Objects in lists do not say what they are.
fn typed(resource: &Resource, mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut().filter(|fields| !fields.contains_key("kind")) {
        fields.insert("apiVersion".to_owned(), resource.api_version().into());
        fields.insert("kind".to_owned(), resource.kind.clone().into());
    }
    object
}

fn name_of(resource: &Resource, object: &Value) -> String {
    resource.full_name(object["metadata"]["name"].as_str().unwrap_or_default())
}

fn written(format: Format, object: &Value) -> Result<String, Failure> {
    match format {
        Format::Yaml => output::yaml(object),
        Format::Json | Format::Name | Format::Wide => Ok(output::json(object)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_goes_on_from_the_last_revision() {
        let check = |object: Value, expected: Option<&str>| assert_eq!(revision_of(&object).as_deref(), expected);
        check(json!({"metadata": {"resourceVersion": "7"}}), Some("7"));
        let row = |revision: &str| json!({"object": {"metadata": {"resourceVersion": revision}}});
        check(json!({"metadata": {}, "rows": [row("8"), row("9")]}), Some("9"));
        check(json!({"kind": "Status", "metadata": {}}), None);
    }
}

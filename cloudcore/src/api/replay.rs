//! Writes to a real server and its answers, replayed on the pure middle of the engine: decode, patch, default, validate.
//!
//! `testdata/writes.jsonl` holds them in order; an answer is the state that later records change. Times read
//! `2026-01-01T00:00:00Z`, uids and revisions are symbols. What only the store or the paths decide is not replayed here.

use std::collections::BTreeMap;

use proto::value::{Value, json};

use super::codec::{self, DecodeError, FieldValidation};
use super::kinds::{self, KindData};
use super::patch::{self, PatchKind};
use super::schema::{self, KindSchema};
use super::{defaults, strategy, validate};

/// Records that are answered before or after what is replayed here, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    ("configmaps/create-exists", "the store knows what exists"),
    ("configmaps/create-ns-mismatch", "the path names the namespace"),
    ("configmaps/create-in-missing-ns", "the store knows the namespaces"),
    ("configmaps/create-fieldValidation-bad", "a query parameter"),
    ("configmaps/create-dryrun-bad", "a query parameter"),
    ("configmaps/create-with-rv", "the revision is the store's"),
    ("configmaps/create-fieldManager-toolong", "a query parameter"),
    ("configmaps/put-stale-rv", "the revision is the store's"),
    ("configmaps/put-name-mismatch", "the path names the object"),
    ("configmaps/put-missing", "the store knows what exists"),
    ("configmaps/put-uid-mismatch", "the store knows the uid"),
    ("configmaps/put-rv-nonnumeric", "the revision is the store's"),
    ("configmaps/patch-merge-rv-conflict", "the revision is the store's"),
    ("configmaps/patch-merge-name-change", "the path names the object"),
    ("configmaps/patch-unsupported-ct", "the content type of a patch"),
    ("configmaps/patch-missing-obj", "the store knows what exists"),
    ("pods/sa-missing", "the store knows the accounts"),
    ("pods/priorityclass-missing", "the store knows the classes"),
    ("pods/binding", "a part of its own"),
    ("pods/binding-again", "a part of its own"),
    ("pods/get-bound", "the state that the binding made"),
    ("deployments/scale-patch", "a part of its own"),
    ("nodes/lease-put-norv", "the revision is the store's"),
];

struct Record {
    id: String,
    whole: Value,
}

impl Record {
    fn text(&self, field: &str) -> &str {
        self.whole.text_at(&[field]).unwrap_or_default()
    }

    fn validation(&self) -> FieldValidation {
        let text = self.whole.text_at(&["query", "fieldValidation"]).unwrap_or_default();
        FieldValidation::of_query(text).unwrap()
    }
}

struct Target {
    kind: &'static KindData,
    schema: &'static KindSchema,
    namespace: Option<String>,
    part: Option<String>,
    /// The path of the object, for those that name one.
    object: String,
}

fn target(path: &str) -> Target {
    let steps: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let (group, version, mut rest) = match steps.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        other => panic!("{other:?}"),
    };
    let mut namespace = None;
    if let ["namespaces", name, more @ ..] = rest
        && !more.is_empty()
    {
        namespace = Some((*name).to_owned());
        rest = more;
    }
    let kind = kinds::resource(group, version, rest[0]).unwrap_or_else(|| panic!("{path}"));
    Target {
        kind,
        schema: schema::kind(group, version, kind.kind).unwrap(),
        namespace,
        part: rest.get(2).map(|part| (*part).to_owned()),
        object: steps[..steps.len() - rest.len() + rest.len().min(2)].join("/"),
    }
}

enum Outcome {
    Refused {
        code: i64,
        message: String,
        causes: Vec<validate::FieldError>,
    },
    Done {
        object: Value,
        warnings: Vec<String>,
    },
}

fn refusal(error: &DecodeError) -> Outcome {
    refused(i64::from(error.code()), error.to_string())
}

fn refused(code: i64, message: String) -> Outcome {
    Outcome::Refused { code, message, causes: Vec::new() }
}

fn invalid(target: &Target, object: &Value, causes: Vec<validate::FieldError>) -> Outcome {
    let name = object.text_at(&["metadata", "name"]).unwrap_or_default();
    let message = validate::invalid_message(target.kind.group, target.kind.kind, name, &causes);
    Outcome::Refused { code: 422, message, causes }
}

/// Causes as a multiset of (reason, field, first line of the message).
fn causes_of(answer: &Value) -> Vec<String> {
    let causes = answer.list_at(&["details", "causes"]).iter();
    let part = |cause: &Value, part: &str| {
        let text = cause.text_at(&[part]).unwrap_or_default();
        text.split('\n').next().unwrap_or_default().to_owned()
    };
    let mut all: Vec<String> = causes
        .map(|cause| [part(cause, "reason"), part(cause, "field"), part(cause, "message")].join("|"))
        .collect();
    all.sort();
    all
}

fn create(target: &Target, record: &Record, answer: &Value) -> Outcome {
    let content_type = record.whole.text_at(&["type"]);
    let decoded = match codec::decode(
        content_type,
        record.text("body").as_bytes(),
        target.schema,
        record.validation(),
    ) {
        Ok(decoded) => decoded,
        Err(error) => return refusal(&error),
    };
    let mut object = decoded.value;
    if let Some(namespace) = &target.namespace {
        object.set(&["metadata", "namespace"], namespace.as_str());
    }
    for field in ["uid", "resourceVersion", "creationTimestamp", "name"] {
        match answer.at(&["metadata", field]) {
            Some(value) => object.set(&["metadata", field], value.clone()),
            None => {
                if record.whole.text_at(&["query", "dryRun"]).is_some() {
                    object.remove(&["metadata", field]);
                }
            }
        }
    }
    defaults::apply_defaults(target.kind, &mut object);
    defaults::admit(target.kind, &mut object);
    strategy::prepare_create(target.kind, &mut object);
    let faults = validate::validate_create(target.kind, &object);
    if !faults.is_empty() {
        return invalid(target, &object, faults);
    }
    let mut warnings = decoded.warnings;
    warnings.extend(validate::warnings(target.kind, &object));
    Outcome::Done { object, warnings }
}

fn change(target: &Target, record: &Record, old: &Value) -> Outcome {
    let decoded = if record.text("method") == "PUT" {
        codec::decode(
            record.whole.text_at(&["type"]),
            record.text("body").as_bytes(),
            target.schema,
            record.validation(),
        )
    } else {
        let kind = PatchKind::of_content_type(record.text("type")).unwrap();
        let patched = match patch::apply(kind, target.schema, old, record.text("body").as_bytes()) {
            Ok(patched) => patched,
            Err(error) => return refused(i64::from(error.code()), error.to_string()),
        };
        match codec::conform(&patched, target.schema, record.validation()) {
            Err(error) => return refused(422, error.detail()),
            decoded => decoded,
        }
    };
    let decoded = match decoded {
        Ok(decoded) => decoded,
        Err(error) => return refusal(&error),
    };
    let mut object = decoded.value;
    defaults::apply_defaults(target.kind, &mut object);
    strategy::prepare_update(target.kind, old, &mut object, target.part.as_deref());
    let faults = validate::validate_update(target.kind, old, &object);
    if faults.is_empty() {
        return Outcome::Done { object, warnings: decoded.warnings };
    }
    invalid(target, &object, faults)
}

/// Brings an object to what can be compared: no revision, one form of times, without what only a cluster allocates.
fn comparable(object: &Value, answer: &Value) -> Value {
    let mut object = object.clone();
    object.remove(&["metadata", "resourceVersion"]);
    for field in ["clusterIP", "clusterIPs"] {
        if let Some(value) = answer.at(&["spec", field])
            && object.text_at(&["kind"]) == Some("Service")
        {
            object.set(&["spec", field], value.clone());
        }
    }
    if let Some(Value::List(ports)) = object.as_map_mut().and_then(|map| {
        let spec = map.get_mut("spec")?.as_map_mut()?;
        spec.get_mut("ports")
    }) {
        for port in ports {
            port.remove(&["nodePort"]);
        }
    }
    let text = json::write(&object).replace(".000000Z", "Z");
    json::parse(text.as_bytes()).unwrap()
}

/// A pod without the token volume of a full cluster; nothing issues such tokens here.
fn without_token_volume(answer: &Value) -> Value {
    let mut answer = answer.clone();
    let is_token = |one: &Value| {
        one.text_at(&["name"])
            .is_some_and(|name| name.starts_with("kube-api-access-"))
    };
    let Some(Value::Map(spec)) = answer.as_map_mut().and_then(|map| map.get_mut("spec")) else {
        return answer;
    };
    let mut lists: Vec<(&mut proto::value::Map, &str)> = vec![];
    if let Some(Value::List(volumes)) = spec.get_mut("volumes") {
        volumes.retain(|one| !is_token(one));
    }
    if spec
        .get("volumes")
        .and_then(Value::as_list)
        .is_some_and(<[Value]>::is_empty)
    {
        spec.remove("volumes");
    }
    for part in spec.values_mut() {
        let Value::List(containers) = part else { continue };
        lists.extend(
            containers
                .iter_mut()
                .filter_map(Value::as_map_mut)
                .map(|map| (map, "volumeMounts")),
        );
    }
    for (map, name) in lists {
        if let Some(Value::List(mounts)) = map.get_mut(name) {
            mounts.retain(|one| !is_token(one));
            if mounts.is_empty() {
                map.remove(name);
            }
        }
    }
    answer
}

/// Where a replayed record differs from the recorded one.
fn difference(record: &Record, outcome: &Outcome, answer: &Value) -> Option<String> {
    let status = record.whole.int_at(&["status"]).unwrap();
    match outcome {
        Outcome::Refused { code, message, causes } => {
            let recorded = answer.text_at(&["message"]).unwrap_or_default();
            // The end of a patch's refusal is all that does not depend on how the object was written; a real server
            // adds to its refusal of a pod's change how its own structs differ.
            let same = match recorded {
                patched if patched.starts_with(" \"\" is invalid: patch") => patched
                    .replace("2026-01-01T00:00:00Z07:00", "2006-01-02T15:04:05.000000Z07:00")
                    .ends_with(message),
                pod if pod.contains("\n@@") => message.split('\n').next() == pod.split('\n').next(),
                whole => whole == message,
            };
            let mut ours: Vec<String> = causes
                .iter()
                .map(|cause| {
                    let message = cause.message.split('\n').next().unwrap_or_default();
                    [cause.fault.reason(), &cause.field, message].join("|")
                })
                .collect();
            ours.sort();
            let same = same && (ours.is_empty() || ours == causes_of(answer));
            (*code != status || !same).then(|| format!("{code} {message}\n  {status} {}", json::write(answer)))
        }
        Outcome::Done { object, warnings } => {
            let (ours, theirs) = (comparable(object, answer), comparable(answer, answer));
            if status >= 300 || ours != theirs {
                return Some(format!("{}\n  {status} {}", json::write(&ours), json::write(&theirs)));
            }
            let header = record.text("warning");
            let said = header.strip_prefix("299 - \"").and_then(|text| text.strip_suffix('"'));
            let said = said.map(|text| text.replace("\\\"", "\""));
            let same = match said {
                Some(said) => warnings.contains(&said),
                None => warnings.is_empty(),
            };
            (!same).then(|| format!("warnings {warnings:?}\n  {header}"))
        }
    }
}

#[test]
fn recorded_writes_are_answered_alike() {
    let mut state: BTreeMap<String, Value> = BTreeMap::new();
    let (mut replayed, mut wrong) = (0, Vec::new());
    for line in include_str!("../../testdata/writes.jsonl").lines() {
        let whole = json::parse(line.as_bytes()).unwrap();
        let record = Record { id: whole.text_at(&["id"]).unwrap().to_owned(), whole };
        let target = target(record.text("path"));
        let answer = record.whole.get("answer").cloned().unwrap_or_default();
        let creates = record.text("method") == "POST" || !state.contains_key(&target.object);
        if !ELSEWHERE.iter().any(|(id, _)| *id == record.id) {
            replayed += 1;
            let (outcome, answer) = if creates {
                let answer = without_token_volume(&answer);
                (create(&target, &record, &answer), answer)
            } else {
                (change(&target, &record, &state[&target.object]), answer.clone())
            };
            if let Some(difference) = difference(&record, &outcome, &answer) {
                wrong.push(format!("{}\n  {difference}", record.id));
            }
        }
        let lasting = record.whole.int_at(&["status"]).is_some_and(|status| status < 300)
            && record.whole.text_at(&["query", "dryRun"]).is_none();
        if lasting && answer.text_at(&["kind"]) == Some(target.kind.kind) {
            let name = answer.text_at(&["metadata", "name"]).unwrap_or_default();
            let object = if record.text("method") == "POST" {
                format!("{}/{name}", record.text("path").trim_start_matches('/'))
            } else {
                target.object
            };
            state.insert(object, answer);
        }
    }
    assert!(replayed >= 130, "{replayed}");
    assert!(
        wrong.is_empty(),
        "{} of {replayed} differ\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// A small generator of numbers, so that a failing round can be run again.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end.max(1)
    }

    /// Something that does not belong where it is put.
    fn odd(&mut self) -> Value {
        let texts = [
            "",
            "-1",
            "a b",
            "..",
            "é/é",
            "\u{0}",
            "25%",
            "2026-13-01T00:00:00Z",
            "replace",
            "delete",
            "$patch",
        ];
        match self.below(9) {
            0 => Value::Null,
            1 => Value::Bool(true),
            2 => Value::I64(-1),
            3 => Value::I64(i64::MAX),
            4 => Value::map(),
            5 => Value::List(Vec::new()),
            6 => Value::List(vec![Value::map(), Value::Null]),
            7 => Value::from("x".repeat(300)),
            _ => Value::from(texts[self.below(texts.len())]),
        }
    }

    /// Changes one thing somewhere in a tree.
    fn disturb(&mut self, value: &mut Value) {
        if self.below(6) == 0 {
            *value = self.odd();
            return;
        }
        match value {
            Value::Map(map) if !map.is_empty() => {
                let at = self.below(map.len());
                let name = map.keys().nth(at).unwrap().to_owned();
                match self.below(10) {
                    0 => {
                        map.remove(&name);
                    }
                    1 => {
                        let directives = ["$patch", "$retainKeys", "extra", "name"];
                        let directive = directives[self.below(directives.len())].to_owned();
                        let odd = self.odd();
                        map.insert(directive, odd);
                    }
                    2 => {
                        let odd = self.odd();
                        map.insert(format!("$setElementOrder/{name}"), odd);
                    }
                    _ => self.disturb(map.get_mut(&name).unwrap()),
                }
            }
            Value::List(list) if !list.is_empty() => {
                let at = self.below(list.len());
                match self.below(5) {
                    0 => {
                        let twin = list[at].clone();
                        list.push(twin);
                    }
                    1 => {
                        list.remove(at);
                    }
                    _ => self.disturb(&mut list[at]),
                }
            }
            other => *other = self.odd(),
        }
    }
}

#[test]
fn disturbed_objects_never_panic() {
    const ROUNDS: usize = 10_000;
    let objects: Vec<Value> = include_str!("../../testdata/writes.jsonl")
        .lines()
        .filter_map(|line| json::parse(line.as_bytes()).unwrap().get("answer").cloned())
        .filter(|answer| {
            let version = answer.text_at(&["apiVersion"]).unwrap_or_default();
            let schema = schema::kind_of(version, answer.text_at(&["kind"]).unwrap_or_default());
            schema.is_some_and(|schema| kinds::kind(schema.group, schema.version, schema.kind).is_some())
        })
        .collect();
    let mut random = Random(7);
    for round in 0..ROUNDS {
        let old = &objects[random.below(objects.len())];
        let schema = schema::kind_of(old.text_at(&["apiVersion"]).unwrap(), old.text_at(&["kind"]).unwrap()).unwrap();
        let kind = kinds::kind(schema.group, schema.version, schema.kind).unwrap();
        let mut disturbed = old.clone();
        for _ in 0..=random.below(3) {
            random.disturb(&mut disturbed);
        }
        if round % 2 == 0 {
            let patch_kind = [PatchKind::Merge, PatchKind::Strategic][random.below(2)];
            match patch::apply(patch_kind, schema, old, json::write(&disturbed).as_bytes()) {
                Ok(patched) => disturbed = patched,
                Err(error) => assert!((400..=500).contains(&error.code()), "{error}"),
            }
        }
        let Ok(decoded) = codec::conform(&disturbed, schema, FieldValidation::Warn) else {
            continue;
        };
        let mut object = decoded.value;
        defaults::apply_defaults(kind, &mut object);
        let once = object.clone();
        defaults::apply_defaults(kind, &mut object);
        assert_eq!(once, object, "round {round}: defaults are idempotent");
        let mut created = object.clone();
        defaults::admit(kind, &mut created);
        strategy::prepare_create(kind, &mut created);
        validate::warnings(kind, &created);
        let faults = validate::validate_create(kind, &created);
        assert!(faults.iter().all(|fault| fault.cause().get("reason").is_some()));
        strategy::prepare_update(kind, old, &mut object, None);
        validate::validate_update(kind, old, &object);
    }
}

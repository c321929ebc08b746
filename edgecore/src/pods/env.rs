//! A container's environment, command and arguments, as Kubernetes makes them from fields, config maps and secrets.
//!
//! Variables that describe the namespace's services are not made.

use std::collections::BTreeMap;

use proto::object::Key;
use proto::object::quantity::Quantity;
use proto::value::Value;

use super::refs::Objects;

/// Where a pod's fields get the values that only the node knows.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    pub pod: &'a Value,
    pub objects: &'a Objects,
    pub pod_addresses: &'a [String],
    pub host_addresses: &'a [String],
    pub allocatable: Allocatable,
}

/// What the node has for pods: the limit of a container that has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allocatable {
    pub cpus: u64,
    pub memory_bytes: u64,
    pub storage_bytes: u64,
}

impl Allocatable {
    /// As [`Quantity::milli`] counts; `None` for what is not limited by name.
    fn milli(self, resource: &str) -> Option<i128> {
        let amount = match resource {
            "cpu" => self.cpus,
            "memory" => self.memory_bytes,
            "ephemeral-storage" => self.storage_bytes,
            _ => return None,
        };
        Some(i128::from(amount) * 1000)
    }
}

/// What keeps a container from being made until it arrives or is corrected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{} {:?} not found", .0.kind.kind().to_lowercase(), .0.name)]
    NoObject(Key),
    #[error("couldn't find key {key} in {} {}/{}", .object.kind.kind(), .object.namespace, .object.name)]
    NoKey { object: Key, key: String },
    #[error("field {0} is not known")]
    Field(String),
}

/// What a container is started with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Invocation {
    pub env: Vec<(String, String)>,
    pub command: Vec<String>,
    pub args: Vec<String>,
}

/// Resolves the environment and fills it into command and arguments.
pub fn resolve(container: &Value, around: &Surroundings<'_>) -> Result<Invocation, ConfigError> {
    let env = environment(container, around)?;
    let known: BTreeMap<&str, &str> = env.iter().map(|(name, value)| (&**name, &**value)).collect();
    let fill = |list: &str| -> Vec<String> {
        let parts = container.list_at(&[list]).iter().filter_map(Value::as_text);
        parts
            .map(|part| expand(part, |name| known.get(name).map(|value| (*value).to_owned())))
            .collect()
    };
    let (command, args) = (fill("command"), fill("args"));
    Ok(Invocation { command, args, env })
}

fn environment(container: &Value, around: &Surroundings<'_>) -> Result<Vec<(String, String)>, ConfigError> {
    let mut env = Env::default();
    for source in container.list_at(&["envFrom"]) {
        let prefix = source.text_at(&["prefix"]).unwrap_or_default();
        for (field, kind) in [("configMapRef", "ConfigMap"), ("secretRef", "Secret")] {
            let Some(reference) = source.get(field) else { continue };
            let key = key_of(kind, around.pod, reference.text_at(&["name"]).unwrap_or_default());
            match around.objects.texts(&key) {
                Some(texts) => {
                    for (name, value) in texts {
                        env.set(format!("{prefix}{name}"), value);
                    }
                }
                None if reference.flag_at(&["optional"]) => {}
                None => return Err(ConfigError::NoObject(key)),
            }
        }
    }
    for one in container.list_at(&["env"]) {
        let Some(name) = one.text_at(&["name"]) else { continue };
        let value = match one.get("valueFrom").filter(|from| !from.is_null()) {
            None => {
                let text = one.text_at(&["value"]).unwrap_or_default();
                Some(expand(text, |name| env.get(name)))
            }
            Some(from) => value_from(from, container, around)?,
        };
        if let Some(value) = value {
            env.set(name.to_owned(), value);
        }
    }
    Ok(env.list)
}

/// Variables in the order in which they were first set.
#[derive(Default)]
struct Env {
    list: Vec<(String, String)>,
    at: BTreeMap<String, usize>,
}

impl Env {
    fn set(&mut self, name: String, value: String) {
        match self.at.get(&name) {
            Some(at) => self.list[*at].1 = value,
            None => {
                self.at.insert(name.clone(), self.list.len());
                self.list.push((name, value));
            }
        }
    }

    fn get(&self, name: &str) -> Option<String> {
        self.at.get(name).map(|at| self.list[*at].1.clone())
    }
}

fn value_from(from: &Value, container: &Value, around: &Surroundings<'_>) -> Result<Option<String>, ConfigError> {
    if let Some(field) = from.text_at(&["fieldRef", "fieldPath"]) {
        return field_ref(field, around).map(Some);
    }
    if let Some(resource) = from.get("resourceFieldRef") {
        return resource_ref(resource, container, around).map(Some);
    }
    for (field, kind) in [("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")] {
        let Some(reference) = from.get(field) else { continue };
        let object = key_of(kind, around.pod, reference.text_at(&["name"]).unwrap_or_default());
        let key = reference.text_at(&["key"]).unwrap_or_default();
        let optional = reference.flag_at(&["optional"]);
        let Some(texts) = around.objects.texts(&object) else {
            return if optional {
                Ok(None)
            } else {
                Err(ConfigError::NoObject(object))
            };
        };
        return match texts.into_iter().find(|(name, _)| name == key) {
            Some((_, value)) => Ok(Some(value)),
            None if optional => Ok(None),
            None => Err(ConfigError::NoKey { object, key: key.to_owned() }),
        };
    }
    Ok(None)
}

/// The key of an object in the pod's namespace.
pub(super) fn key_of(kind: &str, pod: &Value, name: &str) -> Key {
    Key::new(kind, pod.text_at(&["metadata", "namespace"]).unwrap_or_default(), name)
}

/// One field of the pod, as `fieldRef` names it.
pub fn field_ref(field: &str, around: &Surroundings<'_>) -> Result<String, ConfigError> {
    let pod = around.pod;
    let text = |path: &[&str]| Ok(pod.text_at(path).unwrap_or_default().to_owned());
    let address = |addresses: &[String]| Ok(addresses.first().cloned().unwrap_or_default());
    for map in ["labels", "annotations"] {
        let inside = field.strip_prefix("metadata.").and_then(|rest| rest.strip_prefix(map));
        let Some(rest) = inside else { continue };
        if let Some(key) = rest.strip_prefix("['").and_then(|rest| rest.strip_suffix("']")) {
            return text(&["metadata", map, key]);
        }
        if rest.is_empty() {
            let entries = pod.at(&["metadata", map]).and_then(Value::as_map).into_iter().flatten();
            let lines = entries.map(|(key, value)| format!("{key}={:?}", value.as_text().unwrap_or_default()));
            return Ok(lines.collect::<Vec<_>>().join("\n"));
        }
    }
    match field {
        "metadata.name" => text(&["metadata", "name"]),
        "metadata.namespace" => text(&["metadata", "namespace"]),
        "metadata.uid" => text(&["metadata", "uid"]),
        "spec.nodeName" => text(&["spec", "nodeName"]),
        "spec.serviceAccountName" => Ok(pod
            .text_at(&["spec", "serviceAccountName"])
            .unwrap_or("default")
            .to_owned()),
        "status.podIP" => address(around.pod_addresses),
        "status.podIPs" => Ok(around.pod_addresses.join(",")),
        "status.hostIP" => address(around.host_addresses),
        "status.hostIPs" => Ok(around.host_addresses.join(",")),
        other => Err(ConfigError::Field(other.to_owned())),
    }
}

/// One resource of a container, in units of its divisor, rounded up. What has no limit may take all that the node has; who
/// requests nothing is promised nothing.
pub fn resource_ref(reference: &Value, container: &Value, around: &Surroundings<'_>) -> Result<String, ConfigError> {
    let resource = reference.text_at(&["resource"]).unwrap_or_default();
    let named = reference.text_at(&["containerName"]).filter(|name| !name.is_empty());
    let lists = ["containers", "initContainers"];
    let holder = match named {
        Some(name) => lists
            .iter()
            .flat_map(|list| around.pod.list_at(&["spec", list]))
            .find(|one| one.text_at(&["name"]) == Some(name))
            .unwrap_or(container),
        None => container,
    };
    let unknown = || ConfigError::Field(resource.to_owned());
    let (list, name) = resource.split_once('.').ok_or_else(unknown)?;
    let all = around.allocatable.milli(name).ok_or_else(unknown)?;
    let amount = |list: &str| -> Option<i128> {
        let amount: Quantity = holder.text_at(&["resources", list, name])?.parse().ok()?;
        Some(amount.milli())
    };
    let limit = amount("limits").filter(|milli| *milli > 0);
    let amount = match list {
        "limits" => limit.unwrap_or(all),
        // One that is not given is the limit.
        "requests" => amount(list).or(limit).unwrap_or(0),
        _ => return Err(unknown()),
    };
    let divisor = reference
        .text_at(&["divisor"])
        .and_then(|text| text.parse::<Quantity>().ok())
        .map(Quantity::milli)
        .filter(|milli| *milli > 0)
        .unwrap_or(1000);
    let units = amount.div_euclid(divisor) + i128::from(amount.rem_euclid(divisor) != 0);
    Ok(units.to_string())
}

/// Replaces `$(NAME)` by what `lookup` says; an unknown name stays as it is, and `$$` stands for one `$`.
pub fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inside| inside.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(&value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Value {
        proto::value::json::parse(json.as_bytes()).unwrap()
    }

    fn objects() -> Objects {
        let mut objects = Objects::default();
        for json in [
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","namespace":"n"},"data":{"a":"1","b":"$(a)"}}"#,
            r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"n"},"data":{"p":"aGk="}}"#,
        ] {
            let value = parse(json);
            objects.insert(Key::of(&value).unwrap(), value);
        }
        objects
    }

    fn run(container: &str) -> Result<Invocation, ConfigError> {
        let pod = parse(
            r#"{"metadata":{"name":"web","namespace":"n","uid":"u","labels":{"app":"x"},"annotations":{"k/v":"y"}},
                "spec":{"nodeName":"pi","containers":[{"name":"o","resources":{"limits":{"memory":"1Gi"}}}]}}"#,
        );
        let around = Surroundings {
            pod: &pod,
            objects: &objects(),
            pod_addresses: &["10.1.0.2".into(), "fd00::2".into()],
            host_addresses: &["192.168.0.9".into()],
            allocatable: Allocatable { cpus: 4, memory_bytes: 512 << 20, storage_bytes: 7_000 },
        };
        resolve(&parse(container), &around)
    }

    fn env(json: &str) -> Vec<(String, String)> {
        run(&format!("{{\"env\":[{json}]}}")).unwrap().env
    }

    fn one(from: &str) -> String {
        let json = format!(r#"{{"name":"X","valueFrom":{from}}}"#);
        env(&json).into_iter().map(|(_, value)| value).collect()
    }

    #[test]
    fn fields_and_resources() {
        let field = |path: &str| one(&format!(r#"{{"fieldRef":{{"fieldPath":"{path}"}}}}"#));
        assert_eq!(field("metadata.name"), "web");
        assert_eq!(field("metadata.labels['app']"), "x");
        assert_eq!(field("metadata.annotations['k/v']"), "y");
        assert_eq!(field("metadata.labels"), "app=\"x\"");
        assert_eq!(field("spec.nodeName"), "pi");
        assert_eq!(field("spec.serviceAccountName"), "default");
        assert_eq!(field("status.podIP"), "10.1.0.2");
        assert_eq!(field("status.podIPs"), "10.1.0.2,fd00::2");
        assert_eq!(field("status.hostIP"), "192.168.0.9");
        let resource = |json: &str| one(&format!(r#"{{"resourceFieldRef":{json}}}"#));
        assert_eq!(
            resource(r#"{"containerName":"o","resource":"limits.memory","divisor":"1Mi"}"#),
            "1024"
        );
        assert_eq!(
            resource(r#"{"containerName":"o","resource":"requests.memory"}"#),
            "1073741824"
        );
        let own = |resources: &str, reference: &str| {
            let json = format!(
                r#"{{"resources":{resources},"env":[{{"name":"X","valueFrom":{{"resourceFieldRef":{reference}}}}}]}}"#
            );
            run(&json).map(|made| made.env[0].1.clone())
        };
        let check = |resources: &str, reference: &str, expected: &str| {
            assert_eq!(
                own(resources, reference).as_deref(),
                Ok(expected),
                "{resources} {reference}"
            );
        };
        // Without a limit it is all that the node has, and without a request nothing.
        for none in ["{}", r#"{"limits":{"cpu":"0","memory":"0"}}"#] {
            check(none, r#"{"resource":"limits.cpu"}"#, "4");
            check(none, r#"{"resource":"limits.cpu","divisor":"1m"}"#, "4000");
            check(none, r#"{"resource":"limits.memory","divisor":"1Mi"}"#, "512");
            check(none, r#"{"resource":"limits.ephemeral-storage"}"#, "7000");
            check(none, r#"{"resource":"requests.cpu"}"#, "0");
            check(none, r#"{"resource":"requests.memory"}"#, "0");
        }
        let some = r#"{"limits":{"cpu":"250m"},"requests":{"memory":"3M"}}"#;
        check(some, r#"{"resource":"limits.cpu"}"#, "1");
        check(some, r#"{"resource":"requests.cpu","divisor":"1m"}"#, "250");
        check(some, r#"{"resource":"limits.memory","divisor":"1Mi"}"#, "512");
        check(some, r#"{"resource":"requests.memory"}"#, "3000000");
        for unknown in ["limits.pods", "bounds.cpu", "cpu"] {
            let error = own("{}", &format!(r#"{{"resource":"{unknown}"}}"#)).unwrap_err();
            assert_eq!(error, ConfigError::Field(unknown.into()));
        }
        let bad = run(r#"{"env":[{"name":"X","valueFrom":{"fieldRef":{"fieldPath":"spec.x"}}}]}"#);
        assert_eq!(bad, Err(ConfigError::Field("spec.x".into())));
    }

    #[test]
    fn references() {
        assert_eq!(one(r#"{"configMapKeyRef":{"name":"c","key":"a"}}"#), "1");
        assert_eq!(one(r#"{"secretKeyRef":{"name":"s","key":"p"}}"#), "hi");
        assert_eq!(one(r#"{"secretKeyRef":{"name":"s","key":"q","optional":true}}"#), "");
        let missing = |json: &str| {
            let error = run(&format!(r#"{{"env":[{{"name":"X","valueFrom":{json}}}]}}"#));
            error.unwrap_err().to_string()
        };
        assert_eq!(
            missing(r#"{"configMapKeyRef":{"name":"z","key":"a"}}"#),
            r#"configmap "z" not found"#
        );
        assert_eq!(
            missing(r#"{"secretKeyRef":{"name":"s","key":"q"}}"#),
            "couldn't find key q in Secret n/s"
        );
        let from = run(
            r#"{"envFrom":[{"prefix":"C_","configMapRef":{"name":"c"}},{"secretRef":{"name":"z","optional":true}}],
                "env":[{"name":"C_a","value":"2"}]}"#,
        );
        let pairs = from.unwrap().env;
        // What a config map holds is not expanded, and a later literal wins.
        let expected = [("C_a", "2"), ("C_b", "$(a)")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(pairs, expected);
    }

    #[test]
    fn expansion() {
        let lookup = |name: &str| (name == "A").then(|| "1".to_owned());
        for (text, expected) in [
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$A $", "$A $"),
            ("$(A", "$(A"),
            ("$($(A))", "$($(A))"),
        ] {
            assert_eq!(expand(text, lookup), expected, "{text}");
        }
        let made = run(
            r#"{"env":[{"name":"A","value":"$(B)"},{"name":"B","value":"2"},{"name":"C","value":"$(B)$(A)"}],
                "command":["sh","$(C)"],"args":["$(D)","$(A)"]}"#,
        );
        let made = made.unwrap();
        assert_eq!(made.env[2].1, "2$(B)");
        assert_eq!((made.command[1].as_str(), made.args[0].as_str()), ("2$(B)", "$(D)"));
    }
}

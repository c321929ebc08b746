//! Which fields of a pod this node honours. A pod is never run without something it asked for: any other field is
//! refused with its path.
//!
//! The tables list everything that is either carried out here, or known to change nothing on the node (scheduling
//! hints, declarations of ports). Values that mean "nothing" (null, empty texts, lists and maps) are never refused.

use std::fmt;

use proto::value::Value;

use super::probe;

/// A field that is not honoured, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub path: String,
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

/// What the runtime can do beyond the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// The kernel takes seccomp filters.
    pub seccomp: bool,
}

/// Volumes that the API server's admission adds by itself for service account tokens. They are left out.
pub const TOKEN_VOLUME_PREFIX: &str = "kube-api-access-";

enum Rule {
    /// Honoured or harmless whatever it says.
    Any,
    /// One of these texts.
    Only(&'static [&'static str]),
    /// Only `false`, or `true` for [`Rule::True`].
    False,
    True,
    /// An object with these fields.
    Fields(&'static [(&'static str, Self)]),
    /// A list of objects with these fields.
    Each(&'static [(&'static str, Self)]),
}

use Rule::{Any, Each, False, Fields, Only, True};

const POD: &[(&str, Rule)] = &[
    ("activeDeadlineSeconds", Any),
    ("affinity", Any),
    ("automountServiceAccountToken", Any),
    ("containers", Each(APP)),
    (
        "dnsConfig",
        Fields(&[("nameservers", Any), ("searches", Any), ("options", Any)]),
    ),
    (
        "dnsPolicy",
        Only(&["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]),
    ),
    ("enableServiceLinks", Any),
    ("hostAliases", Each(&[("ip", Any), ("hostnames", Any)])),
    ("hostIPC", Any),
    ("hostNetwork", Any),
    ("hostPID", Any),
    ("hostUsers", True),
    ("hostname", Any),
    ("imagePullSecrets", Any),
    ("initContainers", Each(INIT)),
    ("nodeName", Any),
    ("nodeSelector", Any),
    ("os", Fields(&[("name", Only(&["linux"]))])),
    ("overhead", Any),
    ("preemptionPolicy", Any),
    ("priority", Any),
    ("priorityClassName", Any),
    ("readinessGates", Any),
    ("restartPolicy", Only(&["Always", "OnFailure", "Never"])),
    ("schedulerName", Any),
    ("schedulingGates", Any),
    ("schedulingGroup", Any),
    (
        "securityContext",
        Fields(&[
            ("appArmorProfile", Fields(&[("type", Only(&["Unconfined"]))])),
            ("fsGroup", Any),
            ("fsGroupChangePolicy", Any),
            ("runAsGroup", Any),
            ("runAsNonRoot", Any),
            ("runAsUser", Any),
            ("seLinuxChangePolicy", Any),
            ("seccompProfile", SECCOMP),
            ("supplementalGroups", Any),
            ("supplementalGroupsPolicy", Only(&["Merge"])),
        ]),
    ),
    ("serviceAccount", Any),
    ("serviceAccountName", Any),
    ("setHostnameAsFQDN", False),
    ("shareProcessNamespace", False),
    ("subdomain", Any),
    ("terminationGracePeriodSeconds", Any),
    ("tolerations", Any),
    ("topologySpreadConstraints", Any),
    ("volumes", Each(VOLUME)),
];

const SECCOMP: Rule = Fields(&[
    ("localhostProfile", Any),
    ("type", Only(&["Localhost", "RuntimeDefault", "Unconfined"])),
]);

/// Every field of a container but its restart policy, which means something for init containers only.
macro_rules! container {
    ($($restart:expr)?) => {
        &[
            ("args", Any),
            ("command", Any),
            (
                "env",
                Each(&[
                    ("name", Any),
                    ("value", Any),
                    (
                        "valueFrom",
                        Fields(&[
                            ("configMapKeyRef", Any),
                            ("fieldRef", Any),
                            ("resourceFieldRef", Any),
                            ("secretKeyRef", Any),
                        ]),
                    ),
                ]),
            ),
            ("envFrom", Each(&[("prefix", Any), ("configMapRef", Any), ("secretRef", Any)])),
            ("image", Any),
            ("imagePullPolicy", Only(&["Always", "IfNotPresent", "Never"])),
            ("livenessProbe", PROBE),
            ("name", Any),
            (
                "ports",
                Each(&[
                    ("containerPort", Any),
                    ("hostIP", Any),
                    ("hostPort", Any),
                    ("name", Any),
                    ("protocol", Any),
                ]),
            ),
            ("readinessProbe", PROBE),
            ("resizePolicy", Any),
            ("resources", Fields(&[("limits", LIMITS), ("requests", REQUESTS)])),
            $(("restartPolicy", $restart),)?
            (
                "securityContext",
                Fields(&[
                    ("allowPrivilegeEscalation", Any),
                    ("appArmorProfile", Fields(&[("type", Only(&["Unconfined"]))])),
                    ("capabilities", Fields(&[("add", Any), ("drop", Any)])),
                    ("privileged", Any),
                    ("procMount", Only(&["Default"])),
                    ("readOnlyRootFilesystem", Any),
                    ("runAsGroup", Any),
                    ("runAsNonRoot", Any),
                    ("runAsUser", Any),
                    ("seccompProfile", SECCOMP),
                ]),
            ),
            ("startupProbe", PROBE),
            ("stdin", False),
            ("stdinOnce", False),
            ("terminationMessagePath", Any),
            ("terminationMessagePolicy", Only(&["File", "FallbackToLogsOnError"])),
            ("tty", Any),
            (
                "volumeMounts",
                Each(&[
                    ("mountPath", Any),
                    ("mountPropagation", Only(&["None"])),
                    ("name", Any),
                    ("readOnly", Any),
                    ("recursiveReadOnly", Only(&["Disabled"])),
                    ("subPath", Any),
                ]),
            ),
            ("workingDir", Any),
        ]
    };
}

const APP: &[(&str, Rule)] = container!();
const INIT: &[(&str, Rule)] = container!(Only(&["Always"]));

const LIMITS: Rule = Fields(&[("cpu", Any), ("memory", Any)]);
/// What is only requested is for the scheduler to count.
const REQUESTS: Rule = Fields(&[("cpu", Any), ("memory", Any), ("ephemeral-storage", Any)]);

const PROBE: Rule = Fields(&[
    ("exec", Fields(&[("command", Any)])),
    ("failureThreshold", Any),
    (
        "httpGet",
        Fields(&[
            ("host", Any),
            ("httpHeaders", Any),
            ("path", Any),
            ("port", Any),
            ("scheme", Only(&["HTTP"])),
        ]),
    ),
    ("initialDelaySeconds", Any),
    ("periodSeconds", Any),
    ("successThreshold", Any),
    ("tcpSocket", Fields(&[("host", Any), ("port", Any)])),
    ("terminationGracePeriodSeconds", Any),
    ("timeoutSeconds", Any),
]);

const DOWNWARD: Rule = Each(&[
    ("fieldRef", Any),
    ("mode", Any),
    ("path", Any),
    ("resourceFieldRef", Any),
]);

const VOLUME: &[(&str, Rule)] = &[
    (
        "configMap",
        Fields(&[("defaultMode", Any), ("items", Any), ("name", Any), ("optional", Any)]),
    ),
    ("downwardAPI", Fields(&[("defaultMode", Any), ("items", DOWNWARD)])),
    ("emptyDir", Fields(&[("medium", Only(&["Memory"])), ("sizeLimit", Any)])),
    (
        "hostPath",
        Fields(&[
            ("path", Any),
            (
                "type",
                Only(&[
                    "BlockDevice",
                    "CharDevice",
                    "Directory",
                    "DirectoryOrCreate",
                    "File",
                    "FileOrCreate",
                    "Socket",
                ]),
            ),
        ]),
    ),
    ("name", Any),
    (
        "projected",
        Fields(&[
            ("defaultMode", Any),
            (
                "sources",
                Each(&[
                    ("configMap", Fields(&[("items", Any), ("name", Any), ("optional", Any)])),
                    ("downwardAPI", Fields(&[("items", DOWNWARD)])),
                    ("secret", Fields(&[("items", Any), ("name", Any), ("optional", Any)])),
                ]),
            ),
        ]),
    ),
    (
        "secret",
        Fields(&[
            ("defaultMode", Any),
            ("items", Any),
            ("optional", Any),
            ("secretName", Any),
        ]),
    ),
];

/// The fields of a pod that this node does not honour.
pub fn check_supported(pod: &Value, features: Features) -> Vec<Refusal> {
    let mut out = Vec::new();
    let Some(spec) = pod.get("spec") else {
        refuse(&mut out, "spec", "is missing");
        return out;
    };
    fields(spec, "spec", POD, &mut out);
    meanings(spec, features, &mut out);
    out
}

fn refuse(out: &mut Vec<Refusal>, path: impl Into<String>, reason: impl Into<String>) {
    out.push(Refusal { path: path.into(), reason: reason.into() });
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Text(text) => text.is_empty(),
        Value::List(list) => list.is_empty(),
        Value::Map(map) => map.is_empty(),
        _ => false,
    }
}

fn fields(object: &Value, path: &str, table: &[(&str, Rule)], out: &mut Vec<Refusal>) {
    let Some(map) = object.as_map() else {
        return refuse(out, path, "must be an object");
    };
    for (field, value) in map.iter().filter(|(_, value)| !is_nothing(value)) {
        let path = format!("{path}.{field}");
        let Some((_, rule)) = table.iter().find(|(name, _)| *name == field) else {
            refuse(out, path, "not supported on this node");
            continue;
        };
        match rule {
            Any => {}
            Only(texts) => {
                if !value.as_text().is_some_and(|text| texts.contains(&text)) {
                    let reason = format!("only {} is supported on this node", texts.join(", "));
                    refuse(out, path, reason);
                }
            }
            False | True => {
                if value.as_bool() != Some(matches!(rule, True)) {
                    refuse(
                        out,
                        path,
                        format!("{} is not supported on this node", !matches!(rule, True)),
                    );
                }
            }
            Fields(table) => fields(value, &path, table, out),
            Each(table) => match value.as_list() {
                None => refuse(out, path, "must be a list"),
                Some(list) => {
                    for (at, one) in list.iter().enumerate() {
                        let token = one
                            .text_at(&["name"])
                            .is_some_and(|name| name.starts_with(TOKEN_VOLUME_PREFIX));
                        if !(field == "volumes" && token) {
                            fields(one, &format!("{path}[{at}]"), table, out);
                        }
                    }
                }
            },
        }
    }
}

/// What depends on more than one field, or on the runtime.
fn meanings(spec: &Value, features: Features, out: &mut Vec<Refusal>) {
    let volumes = spec.list_at(&["volumes"]);
    for (at, volume) in volumes.iter().enumerate() {
        let sources = volume
            .as_map()
            .map_or(0, |map| map.keys().filter(|key| *key != "name").count());
        if sources != 1 {
            refuse(out, format!("spec.volumes[{at}]"), "must have exactly one source");
        }
    }
    seccomp(spec, "spec", features, out);
    for list in ["initContainers", "containers"] {
        for (at, container) in spec.list_at(&[list]).iter().enumerate() {
            let path = format!("spec.{list}[{at}]");
            seccomp(container, &path, features, out);
            let host_network = spec.flag_at(&["hostNetwork"]);
            for (port_at, port) in container.list_at(&["ports"]).iter().enumerate() {
                let mapped = port.int_at(&["hostPort"]).is_some_and(|port| port != 0);
                if mapped && !host_network {
                    let reason = "ports are not mapped on this node; use hostNetwork";
                    refuse(out, format!("{path}.ports[{port_at}].hostPort"), reason);
                }
            }
            for kind in ["livenessProbe", "readinessProbe", "startupProbe"] {
                if let Some(probe) = container.get(kind).filter(|probe| !is_nothing(probe))
                    && probe::ProbeSpec::parse(probe, container).is_none()
                {
                    let reason = "must have exec, httpGet or tcpSocket with a port that exists";
                    refuse(out, format!("{path}.{kind}"), reason);
                }
            }
            for (mount_at, mount) in container.list_at(&["volumeMounts"]).iter().enumerate() {
                let name = mount.text_at(&["name"]).unwrap_or_default();
                let known = volumes.iter().any(|volume| volume.text_at(&["name"]) == Some(name));
                if !known && !name.starts_with(TOKEN_VOLUME_PREFIX) {
                    let path = format!("{path}.volumeMounts[{mount_at}].name");
                    refuse(out, path, format!("no volume is named {name:?}"));
                }
                if is_root(mount.text_at(&["mountPath"]).unwrap_or_default()) {
                    let path = format!("{path}.volumeMounts[{mount_at}].mountPath");
                    refuse(
                        out,
                        path,
                        "is the container's root, which its image is; use a folder in it",
                    );
                }
                let sub_path = mount.text_at(&["subPath"]).unwrap_or_default();
                if sub_path.starts_with('/') || sub_path.split('/').any(|part| part == "..") {
                    let path = format!("{path}.volumeMounts[{mount_at}].subPath");
                    refuse(out, path, "must stay inside the volume");
                }
            }
        }
    }
}

/// Whether a path leads to where it begins, links left aside.
fn is_root(path: &str) -> bool {
    let depth = path.split('/').fold(0_usize, |depth, part| match part {
        "" | "." => depth,
        ".." => depth.saturating_sub(1),
        _ => depth + 1,
    });
    depth == 0
}

fn seccomp(holder: &Value, path: &str, features: Features, out: &mut Vec<Refusal>) {
    let path = format!("{path}.securityContext.seccompProfile");
    let text = |field| holder.text_at(&["securityContext", "seccompProfile", field]);
    let (kind, file) = (text("type"), text("localhostProfile").filter(|file| !file.is_empty()));
    if matches!(kind, Some("Localhost" | "RuntimeDefault")) && !features.seccomp {
        let reason = "this node's kernel takes no filters (CONFIG_SECCOMP_FILTER); use another kernel, or Unconfined";
        refuse(out, format!("{path}.type"), reason);
    }
    let is_outside = |file: &str| file.starts_with('/') || file.split('/').any(|part| part == "..");
    let path = format!("{path}.localhostProfile");
    match (kind, file) {
        (Some("Localhost"), None) => refuse(out, path, "must name a file below seccomp/ in the node's data folder"),
        (Some("Localhost"), Some(file)) if is_outside(file) => {
            refuse(out, path, "must stay below seccomp/ in the node's data folder");
        }
        (Some("Localhost"), Some(_)) | (_, None) => {}
        (_, Some(_)) => refuse(out, path, "is for the type Localhost only"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(spec: &str) -> Vec<String> {
        let pod = proto::value::json::parse(format!(r#"{{"spec":{spec}}}"#).as_bytes()).unwrap();
        let refusals = check_supported(&pod, Features::default());
        refusals.into_iter().map(|refusal| refusal.path).collect()
    }

    #[test]
    fn what_is_honoured_passes() {
        let spec = r#"{"containers":[{"name":"a","image":"b","volumeMounts":[{"name":"v","mountPath":"/v"},
            {"name":"kube-api-access-x","mountPath":"/var/run/secrets"}],"stdin":false,"lifecycle":{},
            "livenessProbe":{"httpGet":{"port":"web","scheme":"HTTP"}},"ports":[{"name":"web","containerPort":80}],
            "terminationMessagePolicy":"File","resources":{"limits":{"cpu":"1"}}}],"tolerations":[{"key":"x"}],
            "volumes":[{"name":"v","emptyDir":{}},{"name":"kube-api-access-x","projected":
            {"sources":[{"serviceAccountToken":{"path":"token"}}]}}],"dnsPolicy":"ClusterFirst",
            "restartPolicy":"Always","schedulerName":"default-scheduler","securityContext":{}}"#;
        assert_eq!(paths(spec), [""; 0]);
    }

    #[test]
    fn everything_else_is_refused_by_path() {
        let check = |spec: &str, path: &str| assert_eq!(paths(spec), [path], "{spec}");
        check(r#"{"runtimeClassName":"kata"}"#, "spec.runtimeClassName");
        check(r#"{"newField":1}"#, "spec.newField");
        check(r#"{"hostUsers":false}"#, "spec.hostUsers");
        check(r#"{"shareProcessNamespace":true}"#, "spec.shareProcessNamespace");
        check(
            r#"{"containers":[{},{"lifecycle":{"preStop":{"sleep":{"seconds":1}}}}]}"#,
            "spec.containers[1].lifecycle",
        );
        check(
            r#"{"containers":[{"livenessProbe":{"grpc":{"port":1},"tcpSocket":{"port":1}}}]}"#,
            "spec.containers[0].livenessProbe.grpc",
        );
        check(
            r#"{"containers":[{"livenessProbe":{"tcpSocket":{"port":"none"}}}]}"#,
            "spec.containers[0].livenessProbe",
        );
        check(
            r#"{"containers":[{"resources":{"limits":{"nvidia.com/gpu":"1"}}}]}"#,
            "spec.containers[0].resources.limits.nvidia.com/gpu",
        );
        check(
            r#"{"containers":[{"ports":[{"containerPort":80,"hostPort":80}]}]}"#,
            "spec.containers[0].ports[0].hostPort",
        );
        check(
            r#"{"containers":[{"restartPolicy":"Always"}]}"#,
            "spec.containers[0].restartPolicy",
        );
        check(
            r#"{"initContainers":[{"restartPolicy":"Never"}]}"#,
            "spec.initContainers[0].restartPolicy",
        );
        check(
            r#"{"volumes":[{"name":"a","persistentVolumeClaim":{"claimName":"c"}}]}"#,
            "spec.volumes[0].persistentVolumeClaim",
        );
        check(
            r#"{"volumes":[{"name":"a","projected":{"sources":[{"serviceAccountToken":{"path":"t"}}]}}]}"#,
            "spec.volumes[0].projected.sources[0].serviceAccountToken",
        );
        check(r#"{"volumes":[{"name":"a"}]}"#, "spec.volumes[0]");
        check(
            r#"{"containers":[{"volumeMounts":[{"name":"v","mountPath":"/v"}]}]}"#,
            "spec.containers[0].volumeMounts[0].name",
        );
        check(
            r#"{"volumes":[{"name":"v","emptyDir":{}}],
                "containers":[{"volumeMounts":[{"name":"v","mountPath":"/v","subPath":"a/../../b"}]}]}"#,
            "spec.containers[0].volumeMounts[0].subPath",
        );
        for root in ["/", "//.", "/a/.."] {
            check(
                &format!(
                    r#"{{"volumes":[{{"name":"v","emptyDir":{{}}}}],
                    "containers":[{{"volumeMounts":[{{"name":"v","mountPath":"{root}"}}]}}]}}"#
                ),
                "spec.containers[0].volumeMounts[0].mountPath",
            );
        }
    }

    #[test]
    fn seccomp_profiles() {
        let check = |profile: &str, seccomp: bool, expected: &[(&str, &str)]| {
            let spec = format!(
                r#"{{"spec":{{"containers":[{{"name":"a","image":"b","securityContext":{{"seccompProfile":{profile}}}}}]}}}}"#
            );
            let pod = proto::value::json::parse(spec.as_bytes()).unwrap();
            let refusals = check_supported(&pod, Features { seccomp });
            assert_eq!(refusals.len(), expected.len(), "{profile}: {refusals:?}");
            for (refusal, (field, word)) in refusals.iter().zip(expected) {
                let path = format!("spec.containers[0].securityContext.seccompProfile.{field}");
                assert!(
                    refusal.path == path && refusal.reason.contains(word),
                    "{profile}: {refusal}"
                );
            }
        };
        let default = r#"{"type":"RuntimeDefault"}"#;
        let none = r#"{"type":"Unconfined"}"#;
        let local = |file: &str| format!(r#"{{"type":"Localhost","localhostProfile":"{file}"}}"#);
        check(default, true, &[]);
        check(default, false, &[("type", "CONFIG_SECCOMP_FILTER")]);
        check(none, true, &[]);
        check(none, false, &[]);
        check(&local("profiles/a.json"), true, &[]);
        check(&local("profiles/a.json"), false, &[("type", "CONFIG_SECCOMP_FILTER")]);
        check(&local(""), true, &[("localhostProfile", "must name a file")]);
        check(&local("/etc/passwd"), true, &[("localhostProfile", "must stay below")]);
        check(&local("a/../../b"), true, &[("localhostProfile", "must stay below")]);
        check(
            r#"{"type":"RuntimeDefault","localhostProfile":"a"}"#,
            true,
            &[("localhostProfile", "type Localhost only")],
        );
        check(
            r#"{"type":"Another"}"#,
            true,
            &[("type", "only Localhost, RuntimeDefault, Unconfined")],
        );
    }
}

//! Turns a pod's spec into what the runtime is asked for.

use std::path::Path;

use proto::object::quantity::Quantity;
use proto::value::Value;

use super::env::Invocation;
use super::files::{self, Host};
use super::folders::Folders;
use super::spec::{ContainerSpec, Pod};
use super::status::qos_class;
use super::supported::TOKEN_VOLUME_PREFIX;
use super::volumes::{self, Content, Volume, VolumeError};
use crate::runtime::{Container, Labels, Limits, Mount, Sandbox, Seccomp, Security};

/// Where a container leaves its last words when it does not say.
const LAST_WORDS_DEFAULT: &str = "/dev/termination-log";

/// What a pod's containers share.
pub fn sandbox(pod: &Pod, host: &Host) -> Sandbox {
    let flag = |field: &str| pod.raw.flag_at(&["spec", field]);
    Sandbox {
        pod: pod.uid,
        namespace: pod.key.namespace.clone(),
        name: pod.key.name.clone(),
        hostname: files::hostname(pod, host),
        host_network: pod.host_network,
        host_pid: flag("hostPID"),
        host_ipc: flag("hostIPC"),
    }
}

/// Where a container leaves its last words, inside it.
pub fn last_words_path(spec: &ContainerSpec) -> &str {
    match spec.raw.text_at(&["terminationMessagePath"]) {
        Some(path) if !path.is_empty() => path,
        _ => LAST_WORDS_DEFAULT,
    }
}

/// One attempt of one container, on a machine with this much memory.
pub fn container(
    pod: &Pod,
    spec: &ContainerSpec,
    attempt: u32,
    invocation: Invocation,
    volumes: &[Volume],
    folders: &Folders,
    memory_bytes: u64,
) -> Result<Container, VolumeError> {
    let mut mounts = Vec::new();
    for mount in spec.raw.list_at(&["volumeMounts"]) {
        let text = |field: &str| mount.text_at(&[field]).unwrap_or_default();
        if text("name").starts_with(TOKEN_VOLUME_PREFIX) {
            continue;
        }
        let Some(volume) = volumes.iter().find(|volume| volume.name == text("name")) else {
            continue;
        };
        let (source, read_only) = match &volume.content {
            Content::HostPath { path, .. } => (path.clone(), false),
            // Only the edge core writes what it shows.
            Content::Files { .. } => (folders.volumes(pod.uid).join(&volume.name), true),
            Content::Empty { .. } => (folders.volumes(pod.uid).join(&volume.name), false),
            Content::Left => continue,
        };
        let sub_path = text("subPath");
        mounts.push(Mount {
            source: volumes::source(&source, sub_path)?,
            exact: !sub_path.is_empty(),
            target: text("mountPath").to_owned(),
            read_only: read_only || mount.flag_at(&["readOnly"]),
        });
    }
    let mut add = |source: &Path, target: &str| {
        if !mounts.iter().any(|mount: &Mount| mount.target == target) {
            let source = source.to_owned();
            mounts.push(Mount {
                source,
                target: target.to_owned(),
                read_only: false,
                exact: false,
            });
        }
    };
    for file in ["hosts", "hostname", "resolv.conf"] {
        add(&folders.etc(pod.uid).join(file), &format!("/etc/{file}"));
    }
    add(&folders.last_words(pod.uid, &spec.name, attempt), last_words_path(spec));
    Ok(Container {
        labels: Labels {
            pod: pod.uid,
            namespace: pod.key.namespace.clone(),
            pod_name: pod.key.name.clone(),
            container: spec.name.clone(),
            attempt,
            hash: spec.hash,
        },
        image: spec.image.clone(),
        command: invocation.command,
        args: invocation.args,
        env: invocation.env,
        working_dir: spec
            .raw
            .text_at(&["workingDir"])
            .filter(|folder| !folder.is_empty())
            .map(str::to_owned),
        mounts,
        limits: limits(&spec.raw),
        oom_score_adj: oom_score_adj(&pod.raw, &spec.raw, memory_bytes),
        security: security(&pod.raw, &spec.raw),
        tty: spec.raw.flag_at(&["tty"]),
        log: folders.log(pod, &spec.name, attempt),
    })
}

/// How soon a container goes when the machine's memory runs out, as the kubelet has it: what was promised its memory last,
/// what asked for none first, and in between the smaller its part of the machine the sooner.
fn oom_score_adj(pod: &Value, container: &Value, memory_bytes: u64) -> i32 {
    const GUARANTEED: i64 = -997;
    const FIRST: i64 = 1000;
    let critical = pod.text_at(&["spec", "priorityClassName"]) == Some("system-node-critical");
    let score = match qos_class(pod) {
        _ if critical => GUARANTEED,
        "Guaranteed" => GUARANTEED,
        "BestEffort" => FIRST,
        _ => {
            let request = amount(container, "requests", "memory").or_else(|| amount(container, "limits", "memory"));
            let request = request.map_or(0, |amount| i128::from(amount.units()));
            let part = i128::from(FIRST) * request / i128::from(memory_bytes.max(1));
            // Never as one that was promised all of it, nor as one that asked for nothing.
            (FIRST - i64::try_from(part).unwrap_or(FIRST)).clamp(FIRST + GUARANTEED, FIRST - 1)
        }
    };
    i32::try_from(score).unwrap_or_default()
}

fn amount(container: &Value, list: &str, name: &str) -> Option<Quantity> {
    container.text_at(&["resources", list, name])?.parse().ok()
}

fn limits(container: &Value) -> Limits {
    let amount = |list: &str, name: &str| amount(container, list, name);
    let milli = |amount: Option<Quantity>| amount.map_or(0, |amount| u64::try_from(amount.milli()).unwrap_or_default());
    let limit = amount("limits", "cpu");
    Limits {
        // A request that is not given is the limit.
        cpu_request_milli: milli(amount("requests", "cpu").or(limit)),
        cpu_limit_milli: milli(limit),
        memory_limit_bytes: amount("limits", "memory")
            .map_or(0, |amount| u64::try_from(amount.units()).unwrap_or_default()),
        pids_max: 0,
    }
}

/// The container's own settings before the pod's.
fn security(pod: &Value, container: &Value) -> Security {
    let own = container.get("securityContext").unwrap_or(&Value::Null);
    let shared = pod.at(&["spec", "securityContext"]).unwrap_or(&Value::Null);
    let id = |field: &str| {
        let id = own.int_at(&[field]).or_else(|| shared.int_at(&[field]))?;
        u32::try_from(id).ok()
    };
    let names = |list: &str| -> Vec<String> {
        let names = own.list_at(&["capabilities", list]).iter().filter_map(Value::as_text);
        names.map(|name| name.trim_start_matches("CAP_").to_owned()).collect()
    };
    let supplemental = shared.list_at(&["supplementalGroups"]).iter();
    let groups = supplemental.filter_map(|group| u32::try_from(group.as_i64()?).ok());
    let privileged = own.flag_at(&["privileged"]);
    Security {
        user: id("runAsUser"),
        group: id("runAsGroup"),
        groups: groups.chain(fs_group(pod)).collect(),
        run_as_non_root: own
            .get("runAsNonRoot")
            .or_else(|| shared.get("runAsNonRoot"))
            .and_then(Value::as_bool)
            .unwrap_or(false),
        privileged,
        read_only_root: own.flag_at(&["readOnlyRootFilesystem"]),
        // A profile may be a file, which is read where the container is made.
        seccomp: Seccomp::Unconfined,
        no_new_privileges: own.get("allowPrivilegeEscalation").and_then(Value::as_bool) == Some(false),
        capabilities_added: names("add"),
        capabilities_dropped: names("drop"),
    }
}

/// The group that a pod's volumes belong to.
pub fn fs_group(pod: &Value) -> Option<u32> {
    let group = pod.int_at(&["spec", "securityContext", "fsGroup"])?;
    u32::try_from(group).ok()
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn who_goes_first_when_memory_runs_out() {
        const MACHINE: u64 = 512 << 20;
        let check = |pod: &str, resources: &str, expected: i32| {
            let json = format!(r#"{{{pod}"containers":[{{"name":"a","image":"b:1","resources":{resources}}}]}}"#);
            let pod = testing::pod(&json);
            let score = oom_score_adj(&pod.raw, &pod.containers[0].raw, MACHINE);
            assert_eq!(score, expected, "{json}");
        };
        let all = r#"{"limits":{"cpu":"1","memory":"64Mi"}}"#;
        check("", "{}", 1000);
        check("", all, -997);
        check("", r#"{"requests":{"cpu":"1"}}"#, 999);
        check("", r#"{"requests":{"memory":"1Ki"}}"#, 999);
        check("", r#"{"requests":{"memory":"128Mi"}}"#, 750);
        // A request that is not given is the limit.
        check("", r#"{"limits":{"memory":"256Mi"}}"#, 500);
        for much in ["511Mi", "512Mi", "8Gi", "9E"] {
            check("", &format!(r#"{{"requests":{{"memory":"{much}"}}}}"#), 3);
        }
        check(r#""priorityClassName":"system-node-critical","#, "{}", -997);
        check(r#""priorityClassName":"mine","#, "{}", 1000);
    }

    #[test]
    fn the_containers_word_counts_before_the_pods() {
        let pod = testing::pod(
            r#"{"securityContext":{"runAsUser":1,"runAsGroup":2,"runAsNonRoot":true,"fsGroup":7,
                "supplementalGroups":[5]},
                "containers":[{"name":"a","image":"b:1","securityContext":{"runAsUser":9,"runAsNonRoot":false,
                "allowPrivilegeEscalation":false,"capabilities":{"add":["CAP_NET_ADMIN"],"drop":["ALL"]}},
                "resources":{"limits":{"cpu":"500m","memory":"64Mi"}}}]}"#,
        );
        let container = &pod.containers[0].raw;
        let security = security(&pod.raw, container);
        assert_eq!((security.user, security.group), (Some(9), Some(2)));
        assert_eq!(security.groups, [5, 7]);
        assert!(!security.run_as_non_root && security.no_new_privileges);
        assert_eq!(security.capabilities_added, ["NET_ADMIN"]);
        assert_eq!(security.capabilities_dropped, ["ALL"]);
        let expected = Limits {
            cpu_request_milli: 500,
            cpu_limit_milli: 500,
            memory_limit_bytes: 64 << 20,
            pids_max: 0,
        };
        assert_eq!(limits(container), expected);
    }

    #[test]
    fn mounts_come_from_the_pods_folders() {
        let pod = testing::pod(
            r#"{"volumes":[{"name":"v","emptyDir":{}}],"containers":[{"name":"a","image":"b:1",
                "volumeMounts":[{"name":"v","mountPath":"/v","readOnly":true}]}]}"#,
        );
        let folders = Folders { pods: "/pods".into(), logs: "/logs".into() };
        let volume = Volume {
            name: "v".to_owned(),
            content: Content::Empty { memory: false, size_bytes: None },
        };
        let spec = &pod.containers[0];
        let made = container(&pod, spec, 3, Invocation::default(), &[volume], &folders, 0).unwrap();
        let uid = pod.uid;
        let targets: Vec<_> = made.mounts.iter().map(|mount| mount.target.as_str()).collect();
        let expected = [
            "/v",
            "/etc/hosts",
            "/etc/hostname",
            "/etc/resolv.conf",
            "/dev/termination-log",
        ];
        assert_eq!(targets, expected);
        assert_eq!(made.mounts[0].source, Path::new(&format!("/pods/{uid}/volumes/v")));
        assert!(made.mounts[0].read_only);
        assert_eq!(made.log, Path::new(&format!("/logs/n_p_{uid}/a/3.log")));
        assert_eq!((made.labels.attempt, made.labels.hash), (3, spec.hash));
    }
}

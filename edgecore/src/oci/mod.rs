//! The OCI runtime specification: the parts that this node writes, in the specification's own words. runc reads it as JSON;
//! without a daemon we read it ourselves. What is missing here is missing in containers.

pub mod capability;
pub mod seccomp;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use self::capability::{Capabilities, Capability};

/// The version of the specification that this is written by.
pub const VERSION: &str = "1.0.2";

/// A container: `config.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    pub oci_version: String,
    pub process: Process,
    pub root: Root,
    #[serde(default)]
    pub mounts: Vec<Mount>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(default)]
    pub linux: Linux,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    pub path: PathBuf,
    #[serde(default)]
    pub readonly: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    #[serde(default)]
    pub terminal: bool,
    #[serde(default)]
    pub user: User,
    pub args: Vec<String>,
    #[serde(default)]
    pub env: Vec<String>,
    pub cwd: PathBuf,
    #[serde(default)]
    pub capabilities: Sets,
    #[serde(default)]
    pub no_new_privileges: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

/// What a process may do, in the kernel's five sets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sets {
    pub bounding: Capabilities,
    pub effective: Capabilities,
    pub permitted: Capabilities,
    pub inheritable: Capabilities,
    pub ambient: Capabilities,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub destination: PathBuf,
    #[serde(rename = "type")]
    pub kind: String,
    pub source: PathBuf,
    #[serde(default)]
    pub options: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Linux {
    #[serde(default)]
    pub namespaces: Vec<Namespace>,
    /// Its own, as a path from the root of each tree of cgroups.
    #[serde(default)]
    pub cgroups_path: String,
    #[serde(default)]
    pub resources: Resources,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    #[serde(default)]
    pub masked_paths: Vec<String>,
    #[serde(default)]
    pub readonly_paths: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seccomp: Option<seccomp::Profile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    #[serde(rename = "type")]
    pub kind: NamespaceKind,
    /// One that there is already; else one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NamespaceKind {
    Cgroup,
    Ipc,
    Mount,
    Network,
    Pid,
    Uts,
}

/// What is limited; nothing is without limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceRule>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<Pids>,
}

/// Of every device: rules for single ones are the runtime's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRule {
    pub allow: bool,
    /// Some of `r`, `w` and `m` (make).
    pub access: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes.
    pub limit: i64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<u64>,
    /// Microseconds in each period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<i64>,
    /// Microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pids {
    pub limit: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    pub path: PathBuf,
    #[serde(rename = "type")]
    pub kind: DeviceKind,
    pub major: u32,
    pub minor: u32,
    pub file_mode: u32,
    pub uid: u32,
    pub gid: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceKind {
    #[serde(rename = "b")]
    Block,
    #[serde(rename = "c")]
    Character,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the words of the specification, which are also those of containers that run through an upgrade.
    #[test]
    fn the_words_are_the_specifications() {
        let spec = Spec {
            oci_version: VERSION.into(),
            process: Process {
                user: User { additional_gids: vec![5], ..User::default() },
                args: vec!["/bin/sh".into()],
                cwd: "/".into(),
                capabilities: Sets { bounding: [Capability::Chown].into(), ..Sets::default() },
                ..Process::default()
            },
            root: Root { path: "rootfs".into(), readonly: true },
            linux: Linux {
                namespaces: vec![Namespace { kind: NamespaceKind::Network, path: Some("/run/net".into()) }],
                cgroups_path: "/edgehold/x".into(),
                devices: vec![Device {
                    path: "/dev/null".into(),
                    kind: DeviceKind::Character,
                    major: 1,
                    minor: 3,
                    file_mode: 0o666,
                    uid: 0,
                    gid: 0,
                }],
                resources: Resources {
                    devices: vec![DeviceRule { allow: false, access: "rwm".into() }],
                    pids: Some(Pids { limit: 7 }),
                    ..Resources::default()
                },
                ..Linux::default()
            },
            ..Spec::default()
        };
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"ociVersion":"1.0.2","process":{"terminal":false,"user":{"uid":0,"gid":0,"additionalGids":[5]},"#,
                r#""args":["/bin/sh"],"env":[],"cwd":"/","capabilities":{"bounding":["CAP_CHOWN"],"effective":[],"#,
                r#""permitted":[],"inheritable":[],"ambient":[]},"noNewPrivileges":false},"#,
                r#""root":{"path":"rootfs","readonly":true},"mounts":[],"#,
                r#""linux":{"namespaces":[{"type":"network","path":"/run/net"}],"cgroupsPath":"/edgehold/x","#,
                r#""resources":{"devices":[{"allow":false,"access":"rwm"}],"pids":{"limit":7}},"#,
                r#""devices":[{"path":"/dev/null","type":"c","major":1,"minor":3,"fileMode":438,"uid":0,"gid":0}],"#,
                r#""maskedPaths":[],"readonlyPaths":[]}}"#,
            )
        );
        assert_eq!(serde_json::from_str::<Spec>(&text).unwrap(), spec);
        // What is not known is left alone, and what need not be there is not missed.
        let least = r#"{"ociVersion":"1.0.2","process":{"args":["x"],"cwd":"/","rlimits":[]},"root":{"path":"r"}}"#;
        assert_eq!(serde_json::from_str::<Spec>(least).unwrap().process.args, ["x"]);
        assert!(serde_json::from_str::<Spec>("{}").is_err());
    }
}

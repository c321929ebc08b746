//! A profile of the node's own (`Localhost`), as people write it for containerd and runc: JSON, the OCI specification's
//! `linux.seccomp` section. What is not honoured is refused, never left out: a rule that means less than its author
//! thinks is a hole.

use serde_json::Value;

use super::{Filter, SeccompError};
use crate::oci::seccomp::Profile;

/// Everything known as a profile is far below.
pub const PROFILE_BYTES_MAX: u64 = 1 << 20;

const PROFILE: &[&str] = &["defaultAction", "defaultErrnoRet", "architectures", "flags", "syscalls"];
/// A comment means nothing, as its name says.
const RULE: &[&str] = &["names", "action", "errnoRet", "args", "comment"];
const ARG: &[&str] = &["index", "value", "valueTwo", "op"];

/// Reads a profile, and sees that this node can carry it out.
pub fn parse(json: &[u8]) -> Result<Profile, SeccompError> {
    let fail = |error: serde_json::Error| SeccompError::profile(error.to_string());
    let value: Value = serde_json::from_slice(json).map_err(fail)?;
    only(&value, PROFILE, "")?;
    for (at, rule) in list(&value, "syscalls").iter().enumerate() {
        let path = format!("syscalls[{at}].");
        only(rule, RULE, &path)?;
        for (at, arg) in list(rule, "args").iter().enumerate() {
            only(arg, ARG, &format!("{path}args[{at}]."))?;
        }
    }
    let profile: Profile = serde_json::from_value(value).map_err(fail)?;
    Filter::compile(&profile)?;
    Ok(profile)
}

fn list<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn only(object: &Value, known: &[&str], path: &str) -> Result<(), SeccompError> {
    let Some(object) = object.as_object() else {
        return Err(SeccompError::profile(format!("{path} must be an object")));
    };
    let is_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    match object
        .iter()
        .find(|(key, value)| !known.contains(&key.as_str()) && !is_nothing(value))
    {
        None => Ok(()),
        Some((key, _)) => Err(SeccompError::profile(match key.as_str() {
            "archMap" => format!("{path}{key} is Docker's own: list the architectures instead"),
            "includes" | "excludes" | "minKernel" => format!(
                "{path}{key} is Docker's own and would be left out by runc: take the rule out, or keep it without"
            ),
            _ => format!("{path}{key}: no such field; one of {}", known.join(", ")),
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_as_people_write_them() {
        let audit = br#"{"defaultAction":"SCMP_ACT_LOG"}"#;
        assert!(parse(audit).unwrap().syscalls.is_empty());
        let fine = br#"{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":38,
            "architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_X86","SCMP_ARCH_X32"],"flags":["SECCOMP_FILTER_FLAG_LOG"],
            "syscalls":[{"names":["accept4","close"],"action":"SCMP_ACT_ALLOW","args":[],"comment":"","includes":{}},
            {"names":["personality"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":8,"op":"SCMP_CMP_EQ"}]}]}"#;
        let profile = parse(fine).unwrap();
        assert_eq!(profile.syscalls[0].args, []);
        assert_eq!(profile.syscalls[1].args.len(), 1);
    }

    #[test]
    fn what_is_not_honoured_is_refused_by_path() {
        let check = |json: &str, words: &str| {
            let error = parse(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(words), "{json}: {error}");
        };
        check("", "EOF");
        check("[]", "must be an object");
        check(r#"{"syscalls":[]}"#, "defaultAction");
        check(r#"{"defaultAction":"SCMP_ACT_SOMETHING"}"#, "SCMP_ACT_SOMETHING");
        check(
            r#"{"defaultAction":"SCMP_ACT_NOTIFY"}"#,
            "SCMP_ACT_NOTIFY needs an agent",
        );
        check(
            r#"{"defaultAction":"SCMP_ACT_ERRNO","listenerPath":"/run/agent"}"#,
            "listenerPath: no such field",
        );
        let rule = |rest: &str| {
            format!(
                r#"{{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{{"names":["read"],"action":"SCMP_ACT_ALLOW"}},
                {{"names":["bpf"],"action":"SCMP_ACT_ALLOW",{rest}}}]}}"#
            )
        };
        check(
            &rule(r#""includes":{"caps":["CAP_BPF"]}"#),
            "syscalls[1].includes is Docker's own",
        );
        check(
            &rule(r#""arguments":[1]"#),
            "syscalls[1].arguments: no such field; one of names",
        );
        check(
            &rule(r#""args":[{"index":0,"value":1,"op":"SCMP_CMP_EQ","mask":3}]"#),
            "syscalls[1].args[0].mask",
        );
        check(
            &rule(r#""args":[{"index":9,"value":1,"op":"SCMP_CMP_EQ"}]"#),
            "syscalls[1].args: there is no argument 9",
        );
        check(
            &rule(r#""args":[{"index":0,"value":1,"op":"SCMP_CMP_IS"}]"#),
            "SCMP_CMP_IS",
        );
        check(
            r#"{"defaultAction":"SCMP_ACT_ERRNO","flags":["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"]}"#,
            "flags: SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV",
        );
    }
}

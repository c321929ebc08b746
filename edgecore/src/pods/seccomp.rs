//! Which system calls a container of a pod may make: its own word before the pod's, nothing for privileged ones.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use proto::value::Value;

use crate::runtime::Seccomp;
use crate::seccomp::SeccompError;
use crate::seccomp::local::{PROFILE_BYTES_MAX, parse};

/// What a container asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    Unconfined,
    RuntimeDefault,
    /// A file below the node's folder of profiles.
    Localhost(String),
}

/// Why a profile of the node's own cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("reading the seccomp profile {path}; put it there on this node, or use RuntimeDefault")]
    Read {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("the seccomp profile {path} is larger than {PROFILE_BYTES_MAX} bytes")]
    Large { path: String },
    #[error("the seccomp profile {path}")]
    Profile {
        path: String,
        #[source]
        source: SeccompError,
    },
}

/// What a container of a pod asks for. `pod` and `container` were found to be supported.
pub fn asked(pod: &Value, container: &Value) -> Asked {
    if container.flag_at(&["securityContext", "privileged"]) {
        return Asked::Unconfined;
    }
    let own = container.at(&["securityContext", "seccompProfile"]);
    let shared = pod.at(&["spec", "securityContext", "seccompProfile"]);
    let Some(profile) = [own, shared]
        .into_iter()
        .flatten()
        .find(|profile| profile.text_at(&["type"]).is_some())
    else {
        return Asked::Unconfined;
    };
    match profile.text_at(&["type"]) {
        Some("RuntimeDefault") => Asked::RuntimeDefault,
        Some("Localhost") => Asked::Localhost(profile.text_at(&["localhostProfile"]).unwrap_or_default().to_owned()),
        _ => Asked::Unconfined,
    }
}

/// Reads what was asked for, from the node's folder of profiles where it is a file.
pub fn resolve(asked: Asked, folder: &Path) -> Result<Seccomp, ProfileError> {
    let name = match asked {
        Asked::Unconfined => return Ok(Seccomp::Unconfined),
        Asked::RuntimeDefault => return Ok(Seccomp::RuntimeDefault),
        Asked::Localhost(name) => name,
    };
    let file = folder.join(name);
    let path = file.display().to_string();
    let mut json = Vec::new();
    let read = open(&file).and_then(|file| file.take(PROFILE_BYTES_MAX + 1).read_to_end(&mut json));
    match read {
        Err(source) => Err(ProfileError::Read { path, source }),
        Ok(length) if u64::try_from(length).is_ok_and(|length| length > PROFILE_BYTES_MAX) => {
            Err(ProfileError::Large { path })
        }
        Ok(_) => match parse(&json) {
            Ok(profile) => Ok(Seccomp::Profile(Box::new(profile))),
            Err(source) => Err(ProfileError::Profile { path, source }),
        },
    }
}

/// Of a pipe nobody may ever write the other end.
fn open(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is no file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::explain;

    #[test]
    fn the_containers_word_counts_before_the_pods() {
        let value = |json: &str| proto::value::json::parse(json.as_bytes()).unwrap();
        let check = |pod: &str, container: &str, expected: Asked| {
            let pod = value(&format!(r#"{{"spec":{{"securityContext":{pod}}}}}"#));
            let container = value(&format!(r#"{{"securityContext":{container}}}"#));
            assert_eq!(asked(&pod, &container), expected, "{pod:?} {container:?}");
        };
        let default = r#"{"seccompProfile":{"type":"RuntimeDefault"}}"#;
        let none = r#"{"seccompProfile":{"type":"Unconfined"}}"#;
        let local = r#"{"seccompProfile":{"type":"Localhost","localhostProfile":"a/b.json"}}"#;
        check("{}", "{}", Asked::Unconfined);
        check("{}", default, Asked::RuntimeDefault);
        check(default, "{}", Asked::RuntimeDefault);
        check(default, r#"{"seccompProfile":{}}"#, Asked::RuntimeDefault);
        check(default, none, Asked::Unconfined);
        check(none, local, Asked::Localhost("a/b.json".to_owned()));
        check(local, r#"{"privileged":true}"#, Asked::Unconfined);
    }

    #[test]
    fn a_file_is_read_to_its_limit_and_every_no_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let local = || Asked::Localhost("p.json".to_owned());
        let refused = |words: &[&str]| {
            let error = explain(&resolve(local(), folder.path()).unwrap_err());
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
            assert!(error.contains("p.json"), "{error}");
        };
        refused(&["No such file", "put it there"]);
        let path = folder.path().join("p.json");
        let limit = usize::try_from(PROFILE_BYTES_MAX).unwrap();
        let mut json = br#"{"defaultAction":"SCMP_ACT_ALLOW"}"#.to_vec();
        json.resize(limit, b' ');
        std::fs::write(&path, &json).unwrap();
        assert!(matches!(resolve(local(), folder.path()), Ok(Seccomp::Profile(_))));
        json.push(b' ');
        std::fs::write(&path, &json).unwrap();
        refused(&["larger than 1048576"]);
        std::fs::write(&path, "{}").unwrap();
        refused(&["compiling the seccomp profile", "defaultAction"]);
        // What is no file may never end, and never begin.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        refused(&["it is no file"]);
        std::fs::remove_dir(&path).unwrap();
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        refused(&["it is no file"]);
    }
}

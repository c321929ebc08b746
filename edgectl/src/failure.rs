//! What can go wrong, as sentences that say what to do next.

use std::io;
use std::path::PathBuf;

use kube::core::Status;

/// Exit code for a command line that means nothing, as sysexits has it.
pub(crate) const USAGE: u8 = 64;

/// Exit code for a kubeconfig that cannot be used, as sysexits has it.
const CONFIG: u8 = 78;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error(
        "there is no kubeconfig at {}: copy admin.kubeconfig from the cloud core's data folder to this machine and name \
         it with --kubeconfig FILE or in $KUBECONFIG",
        path.display()
    )]
    NoKubeconfig { path: PathBuf },
    #[error(
        "the kubeconfig {origin} cannot be used; `cloudcore serve` writes a new one when admin.kubeconfig is missing"
    )]
    Kubeconfig {
        origin: String,
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    #[error("preparing the connection to {url}")]
    Prepare {
        url: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("no cloud core answers at {url}: check that `cloudcore serve` runs there and that this machine reaches it")]
    Unreachable {
        url: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("the connection to the cloud core broke while it answered; try again")]
    Broken(#[source] Box<kube::Error>),
    #[error("{}", refusal(.0))]
    Refused(Box<Status>),
    #[error("{0}")]
    Admin(String),
    #[error("the cloud core's answer to {what} is not understood; compare `edgectl version` with the cloud core's")]
    Answer {
        what: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("there is no resource {word:?} here; those there are: {known}")]
    UnknownResource { word: String, known: String },
    #[error("{file}: there is no {kind} in {api_version} here; see `edgectl get --help` or compare versions")]
    UnknownKind { file: String, api_version: String, kind: String },
    #[error("reading {file}")]
    Read {
        file: String,
        #[source]
        source: io::Error,
    },
    #[error("{file}: {detail}")]
    Manifest { file: String, detail: String },
    #[error("{failed} of {total} objects were not done")]
    Some { failed: usize, total: usize },
    #[error("writing to the standard output")]
    Output(#[source] io::Error),
    #[error("building a request")]
    Request(#[from] http::Error),
}

impl Failure {
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::NoKubeconfig { .. } | Self::Kubeconfig { .. } => CONFIG,
            _ => 1,
        }
    }

    /// Whether the object that was asked for is not there.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 404)
    }

    /// Whether a watch has to begin anew.
    pub(crate) fn is_expired(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 410)
    }

    /// Whether whoever read the output has seen enough.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// What the server said, and what to do about it.
fn refusal(status: &Status) -> String {
    let said = if status.message.is_empty() {
        format!("the cloud core answered {} {}", status.code, status.reason)
    } else {
        status.message.clone()
    };
    match next_step(status) {
        Some(step) => format!("{said}: {step}"),
        None => said,
    }
}

fn next_step(status: &Status) -> Option<&'static str> {
    Some(match status.code {
        401 => "use the admin.kubeconfig that this cloud core wrote into its data folder",
        403 => "use a kubeconfig with more rights, such as the cloud core's admin.kubeconfig",
        404 => "look for it with `edgectl get`, in other namespaces with -A",
        409 if status.reason == "AlreadyExists" => "change it with `edgectl apply`, or delete it first",
        409 => "somebody else changed it meanwhile; try again",
        413 => "make the object smaller",
        415 => "the cloud core is older than this command; compare `edgectl version`",
        422 => "correct what is named and try again",
        429 => "the cloud core is busy; try again in a moment",
        503 | 504 => "see `edgectl node list` for nodes that cannot be reached now",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_to_do() {
        let check = |code: u16, reason: &str, message: &str, expected: &str| {
            let mut status = Status::failure(message, reason);
            status.code = code;
            assert_eq!(Failure::Refused(Box::new(status)).to_string(), expected);
        };
        check(
            404,
            "NotFound",
            "pods \"a\" not found",
            "pods \"a\" not found: look for it with `edgectl get`, in other namespaces with -A",
        );
        check(
            409,
            "AlreadyExists",
            "it exists",
            "it exists: change it with `edgectl apply`, or delete it first",
        );
        check(
            409,
            "Conflict",
            "changed",
            "changed: somebody else changed it meanwhile; try again",
        );
        check(500, "InternalError", "", "the cloud core answered 500 InternalError");
    }

    #[test]
    fn exit_codes_tell_usage_from_failure() {
        assert_eq!(Failure::Usage(String::new()).code(), 64);
        assert_eq!(Failure::Admin(String::new()).code(), 1);
    }
}

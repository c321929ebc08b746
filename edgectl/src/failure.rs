//! What can go wrong, as sentences that say what to do next.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use kube::core::Status;
use rustls::{AlertDescription, CertificateError};

use crate::output::remark;

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
        "the kubeconfig {origin} cannot be used; copy admin.kubeconfig from the cloud core's data folder, where \
         `cloudcore serve` writes a new one whenever it starts"
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
    #[error("{}", untrusted(url, .problem))]
    Untrusted { url: String, problem: rustls::Error },
    #[error("the connection to the cloud core broke while it answered; try again")]
    Broken(#[source] Box<kube::Error>),
    #[error("{}", refusal(.0))]
    Refused(Box<Status>),
    #[error("{}: {step}", said(status))]
    Missing { status: Box<Status>, step: String },
    #[error("{what}, in {file}")]
    Of {
        what: String,
        file: String,
        #[source]
        source: Box<Self>,
    },
    #[error("no pod belongs to {what} in namespace {namespace}; see `edgectl get pods -A`")]
    NoPods { what: String, namespace: String },
    #[error("pod {pod} has no container {container}, it has {known}{}", did_you_mean(near.as_deref()))]
    NoContainer {
        pod: String,
        container: String,
        known: String,
        near: Option<String>,
    },
    #[error("{0}")]
    Admin(String),
    #[error("the cloud core's answer to {what} is not understood; compare `edgectl version` with the cloud core's")]
    Answer {
        what: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("there is no resource {word:?} here; those there are: {known}{}", did_you_mean(near.as_deref()))]
    UnknownResource { word: String, known: String, near: Option<String> },
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
    #[error("a task ended before its work was done")]
    Task(#[source] tokio::task::JoinError),
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
        match self {
            Self::Refused(status) => status.code == 404,
            Self::Missing { .. } => true,
            _ => false,
        }
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

/// What failed of several things: one failure stands for itself, more are told one by one.
pub(crate) fn all_of(mut failures: Vec<Failure>, total: usize) -> Result<(), Failure> {
    match failures.len() {
        0 => Ok(()),
        1 => Err(failures.remove(0)),
        failed => {
            for failure in &failures {
                remark(&format!("edgectl: {}", told(failure)));
            }
            Err(Failure::Some { failed, total })
        }
    }
}

/// A failure with its causes, each said once: libraries like to repeat theirs.
pub(crate) fn told(failure: &Failure) -> String {
    let mut text = failure.to_string();
    let mut cause = failure.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

/// What TLS has against the connection, where that is why there is none.
pub(crate) fn tls_problem(error: &(dyn Error + 'static)) -> Option<rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(problem) = error.downcast_ref::<rustls::Error>() {
            return Some(problem.clone());
        }
        // An IO error keeps what it was made of to itself, and names as its source what that has as its own.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = inner
            .map(|inner| inner as &(dyn Error + 'static))
            .or_else(|| error.source());
    }
    None
}

fn untrusted(url: &str, problem: &rustls::Error) -> String {
    const FRESH: &str =
        "copy admin.kubeconfig from its data folder anew: `cloudcore serve` writes one whenever it starts";
    match problem {
        rustls::Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            format!(
                "the certificate of the cloud core at {url} has expired: check this machine's clock, and restart \
             `cloudcore serve`, which renews it"
            )
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => format!("the certificate of the cloud core at {url} is not valid yet: check this machine's clock"),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => format!(
            "the certificate of the cloud core does not name the host of {url}: put it into `hosts` of its configuration \
             and restart it"
        ),
        rustls::Error::InvalidCertificate(_) => {
            format!("what answers at {url} is not the cloud core of this kubeconfig: {FRESH}")
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            format!("the certificate in the kubeconfig has expired, says the cloud core at {url}: {FRESH}")
        }
        rustls::Error::AlertReceived(_) => {
            format!("the cloud core at {url} does not accept the certificate in the kubeconfig ({problem}): {FRESH}")
        }
        _ => format!("what answers at {url} speaks no TLS that is understood here ({problem}): check the address"),
    }
}

fn did_you_mean(near: Option<&str>) -> String {
    near.map(|near| format!(": did you mean {near}?")).unwrap_or_default()
}

fn said(status: &Status) -> String {
    if status.message.is_empty() {
        format!("the cloud core answered {} {}", status.code, status.reason)
    } else {
        status.message.clone()
    }
}

/// What the server said, and what to do about it.
fn refusal(status: &Status) -> String {
    let said = said(status);
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
        assert_eq!(Failure::NoKubeconfig { path: PathBuf::new() }.code(), 78);
    }
}

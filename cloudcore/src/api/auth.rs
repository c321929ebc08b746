//! Who asks, and whether they may.
//!
//! Nothing is open: a request carries a certificate or a token that somebody vouches for, or it is 401. Who holds which
//! is for the process to say, through [`Authenticate`]; this module only reads what came over the wire.

use rustls::pki_types::CertificateDer;
use tracing::debug;

use super::path::Target;
use super::status::{About, Refusal};
use crate::pki::{Caller, Callers};

/// Nodes: what they may do, they do over their session.
pub const NODES: &str = "system:nodes";

/// Somebody who was recognised.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
}

/// Recognises credentials.
pub trait Authenticate: Send + Sync + 'static {
    /// Whose certificate this is. The handshake has proven that the client holds its key; the chain, the time and
    /// revocation are for the listener's verifier and for this to judge.
    fn certificate(&self, chain: &[CertificateDer<'static>]) -> Option<User>;

    /// Whose bearer token this is.
    fn token(&self, token: &str) -> Option<User>;
}

/// Certificates of our own CA are all that is needed; tokens are for whoever adds them.
impl Authenticate for Callers {
    fn certificate(&self, chain: &[CertificateDer<'static>]) -> Option<User> {
        match self.identify(chain) {
            Ok(Caller::Person { name, groups }) => Some(User { name, groups }),
            Ok(Caller::Node(node)) => Some(User {
                name: node.enrolment.to_string(),
                groups: vec![NODES.to_owned()],
            }),
            Err(error) => {
                debug!(%error, "a certificate was not recognised");
                None
            }
        }
    }

    fn token(&self, _: &str) -> Option<User> {
        None
    }
}

/// Who sent a request with this `Authorization` header over a connection with this certificate. A token wins; one that
/// is wrong is not forgiven for the sake of a certificate.
pub fn authenticate(
    authority: &dyn Authenticate,
    authorization: Option<&str>,
    chain: &[CertificateDer<'static>],
) -> Result<User, Refusal> {
    let bearer = authorization.and_then(|header| {
        let (scheme, token) = header.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let user = match (authorization, bearer) {
        (Some(_), Some(token)) if !token.is_empty() => authority.token(token),
        (Some(_), _) => None,
        (None, _) if chain.is_empty() => None,
        (None, _) => authority.certificate(chain),
    };
    user.ok_or_else(Refusal::unauthorized)
}

/// What somebody wants to do.
#[derive(Debug, Clone, Copy)]
pub enum Attempt<'a> {
    Resource { verb: &'a str, target: &'a Target },
    Page { verb: &'a str, path: &'a str },
}

/// Whether a user may do it: nodes nothing, everybody else everything.
pub fn authorize(user: &User, attempt: Attempt<'_>) -> Result<(), Refusal> {
    if !user.groups.iter().any(|group| group == NODES) {
        return Ok(());
    }
    Err(match attempt {
        Attempt::Page { verb, path } => Refusal::path_not_allowed(&user.name, verb, path),
        Attempt::Resource { verb, target } => {
            let resource = match &target.subresource {
                Some(subresource) => format!("{}/{subresource}", target.resource),
                None => target.resource.clone(),
            };
            let about = About {
                group: &target.group,
                kind: &target.resource,
                name: target.name.as_deref().unwrap_or_default(),
            };
            let namespace = target.namespace.as_deref().unwrap_or_default();
            Refusal::not_allowed(&user.name, verb, about, &resource, namespace)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::path::{Route, route};

    struct One;

    impl Authenticate for One {
        fn certificate(&self, chain: &[CertificateDer<'static>]) -> Option<User> {
            (chain[0].as_ref() == b"cert").then(|| User { name: "c".into(), groups: vec![] })
        }

        fn token(&self, token: &str) -> Option<User> {
            (token == "good").then(|| User { name: "t".into(), groups: vec![] })
        }
    }

    #[test]
    fn nothing_is_open() {
        let cert = [CertificateDer::from(b"cert".to_vec())];
        let other = [CertificateDer::from(b"other".to_vec())];
        let check = |header: Option<&str>, chain: &[CertificateDer<'static>], name: Option<&str>| {
            let user = authenticate(&One, header, chain).ok().map(|user| user.name);
            assert_eq!(user.as_deref(), name, "{header:?}");
        };
        check(None, &[], None);
        check(None, &cert, Some("c"));
        check(None, &other, None);
        check(Some("Bearer good"), &[], Some("t"));
        check(Some("bearer  good"), &[], Some("t"));
        check(Some("Bearer bad"), &cert, None);
        check(Some("Bearer"), &cert, None);
        check(Some("Basic good"), &cert, None);
    }

    #[test]
    fn nodes_may_nothing() {
        let Route::Resource(target) = route("/api/v1/namespaces/n/pods/p/status") else {
            unreachable!()
        };
        let node = User { name: "edge".into(), groups: vec![NODES.into()] };
        let attempt = Attempt::Resource { verb: "patch", target: &target };
        assert_eq!(
            authorize(&node, attempt).unwrap_err().message,
            r#"pods "p" is forbidden: User "edge" cannot patch resource "pods/status" in API group "" in the namespace "n""#
        );
        assert!(authorize(&User::default(), attempt).is_ok());
        assert_eq!(
            authorize(&node, Attempt::Page { verb: "get", path: "/version" })
                .unwrap_err()
                .message,
            r#"forbidden: User "edge" cannot get path "/version""#
        );
    }
}

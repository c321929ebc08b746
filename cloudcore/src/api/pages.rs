//! Routes beside the API: whatever another part of the cloud core serves on the same port, by path prefix.

use std::fmt;
use std::sync::Arc;

use hyper::body::Bytes;
use hyper::{Method, StatusCode};

use super::auth::User;
use super::body::BoxFuture;
use super::server::Peer;

/// A request to such a route.
#[derive(Debug)]
pub struct PageRequest {
    pub method: Method,
    /// The whole path.
    pub path: String,
    pub query: Option<String>,
    pub content_type: Option<String>,
    pub body: Bytes,
    pub peer: Peer,
    /// Who asks; `None` only where the route is open.
    pub user: Option<User>,
}

/// The answer of such a route.
#[derive(Debug)]
pub struct PageAnswer {
    pub code: StatusCode,
    pub content_type: &'static str,
    pub body: Bytes,
}

/// Answers requests.
pub type Handler = Arc<dyn Fn(PageRequest) -> BoxFuture<'static, PageAnswer> + Send + Sync>;

/// One route.
#[derive(Clone)]
pub struct Page {
    /// Requests whose path is this, or begins with it and a slash.
    pub prefix: &'static str,
    pub method: Method,
    /// Served without a certificate or a token: the handler itself checks what the request proves.
    pub open: bool,
    pub handler: Handler,
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page")
            .field("prefix", &self.prefix)
            .field("method", &self.method)
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

impl Page {
    /// Whether this route answers a request.
    pub fn answers(&self, method: &Method, path: &str) -> bool {
        let rest = path.strip_prefix(self.prefix);
        self.method == *method && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_at_a_slash() {
        let page = Page {
            prefix: "/enrol/v1",
            method: Method::POST,
            open: true,
            handler: Arc::new(|_| Box::pin(async { unreachable!("not called here") })),
        };
        assert!(page.answers(&Method::POST, "/enrol/v1"));
        assert!(page.answers(&Method::POST, "/enrol/v1/"));
        assert!(!page.answers(&Method::POST, "/enrol/v12"));
        assert!(!page.answers(&Method::GET, "/enrol/v1"));
    }
}

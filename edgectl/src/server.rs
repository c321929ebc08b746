//! The connection to the cloud core: kubeconfig, requests, answers.

use std::path::{Path, PathBuf};

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Status;
use kube::{Client, Config};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::failure::{Failure, tls_problem};

/// Where `cloudcore serve` writes its kubeconfig when nobody configures it.
const KUBECONFIG: &str = "/var/lib/edgehold/cloud/admin.kubeconfig";

/// What a plain answer is asked for as.
pub(crate) const JSON: &str = "application/json";

/// A cloud core.
#[derive(Clone)]
pub(crate) struct Server {
    client: Client,
    url: String,
    /// The namespace meant where none is said.
    pub namespace: String,
    /// Whether the command line said it.
    pub namespace_said: bool,
}

impl Server {
    /// Reads the kubeconfig. Nothing is sent yet.
    pub(crate) async fn of_kubeconfig(flag: Option<&Path>, namespace: Option<&str>) -> Result<Self, Failure> {
        let path = match flag {
            Some(path) => Some(path.to_owned()),
            None => std::env::var_os("KUBECONFIG")
                .is_none_or(|paths| paths.is_empty())
                .then(|| PathBuf::from(KUBECONFIG)),
        };
        let origin = match &path {
            Some(path) => path.display().to_string(),
            None => "of $KUBECONFIG".to_owned(),
        };
        if let Some(path) = path.as_ref().filter(|path| !path.exists()) {
            return Err(Failure::NoKubeconfig { path: path.clone() });
        }
        let unusable = |source| Failure::Kubeconfig { origin: origin.clone(), source: Box::new(source) };
        let kubeconfig = match &path {
            Some(path) => Kubeconfig::read_from(path).map_err(unusable)?,
            None => Kubeconfig::from_env().map_err(unusable)?.unwrap_or_default(),
        };
        let current = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &current).await;
        let mut config = config.map_err(unusable)?;
        // A refusal is told at once, in words; whoever typed the command decides about trying again.
        config.default_retry = false;
        let url = config.cluster_url.to_string();
        let default = config.default_namespace.clone();
        let client = Client::try_from(config)
            .map_err(|source| Failure::Prepare { url: url.clone(), source: Box::new(source) })?;
        Ok(Self {
            client,
            url,
            namespace: namespace.map_or(default, str::to_owned),
            namespace_said: namespace.is_some(),
        })
    }

    /// Sends a request; an answer that is a refusal becomes the failure.
    pub(crate) async fn send(&self, request: Request<Vec<u8>>) -> Result<Response<Body>, Failure> {
        let unreachable = |source: kube::Error| match tls_problem(&source) {
            Some(problem) => Failure::Untrusted { url: self.url.clone(), problem },
            None => Failure::Unreachable { url: self.url.clone(), source: Box::new(source) },
        };
        let response = self.client.send(request.map(Body::from)).await.map_err(unreachable)?;
        let code = response.status();
        if code.is_success() {
            return Ok(response);
        }
        let bytes = bytes(response).await?;
        let status = serde_json::from_slice::<Status>(&bytes)
            .ok()
            .filter(|status| status.code != 0);
        let status = status.unwrap_or_else(|| {
            let text = String::from_utf8_lossy(&bytes).trim().to_owned();
            let mut status = Status::failure(&text, code.canonical_reason().unwrap_or_default());
            status.code = code.as_u16();
            status
        });
        Err(Failure::Refused(Box::new(status)))
    }

    /// Sends a request and reads the JSON of the answer.
    pub(crate) async fn read<T: DeserializeOwned>(&self, request: Request<Vec<u8>>) -> Result<T, Failure> {
        let what = format!("{} {}", request.method(), request.uri());
        let bytes = bytes(self.send(request).await?).await?;
        serde_json::from_slice(&bytes).map_err(|source| Failure::Answer { what, source })
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.read(get(path, JSON)?).await
    }

    /// Hands the pieces of an answer over as they come.
    pub(crate) async fn pieces(
        &self,
        request: Request<Vec<u8>>,
        mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut body = self.send(request).await?.into_body();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(|source| Failure::Broken(Box::new(source)))?.into_data() {
                take(&data)?;
            }
        }
        Ok(())
    }
}

async fn bytes(response: Response<Body>) -> Result<Vec<u8>, Failure> {
    let collected = response.into_body().collect().await;
    Ok(collected
        .map_err(|source| Failure::Broken(Box::new(source)))?
        .to_bytes()
        .to_vec())
}

pub(crate) fn get(path: &str, accept: &str) -> Result<Request<Vec<u8>>, Failure> {
    Ok(Request::get(path).header("accept", accept).body(Vec::new())?)
}

/// A request with a body.
pub(crate) fn with_body(
    method: Method,
    path: &str,
    content_type: &str,
    body: &Value,
) -> Result<Request<Vec<u8>>, Failure> {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("accept", JSON).header("content-type", content_type);
    Ok(request.body(body.to_string().into_bytes())?)
}

/// A path with the parts of a query that are there.
pub(crate) fn with_query(path: &str, parts: &[(&str, Option<&str>)]) -> String {
    let mut all = path.to_owned();
    let mut separator = '?';
    for (name, value) in parts {
        let Some(value) = value else { continue };
        all.push(separator);
        all.push_str(name);
        all.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                all.push(char::from(byte));
            } else {
                all.push_str(&format!("%{byte:02X}"));
            }
        }
        separator = '&';
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_escaped() {
        let check = |parts: &[(&str, Option<&str>)], expected: &str| assert_eq!(with_query("/p", parts), expected);
        check(&[], "/p");
        check(
            &[("a", None), ("b", Some("x=y,z in (1)"))],
            "/p?b=x%3Dy%2Cz%20in%20%281%29",
        );
        check(&[("a", Some("1")), ("b", Some("é"))], "/p?a=1&b=%C3%A9");
    }
}

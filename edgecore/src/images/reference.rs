//! What an image is called.

use std::fmt;
use std::net::IpAddr;

use super::{Digest, ImageError};

/// Longer names are refused.
pub const NAME_BYTES_MAX: usize = 512;

const DEFAULT_HOST: &str = "docker.io";
const TAG_BYTES_MAX: usize = 128;

/// A checked image name, complete: `web` is `docker.io/library/web:latest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    host: String,
    path: String,
    version: Version,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Version {
    Tag(String),
    Digest(Digest),
}

impl Reference {
    /// Reads a name as a manifest has it.
    pub fn parse(name: &str) -> Result<Self, ImageError> {
        let bad = |reason| ImageError::Name { name: name.to_owned(), reason };
        if name.len() > NAME_BYTES_MAX {
            return Err(bad("it is too long"));
        }
        let (rest, digest) = match name.split_once('@') {
            Some((rest, digest)) => (rest, Some(Digest::parse(digest)?)),
            None => (name, None),
        };
        let (rest, tag) = match rest.rsplit_once(':') {
            // A colon before the last slash belongs to the port.
            Some((rest, tag)) if !tag.contains('/') => (rest, Some(tag)),
            _ => (rest, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(bad(
                "its tag has other characters than letters, digits, '_', '.' and '-'",
            ));
        }
        let (host, path) = match rest.split_once('/') {
            Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host, path.to_owned()),
            Some(_) => (DEFAULT_HOST, rest.to_owned()),
            None => (DEFAULT_HOST, format!("library/{rest}")),
        };
        if !path.split('/').all(is_component) {
            return Err(bad(
                "its path has other characters than lower case letters, digits, '_', '.' and '-'",
            ));
        }
        if !host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte))
        {
            return Err(bad(
                "its host has other characters than letters, digits, '.', '-' and ':'",
            ));
        }
        let version = match (digest, tag) {
            (Some(digest), _) => Version::Digest(digest),
            (None, tag) => Version::Tag(tag.unwrap_or("latest").to_owned()),
        };
        Ok(Self { host: host.to_owned(), path, version })
    }

    /// The registry's host, and port if it has one.
    pub fn host(&self) -> &str {
        if self.host == DEFAULT_HOST {
            "registry-1.docker.io"
        } else {
            &self.host
        }
    }

    /// The repository within the registry.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The tag, or the digest when the name has one.
    pub fn version(&self) -> &str {
        match &self.version {
            Version::Tag(tag) => tag,
            Version::Digest(digest) => digest.as_str(),
        }
    }

    /// The digest, when the name has one.
    pub fn digest(&self) -> Option<&Digest> {
        match &self.version {
            Version::Tag(_) => None,
            Version::Digest(digest) => Some(digest),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.digest().is_some() { '@' } else { ':' };
        write!(f, "{}/{}{sign}{}", self.host, self.path, self.version())
    }
}

/// Whether a host, with or without a port, is this machine: the only one spoken to without TLS.
pub(super) fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn is_tag(tag: &str) -> bool {
    (1..=TAG_BYTES_MAX).contains(&tag.len())
        && !tag.starts_with(['.', '-'])
        && tag
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

fn is_component(part: &str) -> bool {
    part.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
        && part
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let cases = [
            ("web", "docker.io/library/web:latest"),
            ("web:1", "docker.io/library/web:1"),
            ("team/web", "docker.io/team/web:latest"),
            ("docker.io/web2/x", "docker.io/web2/x:latest"),
            ("localhost/web:1", "localhost/web:1"),
            ("localhost:5000/web", "localhost:5000/web:latest"),
            ("[::1]:5000/a/b/c:x_Y.z-1", "[::1]:5000/a/b/c:x_Y.z-1"),
            (&format!("ghcr.io/a/b:1@{digest}"), &format!("ghcr.io/a/b@{digest}")),
        ];
        for (name, full) in cases {
            let reference = Reference::parse(name).unwrap();
            assert_eq!(reference.to_string(), full);
            assert_eq!(Reference::parse(full).unwrap(), reference);
        }
        assert_eq!(Reference::parse("web").unwrap().host(), "registry-1.docker.io");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let long = format!("a/{}", "b".repeat(NAME_BYTES_MAX));
        for name in [
            "",
            "Web",
            "a//b",
            "a/b:",
            "a/b:-x",
            "a/../b",
            "a b",
            "x@sha256:1",
            "ho\u{e9}st.io/a",
            &long,
        ] {
            assert!(Reference::parse(name).is_err(), "{name}");
        }
        assert!(Reference::parse(&"b".repeat(NAME_BYTES_MAX)).is_ok());
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for host in [
            "localhost",
            "localhost:5000",
            "127.0.0.1:80",
            "127.9.9.9",
            "[::1]:5000",
            "[::1]",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "localhost.example",
            "10.0.0.1:5000",
            "registry.example:443",
            "[fe80::1]:5000",
            "128.0.0.1",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}

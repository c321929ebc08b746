//! Pull secrets: which credentials go to which registry.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto::object::Key;
use proto::value::{Value, json};

use super::refs::Objects;
use crate::runtime::RegistryAuth;

/// Where an image comes from when its name says no registry.
const REGISTRY_DEFAULT: &str = "docker.io";

/// The credentials for an image from these pull secrets, in their order.
pub fn credentials<'a>(
    image: &str,
    secrets: impl IntoIterator<Item = &'a Key>,
    objects: &Objects,
) -> Vec<RegistryAuth> {
    let registry = registry(image);
    let mut found = Vec::new();
    for secret in secrets {
        let Some(entries) = objects.entries(secret) else {
            continue;
        };
        let config = |name: &str| json::parse(entries.get(name)?).ok();
        let current = config(".dockerconfigjson").and_then(|mut config| config.remove(&["auths"]));
        for auths in current.into_iter().chain(config(".dockercfg")) {
            for (server, auth) in auths.as_map().into_iter().flatten() {
                if host(server) == registry {
                    found.extend(read(auth));
                }
            }
        }
    }
    found
}

fn read(auth: &Value) -> Option<RegistryAuth> {
    if let Some(both) = auth.text_at(&["auth"]).filter(|both| !both.is_empty()) {
        let both = String::from_utf8(STANDARD.decode(both).ok()?).ok()?;
        let (username, password) = both.split_once(':')?;
        return Some(RegistryAuth { username: username.to_owned(), password: password.to_owned() });
    }
    Some(RegistryAuth {
        username: auth.text_at(&["username"])?.to_owned(),
        password: auth.text_at(&["password"])?.to_owned(),
    })
}

/// The registry of an image: what stands before the first slash, if it looks like a host.
fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        _ => REGISTRY_DEFAULT,
    }
}

/// The host of a server as pull secrets write it (`https://index.docker.io/v1/`).
fn host(server: &str) -> &str {
    let bare = server.trim_start_matches("https://").trim_start_matches("http://");
    match bare.split('/').next().unwrap_or(bare) {
        "index.docker.io" | "registry-1.docker.io" => REGISTRY_DEFAULT,
        host => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_pull_secrets() {
        let mut objects = Objects::default();
        let secret = |name: &str, field: &str, text: &str| {
            let value = Value::from([("data", Value::from([(field, STANDARD.encode(text))]))]);
            (Key::new("Secret", "n", name), value)
        };
        let config = r#"{"auths":{"https://index.docker.io/v1/":{"auth":"dTpwOng="},
            "reg.example:5000":{"username":"a","password":"b"}}}"#;
        let (new, value) = secret("new", ".dockerconfigjson", config);
        objects.insert(new.clone(), value);
        let (old, value) = secret("old", ".dockercfg", r#"{"reg.example:5000":{"auth":"Yzpk"}}"#);
        objects.insert(old.clone(), value);
        let keys = [new, Key::new("Secret", "n", "none"), old];
        let check = |image: &str, expected: &[(&str, &str)]| {
            let found = credentials(image, &keys, &objects);
            let pairs: Vec<_> = found.iter().map(|auth| (&*auth.username, &*auth.password)).collect();
            assert_eq!(pairs, expected, "{image}");
        };
        check("nginx", &[("u", "p:x")]);
        check("library/nginx:1", &[("u", "p:x")]);
        check("docker.io/library/nginx:1", &[("u", "p:x")]);
        check("reg.example:5000/a/b:1", &[("a", "b"), ("c", "d")]);
        check("reg.example/a/b:1", &[]);
    }
}

//! One route for everything: a request path becomes group, version, namespace, resource, name and subresource.

/// What a path means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// A resource, an object or a subresource.
    Resource(Target),
    /// `/api`
    Core,
    /// `/apis`
    Groups,
    /// `/apis/{group}`
    Group(String),
    /// `/api/v1` or `/apis/{group}/{version}`
    Version { group: String, version: String },
    /// Anything else, as it was asked for, without a slash at the end.
    Page(String),
}

/// A resource (without a name), an object (with one) or its subresource.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Target {
    pub group: String,
    pub version: String,
    pub namespace: Option<String>,
    pub resource: String,
    pub name: Option<String>,
    pub subresource: Option<String>,
}

/// Reads a path. Slashes at the end and doubled ones mean nothing.
pub fn route(path: &str) -> Route {
    let page = || {
        let trimmed = path.trim_end_matches('/');
        Route::Page(if trimmed.is_empty() { "/" } else { trimmed }.to_owned())
    };
    let Some(steps) = path
        .split('/')
        .filter(|step| !step.is_empty())
        .map(decode)
        .collect::<Option<Vec<_>>>()
    else {
        return page();
    };
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let owned = |text: &str| text.to_owned();
    let (group, version, rest) = match steps.as_slice() {
        ["api"] => return Route::Core,
        ["apis"] => return Route::Groups,
        ["apis", group] => return Route::Group(owned(group)),
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return page(),
    };
    let (namespace, rest) = match rest {
        [] => {
            return Route::Version { group: owned(group), version: owned(version) };
        }
        // A namespace is an object too, with the subresources `status` and `finalize`.
        ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => (None, rest),
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(owned(namespace)), rest),
        rest => (None, rest),
    };
    let [resource, rest @ ..] = rest else { return page() };
    let (name, subresource) = match rest {
        [] => (None, None),
        [name] => (Some(owned(name)), None),
        [name, subresource @ ..] => (Some(owned(name)), Some(subresource.join("/"))),
    };
    Route::Resource(Target {
        group: owned(group),
        version: owned(version),
        namespace,
        resource: owned(resource),
        name,
        subresource,
    })
}

/// Undoes percent encoding; `None` for what is no encoding of text.
pub(super) fn decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let check = |path: &str, expected: Route| assert_eq!(route(path), expected, "{path}");
        let target = |text: &str| {
            let part = |at: usize| {
                let part = text.split(' ').nth(at).unwrap_or("-");
                (part != "-").then(|| part.to_owned())
            };
            Route::Resource(Target {
                group: part(0).unwrap_or_default(),
                version: part(1).unwrap_or_default(),
                namespace: part(2),
                resource: part(3).unwrap_or_default(),
                name: part(4),
                subresource: part(5),
            })
        };
        check("/api", Route::Core);
        check("/api/", Route::Core);
        check("/apis/", Route::Groups);
        check("/apis/apps/", Route::Group("apps".into()));
        let version = |group: &str, version: &str| Route::Version { group: group.into(), version: version.into() };
        check("/api/v1/", version("", "v1"));
        check("/apis/apps/v1", version("apps", "v1"));
        check("/api/v1/pods", target("- v1 - pods"));
        check("/api/v1/nodes/a%20b", {
            let Route::Resource(node) = target("- v1 - nodes") else {
                unreachable!()
            };
            Route::Resource(Target { name: Some("a b".into()), ..node })
        });
        check("/api/v1/namespaces", target("- v1 - namespaces"));
        check("/api/v1/namespaces/x", target("- v1 - namespaces x"));
        check("/api/v1/namespaces/x/status", target("- v1 - namespaces x status"));
        check("/api/v1/namespaces/x/pods", target("- v1 x pods"));
        check("/api/v1/namespaces/x/pods/p/log/", target("- v1 x pods p log"));
        check(
            "/apis/apps/v1//namespaces/x/deployments/d/scale",
            target("apps v1 x deployments d scale"),
        );
        check("/healthz/", Route::Page("/healthz".into()));
        check("/", Route::Page("/".into()));
        check("/api/v1/%zz", Route::Page("/api/v1/%zz".into()));
        check("/api/v1/%ff", Route::Page("/api/v1/%ff".into()));
    }
}

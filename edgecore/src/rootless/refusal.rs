//! A kernel that lets an ordinary user make no namespaces, and what to do about it.

use std::fs::read_to_string;
use std::io;
use std::path::Path;

/// It will not, with the fix.
#[derive(Debug, thiserror::Error)]
#[error("this machine lets an ordinary user make no namespaces: {fix}; or run the edge core as root")]
pub struct Refusal {
    fix: String,
    #[source]
    source: io::Error,
}

/// What may be in the way.
#[derive(Debug, Clone, Default)]
struct Facts {
    has_user_namespaces: bool,
    /// `kernel.unprivileged_userns_clone`, which Debian's kernels have.
    clone: Option<String>,
    /// `user.max_user_namespaces`.
    max: Option<String>,
    /// `kernel.apparmor_restrict_unprivileged_userns`.
    apparmor: Option<String>,
}

impl Refusal {
    pub(super) fn of(source: io::Error) -> Self {
        let sysctl = |name: &str| {
            let text = read_to_string(Path::new("/proc/sys").join(name)).ok();
            text.map(|text| text.trim().to_owned())
        };
        let facts = Facts {
            has_user_namespaces: Path::new("/proc/self/ns/user").exists(),
            clone: sysctl("kernel/unprivileged_userns_clone"),
            max: sysctl("user/max_user_namespaces"),
            apparmor: sysctl("kernel/apparmor_restrict_unprivileged_userns"),
        };
        Self { fix: fix(&facts), source }
    }

    /// What was refused, with its fix.
    pub fn text(&self) -> String {
        format!("{self} ({})", self.source)
    }
}

/// Pure.
fn fix(facts: &Facts) -> String {
    let is = |value: &Option<String>, expected: &str| value.as_deref() == Some(expected);
    let permanent = |setting: &str| {
        format!("sysctl -w {setting}, and the same line in /etc/sysctl.d/99-edgehold.conf keeps it over a reboot")
    };
    if !facts.has_user_namespaces {
        "use a kernel with CONFIG_USER_NS".to_owned()
    } else if is(&facts.max, "0") {
        permanent("user.max_user_namespaces=15000")
    } else if is(&facts.clone, "0") {
        permanent("kernel.unprivileged_userns_clone=1")
    } else if is(&facts.apparmor, "1") {
        permanent("kernel.apparmor_restrict_unprivileged_userns=0")
    } else {
        "where it is itself in a container, that must allow user namespaces (its seccomp profile, and a security module)"
            .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_fix() {
        let all = Facts {
            has_user_namespaces: true,
            clone: Some("1".into()),
            max: Some("7".into()),
            apparmor: Some("0".into()),
        };
        let check = |change: &dyn Fn(&mut Facts), part: &str| {
            let mut facts = all.clone();
            change(&mut facts);
            assert!(fix(&facts).contains(part), "{part}: {}", fix(&facts));
        };
        check(&|facts| facts.has_user_namespaces = false, "CONFIG_USER_NS");
        check(&|facts| facts.max = Some("0".into()), "user.max_user_namespaces=15000");
        check(
            &|facts| facts.clone = Some("0".into()),
            "kernel.unprivileged_userns_clone=1",
        );
        check(
            &|facts| facts.apparmor = Some("1".into()),
            "kernel.apparmor_restrict_unprivileged_userns=0",
        );
        check(&|facts| facts.clone = None, "seccomp profile");
        let text = Refusal::of(io::ErrorKind::PermissionDenied.into()).text();
        assert!(
            text.contains("or run the edge core as root (permission denied)"),
            "{text}"
        );
    }
}

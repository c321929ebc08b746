//! Limits that this machine can keep. Whoever runs a container fails on one that it cannot, or starts the container with
//! none of them; people want the pod, and to be told.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::runtime::{Container, Limits};

/// The container with the limits that these cgroup controllers keep; which are not is said in the log.
pub(in crate::runtime) fn kept<'a>(container: &'a Container, controllers: &BTreeSet<String>) -> Cow<'a, Container> {
    let (limits, lost) = of(container.limits, |name| controllers.contains(name));
    if lost.is_empty() {
        return Cow::Borrowed(container);
    }
    tracing::warn!(
        pod = %container.labels.pod_called(),
        container = container.labels.container,
        controllers = lost.join(", "),
        "this machine does not keep its limits: edgecore check says what to do"
    );
    Cow::Owned(Container { limits, ..container.clone() })
}

/// What is left of the limits, and the controllers that the others would have taken.
fn of(limits: Limits, has: impl Fn(&str) -> bool) -> (Limits, Vec<&'static str>) {
    let Limits {
        cpu_request_milli,
        cpu_limit_milli,
        memory_limit_bytes,
        pids_max,
    } = limits;
    let (mut left, mut lost) = (limits, Vec::new());
    let mut lacks = |name: &'static str, wanted: bool| {
        let lacks = wanted && !has(name);
        lost.extend(lacks.then_some(name));
        lacks
    };
    if lacks("cpu", cpu_request_milli > 0 || cpu_limit_milli > 0) {
        (left.cpu_request_milli, left.cpu_limit_milli) = (0, 0);
    }
    if lacks("memory", memory_limit_bytes > 0) {
        left.memory_limit_bytes = 0;
    }
    if lacks("pids", pids_max > 0) {
        left.pids_max = 0;
    }
    (left, lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_controller_keeps_goes_and_is_named() {
        let all = Limits {
            cpu_request_milli: 100,
            cpu_limit_milli: 200,
            memory_limit_bytes: 3,
            pids_max: 4,
        };
        let check = |limits: Limits, missing: &[&str], left: Limits, lost: &[&str]| {
            let found = of(limits, |name| !missing.contains(&name));
            assert_eq!(found, (left, lost.to_vec()), "{missing:?}");
        };
        check(all, &[], all, &[]);
        // As on stock Raspberry Pi OS.
        check(all, &["memory"], Limits { memory_limit_bytes: 0, ..all }, &["memory"]);
        check(all, &["pids"], Limits { pids_max: 0, ..all }, &["pids"]);
        let no_cpu = Limits { cpu_request_milli: 0, cpu_limit_milli: 0, ..all };
        check(all, &["cpu"], no_cpu, &["cpu"]);
        check(
            all,
            &["cpu", "memory", "pids"],
            Limits::default(),
            &["cpu", "memory", "pids"],
        );
        // Nobody misses what nobody asked for.
        check(Limits::default(), &["cpu", "memory", "pids"], Limits::default(), &[]);
    }
}

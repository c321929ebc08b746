//! Seccomp profiles of containers: the sections made here, as runc and our own runtime carry them out.

use std::time::Duration;

use edgecore::runtime::{Runtime as _, Seccomp};
use edgecore::seccomp::local;

use super::node::{Node, On, on_both, pod};

/// What a shell in a container can do: how it is filtered, then what the default profile denies.
const TRY: &str = "grep -E '^Seccomp:' /proc/self/status | tr -d '\\t'; \
    mount -t tmpfs none /tmp 2>/dev/null && echo mounted; \
    unshare -U true 2>/dev/null && echo unshared; \
    mkdir /tmp/made 2>&1; echo end";

on_both!(filters_what_a_container_may_call);

async fn filters_what_a_container_may_call(on: On) {
    let node = Node::of(on, "seccomp").await;
    let uid = pod();
    let own = br#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[
        {"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":28}]}"#;
    let own = Seccomp::Profile(Box::new(local::parse(own).unwrap()));
    let cases = [
        // New user namespaces take no capability.
        (
            "none",
            Seccomp::Unconfined,
            &[][..],
            &["Seccomp:0", "unshared", "end"][..],
        ),
        ("default", Seccomp::RuntimeDefault, &[], &["Seccomp:2", "end"]),
        // What a capability brings.
        (
            "admin",
            Seccomp::RuntimeDefault,
            &["SYS_ADMIN"],
            &["Seccomp:2", "mounted", "unshared", "end"],
        ),
        (
            "own",
            own,
            &["SYS_ADMIN"],
            &[
                "Seccomp:2",
                "mounted",
                "unshared",
                "mkdir: can't create directory '/tmp/made': No space left on device",
                "end",
            ],
        ),
    ];
    let mut ids = Vec::new();
    for (name, seccomp, added, expected) in cases {
        let mut container = node.script(uid, name, TRY);
        container.security.seccomp = seccomp;
        container.security.capabilities_added = added.iter().map(|name| (*name).to_owned()).collect();
        let id = node.run(&container).await;
        assert_eq!(node.exit_code(&id).await, 0);
        node.logs(name, "stdout F end").await;
        let lines = node.log(name);
        let lines: Vec<_> = lines.iter().map(|line| line.trim_start_matches("stdout F ")).collect();
        assert_eq!(lines, expected, "{name}");
        ids.push(id);
    }
    // A command in a container is under the same filter, and another container of the pod is not.
    let status = ["grep", "^Seccomp:", "/proc/self/status"].map(str::to_owned);
    for (name, seccomp, expected) in [
        ("exec", Seccomp::RuntimeDefault, "2"),
        ("free", Seccomp::Unconfined, "0"),
    ] {
        let mut container = node.script(uid, name, "trap 'exit 0' TERM; while :; do sleep 0.1; done");
        container.security.seccomp = seccomp;
        let id = node.run(&container).await;
        let done = node.runtime.exec(&id, &status, Duration::from_secs(10)).await.unwrap();
        assert_eq!(
            (done.code, done.output.trim()),
            (0, format!("Seccomp:\t{expected}").as_str()),
            "{name}"
        );
        node.runtime.signal(&id, 15).await.unwrap();
        assert_eq!(node.exit_code(&id).await, 0);
        ids.push(id);
    }
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    node.finish(&ids, &[uid]).await;
}

//! What cannot be started says why, in the words of Kubernetes.

use edgecore::runtime::{Mount, Runtime as _, RuntimeError};
use serde_json::Value;
use tests::cores::eventually;

use super::host::kill;
use super::node::{Node, On, WEB, on_both, pod};
use super::site::{Site, text};

on_both!(
    what_cannot_be_started_is_told_from_what_may_be_tried_again,
    people_see_why_a_pod_does_not_start,
    an_image_name_that_is_none_is_said_and_holds_up_nothing_else,
);

/// Each ends its container and names what is in the way.
async fn what_cannot_be_started_is_told_from_what_may_be_tried_again(on: On) {
    let node = Node::of(on, "unstartable").await;
    let files = node.folder.join("files");
    std::fs::create_dir_all(&files).unwrap();
    let write = |name: &str, content: &[u8], mode: u32| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::write(files.join(name), content).unwrap();
        std::fs::set_permissions(files.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    write("closed", b"#!/bin/sh\n", 0o644);
    write("orphan", b"#!/none/sh\n", 0o755);
    // A program for a machine that there is not.
    let mut foreign = std::fs::read("/proc/self/exe").unwrap()[..4096].to_vec();
    foreign[18..20].copy_from_slice(&[0xfe, 0xca]);
    write("foreign", &foreign, 0o755);
    let cases = [
        ("no-such-program", None, "no-such-program"),
        ("/none/program", None, "/none/program"),
        ("/files/closed", None, "/files/closed"),
        ("/files/orphan", None, "/files/orphan"),
        ("/files/foreign", None, "/files/foreign"),
        ("/files", None, "/files"),
        ("/bin/sh", Some("/files/closed"), "/files/closed"),
    ];
    let uid = pod();
    let sandbox = node.sandbox(uid);
    node.runtime.prepare(&sandbox).await.unwrap();
    for (at, (program, working_dir, named)) in cases.into_iter().enumerate() {
        let mut container = node.script(uid, &format!("c{at}"), "");
        container.command = vec![program.to_owned()];
        container.working_dir = working_dir.map(str::to_owned);
        container.mounts = vec![Mount {
            source: files.clone(),
            target: "/files".into(),
            read_only: true,
            exact: false,
        }];
        // A folder that cannot be made may be found out when the container is made.
        let id = match node.runtime.create(&sandbox, &container).await {
            Ok(id) => id,
            Err(error) => {
                assert!(working_dir.is_some() && error.to_string().contains(named), "{error}");
                continue;
            }
        };
        match node.runtime.start(&id).await {
            // runc finds some out when it has handed over already, and can say so only where the program's output goes.
            Ok(()) if on == On::Containerd && ["/files/orphan", "/files/foreign", "/files"].contains(&program) => {
                assert_ne!(node.exit_code(&id).await, 0, "{program}");
                eventually("its log says why", async || {
                    let lines = node.log(&container.labels.container);
                    lines.iter().any(|line| line.contains(named)).then_some(())
                })
                .await;
            }
            Err(RuntimeError::NotStarted { reason }) => {
                assert!(reason.contains(named), "{program}: {reason}");
            }
            other => panic!("{program}: {other:?}"),
        }
        node.runtime.remove(&id).await.unwrap();
        assert_eq!(node.seen(&id).await, None, "nothing of it is left");
    }
    node.finish(&[], &[uid]).await;
}

async fn people_see_why_a_pod_does_not_start(on: On) {
    let site = Site::of(on, "why").await;
    let apply = |name: &str, policy: &str, init: &str, main: &str| {
        let containers = |list: &str, command: &str| match command {
            "" => String::new(),
            command => format!(
                "  {list}: [{{name: c{}, image: {WEB}, command: {command}}}]\n",
                list.len()
            ),
        };
        site.kubectl.apply(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: web}}}}\nspec:\n  restartPolicy: {policy}\n  \
             terminationGracePeriodSeconds: 1\n{}{}",
            containers("initContainers", init),
            containers("containers", main),
        ));
    };
    let (missing, fails, runs) = ("[/none]", "[/bin/sh, -c, exit 3]", "[/bin/sh, -c, sleep 1000]");
    let cases = [
        (
            "again",
            "Always",
            "",
            missing,
            "Running",
            ["RunContainerError", "CrashLoopBackOff"],
        ),
        ("once", "Never", "", missing, "Failed", ["StartError", "StartError"]),
        (
            "init-again",
            "Always",
            fails,
            runs,
            "Pending",
            ["Init:CrashLoopBackOff", "Init:CrashLoopBackOff"],
        ),
        (
            "init-once",
            "Never",
            fails,
            runs,
            "Failed",
            ["Init:Error", "Init:Error"],
        ),
        (
            "init-missing",
            "Always",
            missing,
            runs,
            "Pending",
            ["Init:RunContainerError", "Init:CrashLoopBackOff"],
        ),
        (
            "init-missing-once",
            "Never",
            missing,
            runs,
            "Failed",
            ["Init:StartError", "Init:StartError"],
        ),
        ("init-runs", "Always", runs, runs, "Pending", ["Init:0/1", "Init:0/1"]),
    ];
    for (name, policy, init, main, ..) in &cases {
        apply(name, policy, init, main);
    }
    for (name, _, init, main, phase, words) in &cases {
        let shown = async || {
            let line = site.kubectl.run(&["get", "pod", name, "--no-headers"]);
            let word = line.split_whitespace().nth(2).unwrap_or_default().to_owned();
            words.contains(&word.as_str()).then_some(())
        };
        eventually(&format!("kubectl shows {name} as {words:?}"), shown).await;
        let pod = site.kubectl.json(&["pod", name]).unwrap();
        assert_eq!(text(&pod, "/status/phase"), *phase, "{name}");
        let list = if init.is_empty() {
            "containerStatuses"
        } else {
            "initContainerStatuses"
        };
        let status = &pod["status"][list][0];
        if *init == missing || *main == missing {
            let ended = [&status["state"]["terminated"], &status["lastState"]["terminated"]];
            let ended = ended.into_iter().find(|ended| !ended.is_null()).unwrap();
            assert_eq!(
                (text(ended, "/reason"), ended["exitCode"].as_i64()),
                ("StartError".into(), Some(128))
            );
            assert!(text(ended, "/message").contains("/none"), "{ended}");
            let described = site.kubectl.run(&["describe", "pod", name]);
            assert!(
                described.contains("StartError") && described.contains("/none"),
                "{described}"
            );
        }
        // What comes after it waits for it, and says so.
        let main = &pod["status"]["containerStatuses"][0];
        if !init.is_empty() {
            assert_eq!(text(main, "/state/waiting/reason"), "PodInitializing", "{name}");
        }
        assert_ne!(main["ready"], Value::Bool(true), "{name}");
    }
    for (name, ..) in &cases {
        site.kubectl.run(&["delete", "pod", name, "--wait=false"]);
    }
    site.finish().await;
}

async fn an_image_name_that_is_none_is_said_and_holds_up_nothing_else(on: On) {
    let site = Site::of(on, "names").await;
    let pod = |name: &str, second: &str| {
        site.kubectl.apply(&format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: web}}}}
spec:
  nodeName: edge-1
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: good, image: {WEB}, command: [/bin/sh, -c, 'while true; do sleep 1; done', {name}-good]}}
  - {{name: other, image: '{second}', command: [/bin/sh, -c, 'while true; do sleep 1; done', {name}-other]}}
"
        ));
    };
    const WRONG: [&str; 2] = ["Web:1", "nginx:latest@sha256:123"];
    for (at, image) in WRONG.iter().enumerate() {
        pod(&format!("wrong-{at}"), image);
    }
    // One that was right and is not any more: what runs stays, as while an image is fetched, and its end is seen.
    pod("changed", WEB);
    let state = |pod: &Value, name: &str| {
        let all = pod.pointer("/status/containerStatuses").and_then(Value::as_array);
        let one = all.and_then(|all| all.iter().find(|one| one["name"] == name));
        one.map(|one| one["state"].clone()).unwrap_or_default()
    };
    let shows = async |pod: &str, good: bool, other: &str| {
        eventually(&format!("{pod} runs and says {other:?}"), async || {
            let pod = site.kubectl.json(&["pod", pod])?;
            let runs = |name: &str| state(&pod, name).get("running").is_some();
            let says = text(&state(&pod, "other"), "/waiting/reason") == other && (!other.is_empty() || runs("other"));
            (runs("good") == good && says).then_some(())
        })
        .await;
    };
    shows("changed", true, "").await;
    site.kubectl.run(&["set", "image", "pod/changed", "other=Web:1"]);
    kill(site.process("changed-other").await);
    for name in ["wrong-0", "wrong-1", "changed"] {
        shows(name, true, "InvalidImageName").await;
    }
    let described = site.kubectl.run(&["describe", "pod", "wrong-0"]);
    assert!(described.contains("Web:1"), "{described}");
    for name in ["wrong-0", "wrong-1", "changed"] {
        site.kubectl.run(&["delete", "pod", name, "--wait=false"]);
    }
    site.finish().await;
}

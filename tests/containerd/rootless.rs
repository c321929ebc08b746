//! An edge core that is not root, with the real kernel: pods' lives, what outlives it, what is refused, and that nothing is
//! left. The tests are root's, and the edge core runs as a user that has nothing.

mod home;

use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tests::cores::{eventually, program};

use self::home::{Home, RANGE_COUNT, as_user, done, range, uid};
use super::host::own_mounts;
use super::node::mark;
use super::site::text;

const VOLUMES: &str = "  securityContext: {runAsUser: 0, fsGroup: 77}
  volumes:
  - {name: e, emptyDir: {}}
  - {name: m, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: c, configMap: {name: settings}}
  - {name: s, secret: {secretName: key}}";
const MOUNTS: &str = "    volumeMounts:
    - {name: e, mountPath: /e}
    - {name: m, mountPath: /m}
    - {name: c, mountPath: /c}
    - {name: s, mountPath: /s}
    resources: {limits: {memory: 64Mi, cpu: 500m}}
    readinessProbe: {exec: {command: [/bin/sh, -c, 'cat /s/token /e/ready']}, timeoutSeconds: 30, periodSeconds: 1}";
const OBJECTS: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {greeting: hello}
---
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {token: sesame}
";
const LIVES: &str = "cat /c/greeting /s/token; echo; id -u; touch /m/x /e/ready; echo x > /dev/null; \
                     trap 'exit 9' TERM; while :; do sleep 0.1; done";

#[tokio::test]
async fn a_user_alone_runs_pods_and_they_outlive_its_edge_core() {
    let mut home = Home::new("alone", 1).await;
    home.edge.start();
    home.kubectl.apply(OBJECTS);
    home.pod("lives", LIVES, VOLUMES, MOUNTS);
    home.pod(
        "ends",
        "echo begun; while [ ! -e /e/go ]; do sleep 0.1; done; exit 7",
        VOLUMES,
        MOUNTS.split("    readiness").next().unwrap(),
    );
    home.pod(
        "host",
        "cat /proc/net/route; ls /sys/class/net; hostname",
        "  hostNetwork: true\n  securityContext: {runAsUser: 0}",
        "",
    );
    home.ready("lives").await;
    assert_eq!(home.ended("host").await, 0);
    let interfaces = home.logs("host");
    assert!(interfaces.contains("lo"), "{interfaces}");
    let said = async || (home.logs("lives") == "hellosesame\n0").then_some(());
    eventually("it says what it found", said).await;

    // One whose user is not there is refused, with what to do about it.
    // It is the image that says so.
    home.pod("other", "id", "", "");
    let refused = |pod: &Value| text(pod, "/status/containerStatuses/0/state/waiting/message").contains("/etc/subuid");
    let pod = home.until("other", "it is refused", refused).await;
    let message = text(&pod, "/status/containerStatuses/0/state/waiting/message");
    assert!(
        message.contains("uid 1000") && message.contains("usermod --add-subuids"),
        "{message}"
    );
    home.pod(
        "watcher",
        "id",
        "  hostPID: true\n  securityContext: {runAsUser: 0}",
        "",
    );
    let refused =
        |pod: &Value| text(pod, "/status/containerStatuses/0/state/waiting/message").contains("hostPID: true");
    home.until("watcher", "it is refused", refused).await;

    // Files of users that are not there are its own.
    let image = home.import_owned();
    let show = "stat -c '%u %g %a' /srv/owned /srv/far; cat /srv/owned /srv/far; test ! -e /etc/group";
    home.image_pod("owned", &image, show, "  securityContext: {runAsUser: 0}", "");
    assert_eq!(home.ended("owned").await, 0);
    assert_eq!(home.logs("owned"), "0 0 600\n0 0 600\nowned\nowned");

    let checked = home.edge.command(&["check"]);
    for part in [
        "ok      root         not root",
        "has no range in /etc/subuid",
        "note    cgroups      none is",
    ] {
        assert!(checked.contains(part), "{part}: {checked}");
    }

    // Its death ends no pod; what ends meanwhile is known afterwards.
    let [process] = home.processes("while :; do")[..] else {
        panic!("{:?}", home.processes(""))
    };
    let shims = home.processes("pod-shim");
    home.edge.kill();
    let pod = home.kubectl.json(&["pod", "ends"]).unwrap();
    let uid = text(&pod, "/metadata/uid");
    std::fs::write(home.data().join(format!("edge/pods/{uid}/volumes/e/go")), "").unwrap();
    eventually("the other has ended", async || {
        home.processes("/e/go").is_empty().then_some(())
    })
    .await;
    home.edge.start();
    assert_eq!(home.ended("ends").await, 7);
    home.ready("lives").await;
    assert_eq!(home.processes("while :; do"), [process]);
    assert!(home.processes("pod-shim").iter().all(|shim| shims.contains(shim)));
    // It is still in its hands: a probe runs in it, and its end is told.
    home.pod("later", LIVES, VOLUMES, MOUNTS);
    home.ready("later").await;
    home.edge.stop().await;
    home.edge.start();
    let done = Command::new("kill").arg(process.to_string()).status();
    assert!(done.unwrap().success());
    assert_eq!(home.ended("lives").await, 9);
    let log = std::fs::read_to_string(home.edge.config.with_extension("log")).unwrap();
    assert!(!log.contains("every container costs a copy of its image"), "{log}");
    home.finish().await;
}

/// A container may do all that its user may, and so may have the keys of a session that the user is logged in with.
#[tokio::test]
async fn keys_of_who_started_the_node_are_not_in_its_containers() {
    const KEY: &str = "edgehold-test-key";
    let mut home = Home::new("keys", 6).await;
    let script = home.folder.join("with_key.py");
    std::fs::write(&script, include_str!("rootless/with_key.py")).unwrap();
    let mut command = as_user(&home.folder.join("home"), home.uid);
    command.extend(["python3".into(), script.into(), KEY.into()]);
    let seen = Command::new(&command[0])
        .args(&command[1..])
        .args(["grep", KEY, "/proc/keys"])
        .status();
    assert!(seen.unwrap().success(), "what is started with it sees it");
    command.push(home.folder.join("edgecore").into());
    home.edge.becomes(command);
    home.edge.start();
    home.pod(
        "looks",
        "cat /proc/keys",
        "",
        "    securityContext: {runAsUser: 0, privileged: true}",
    );
    assert_eq!(home.ended("looks").await, 0);
    let keys = home.logs("looks");
    assert!(keys.contains("_ses"), "it sees keys: {keys}");
    assert!(!keys.contains(KEY), "{keys}");
    home.finish().await;
}

#[tokio::test]
async fn pods_outlive_their_shims_as_well() {
    let mut home = Home::new("shims", 4).await;
    home.edge.start();
    home.kubectl.apply(OBJECTS);
    home.pod("lives", LIVES, VOLUMES, MOUNTS);
    home.ready("lives").await;
    let [process] = home.processes("while :; do")[..] else {
        panic!("{:?}", home.processes(""))
    };
    home.loses_all_but(process).await;
    home.pod("later", LIVES, VOLUMES, MOUNTS);
    home.ready("later").await;
    home.finish().await;
}

/// What pods ask for that a user cannot always give, each of which works.
const WISHES: [(&str, &str, &str, &str); 7] = [
    (
        "privileged",
        "test -c /dev/null && test -c /dev/zero && echo yes",
        "",
        "securityContext: {privileged: true}",
    ),
    (
        "read-only",
        "touch /x 2>&1; touch /tmp/x 2>&1; echo yes > /dev/shm/x; cat /dev/shm/x",
        "",
        "securityContext: {readOnlyRootFilesystem: true}",
    ),
    ("terminal", "test -t 0 && tty && echo yes", "", "tty: true"),
    ("ipc", "ls /dev/shm > /dev/null && echo yes", "  hostIPC: true", ""),
    (
        "filtered",
        "grep -q 'Seccomp:.*2' /proc/self/status && ! unshare -n true 2>&1 && echo yes",
        "",
        "securityContext: {seccompProfile: {type: RuntimeDefault}}",
    ),
    (
        "bare",
        "grep CapEff /proc/self/status; kill -0 1 && echo yes",
        "",
        "securityContext: {capabilities: {drop: [ALL]}, allowPrivilegeEscalation: false}",
    ),
    (
        "group",
        "id -G; echo yes",
        "  securityContext: {supplementalGroups: [5555]}",
        "",
    ),
];

#[tokio::test]
async fn what_pods_ask_for_they_get_and_roots_are_copied_where_nothing_can_be_mounted() {
    own_mounts();
    let mut home = Home::new("wishes", 5).await;
    // No overlay is written to through another one.
    let own = home.folder.join("home");
    for name in ["upper", "work"] {
        let folder = home.folder.join(name);
        std::fs::create_dir(&folder).unwrap();
        chown(&folder, Some(home.uid), Some(home.uid)).unwrap();
    }
    let (lower, upper, work) = (&own, home.folder.join("upper"), home.folder.join("work"));
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    done(&[
        "mount",
        "-t",
        "overlay",
        "overlay",
        "-o",
        &options,
        &own.display().to_string(),
    ]);
    home.edge.start();
    for (name, script, pod, container) in WISHES {
        let root = "securityContext: {";
        let (mut pod, mut container) = (pod.to_owned(), format!("    {container}"));
        if pod.contains(root) {
            pod = pod.replace(root, "securityContext: {runAsUser: 0, ");
        } else if container.contains(root) {
            container = container.replace(root, "securityContext: {runAsUser: 0, ");
        } else {
            container += "\n    securityContext: {runAsUser: 0}";
        }
        home.pod(name, script, &pod, container.trim_end_matches("    "));
    }
    for (name, ..) in WISHES {
        let code = home.ended(name).await;
        let said = home.logs(name);
        assert!(code == 0 && said.trim().ends_with("yes"), "{name}: {code}: {said}");
    }
    let said = home.logs("read-only");
    assert!(said.contains("touch: /x: Read-only file system"), "{said}");
    assert!(home.logs("bare").contains("CapEff:\t0000000000000000"));
    let log = std::fs::read_to_string(home.edge.config.with_extension("log")).unwrap();
    assert!(log.contains("every container costs a copy of its image"), "{log}");
    home.without_pods().await;
    home.edge.stop().await;
    done(&["umount", "-l", &own.display().to_string()]);
    let folder = home.folder.clone();
    drop(home);
    std::fs::remove_dir_all(folder).unwrap();
}

/// In a mount namespace of its own: a user with ranges.
fn give_ranges(folder: &Path, uid: u32) {
    own_mounts();
    for name in ["upper", "work"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    let options = format!("lowerdir=/etc,upperdir={0}/upper,workdir={0}/work", folder.display());
    done(&["mount", "-t", "overlay", "overlay", "-o", &options, "/etc"]);
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap();
    std::fs::write("/etc/passwd", format!("{accounts}eh:x:{uid}:{uid}::/:/bin/sh\n")).unwrap();
    for file in ["/etc/subuid", "/etc/subgid"] {
        std::fs::write(file, format!("eh:{}:{RANGE_COUNT}\n", range(uid))).unwrap();
    }
}

#[tokio::test]
async fn with_ranges_containers_have_users_of_their_own() {
    let etc = tempfile::tempdir().unwrap();
    give_ranges(etc.path(), uid(2));
    let mut home = Home::new("ranges", 2).await;
    home.edge.start();
    home.kubectl.apply(OBJECTS);
    let script = "id -u; id -g; id -G; touch /e/mine; ls -ln /e/mine; touch /x 2>&1; grep CapEff /proc/self/status; \
                  touch /e/ready; sleep 1000";
    let user = VOLUMES.replace("runAsUser: 0", "runAsUser: 1000, runAsGroup: 1001");
    home.pod("other", script, &user, MOUNTS);
    home.ready("other").await;
    let said = async || Some(home.logs("other")).filter(|said| said.contains("CapEff"));
    let said = eventually("it says who it is", said).await;
    let words: Vec<_> = said.split_whitespace().collect();
    assert_eq!(&words[..4], ["1000", "1001", "1001", "77"], "{said}");
    assert!(said.contains("1000     77"), "{said}");
    assert!(said.contains("touch: /x: Permission denied"), "{said}");
    // Outside it is one of the user's own numbers.
    let [process] = home.processes("sleep 1000")[..] else {
        panic!("{:?}", home.processes(""))
    };
    assert_eq!(
        std::fs::metadata(format!("/proc/{process}")).unwrap().uid(),
        range(home.uid) + 999
    );
    // Files are their owners', where these are there.
    let image = home.import_owned();
    let show = "stat -c '%u %g %a' /srv/owned /srv/far; cat /srv/owned; test ! -e /etc/group";
    home.image_pod("owned", &image, show, "  securityContext: {runAsUser: 0}", "");
    assert_eq!(home.ended("owned").await, 0);
    assert_eq!(home.logs("owned"), "33 33 6600\n0 0 600\nowned");
    home.edge.kill();
    home.edge.start();
    home.ready("other").await;
    assert_eq!(home.processes("sleep 1000"), [process]);
    let checked = home.edge.command(&["check"]);
    assert!(checked.contains("65537 users and 65537 groups"), "{checked}");
    home.finish().await;
}

#[tokio::test]
async fn pods_have_cgroups_where_one_is_delegated() {
    own_mounts();
    done(&["mount", "-t", "cgroup2", "none", "/sys/fs/cgroup"]);
    let number = 3;
    let top = PathBuf::from(format!("/sys/fs/cgroup/eh-{}-rl", mark()));
    let own = top.join("user");
    std::fs::create_dir_all(&own).unwrap();
    let (uid, procs) = (uid(number), own.join("cgroup.procs"));
    for path in [&own, &procs, &own.join("cgroup.subtree_control")] {
        chown(path, Some(uid), Some(uid)).unwrap();
    }
    // Moving into it takes the right to change what is above both.
    let enter = format!("echo $$ > {}; exec \"$@\"", procs.display());
    let words = ["sh", "-c", &enter, "sh"];
    let mut home = Home::new("cgroup", number).await;
    let mut command: Vec<OsString> = words.iter().map(OsString::from).collect();
    command.extend(as_user(&home.folder.join("home"), uid));
    command.push(home.folder.join("edgecore").into());
    home.edge.becomes(command);
    home.edge.start();
    home.kubectl.apply(OBJECTS);
    home.pod("lives", LIVES, VOLUMES, MOUNTS);
    home.ready("lives").await;
    let uid = text(&home.kubectl.json(&["pod", "lives"]).unwrap(), "/metadata/uid");
    let pod = own.join(format!("edgehold/pod{uid}"));
    let held = |name: &str| std::fs::read_to_string(pod.join(name).join("cgroup.procs")).unwrap();
    let [process] = home.processes("while :; do")[..] else {
        panic!("{:?}", home.processes(""))
    };
    assert!(held("c-0").lines().any(|line| line == process.to_string()));
    assert_eq!(held("shim").lines().count(), 1);
    home.edge.kill();
    home.edge.start();
    home.ready("lives").await;
    home.loses_all_but(process).await;
    let checked = home.edge.command(&["check"]);
    assert!(checked.contains("is not handed on to"), "{checked}");
    home.finish().await;
    assert!(!pod.exists());
    for name in ["user/edgehold", "user/edgecore", "user", ""] {
        eventually("its cgroup is empty", async || std::fs::remove_dir(top.join(name)).ok()).await;
    }
}

/// Where a kernel allows no more namespaces than there are: a namespace with a limit of its own.
const NO_NAMESPACES: &str =
    "echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --inh-caps=-all --bounding-set=-all \"$@\"";

#[test]
fn a_kernel_that_allows_no_namespaces_is_told_of_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("edge.toml");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = format!(
        "data = {:?}\nlogs = {:?}\nrun = {:?}\n",
        path("d"),
        path("l"),
        path("r")
    );
    std::fs::write(&config, text).unwrap();
    let say = |word: &str| {
        let output = Command::new("unshare")
            .args(["--user", "--map-root-user", "sh", "-c", NO_NAMESPACES, "sh"])
            .arg(program("edgecore"))
            .arg("--config")
            .arg(&config)
            .arg(word)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    for word in ["check", "run"] {
        let (code, said) = say(word);
        assert_eq!(code, Some(1), "{said}");
        for part in [
            "lets an ordinary user make no namespaces",
            "sysctl -w user.max_user_namespaces=15000",
            "as root",
        ] {
            assert!(said.contains(part), "{word}: {part}: {said}");
        }
    }
    assert!(
        !folder.path().join("d").exists(),
        "it has ended before it made anything"
    );
}

#[test]
fn containerd_is_not_for_a_user() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = folder.path().join("edge.toml");
    std::fs::write(&config, "runtime = \"containerd\"\n").unwrap();
    let own = folder.path().join("edgecore");
    if std::fs::hard_link(program("edgecore"), &own).is_err() {
        std::fs::copy(program("edgecore"), &own).unwrap();
    }
    let words = as_user(folder.path(), uid(0));
    let output = Command::new(&words[0])
        .args(&words[1..])
        .arg(&own)
        .arg("--config")
        .arg(&config)
        .arg("run")
        .output();
    let said = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(
        said.contains("runtime: containerd takes root") && said.contains("\"embedded\""),
        "{said}"
    );
}

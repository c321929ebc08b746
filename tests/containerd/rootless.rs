//! An edge core that is not root, with the real kernel: pods' lives, what outlives it, what is refused, and that nothing is
//! left. The tests are root's, and the edge core runs as a user that has nothing.

use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tests::cores::{CloudCore, EdgeCore, Kubectl, eventually, program};

use super::node::{WEB, archive, mark, own_mounts};
use super::site::{is_ready, text};

/// Nobody's numbers, each test's own.
const UID_MIN: u32 = 61_000;
/// Where the users of their containers are.
const RANGE: &str = "2000000:65536";

/// A user with an edge core in its home, and a cloud.
struct Home {
    folder: PathBuf,
    uid: u32,
    _cloud: CloudCore,
    edge: EdgeCore,
    kubectl: Kubectl,
}

/// What starts a program as a user.
fn as_user(home: &Path, uid: u32) -> Vec<OsString> {
    let id = uid.to_string();
    let path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
    let home = format!("HOME={}", home.display());
    let words = [
        "setpriv",
        "--reuid",
        &id,
        "--regid",
        &id,
        "--clear-groups",
        "env",
        "-i",
        path,
        &home,
    ];
    words.into_iter().map(OsString::from).collect()
}

fn done(words: &[&str]) {
    let status = Command::new(words[0]).args(&words[1..]).status();
    assert!(status.unwrap().success(), "{words:?}");
}

impl Home {
    /// A joined node with the image [`WEB`]; `before` has the last words of how its edge core is started.
    async fn new(name: &str, number: u32, before: &[&str]) -> Self {
        let uid = UID_MIN + number;
        let folder = std::env::temp_dir().join(format!("eh-{}-rl-{name}", mark()));
        let home = folder.join("home");
        std::fs::create_dir_all(&home).unwrap();
        for folder in [&folder, &home] {
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        // Where tests are built may be closed to others.
        let own = folder.join("edgecore");
        let built = program("edgecore");
        if std::fs::hard_link(&built, &own).is_err() {
            std::fs::copy(&built, &own).unwrap();
        }
        std::fs::copy(archive("web"), home.join("web.tar")).unwrap();
        let config = home.join("edge.toml");
        std::fs::write(&config, "log = \"debug\"\n").unwrap();
        chown(&home, Some(uid), Some(uid)).unwrap();
        let cloud = CloudCore::start(&folder.join("c")).await;
        let mut words = as_user(&home, uid);
        words.extend(before.iter().map(OsString::from));
        words.push(own.into());
        let token = home.join("edge.token");
        std::fs::write(&token, "").unwrap();
        let edge = EdgeCore::join_with(&cloud, "edge-1", &config, words);
        assert_eq!(
            edge.command(&["image", "import", &home.join("web.tar").display().to_string()]),
            WEB
        );
        let kubectl = cloud.kubectl();
        Self { folder, uid, _cloud: cloud, edge, kubectl }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("home/.local/share/edgehold")
    }

    /// Applies a pod of one shell script; `pod` and `container` are more of the two.
    fn pod(&self, name: &str, script: &str, pod: &str, container: &str) {
        self.kubectl.apply(&format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: web}}}}
spec:
  nodeName: edge-1
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
{pod}
  containers:
  - name: c
    image: {WEB}
    command: [/bin/sh, -c, {script:?}]
{container}
"
        ));
    }

    async fn until(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let found = async || self.kubectl.json(&["pod", name]).filter(|pod| holds(pod));
        tests::cores::within(tests::cores::DEADLINE, found)
            .await
            .unwrap_or_else(|| {
                panic!(
                    "{name}: still not so: {what}\n{}\n{}",
                    self.kubectl.json(&["pod", name]).unwrap_or_default()["status"],
                    std::fs::read_to_string(self.edge.config.with_extension("log")).unwrap_or_default()
                )
            })
    }

    async fn ready(&self, name: &str) -> Value {
        self.until(name, "it is ready", is_ready).await
    }

    /// Waits for its end: with which code.
    async fn ended(&self, name: &str) -> i64 {
        let code = |pod: &Value| {
            pod.pointer("/status/containerStatuses/0/state/terminated/exitCode")?
                .as_i64()
        };
        let pod = self.until(name, "it has ended", |pod| code(pod).is_some()).await;
        code(&pod).unwrap()
    }

    fn logs(&self, name: &str) -> String {
        self.kubectl.run(&["logs", name])
    }

    /// The processes that have this in their command line, the tests' own left out.
    fn processes(&self, mark: &str) -> Vec<u32> {
        let folders = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = folders.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let ours = |pid: &u32| {
            let Ok(about) = std::fs::metadata(format!("/proc/{pid}")) else {
                return false;
            };
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            (about.uid() == self.uid || about.uid() >= 2_000_000) && !line.is_empty() && line.contains(mark)
        };
        pids.filter(ours).collect()
    }

    /// Everything was deleted: nothing may be left.
    async fn finish(mut self) {
        self.kubectl.run(&["delete", "pod", "-l", "app=web", "--wait=false"]);
        eventually("the pods are gone", async || {
            self.kubectl.pods("app=web").is_empty().then_some(())
        })
        .await;
        let empty = |folder: PathBuf| std::fs::read_dir(folder).map_or(0, Iterator::count) == 0;
        eventually("nothing is left of them", async || {
            let runs = std::fs::read_dir(self.data().join("run")).unwrap().flatten();
            let mut run = runs.map(|entry| entry.path());
            let all = run.all(|run| empty(run.join("shims")) && empty(run.join("pods")));
            (all && empty(self.data().join("edge/embedded/pods"))).then_some(())
        })
        .await;
        self.edge.stop().await;
        eventually("no process is left", async || {
            self.processes("").is_empty().then_some(())
        })
        .await;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let here = self.folder.display().to_string();
        assert!(!mounts.contains(&here), "{mounts}");
        let folder = self.folder.clone();
        drop(self);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

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
const LIVES: &str = "cat /c/greeting /s/token; echo; id -u; touch /m/x /e/ready; echo x > /dev/null; ls -A /proc/1/fd >&2; \
                     trap 'exit 9' TERM; while :; do sleep 0.1; done";

#[tokio::test]
async fn a_user_alone_runs_pods_and_they_outlive_its_edge_core() {
    let mut home = Home::new("alone", 1, &[]).await;
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
    let said = home.logs("lives");
    assert!(said.starts_with("hellosesame\n0\n"), "{said}");

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
    home.finish().await;
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
        std::fs::write(file, format!("eh:{RANGE}\n")).unwrap();
    }
}

#[tokio::test]
async fn with_ranges_containers_have_users_of_their_own() {
    let etc = tempfile::tempdir().unwrap();
    give_ranges(etc.path(), UID_MIN + 2);
    let mut home = Home::new("ranges", 2, &[]).await;
    home.edge.start();
    home.kubectl.apply(OBJECTS);
    let script = "id -u; id -g; id -G; touch /e/mine; ls -ln /e/mine; touch /x; grep CapEff /proc/self/status; \
                  touch /e/ready; sleep 1000";
    let user = VOLUMES.replace("runAsUser: 0", "runAsUser: 1000, runAsGroup: 1001");
    home.pod("other", script, &user, MOUNTS);
    home.ready("other").await;
    let said = home.logs("other");
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
        2_000_000 + 999
    );
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
    let (uid, procs) = (UID_MIN + number, own.join("cgroup.procs"));
    for path in [&own, &procs, &own.join("cgroup.subtree_control")] {
        chown(path, Some(uid), Some(uid)).unwrap();
    }
    // Moving into it takes the right to change what is above both.
    let enter = format!("echo $$ > {}; exec \"$@\"", procs.display());
    let words = ["sh", "-c", &enter, "sh"];
    let home = Home::new("cgroup", number, &[]).await;
    let mut home = home;
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
    assert_eq!(held("c-0").lines().count(), 2, "a shell and its sleep");
    assert_eq!(held("shim").lines().count(), 1);
    home.edge.kill();
    home.edge.start();
    home.ready("lives").await;
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
    let words = as_user(folder.path(), UID_MIN);
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

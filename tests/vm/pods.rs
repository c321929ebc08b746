//! What a pod asks for beyond running, on a kernel of its own with cgroups of version 2: it gets it, and no more.

use serde_json::Value;
use tests::machine::Board;

use super::site::{NODE, Site, WEB};

/// A pod of one container that runs a script, what it asks for, how it ends, and what it says. All are made at once: a
/// machine is slow.
struct Case {
    name: &'static str,
    /// More fields of the pod's specification and of its container, as flow YAML.
    pod: &'static str,
    container: &'static str,
    script: &'static str,
    ends: Ends,
    says: &'static [&'static str],
}

enum Ends {
    /// All its containers with exit code 0.
    Well,
    /// With the reason and the code of the kill.
    OutOfMemory,
}

/// How a container is filtered, then what a filter or missing privileges deny.
const TRY: &str = "grep ^Seccomp: /proc/self/status | tr -d \"\\t\"
unshare -U true 2>/dev/null && echo a user namespace
mount -t tmpfs none /tmp 2>/dev/null && echo a mount
echo end";

const SCORE: &str = "cat /proc/self/oom_score_adj";

/// The machine's own disk, by its numbers.
const DISK: &str = "numbers=$(tr : \" \" </sys/block/vda/dev)
mknod /disk b $numbers && echo made
head -c 4 /disk 2>&1 >/dev/null | grep -o \"not permitted\" || echo read
head -c 4 /dev/zero | wc -c";

const CASES: &[Case] = &[
    Case {
        name: "memory",
        pod: "",
        container: "resources: {limits: {memory: 16Mi}}",
        script: "cat /sys/fs/cgroup/memory.max; exec tail /dev/zero",
        ends: Ends::OutOfMemory,
        says: &["16777216"],
    },
    // Who goes first when the machine itself runs out: a MiB is two thousandths of it.
    Case {
        name: "promised",
        pod: "",
        container: "resources: {limits: {cpu: 250m, memory: 16Mi}}",
        script: SCORE,
        ends: Ends::Well,
        says: &["-997"],
    },
    Case {
        name: "asking",
        pod: "",
        container: "resources: {requests: {memory: 1Mi}}",
        script: SCORE,
        ends: Ends::Well,
        says: &["998"],
    },
    Case {
        name: "first-to-go",
        pod: "",
        container: "",
        script: SCORE,
        ends: Ends::Well,
        says: &["1000"],
    },
    Case {
        name: "cpu",
        pod: "securityContext: {runAsUser: 0}",
        container: "resources: {requests: {cpu: 100m}, limits: {cpu: 250m}}",
        script: "cat /sys/fs/cgroup/cpu.max
(echo max >/sys/fs/cgroup/cpu.max) 2>/dev/null || echo its own limit stands",
        ends: Ends::Well,
        says: &["25000 100000", "its own limit stands"],
    },
    // It divides its cgroup, as an init system or a daemon of containers does: commands still run beside it.
    Case {
        name: "dividing",
        pod: "",
        container: "securityContext: {runAsUser: 0, privileged: true}, readinessProbe: {exec: {command: [touch, /tmp/asked]}}",
        script: "cd /sys/fs/cgroup; mkdir own; echo 1 >own/cgroup.procs; echo +memory >cgroup.subtree_control && echo divided
rm -f /tmp/asked; while [ ! -e /tmp/asked ]; do sleep 1; done; echo asked",
        ends: Ends::Well,
        says: &["divided", "asked"],
    },
    Case {
        name: "unfiltered",
        pod: "",
        container: "securityContext: {runAsUser: 0, seccompProfile: {type: Unconfined}}",
        script: TRY,
        ends: Ends::Well,
        says: &["Seccomp:0", "a user namespace", "end"],
    },
    Case {
        name: "filtered",
        pod: "securityContext: {runAsUser: 0, seccompProfile: {type: RuntimeDefault}}",
        container: "",
        script: TRY,
        ends: Ends::Well,
        says: &["Seccomp:2", "end"],
    },
    Case {
        name: "privileged",
        pod: "",
        container: "securityContext: {runAsUser: 0, privileged: true}",
        script: TRY,
        ends: Ends::Well,
        says: &["Seccomp:0", "a user namespace", "a mount", "end"],
    },
    Case {
        name: "device",
        pod: "securityContext: {runAsUser: 0}",
        container: "",
        script: DISK,
        ends: Ends::Well,
        says: &["made", "not permitted", "4"],
    },
    Case {
        name: "any-device",
        pod: "",
        container: "securityContext: {runAsUser: 0, privileged: true}",
        script: DISK,
        ends: Ends::Well,
        says: &["made", "read", "4"],
    },
    Case {
        name: "user",
        pod: "securityContext: {runAsUser: 1234, runAsGroup: 2345, fsGroup: 3456}, volumes: [{name: v, emptyDir: {}}]",
        container: "volumeMounts: [{name: v, mountPath: /v}],
                    securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false}",
        script: "id -u; id -g
touch /v/file && stat -c %g /v/file
touch /file 2>&1 | grep -o \"Read-only file system\"
grep ^NoNewPrivs: /proc/self/status | tr -d \"\\t\"",
        ends: Ends::Well,
        says: &["1234", "2345", "3456", "Read-only file system", "NoNewPrivs:1"],
    },
    Case {
        name: "volumes",
        pod: "initContainers: [
                {name: first, image: 'WEB', command: [/bin/sh, -c, 'echo first >>/all/order'],
                 volumeMounts: [{name: all, mountPath: /all}]},
                {name: second, image: 'WEB', command: [/bin/sh, -c, 'echo second >>/all/order'],
                 volumeMounts: [{name: all, mountPath: /all}]}],
              volumes: [{name: all, emptyDir: {}}, {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}},
                {name: map, configMap: {name: map}}, {name: secret, secret: {secretName: secret}},
                {name: host, hostPath: {path: /etc/hostname, type: File}},
                {name: self, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]",
        container: "volumeMounts: [{name: all, mountPath: /all}, {name: memory, mountPath: /memory},
                      {name: map, mountPath: /map}, {name: secret, mountPath: /secret, readOnly: true},
                      {name: host, mountPath: /host, readOnly: true}, {name: self, mountPath: /self}],
                    env: [{name: KEY, valueFrom: {configMapKeyRef: {name: map, key: key}}}]",
        script: "cat /all/order /map/key; echo; echo $KEY; cat /secret/key; echo; cat /host; cat /self/name; echo
for folder in /memory /secret; do grep \" $folder tmpfs \" /proc/mounts | cut -d \" \" -f 2,3; done
head -c 2000000 /dev/zero >/memory/file 2>/dev/null || stat -c %s /memory/file",
        ends: Ends::Well,
        says: &[
            "first",
            "second",
            "one",
            "one",
            "hidden",
            "edge",
            "volumes",
            "/memory tmpfs",
            "/secret tmpfs",
            "1048576",
        ],
    },
];

/// Probes that run in the container. It is ready when it says so; it is sick once, and gets well by a restart.
const PROBED: &str = "apiVersion: v1
kind: Pod
metadata: {name: probed}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  securityContext: {runAsUser: 0}
  volumes: [{name: v, emptyDir: {}}]
  containers:
  - name: c
    image: 'WEB'
    volumeMounts: [{name: v, mountPath: /v}]
    command: [/bin/sh, -c, 'if mkdir /v/was-here; then touch /sick; fi; touch /ready; while true; do sleep 1; done']
    readinessProbe: {exec: {command: [test, -e, /ready]}, periodSeconds: 1, timeoutSeconds: 20}
    livenessProbe: {exec: {command: [test, '!', -e, /sick]}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 2}
";

const PAPERS: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: map}
data: {key: one}
---
apiVersion: v1
kind: Secret
metadata: {name: secret}
stringData: {key: hidden}
---
";

impl Case {
    fn manifest(&self) -> String {
        let Self { name, pod, container, .. } = self;
        let comma = |fields: &str| {
            if fields.is_empty() {
                String::new()
            } else {
                format!(", {fields}")
            }
        };
        // A text in JSON's quotes is one in YAML's.
        let script = Value::from(self.script);
        let spec = format!(
            "{{nodeName: {NODE}, restartPolicy: Never{}, containers: [{{name: c, image: 'WEB', command: [/bin/sh, -c, {script}]{}}}]}}",
            comma(pod),
            comma(container)
        );
        format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {spec}\n---\n").replace("WEB", WEB)
    }
}

async fn pods_get_what_they_ask_for_and_no_more(board: Board) {
    let site = Site::start(board, "pods").await;
    let pods: String = CASES.iter().map(Case::manifest).collect();
    let probed = PROBED.replace("WEB", WEB).replace("NODE", NODE);
    site.kubectl.apply(&format!("{PAPERS}{pods}{probed}"));
    for case in CASES {
        let name = case.name;
        let ended = site.ended(name).await;
        let said = site.kubectl.run(&["logs", name]);
        assert_eq!(said.lines().collect::<Vec<_>>(), case.says, "{name}");
        let right = match case.ends {
            Ends::Well => ("Completed", 0),
            Ends::OutOfMemory => ("OOMKilled", 137),
        };
        assert_eq!((ended.0.as_str(), ended.1), right, "{name}");
    }
    let is_well = |container: &Value| (container["restartCount"] == 1 && container["ready"] == true).then_some(());
    site.container("probed", "was sick and is well", is_well).await;
    // A command of one's own, through the cloud.
    assert!(site.kubectl.run(&["logs", "--previous", "probed"]).is_empty());
    site.kubectl.run(&["delete", "pods", "--all"]);
    site.settles("nothing", <[_]>::is_empty).await;
    let left = site
        .machine
        .ok("ls /var/lib/edgehold/edge/embedded/pods /sys/fs/cgroup/edgehold | grep pod; true");
    assert_eq!(
        left, "/var/lib/edgehold/edge/embedded/pods:",
        "what pods had is gone with them"
    );
}

#[tokio::test]
async fn arm64_pods_get_what_they_ask_for_and_no_more() {
    pods_get_what_they_ask_for_and_no_more(Board::Arm64).await;
}

#[tokio::test]
#[ignore = "takes another static edge core: scripts/test --full"]
async fn amd64_pods_get_what_they_ask_for_and_no_more() {
    pods_get_what_they_ask_for_and_no_more(Board::Amd64).await;
}

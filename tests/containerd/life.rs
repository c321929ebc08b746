//! One container's life, and what it outlives.

use std::process::{Command, Stdio};
use std::time::Duration;

use edgecore::runtime::containerd::Config;
use edgecore::runtime::{Event, Limits, Runtime as _, RuntimeError, Security, State};

use super::node::{Node, On, WEB, event, eventually, on_both, pod};

on_both!(
    runs_a_container_to_its_end,
    repeated_calls_change_nothing,
    removes_what_still_runs,
    says_why_a_container_cannot_start,
    runs_commands_inside,
    containers_are_adopted,
    pods_survive_a_reboot_as_records,
    tells_an_oom_kill,
    limits_what_a_container_may_do,
    keeps_a_container_from_multiplying,
    goes_as_soon_as_it_is_told_when_memory_runs_out,
    gives_a_container_a_terminal,
    gives_a_privileged_container_the_machine,
    kills_what_froze_itself,
    keeps_devices_from_a_container,
    keeps_its_limits_from_a_container,
    logs_lose_nothing_and_turn_over,
    takes_many_pods_at_once,
);

async fn runs_a_container_to_its_end(on: On) {
    let node = Node::of(on, "end").await;
    let uid = pod();
    let version = node.runtime.version().await.unwrap().version;
    let known: &[&str] = match on {
        On::Containerd => &["containerd://1.", "containerd://2."],
        On::Embedded => &["edgehold://0."],
    };
    assert!(known.iter().any(|known| version.starts_with(known)), "{version}");
    let mut events = node.runtime.subscribe();
    event(&mut events, &Event::Back).await;

    let container = node.script(uid, "c", "echo out; echo err >&2; printf last; exit 3");
    let sandbox = node.sandbox(uid);
    let network = node.runtime.prepare(&sandbox).await.unwrap();
    assert!(network.addresses.is_empty());
    let id = node.runtime.create(&sandbox, &container).await.unwrap();
    let seen = node.seen(&id).await.unwrap();
    assert_eq!(
        (&seen.state, &seen.labels, seen.image.as_str()),
        (&State::Created, &container.labels, WEB)
    );
    assert_eq!(seen.image_id, node.runtime.image(WEB).await.unwrap().unwrap().id);

    node.runtime.start(&id).await.unwrap();
    // Looking only when told to is enough to see the end. Start and exit may be told as one.
    while !matches!(node.seen(&id).await.unwrap().state, State::Exited { .. }) {
        event(&mut events, &Event::Pod(uid)).await;
    }
    assert_eq!(node.exit_code(&id).await, 3);
    let Some(State::Exited { code: 3, oom_killed: false, started_ms, finished_ms }) =
        node.seen(&id).await.map(|seen| seen.state)
    else {
        panic!("{:?}", node.seen(&id).await)
    };
    match on {
        // The task was settled: what it knew is in the record, and its processes are gone.
        On::Containerd => {
            assert_eq!(node.ctr(&["tasks", "ls", "-q"]), Vec::<String>::new());
            assert!(started_ms == 1000 && finished_ms > 1_600_000_000_000, "{finished_ms}");
        }
        On::Embedded => assert!(
            1_600_000_000_000 < started_ms && started_ms <= finished_ms,
            "{started_ms} {finished_ms}"
        ),
    }
    node.logs("c", "stdout F last").await;
    let mut lines = node.log("c");
    lines.sort();
    assert_eq!(lines, ["stderr F err", "stdout F last", "stdout F out"]);
    // What has ended is not started again.
    node.runtime.start(&id).await.unwrap();
    assert_eq!(node.exit_code(&id).await, 3);
    node.finish(&[&id], &[uid]).await;
}

async fn repeated_calls_change_nothing(on: On) {
    let node = Node::of(on, "repeat").await;
    let uid = pod();
    let container = node.script(uid, "c", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done");
    let sandbox = node.sandbox(uid);
    let id = node.run(&container).await;
    assert_eq!(
        node.runtime.prepare(&sandbox).await.unwrap(),
        node.runtime.prepare(&sandbox).await.unwrap()
    );
    assert_eq!(node.runtime.create(&sandbox, &container).await.unwrap(), id);
    node.runtime.start(&id).await.unwrap();
    node.logs("c", "stdout F ready").await;
    let mut other = container.clone();
    other.labels.hash += 1;
    let error = node.runtime.create(&sandbox, &other).await.unwrap_err();
    assert!(matches!(error, RuntimeError::Invalid { .. }), "{error}");
    let error = node.runtime.release(uid).await.unwrap_err();
    assert!(error.to_string().contains("still there"), "{error}");

    node.runtime.signal(&id, 15).await.unwrap();
    assert_eq!(node.exit_code(&id).await, 5);
    node.runtime.signal(&id, 15).await.unwrap();
    node.runtime.remove(&id).await.unwrap();
    node.runtime.signal(&id, 9).await.unwrap();
    node.runtime.release(uid).await.unwrap();
    assert!(matches!(
        node.runtime.start(&id).await,
        Err(RuntimeError::Missing { .. })
    ));
    node.finish(&[&id], &[uid]).await;
}

async fn removes_what_still_runs(on: On) {
    let node = Node::of(on, "kill").await;
    let uid = pod();
    let id = node
        .run(&node.script(
            uid,
            "c",
            "trap '' TERM; echo ready; sleep 1000 & while :; do wait; done",
        ))
        .await;
    node.logs("c", "stdout F ready").await;
    node.finish(&[&id], &[uid]).await;
}

async fn says_why_a_container_cannot_start(on: On) {
    let node = Node::of(on, "nostart").await;
    let uid = pod();
    let mut container = node.script(uid, "c", "");
    container.command = vec!["/no/such/program".into()];
    let sandbox = node.sandbox(uid);
    node.runtime.prepare(&sandbox).await.unwrap();
    let id = node.runtime.create(&sandbox, &container).await.unwrap();
    let error = node.runtime.start(&id).await.unwrap_err();
    assert!(error.to_string().contains("/no/such/program"), "{error}");
    let mut missing = node.script(uid, "d", "true");
    missing.image = "no.such/image:1".into();
    let error = node.runtime.create(&sandbox, &missing).await.unwrap_err();
    assert!(matches!(error, RuntimeError::Missing { .. }), "{error}");
    node.finish(&[&id], &[uid]).await;
}

#[tokio::test]
async fn containerd_a_container_without_its_layer_is_made_anew() {
    let node = Node::new("layer").await;
    let uid = pod();
    let container = node.script(uid, "c", "exit 8");
    let sandbox = node.sandbox(uid);
    node.runtime.prepare(&sandbox).await.unwrap();
    let id = node.runtime.create(&sandbox, &container).await.unwrap();
    // What a power cut between the record and the layer leaves.
    node.ctr(&["snapshots", "rm", &id]);
    assert_eq!(node.seen(&id).await.unwrap().state, State::Created);
    let error = node.runtime.start(&id).await.unwrap_err();
    assert!(error.to_string().contains("made again"), "{error}");
    assert_eq!(node.seen(&id).await, None);
    assert_eq!(node.runtime.create(&sandbox, &container).await.unwrap(), id);
    node.runtime.start(&id).await.unwrap();
    assert_eq!(node.exit_code(&id).await, 8);
    node.finish(&[&id], &[uid]).await;
}

async fn runs_commands_inside(on: On) {
    let node = Node::of(on, "exec").await;
    let uid = pod();
    let id = node.run(&node.script(uid, "c", "export X=1; sleep 1000")).await;
    let exec = async |script: &str, limit| {
        node.runtime
            .exec(&id, &["/bin/sh", "-c", script].map(str::to_owned), limit)
            .await
    };
    let limit = Duration::from_secs(20);
    let done = exec("echo out; hostname; exit 7", limit).await.unwrap();
    assert_eq!((done.code, done.output.as_str()), (7, "out\nthe-pod\n"));
    assert_eq!(exec("echo err >&2", limit).await.unwrap().output, "err\n");
    let done = exec("yes | head -c 1000000", limit).await.unwrap();
    assert_eq!((done.code, done.output.len()), (0, 4096));
    // What it leaves behind does not hold us up.
    assert_eq!(exec("sleep 1000 & echo x", limit).await.unwrap().output, "x\n");
    let error = exec("echo x; sleep 1000", Duration::from_millis(200))
        .await
        .unwrap_err();
    assert!(matches!(error, RuntimeError::Timeout { .. }), "{error}");
    let error = node.runtime.exec(&id, &["/no/such".into()], limit).await.unwrap_err();
    assert!(error.to_string().contains("/no/such"), "{error}");
    assert!(matches!(node.seen(&id).await.unwrap().state, State::Running { .. }));
    node.finish(&[&id], &[uid]).await;
}

async fn containers_are_adopted(on: On) {
    let mut node = Node::of(on, "adopt").await;
    let uid = pod();
    let count = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.01; done";
    let id = node.run(&node.script(uid, "c", count)).await;
    let before = node.seen(&id).await.unwrap();
    let pids = node.contained();
    node.replace_client();
    assert_eq!(node.seen(&id).await.unwrap(), before);
    assert_eq!(node.runtime.list_pod(uid).await.unwrap(), [before]);
    assert_eq!(node.runtime.list_pod(pod()).await.unwrap(), []);
    let first = pids.first().unwrap();
    assert!(node.contained().contains(first));
    node.runtime.prepare(&node.sandbox(uid)).await.unwrap();
    let at = node.log("c").len();
    eventually("it logs on", async || (node.log("c").len() > at + 10).then_some(())).await;
    node.runtime.signal(&id, 9).await.unwrap();
    assert_eq!(node.exit_code(&id).await, 137);
    node.finish(&[&id], &[uid]).await;
}

#[tokio::test]
async fn containerd_may_die_while_containers_run_on() {
    let mut node = Node::new("crash").await;
    let uid = pod();
    let mut events = node.runtime.subscribe();
    event(&mut events, &Event::Back).await;
    let count = "i=0; while [ ! -e /stop ]; do echo $i; i=$((i+1)); sleep 0.01; done; exit 9";
    let runs = node.run(&node.script(uid, "runs", "echo ready; sleep 1000")).await;
    let ends = node.run(&node.script(uid, "ends", count)).await;
    let root = format!(
        "{}/cstate/io.containerd.runtime.v2.task/{}/{ends}/rootfs/stop",
        node.folder.display(),
        node.config.namespace
    );
    node.kill_daemon();
    event(&mut events, &Event::Lost).await;
    assert!(matches!(
        node.runtime.list().await,
        Err(RuntimeError::Unreachable { .. })
    ));
    let at = node.log("ends").len();
    eventually("it logs on", async || (node.log("ends").len() > at + 10).then_some(())).await;
    std::fs::write(root, "").unwrap();
    let settled = async || {
        let (before, after) = (
            node.log("ends").len(),
            tokio::time::sleep(Duration::from_millis(200)).await,
        );
        let () = after;
        (node.log("ends").len() == before).then_some(())
    };
    eventually("it ends", settled).await;

    node.start_daemon();
    event(&mut events, &Event::Back).await;
    assert_eq!(node.exit_code(&ends).await, 9);
    assert!(matches!(node.seen(&runs).await.unwrap().state, State::Running { .. }));
    let lines = node.log("ends");
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(*line, format!("stdout F {number}"));
    }
    node.finish(&[&runs, &ends], &[uid]).await;
}

async fn pods_survive_a_reboot_as_records(on: On) {
    let mut node = Node::of(on, "reboot").await;
    let uid = pod();
    let runs = node.script(uid, "runs", "echo ready; sleep 1000");
    let (running, ended) = (
        node.run(&runs).await,
        node.run(&node.script(uid, "ended", "exit 4")).await,
    );
    let created = node
        .runtime
        .create(&node.sandbox(uid), &node.script(uid, "created", "exit 6"))
        .await
        .unwrap();
    assert_eq!(node.exit_code(&ended).await, 4);

    // The power goes: all processes at once, and what is not on the disk.
    node.kill_daemon();
    node.reboot().await;
    if on == On::Containerd {
        node.start_daemon();
    }
    node.replace_client();
    node.answers().await;

    let state = async |id: &str| node.seen(id).await.unwrap().state;
    assert_eq!(node.exit_code(&running).await, 255);
    assert!(matches!(state(&running).await, State::Exited { oom_killed: false, .. }));
    assert!(matches!(state(&ended).await, State::Exited { code: 4, .. }));
    assert_eq!(state(&created).await, State::Created);
    // The next attempt, beside the old one's record.
    let mut next = runs.clone();
    next.labels.attempt = 1;
    let again = node.run(&next).await;
    assert!(matches!(state(&again).await, State::Running { .. }));
    node.runtime.start(&created).await.unwrap();
    assert_eq!(node.exit_code(&created).await, 6);
    node.finish(&[&running, &ended, &created, &again], &[uid]).await;
}

async fn tells_an_oom_kill(on: On) {
    let node = Node::of(on, "oom").await;
    let uid = pod();
    let mut container = node.script(uid, "c", "x=x; while :; do x=$x$x; done");
    container.limits = Limits { memory_limit_bytes: 16 << 20, ..Limits::default() };
    let id = node.run(&container).await;
    assert_eq!(node.exit_code(&id).await, 137);
    assert!(matches!(
        node.seen(&id).await.unwrap().state,
        State::Exited { oom_killed: true, .. }
    ));
    node.finish(&[&id], &[uid]).await;
}

async fn keeps_a_container_from_multiplying(on: On) {
    let node = Node::of(on, "pids").await;
    let uid = pod();
    // The shell, and as many beside it as the limit leaves.
    let script =
        "exec 2>&1; i=0; while [ $i -lt 7 ]; do sleep 1000 & i=$((i+1)); done; echo seven; sleep 1000 & echo eight";
    let mut container = node.script(uid, "c", script);
    container.limits.pids_max = 8;
    let id = node.run(&container).await;
    assert_eq!(node.exit_code(&id).await, 2);
    let said = node.log("c");
    assert!(
        said[0] == "stdout F seven" && said.len() == 2 && said[1].contains("can't fork"),
        "{said:?}"
    );
    node.finish(&[&id], &[uid]).await;
}

/// The lowest score that may be given here: a machine in a container may give none below its own.
fn lowest_score() -> i32 {
    let may_lower = Command::new("sh")
        .args(["-c", "echo -1000 >/proc/self/oom_score_adj"])
        .stderr(Stdio::null())
        .status();
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    if may_lower.unwrap().success() {
        -1000
    } else {
        own.trim().parse().unwrap()
    }
}

async fn goes_as_soon_as_it_is_told_when_memory_runs_out(on: On) {
    const SHOW: &str = "cat /proc/self/oom_score_adj";
    let node = Node::of(on, "score").await;
    let uid = pod();
    let mut ids = Vec::new();
    for wanted in [-997_i32, 3, 1000] {
        let name = format!("c{}", wanted.unsigned_abs());
        let mut container = node.script(uid, &name, &format!("{SHOW}; sleep 1000"));
        container.oom_score_adj = wanted;
        let id = node.run(&container).await;
        let score = wanted.max(lowest_score()).to_string();
        node.logs(&name, &format!("stdout F {score}")).await;
        // What is run in it as well.
        let command = ["/bin/sh", "-c", SHOW].map(str::to_owned);
        let said = node.runtime.exec(&id, &command, Duration::from_secs(60)).await.unwrap();
        assert_eq!((said.code, said.output.trim()), (0, score.as_str()));
        ids.push(id);
    }
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    node.finish(&ids, &[uid]).await;
}

async fn limits_what_a_container_may_do(on: On) {
    let node = Node::of(on, "limits").await;
    let uid = pod();
    let show = "id -u; id -g; id -G; pwd; echo $HOME; touch /x 2>&1; touch /ro/x 2>&1; cat /ro/file; \
                grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; echo $A$B";
    let source = node.folder.join("volume");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("file"), "content\n").unwrap();
    let mut container = node.script(uid, "c", show);
    container.env = vec![("A".into(), "a b".into()), ("B".into(), "=".into())];
    container.working_dir = Some("/made".into());
    container.mounts = vec![edgecore::runtime::Mount { source, target: "/ro".into(), read_only: true, exact: false }];
    container.security = Security {
        // The image's own: web, 1000.
        user: None,
        groups: vec![7],
        run_as_non_root: true,
        read_only_root: true,
        no_new_privileges: true,
        capabilities_added: vec!["NET_BIND_SERVICE".into()],
        capabilities_dropped: vec!["ALL".into()],
        ..Security::default()
    };
    let id = node.run(&container).await;
    assert_eq!(node.exit_code(&id).await, 0);
    let text: Vec<String> = node
        .log("c")
        .iter()
        .map(|line| line.trim_start_matches("stdout F ").replace('\t', " "))
        .collect();
    let expected = [
        "1000",
        "1000",
        "1000 7",
        "/made",
        "/",
        "touch: /x: Read-only file system",
        "touch: /ro/x: Read-only file system",
        "content",
        "CapEff: 0000000000000000",
        "CapBnd: 0000000000000400",
        "NoNewPrivs: 1",
        "a b=",
    ];
    assert_eq!(text, expected);
    let mut root = node.script(uid, "root", "true");
    root.security = Security { user: Some(0), run_as_non_root: true, ..Security::default() };
    let error = node.runtime.create(&node.sandbox(uid), &root).await.unwrap_err();
    assert!(
        matches!(error, RuntimeError::Invalid { .. }) && error.to_string().contains("root"),
        "{error}"
    );
    node.finish(&[&id], &[uid]).await;
}

async fn gives_a_container_a_terminal(on: On) {
    let node = Node::of(on, "tty").await;
    let uid = pod();
    // Its own and the group of terminals', whoever it runs as, so that it can be opened again by its name.
    let script = "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && stat -c '%u %g %a' /dev/pts/0 && echo again >/dev/pts/0 && \
                  echo console >/dev/console";
    let mut container = node.script(uid, "c", script);
    container.security.user = Some(1000);
    container.security.group = Some(1000);
    container.tty = true;
    let id = node.run(&container).await;
    assert_eq!(node.exit_code(&id).await, 0);
    node.logs("c", "stdout F console").await;
    let said: Vec<_> = node.log("c").iter().map(|line| line.trim_end().to_owned()).collect();
    assert_eq!(said, ["stdout F 1000 5 620", "stdout F again", "stdout F console"]);
    node.finish(&[&id], &[uid]).await;
}

async fn gives_a_privileged_container_the_machine(on: On) {
    let node = Node::of(on, "priv").await;
    let uid = pod();
    let mut container = node.script(
        uid,
        "c",
        "test -w /sys/kernel && test -e /dev/kmsg && mount -t tmpfs x /tmp && echo yes",
    );
    container.security.privileged = true;
    container.tty = true;
    let id = node.run(&container).await;
    assert_eq!(node.exit_code(&id).await, 0);
    // A terminal's lines end in CR LF; the log has them so, and `lines` here takes both.
    node.logs("c", "stdout F yes").await;
    node.finish(&[&id], &[uid]).await;
}

/// A container that may do everything may freeze itself: it ends all the same when it has to.
async fn kills_what_froze_itself(on: On) {
    let node = Node::of(on, "frozen").await;
    let uid = pod();
    let freeze = "cd /sys/fs/cgroup; echo ready; test -e freezer && echo FROZEN >freezer/freezer.state || echo 1 >cgroup.freeze; \
                  while true; do sleep 1; done";
    let mut container = node.script(uid, "c", freeze);
    container.security.privileged = true;
    let id = node.run(&container).await;
    node.logs("c", "stdout F ready").await;
    let frozen = |pid: u32| {
        let wait = std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        wait.contains("refrigerator") || wait.contains("freez") || wait.contains("do_signal")
    };
    eventually("it is frozen", async || {
        node.contained().into_iter().any(frozen).then_some(())
    })
    .await;
    node.runtime.signal(&id, 9).await.unwrap();
    assert_eq!(node.exit_code(&id).await, 137);
    node.finish(&[&id], &[uid]).await;
}

/// A container sees its limits and changes none of them, also as root.
async fn keeps_its_limits_from_a_container(on: On) {
    let node = Node::of(on, "cgroups").await;
    let uid = pod();
    let show = "cd /sys/fs/cgroup; for file in memory/memory.limit_in_bytes memory.max; do test -e $file && cat $file; done; \
                for file in $(find . -type f -perm -u+w | head -500); do echo 1 2>/dev/null >$file && echo changed $file; done; \
                for folder in . *; do mkdir $folder/own 2>/dev/null && test -e $folder/own/cgroup.procs && echo made $folder; done; \
                echo end";
    let mut container = node.script(uid, "c", show);
    container.security = Security { user: Some(0), ..Security::default() };
    container.limits = Limits { memory_limit_bytes: 32 << 20, ..Limits::default() };
    let id = node.run(&container).await;
    assert_eq!(node.exit_code(&id).await, 0);
    assert_eq!(node.log("c"), ["stdout F 33554432", "stdout F end"]);
    node.finish(&[&id], &[uid]).await;
}

async fn keeps_devices_from_a_container(on: On) {
    let node = Node::of(on, "devices").await;
    let uid = pod();
    // The kernel's log: a device that every machine has.
    let show = "mknod /tmp/log c 1 11; head -c1 /tmp/log 2>&1; echo >/dev/null && head -c1 /dev/zero | wc -c";
    let id = node.run(&node.script(uid, "c", show)).await;
    assert_eq!(node.exit_code(&id).await, 0);
    let lines = node.log("c");
    assert!(lines[0].ends_with("/tmp/log: Operation not permitted"), "{lines:?}");
    assert_eq!(lines[1..], ["stdout F 1"]);
    node.finish(&[&id], &[uid]).await;
}

async fn logs_lose_nothing_and_turn_over(on: On) {
    let mut node = Node::empty_of(on, "logs").await;
    node.config.log_bytes_max = 400_000;
    node.config.log_files_max = 3;
    node.replace_client();
    node.runtime.import(&super::node::archive("web")).await.unwrap();
    let uid = pod();
    let id = node.run(&node.script(uid, "c", "seq 20000")).await;
    assert_eq!(node.exit_code(&id).await, 0);
    let folder = node.folder.join("logs/c");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    let all = [read("0.log.2"), read("0.log.1"), read("0.log")].concat();
    let numbers: Vec<u32> = all
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(*numbers.last().unwrap(), 20_000);
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
    assert!(
        numbers.len() > 10_000 && !folder.join("0.log.3").exists(),
        "{}",
        numbers.len()
    );
    node.finish(&[&id], &[uid]).await;
}

#[tokio::test]
async fn containerd_removes_what_was_never_started() {
    let node = Node::new("created").await;
    let uid = pod();
    let sandbox = node.sandbox(uid);
    node.runtime.prepare(&sandbox).await.unwrap();
    let id = node
        .runtime
        .create(&sandbox, &node.script(uid, "c", "exit 2"))
        .await
        .unwrap();
    let other = node
        .runtime
        .create(&sandbox, &node.script(uid, "d", "exit 3"))
        .await
        .unwrap();
    // The edge core died between making the task and starting it.
    let made = make_task_only(&node.config, &[&id, &other]).await;
    assert_eq!(made, 2);
    assert_eq!(node.seen(&id).await.unwrap().state, State::Created);
    node.runtime.start(&other).await.unwrap();
    assert_eq!(node.exit_code(&other).await, 3);
    node.finish(&[&id, &other], &[uid]).await;
}

/// What starting does first, without the rest; by containerd's own services, as another edge core would.
async fn make_task_only(config: &Config, ids: &[&str]) -> usize {
    use containerd_client::services::v1::CreateTaskRequest;
    use containerd_client::services::v1::snapshots::MountsRequest;
    use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
    use containerd_client::services::v1::tasks_client::TasksClient;
    use containerd_client::tonic::Request;

    let channel = containerd_client::connect(&config.socket).await.unwrap();
    fn named<T>(config: &Config, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request
            .metadata_mut()
            .insert("containerd-namespace", config.namespace.parse().unwrap());
        request
    }
    let mut made = 0;
    for id in ids {
        let mounts = MountsRequest { snapshotter: "overlayfs".into(), key: (*id).to_owned() };
        let rootfs = SnapshotsClient::new(channel.clone())
            .mounts(named(config, mounts))
            .await
            .unwrap()
            .into_inner()
            .mounts;
        let task = CreateTaskRequest {
            container_id: (*id).to_owned(),
            rootfs,
            ..CreateTaskRequest::default()
        };
        TasksClient::new(channel.clone())
            .create(named(config, task))
            .await
            .unwrap();
        made += 1;
    }
    made
}

async fn takes_many_pods_at_once(on: On) {
    let node = std::sync::Arc::new(Node::of(on, "many").await);
    let mut starting = tokio::task::JoinSet::new();
    for number in 0..8 {
        let (node, uid) = (node.clone(), pod());
        starting.spawn(async move {
            let sandbox = node.sandbox(uid);
            node.runtime.prepare(&sandbox).await.unwrap();
            let mut ids = Vec::new();
            for name in ["x", "y"] {
                let container = node.script(uid, &format!("{name}{number}"), "trap 'exit 0' TERM; sleep 1000 & wait");
                let id = node.runtime.create(&sandbox, &container).await.unwrap();
                node.runtime.start(&id).await.unwrap();
                ids.push(id);
            }
            (uid, ids)
        });
    }
    let started = starting.join_all().await;
    // Attempts that end while two look at them: both see the one end.
    let uid = pod();
    let fails = node.run(&node.script(uid, "fails", "exit 3")).await;
    loop {
        let (all, own) = tokio::join!(node.runtime.list(), node.runtime.list_pod(uid));
        let all = all.unwrap().into_iter().find(|seen| seen.id == fails).unwrap().state;
        let own = own.unwrap().remove(0).state;
        let code = |state: &State| match state {
            State::Exited { code, .. } => Some(*code),
            _ => None,
        };
        assert!(
            code(&all).is_none_or(|code| code == 3) && code(&own).is_none_or(|code| code == 3),
            "{all:?} {own:?}"
        );
        if code(&all).is_some() && code(&own).is_some() {
            break;
        }
    }
    node.runtime.remove(&fails).await.unwrap();
    node.runtime.release(uid).await.unwrap();
    let seen = node.runtime.list().await.unwrap();
    assert_eq!(seen.len(), 16);
    assert!(seen.iter().all(|seen| matches!(seen.state, State::Running { .. })));
    assert_eq!(node.shims().len(), 8);
    let mut ending = tokio::task::JoinSet::new();
    for (uid, ids) in started {
        let node = node.clone();
        ending.spawn(async move {
            for id in ids {
                node.runtime.signal(&id, 15).await.unwrap();
                node.runtime.remove(&id).await.unwrap();
            }
            node.runtime.release(uid).await.unwrap();
        });
    }
    ending.join_all().await;
    let Ok(node) = std::sync::Arc::try_unwrap(node) else {
        panic!("all tasks have ended")
    };
    node.finish(&[], &[]).await;
}

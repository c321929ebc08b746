//! One container's life, and what it outlives.

use std::time::Duration;

use edgecore::runtime::containerd::Config;
use edgecore::runtime::{Event, Runtime as _, RuntimeError, State};

use super::node::{Node, On, WEB, event, eventually, on_both, pod};

on_both!(
    runs_a_container_to_its_end,
    repeated_calls_change_nothing,
    removes_what_still_runs,
    says_why_a_container_cannot_start,
    runs_commands_inside,
    containers_are_adopted,
    pods_survive_a_reboot_as_records,
    gives_a_container_a_terminal,
    kills_what_froze_itself,
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

//! Containers with no daemon: what their shims outlive, and what outlives them.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use edgecore::runtime::{Container, Event, Mount, Runtime as _, Security, State};
use proto::object::Uid;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::host::{fill, kill};
use super::node::{Node, On, event, eventually, pod};

const COUNT: &str = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.01; done";

async fn node(name: &str) -> Node {
    Node::of(On::Embedded, name).await
}

/// A pod's one shim.
async fn shim(node: &Node) -> u32 {
    eventually("there is one shim", async || match node.shims().as_slice() {
        [one] => Some(*one),
        _ => None,
    })
    .await
}

/// The log's numbers are all there, in order.
fn assert_counts(lines: &[String]) {
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(*line, format!("stdout F {number}"));
    }
}

#[tokio::test]
async fn embedded_containers_outlive_their_shim() {
    let node = node("shimless").await;
    let uid = pod();
    let mut events = node.runtime.subscribe();
    event(&mut events, &Event::Back).await;
    let (runs, ends) = (node.script(uid, "runs", COUNT), node.script(uid, "ends", "sleep 1000"));
    let (runs, ends) = (node.run(&runs).await, node.run(&ends).await);
    let before = node.seen(&runs).await.unwrap();
    let old = shim(&node).await;
    kill(old);
    // Another one takes over without being asked, and what runs felt nothing.
    eventually("another shim", async || (shim(&node).await != old).then_some(())).await;
    event(&mut events, &Event::Pod(uid)).await;
    assert_eq!(node.seen(&runs).await.unwrap(), before);
    let at = node.log("runs").len();
    eventually("it logs on", async || (node.log("runs").len() > at + 10).then_some(())).await;
    assert_counts(&node.log("runs"));
    // Not its child: that it ended is seen, and how is not known.
    node.runtime.signal(&ends, 9).await.unwrap();
    assert_eq!(node.exit_code(&ends).await, 255);
    assert!(matches!(node.seen(&runs).await.unwrap().state, State::Running { .. }));
    node.finish(&[&runs, &ends], &[uid]).await;
}

#[tokio::test]
async fn embedded_a_container_that_ends_without_a_shim_has_ended() {
    let mut node = node("unseen").await;
    let uid = pod();
    let id = node.run(&node.script(uid, "c", "echo ready; sleep 1000")).await;
    node.logs("c", "stdout F ready").await;
    // Nobody is there to start another shim.
    node.forget_client();
    let shim = shim(&node).await;
    let first: Vec<u32> = node.contained().into_iter().filter(|pid| *pid != shim).collect();
    kill(shim);
    for pid in first {
        kill(pid);
    }
    eventually("all is dead", async || node.contained().is_empty().then_some(())).await;
    node.replace_client();
    assert_eq!(node.exit_code(&id).await, 255);
    node.finish(&[&id], &[uid]).await;
}

#[tokio::test]
async fn embedded_no_exit_code_is_lost_while_the_edge_core_is_away() {
    let mut node = node("away").await;
    let uid = pod();
    let mut ids = Vec::new();
    for code in [0, 7, 42] {
        let script = format!("trap 'exit {code}' TERM; echo ready; sleep 1000 & wait");
        ids.push((node.run(&node.script(uid, &format!("c{code}"), &script)).await, code));
        node.logs(&format!("c{code}"), "stdout F ready").await;
    }
    let shim = shim(&node).await;
    node.forget_client();
    // By a client of the first release, to its letter.
    let held = ask(&node, uid, b"\x01\x00");
    assert_eq!(&held[..3], b"\x01\x01\x03");
    for (id, _) in &ids {
        let mut signal = vec![1, 2, u8::try_from(id.len()).unwrap()];
        signal.extend_from_slice(id.as_bytes());
        signal.push(15);
        assert_eq!(ask(&node, uid, &signal), b"\x01\x00", "{id}");
    }
    eventually("the shim has nothing left to do", async || {
        (!node.shims().contains(&shim)).then_some(())
    })
    .await;
    node.replace_client();
    for (id, code) in &ids {
        assert_eq!(node.exit_code(id).await, *code);
    }
    let ids: Vec<&str> = ids.iter().map(|(id, _)| id.as_str()).collect();
    node.finish(&ids, &[uid]).await;
}

#[tokio::test]
async fn embedded_what_a_shim_does_not_know_it_says() {
    let node = node("later").await;
    let uid = pod();
    let id = node.run(&node.script(uid, "c", "sleep 1000")).await;
    // Of a later release; garbled; no such container; more than a message may be.
    let refused = |bytes: &[u8], part: &str| {
        let answer = ask(&node, uid, bytes);
        assert_eq!(&answer[..2], b"\x01\x04", "{answer:?}");
        let said = String::from_utf8_lossy(&answer[3..]).into_owned();
        assert!(said.contains(part), "{said}");
    };
    refused(b"\x02\x00", "version 2");
    refused(b"\x01\x7f", "cannot be read");
    refused(&vec![1; 9000], "cannot be read");
    assert_eq!(ask(&node, uid, b"\x01\x02\x01x\x0f"), b"\x01\x03");
    // It is asked to end, and holds something.
    assert_eq!(ask(&node, uid, b"\x01\x04"), b"\x01\x00");
    assert!(matches!(node.seen(&id).await.unwrap().state, State::Running { .. }));
    node.finish(&[&id], &[uid]).await;
}

#[tokio::test]
async fn embedded_a_record_of_a_later_release_is_left_alone() {
    let node = node("newer").await;
    let (uid, other) = (pod(), pod());
    let (id, fine) = (
        node.run(&node.script(uid, "c", "exit 3")).await,
        node.run(&node.script(other, "d", "exit 4")).await,
    );
    assert_eq!((node.exit_code(&id).await, node.exit_code(&fine).await), (3, 4));
    let record = node
        .folder
        .join("edge/embedded/pods")
        .join(uid.to_string())
        .join(&id)
        .join("exit");
    let good = std::fs::read(&record).unwrap();
    let mut later = good.clone();
    later[0] = 2;
    for (bad, part) in [
        (later.as_slice(), "version 2"),
        (&good[..7], "damaged"),
        (b"", "damaged"),
    ] {
        std::fs::write(&record, bad).unwrap();
        // The pod's own look fails, so that nothing is decided; the others' go on.
        let error = node.runtime.list_pod(uid).await.unwrap_err().to_string();
        assert!(
            error.contains(part) && error.contains(record.to_str().unwrap()),
            "{error}"
        );
        assert_eq!(node.runtime.list().await.unwrap().len(), 1);
        assert!(node.runtime.release(uid).await.is_err());
        assert_eq!(std::fs::read(&record).unwrap(), bad);
    }
    std::fs::write(&record, good).unwrap();
    assert_eq!(node.exit_code(&id).await, 3);
    node.finish(&[&id, &fine], &[uid, other]).await;
}

#[tokio::test]
async fn embedded_programs_start_with_what_they_expect() {
    let node = node("clean").await;
    let uid = pod();
    // Signals as they are for any program; its own outputs by their names; no descriptor of ours.
    let show = "grep -E 'Sig(Blk|Ign)' /proc/self/status; echo named >/proc/self/fd/1; ls /proc/self/fd; true";
    let mut container = node.script(uid, "c", show);
    container.security = Security { user: Some(1234), ..Security::default() };
    let id = node.run(&container).await;
    assert_eq!(node.exit_code(&id).await, 0);
    let mut lines: Vec<String> = node.log("c").iter().map(|line| line.replace('\t', " ")).collect();
    let ignored = u64::from_str_radix(lines.remove(1).rsplit(' ').next().unwrap(), 16).unwrap();
    // But for the two that the C library keeps for itself, which whoever runs the tests may have left so.
    assert_eq!(ignored & !(3 << 31), 0, "{ignored:x}");
    let zero = "0000000000000000";
    let expected = [format!("stdout F SigBlk: {zero}"), "stdout F named".into()];
    assert_eq!(lines[..2], expected);
    // The last is the folder itself, being listed.
    assert_eq!(lines[2..], ["0", "1", "2", "3"].map(|word| format!("stdout F {word}")));
    node.finish(&[&id], &[uid]).await;
}

#[tokio::test]
async fn embedded_what_cannot_be_run_says_why() {
    let node = node("format").await;
    let uid = pod();
    let source = node.folder.join("program");
    std::fs::write(&source, b"\x7fELF of no machine there is").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&source, mode).unwrap();
    let mut container = node.script(uid, "c", "");
    container.mounts = vec![Mount {
        source,
        target: "/program".into(),
        read_only: true,
        exact: false,
    }];
    container.command = vec!["/program".into()];
    let sandbox = node.sandbox(uid);
    node.runtime.prepare(&sandbox).await.unwrap();
    let id = node.runtime.create(&sandbox, &container).await.unwrap();
    let error = node.runtime.start(&id).await.unwrap_err().to_string();
    assert!(
        error.contains("/program") && error.contains("another kind of machine"),
        "{error}"
    );
    assert_eq!(node.exit_code(&id).await, 128);
    node.finish(&[&id], &[uid]).await;
}

/// What a pod's shim answers to these bytes.
fn ask(node: &Node, pod: Uid, request: &[u8]) -> Vec<u8> {
    let socket = tell(node, pod, request);
    let mut answer = vec![0; 8192];
    let (_, length) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty()).unwrap();
    answer.truncate(length);
    answer
}

/// Sends a request; the answer comes from the socket.
fn tell(node: &Node, pod: Uid, request: &[u8]) -> OwnedFd {
    let path: PathBuf = node.folder.join("run/shims").join(pod.to_string()).join("shim.sock");
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::send(&socket, request, SendFlags::NOSIGNAL).unwrap();
    socket
}

/// An edge core may ask for a start and end, and the next one asks again while the container is made.
#[tokio::test]
async fn embedded_a_start_that_is_asked_for_twice_is_one() {
    let node = node("twice").await;
    let uid = pod();
    let first = node.run(&node.script(uid, "first", "sleep 1000")).await;
    let second = node.script(uid, "second", "echo begun; sleep 1000");
    let second = node.runtime.create(&node.sandbox(uid), &second).await.unwrap();
    let mut start = vec![1, 3, u8::try_from(second.len()).unwrap()];
    start.extend_from_slice(second.as_bytes());
    let unheard = tell(&node, uid, &start);
    assert_eq!(ask(&node, uid, &start), b"\x01\x00");
    drop(unheard);
    node.logs("second", "stdout F begun").await;
    assert!(matches!(node.seen(&second).await.unwrap().state, State::Running { .. }));
    assert_eq!(node.log("second"), ["stdout F begun"]);
    node.finish(&[&first, &second], &[uid]).await;
}

/// A container that ends with code 5 once a file is there.
fn ends_when_told(node: &Node, pod: Uid) -> (Container, PathBuf) {
    let flags = node.folder.join("flags");
    std::fs::create_dir_all(&flags).unwrap();
    let mut container = node.script(pod, "c", "until [ -e /flags/go ]; do sleep 0.05; done; exit 5");
    container.mounts = vec![Mount {
        source: flags.clone(),
        target: "/flags".into(),
        read_only: true,
        exact: false,
    }];
    (container, flags.join("go"))
}

/// What ends where there is room nowhere is known as soon as there is, with its code.
#[tokio::test]
async fn embedded_an_exit_that_found_no_room_anywhere_waits_for_it() {
    let smalls = vec![("edge/embedded", "size=64m"), ("run", "size=4m")];
    let node = Node::small_of(On::Embedded, "noroom", smalls).await.with_image().await;
    let uid = pod();
    let (container, go) = ends_when_told(&node, uid);
    let id = node.run(&container).await;
    let fillers = ["edge/embedded", "run"].map(|folder| fill(&node.folder.join(folder)));
    std::fs::write(go, "").unwrap();
    let shims = node.shims();
    eventually("nothing of it runs", async || {
        node.contained().iter().all(|pid| shims.contains(pid)).then_some(())
    })
    .await;
    assert!(matches!(node.seen(&id).await.unwrap().state, State::Running { .. }));
    for filler in fillers {
        std::fs::remove_file(filler).unwrap();
    }
    assert_eq!(node.exit_code(&id).await, 5);
    node.finish(&[&id], &[uid]).await;
}

/// What ends on a full disk is written down where a reboot takes it, and on the disk as soon as there is room.
#[tokio::test]
async fn embedded_an_exit_that_found_no_room_is_kept_once_there_is() {
    let smalls = vec![("edge/embedded", "size=64m")];
    let node = Node::small_of(On::Embedded, "exitroom", smalls)
        .await
        .with_image()
        .await;
    let uid = pod();
    let (container, go) = ends_when_told(&node, uid);
    let id = node.run(&container).await;
    let filler = fill(&node.folder.join("edge/embedded"));
    std::fs::write(go, "").unwrap();
    assert_eq!(node.exit_code(&id).await, 5);
    let kept = node
        .folder
        .join("edge/embedded/pods")
        .join(uid.to_string())
        .join(&id)
        .join("exit");
    assert!(!kept.exists(), "there is no room for it");
    assert_eq!(node.exit_code(&id).await, 5, "and it is known all the same");
    std::fs::remove_file(filler).unwrap();
    assert_eq!(node.exit_code(&id).await, 5);
    assert!(kept.exists());
    // What a reboot leaves.
    let run = node.folder.join("run/shims").join(uid.to_string()).join(&id);
    std::fs::remove_dir_all(run).unwrap();
    assert_eq!(node.exit_code(&id).await, 5);
    node.finish(&[&id], &[uid]).await;
}

//! What containers of one pod share, and what pods do not.

use std::path::Path;
use std::process::Command;

use edgecore::runtime::{Container, Mount, Runtime as _, State};

use super::node::{Node, On, eventually, on_both, pod};

on_both!(
    containers_of_a_pod_share_one_shim_and_their_namespaces,
    shares_the_hosts_namespaces_when_told,
    pods_meet_in_the_pod_network,
    a_network_that_fails_leaves_nothing,
    files_are_mounted_where_an_image_has_links,
);

async fn containers_of_a_pod_share_one_shim_and_their_namespaces(on: On) {
    let node = Node::of(on, "shared").await;
    let (uid, other) = (pod(), pod());
    let show = "for n in net ipc uts; do readlink /proc/self/ns/$n; done; hostname";
    let web = "httpd -p 8080 -h /srv; echo shared > /dev/shm/x; sleep 1000";
    let a = node.run(&node.script(uid, "a", &format!("{show}; {web}"))).await;
    let get = "until wget -q -O - http://127.0.0.1:8080/; do sleep 0.1; done; until cat /dev/shm/x; do sleep 0.1; done";
    let b = node
        .run(&node.script(uid, "b", &format!("{show}; ({get}) 2>/dev/null; sleep 1000")))
        .await;
    let c = node
        .run(&node.script(other, "c", &format!("{show}; ls /dev/shm; ip -o addr; sleep 1000")))
        .await;
    node.logs("b", "stdout F shared").await;
    node.logs("b", "stdout F <title>Edgehold</title>").await;
    eventually("c shows", async || (node.log("c").len() > 4).then_some(())).await;
    let (in_a, in_b, in_c) = (node.log("a"), node.log("b"), node.log("c"));
    assert_eq!(in_a[..4], in_b[..4]);
    assert_eq!(in_a[3], "stdout F the-pod");
    for at in 0..3 {
        assert_ne!(in_a[at], in_c[at]);
    }
    // No pod network: a loopback device that is up, and nothing else.
    assert!(in_c[4..].iter().all(|line| line.contains(": lo")), "{in_c:?}");
    assert!(in_c[4..].iter().any(|line| line.contains("127.0.0.1/8")), "{in_c:?}");
    assert_eq!(node.shims().len(), 2);
    node.finish(&[&a, &b, &c], &[uid, other]).await;
}

async fn shares_the_hosts_namespaces_when_told(on: On) {
    let node = Node::of(on, "host").await;
    let uid = pod();
    let mut sandbox = node.sandbox(uid);
    (sandbox.host_network, sandbox.host_pid, sandbox.host_ipc) = (true, true, true);
    node.runtime.prepare(&sandbox).await.unwrap();
    let container = node.script(uid, "c", "for n in net ipc uts pid; do readlink /proc/self/ns/$n; done");
    let id = node.runtime.create(&sandbox, &container).await.unwrap();
    node.runtime.start(&id).await.unwrap();
    assert_eq!(node.exit_code(&id).await, 0);
    let link = |name: &str| {
        format!(
            "stdout F {}",
            std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap().display()
        )
    };
    assert_eq!(node.log("c"), ["net", "ipc", "uts", "pid"].map(link));
    node.finish(&[&id], &[uid]).await;
}

/// A bridge of this test's own, taken down with it.
struct Bridge(String);

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.0]).status();
    }
}

/// The network of this test's process: others run beside it. `10.N.M`.
fn prefix() -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("10.{}.{low}", 128 + high % 64)
}

fn configure(node: &Node, bridge: &Bridge) {
    let data = node.folder.join("ipam");
    let subnet = format!("{}.0/24", prefix());
    let list = serde_json::json!({
        "cniVersion": "0.4.0",
        "name": "test",
        "plugins": [{
            "type": "bridge", "bridge": bridge.0, "isGateway": true, "ipMasq": false,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]], "dataDir": data}
        }]
    });
    std::fs::write(node.config.cni.conf_dir.join("10-test.conflist"), list.to_string()).unwrap();
}

/// The addresses given out.
fn leases(node: &Node) -> Vec<String> {
    let entries = std::fs::read_dir(node.folder.join("ipam/test")).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let mut addresses: Vec<_> = names.filter(|name| name.starts_with("10.")).collect();
    addresses.sort();
    addresses
}

async fn pods_meet_in_the_pod_network(on: On) {
    let mut node = Node::of(on, "cni").await;
    let bridge = Bridge(format!("eht{}", std::process::id()));
    configure(&node, &bridge);
    let (a, b) = (pod(), pod());
    let network = node.runtime.prepare(&node.sandbox(a)).await.unwrap();
    let (first, second) = (format!("{}.2", prefix()), format!("{}.3", prefix()));
    assert_eq!(network.addresses, [first.as_str()]);
    let server = node.run(&node.script(a, "a", "httpd -f -p 80 -h /srv")).await;
    let get = format!("until wget -q -O - http://{first}/ 2>/dev/null; do sleep 0.1; done");
    let client = node.run(&node.script(b, "b", &get)).await;
    node.logs("b", "stdout F <title>Edgehold</title>").await;
    assert_eq!(node.exit_code(&client).await, 0);
    assert_eq!(leases(&node), [first, second]);

    // Adopted as it is, and repaired when somebody took it away.
    node.replace_client();
    assert_eq!(node.runtime.prepare(&node.sandbox(a)).await.unwrap(), network);
    let netns = node.folder.join(format!("run/pods/{a}/net"));
    let netns = format!("--net={}", netns.display());
    assert!(
        Command::new("nsenter")
            .args([&netns, "ip", "link", "del", "eth0"])
            .status()
            .unwrap()
            .success()
    );
    node.replace_client();
    let repaired = node.runtime.prepare(&node.sandbox(a)).await.unwrap();
    assert_eq!(repaired.addresses.len(), 1);
    assert!(
        Command::new("nsenter")
            .args([&netns, "ip", "link", "show", "eth0"])
            .status()
            .unwrap()
            .success()
    );
    assert!(matches!(node.seen(&server).await.unwrap().state, State::Running { .. }));

    node.runtime.remove(&server).await.unwrap();
    // The configuration is gone; what was added with it is taken away with it all the same.
    std::fs::remove_file(node.config.cni.conf_dir.join("10-test.conflist")).unwrap();
    node.runtime.release(a).await.unwrap();
    node.runtime.remove(&client).await.unwrap();
    node.runtime.release(b).await.unwrap();
    assert_eq!(leases(&node), Vec::<String>::new());
    node.finish(&[], &[]).await;
}

async fn a_network_that_fails_leaves_nothing(on: On) {
    let node = Node::of(on, "cnifail").await;
    let bridge = Bridge(format!("ehf{}", std::process::id()));
    configure(&node, &bridge);
    let path = node.config.cni.conf_dir.join("10-test.conflist");
    let list = std::fs::read_to_string(&path).unwrap();
    let broken = list.replace("}]}", "},{\"type\":\"no-such-plugin\"}]}");
    assert_ne!(list, broken);
    std::fs::write(&path, broken).unwrap();
    let uid = pod();
    let error = node.runtime.prepare(&node.sandbox(uid)).await.unwrap_err();
    assert!(error.to_string().contains("no-such-plugin"), "{error}");
    std::fs::write(&path, list).unwrap();
    assert_eq!(
        node.runtime.prepare(&node.sandbox(uid)).await.unwrap().addresses.len(),
        1
    );
    assert_eq!(leases(&node).len(), 1);
    node.finish(&[], &[uid]).await;
}

/// Links that lead to nothing, up and out: what a pod's containers read there is the pod's all the same, and nothing is
/// made outside of their root.
async fn files_are_mounted_where_an_image_has_links(on: On) {
    let node = Node::empty_of(on, "links").await;
    let links = [
        ("etc/resolv.conf", "/run/systemd/resolve/stub-resolv.conf"),
        ("etc/hosts", "../nowhere/at/all/hosts"),
        ("etc/hostname", "/../../etc/hostname.real"),
    ];
    let image = super::safety::image_with(&node, &links).await;
    let uid = pod();
    let files = ["resolv.conf", "hosts", "hostname"];
    let source = node.folder.join("etc");
    std::fs::create_dir_all(&source).unwrap();
    let mut container = node.script(uid, "c", "for f in resolv.conf hosts hostname; do cat /etc/$f; done");
    container.image = image;
    for file in files {
        std::fs::write(source.join(file), format!("the {file} of the pod\n")).unwrap();
        container.mounts.push(Mount {
            source: source.join(file),
            target: format!("/etc/{file}"),
            read_only: true,
            exact: false,
        });
    }
    let id = node.run(&container).await;
    assert_eq!(node.exit_code(&id).await, 0);
    assert_eq!(
        node.log("c"),
        files.map(|file| format!("stdout F the {file} of the pod"))
    );
    for outside in ["/nowhere", "/etc/hostname.real"] {
        assert!(!Path::new(outside).exists(), "{outside}");
    }
    node.finish(&[&id], &[uid]).await;
}

/// Memory of the processes around containers, in KiB: resident and proportional.
fn memory(pids: &[u32]) -> (u64, u64) {
    let field = |pid: &u32, name: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name).map(str::to_owned))
            .unwrap_or_default();
        line.split_whitespace()
            .next()
            .and_then(|count| count.parse::<u64>().ok())
            .unwrap_or(0)
    };
    (
        pids.iter().map(|pid| field(pid, "Rss:")).sum(),
        pids.iter().map(|pid| field(pid, "Pss:")).sum(),
    )
}

#[tokio::test]
#[ignore = "measures, and is for reading"]
async fn containerd_memory_of_shims_and_log_processes() {
    for count in [1, 10] {
        let node = Node::new("memory").await;
        let uid = pod();
        let containers: Vec<Container> = (0..count)
            .map(|number| node.script(uid, &format!("c{number}"), "echo ready; sleep 1000"))
            .collect();
        let mut ids = Vec::new();
        for container in &containers {
            ids.push(node.run(container).await);
            node.logs(&container.labels.container, "stdout F ready").await;
        }
        let (shims, logs) = (node.shims(), node.log_shims());
        let (shim, log) = (memory(&shims), memory(&logs));
        println!(
            "{count} containers: {} shims RSS {} KiB PSS {} KiB; {} log processes RSS {} KiB PSS {} KiB",
            shims.len(),
            shim.0,
            shim.1,
            logs.len(),
            log.0,
            log.1
        );
        node.finish(&ids.iter().map(String::as_str).collect::<Vec<_>>(), &[uid])
            .await;
    }
}

//! What containers wrote, read by people: real containers on a node that nobody can reach, real kubectl and edgectl.

use std::collections::BTreeSet;

use tests::cores::{CloudCore, EdgeCore, eventually};
use tests::processes::kubectl;
use tests::shell::{Shell, has};

use super::node::{Node, On, WEB, on_both, on_both_in_full};
use super::site;

on_both!(logs_are_read_from_a_node_that_nobody_can_reach, last_words_are_followed,);
on_both_in_full!(logs_are_followed);

/// `quiet` says three lines. `talk` ends once with a word on its standard error, and then says a line every now and then.
fn manifest() -> String {
    format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: talk}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: talk}}}}
  template:
    metadata: {{labels: {{app: talk}}}}
    spec:
      terminationGracePeriodSeconds: 1
      volumes: [{{name: state, emptyDir: {{}}}}]
      containers:
      - name: quiet
        image: {WEB}
        command: [/bin/sh, -c, 'trap "exit 0" TERM; echo one; echo two; echo three; while true; do sleep 1; done']
      - name: talk
        image: {WEB}
        volumeMounts: [{{name: state, mountPath: /state}}]
        command:
        - /bin/sh
        - -c
        - |
          trap "exit 0" TERM
          if [ ! -e /state/been ]; then echo the first life >&2; : > /state/been; exit 1; fi
          echo the second life
          i=0
          while true; do i=$((i + 1)); echo "line $i"; sleep 0.1; done
"#
    )
}

/// A node with its cloud, and both programs.
struct Site {
    node: Box<Node>,
    cloud: CloudCore,
    edge: EdgeCore,
    shells: [Shell; 2],
    /// One of the deployment's pods.
    pod: String,
}

impl Site {
    async fn start(on: On, name: &str) -> Self {
        let node = Box::new(Node::of(on, name).await);
        let cloud = CloudCore::start(&node.folder.join("c")).await;
        let config = node.edge_config();
        // So that its silence shows soon.
        let text = std::fs::read_to_string(&config).unwrap() + "[link]\nbeat_s = 5\n";
        std::fs::write(&config, text).unwrap();
        let mut edge = EdgeCore::join(&cloud, "edge-1", &config);
        edge.start();
        let shells = [cloud.edgectl(), cloud.shell(kubectl())];
        shells[0].apply(&manifest()).await;
        let ready = |out: &str| out.matches("2/2").count() == 2 && out.matches("Running").count() == 2;
        let pods = shells[0].until("get pods -l app=talk", ready).await;
        let pod = pods
            .lines()
            .nth(1)
            .and_then(|line| line.split_whitespace().next())
            .unwrap();
        // Both have ended once and talk again.
        for shell in &shells {
            shell
                .until(&format!("logs {pod} -c talk"), |out| out.contains("line 3"))
                .await;
        }
        let pod = pod.to_owned();
        Self { node, cloud, edge, shells, pod }
    }

    async fn finish(self) {
        let Self { node, mut cloud, edge, shells, .. } = self;
        shells[0].ok("delete deploy talk").await;
        shells[0].until("get pods", |out| out.contains("nothing found")).await;
        eventually("the containers are gone", async || node.is_empty().then_some(())).await;
        drop(edge);
        cloud.stop().await;
        node.finish(&[], &[]).await;
    }
}

/// How many TCP sockets of a process wait for connections, and how many UDP sockets it has.
fn sockets(pid: u32) -> (usize, usize) {
    let table = |name: &str, state: &str| -> BTreeSet<String> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap();
        let rows = text
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.filter(|row| state.is_empty() || row[3] == state)
            .map(|row| format!("socket:[{}]", row[9]))
            .collect()
    };
    let own: BTreeSet<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            std::fs::read_link(entry.path())
                .ok()?
                .into_os_string()
                .into_string()
                .ok()
        })
        .collect();
    let count = |tables: [(&str, &str); 2]| -> usize {
        let counts = tables.map(|(name, state)| table(name, state).intersection(&own).count());
        counts.iter().sum()
    };
    const LISTEN: &str = "0A";
    (
        count([("tcp", LISTEN), ("tcp6", LISTEN)]),
        count([("udp", ""), ("udp6", "")]),
    )
}

/// The numbers of the lines that `talk` says.
fn numbers(text: &str) -> Vec<u32> {
    let lines = text
        .lines()
        .filter_map(|line| line.rsplit_once("line ").map(|(_, number)| number));
    lines.map(|number| number.parse().unwrap()).collect()
}

fn follows(numbers: &[u32]) -> bool {
    numbers.windows(2).all(|pair| pair[1] == pair[0] + 1)
}

async fn logs_are_read_from_a_node_that_nobody_can_reach(on: On) {
    let site = Site::start(on, "logs").await;
    // All it has to the outside is the socket of its session.
    assert_eq!(sockets(site.edge.pid()), (0, 1));
    let pod = &site.pod;
    for shell in &site.shells {
        // The whole of it, and parts.
        assert_eq!(shell.ok(&format!("logs {pod} -c quiet")).await, "one\ntwo\nthree\n");
        assert_eq!(
            shell.ok(&format!("logs pod/{pod} -c quiet --tail=2")).await,
            "two\nthree\n"
        );
        assert_eq!(shell.ok(&format!("logs {pod} -c quiet --tail=0")).await, "");
        assert_eq!(
            shell.ok(&format!("logs {pod} -c quiet --since=1h")).await,
            "one\ntwo\nthree\n"
        );
        let stamped = shell.ok(&format!("logs {pod} -c quiet --timestamps")).await;
        let texts: Vec<&str> = stamped
            .lines()
            .filter_map(|line| Some(line.split_once("Z ")?.1))
            .collect();
        assert_eq!(texts, ["one", "two", "three"], "{stamped}");
        // After the last line's own time there is nothing, and before it there is.
        let time = |at: usize| stamped.lines().nth(at).and_then(|line| line.split_once(' ')).unwrap().0;
        let since = shell.ok(&format!("logs {pod} -c quiet --since-time={}", time(0))).await;
        assert!(since.ends_with("three\n"), "{since}");

        // The life before, and this one.
        assert_eq!(
            shell.ok(&format!("logs {pod} -c talk --previous")).await,
            "the first life\n"
        );
        assert_eq!(
            shell.ok(&format!("logs {pod} -c talk -p --tail=1")).await,
            "the first life\n"
        );
        // It has ended, whatever came after it.
        assert_eq!(
            shell.ok(&format!("logs {pod} -c talk -p --follow")).await,
            "the first life\n"
        );
        let now = shell.ok(&format!("logs {pod} -c talk")).await;
        assert!(now.starts_with("the second life\nline 1\n"), "{now}");
        let tail = numbers(&shell.ok(&format!("logs {pod} -c talk --tail=3")).await);
        assert!(tail.len() == 3 && follows(&tail) && tail[0] > 1, "{tail:?}");

        // The container and the pod that nobody named are chosen and said.
        let chosen = shell.ok(&format!("logs {pod}")).await;
        has(
            &chosen,
            &["three\n", "Defaulted container \"quiet\" out of: quiet, talk\n"],
        );
        let chosen = shell.ok("logs deploy/talk -c quiet").await;
        has(&chosen, &["one\ntwo\nthree\n", "Found 2 pods, using pod/talk-"]);
        let all = shell.ok(&format!("logs {pod} --all-containers --prefix")).await;
        has(
            &all,
            &[
                &format!("[pod/{pod}/quiet] two\n"),
                &format!("[pod/{pod}/talk] line 1\n"),
            ],
        );
        let selected = shell.ok("logs -l app=talk -c quiet --tail=1").await;
        assert_eq!(selected, "three\nthree\n");

        // What is not there is said.
        has(
            &shell.refused(&format!("logs {pod} -c quiet --previous")).await,
            &["previous", "quiet"],
        );
        has(&shell.refused(&format!("logs {pod} -c loud")).await, &["loud"]);
    }
    Box::pin(site.finish()).await;
}

/// Those of a container that is quiet until its end, by who follows it then and by who comes later.
async fn last_words_are_followed(on: On) {
    let site = site::Site::of(on, "words").await;
    let state = site.node.folder.join("state");
    std::fs::create_dir(&state).unwrap();
    site.kubectl.apply(&format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: ends}}
spec:
  nodeName: edge-1
  restartPolicy: Never
  volumes: [{{name: state, hostPath: {{path: {state:?}}}}}]
  containers:
  - name: c
    image: {WEB}
    volumeMounts: [{{name: state, mountPath: /state}}]
    command: [/bin/sh, -c, 'until [ -e /state/go ]; do sleep 0.1; done; echo last words >&2; exit 3']
"
    ));
    let shells = [site.cloud.edgectl(), site.cloud.shell(kubectl())];
    shells[0].until("get pod ends", |out| out.contains("Running")).await;
    let following = shells.each_ref().map(|shell| shell.start("logs ends -f"));
    std::fs::write(state.join("go"), "").unwrap();
    for printing in following {
        assert_eq!(printing.end().await, "last words\n");
    }
    shells[0].until("get pod ends", |out| out.contains("Error")).await;
    for shell in &shells {
        assert_eq!(shell.ok("logs ends -f").await, "last words\n");
    }
    site.kubectl.run(&["delete", "pod", "ends"]);
    site.finish().await;
}

async fn logs_are_followed(on: On) {
    let mut site = Site::start(on, "follow").await;
    let pod = site.pod.clone();
    let mut followed = Vec::new();
    for shell in &site.shells {
        // From the end on, past what was there when it began.
        let mut printing = shell.start(&format!("logs {pod} -c talk -f --tail=1"));
        let there = numbers(&shell.ok(&format!("logs {pod} -c talk --tail=1")).await);
        printing.until(&format!("line {}\n", there[0] + 20)).await;
        followed.push(printing);
    }
    let mut all = site.shells[0].start(&format!("logs {pod} --all-containers -f --prefix"));
    all.until(&format!("[pod/{pod}/quiet] three\n")).await;
    all.until(&format!("[pod/{pod}/talk] line 1\n")).await;
    followed.push(all);
    // The pod's end is the log's: all of it came, each line once.
    site.shells[0].ok(&format!("delete pod {pod}")).await;
    for printing in followed {
        let text = printing.end().await;
        assert!(follows(&numbers(&text)), "{text}");
    }

    // A log that is cut off does not look like a whole one, and a node without a session is said to be that.
    let other = site.shells[0].ok("get pods -l app=talk -o name").await;
    let other = other.lines().find(|name| !name.contains(&pod)).unwrap();
    // It may be the one that came for the pod that went.
    site.shells[0]
        .until(&format!("logs {other} -c talk"), |out| out.contains("line 3"))
        .await;
    let mut cut = Vec::new();
    for shell in &site.shells {
        let mut printing = shell.start(&format!("logs {other} -c talk -f --tail=1"));
        printing.until("line ").await;
        cut.push(printing);
    }
    site.edge.kill();
    for printing in cut {
        printing.breaks().await;
    }
    for shell in &site.shells {
        let said = |out: &str| out.contains("edge-1") && out.contains("session");
        shell.until(&format!("logs {other} -c quiet"), said).await;
    }
    site.edge.start();
    for shell in &site.shells {
        shell
            .until(&format!("logs {other} -c quiet"), |out| out == "one\ntwo\nthree\n")
            .await;
    }
    Box::pin(site.finish()).await;
}

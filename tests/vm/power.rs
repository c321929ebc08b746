//! Power fails at moments nobody chose, while pods start and end, what should be changes, and what is gets reported.
//!
//! The machine's disk loses or tears what was not flushed. Each time the node is to come back as it was, with no link: every
//! pod runs that should, what ended stays ended, the store is whole. Then the link returns, and all converges.

use std::time::Duration;

use serde_json::Value;
use tests::cores::eventually;
use tests::machine::Board;

use super::site::{FOREVER, Line, NODE, RUNTIME, Site, lines};

/// Decides the moments, what is lost, and what changes. A failure names the round; the same seed repeats the choices.
const SEED: u64 = 20_261_130;
const CUTS: u64 = 20;
/// The longest that a machine lives on after a change before its power fails: longer than a pod takes to start.
const LIFE_MS_MAX: u64 = 4_000;
const STEADY: [&str; 2] = ["steady-1", "steady-2"];
/// Pods that come and go.
const CHURN_MAX: u64 = 3;

#[tokio::test]
async fn arm64_survives_power_cuts_at_any_moment() {
    let site = Site::start(Board::Arm64, "power").await;
    site.machine.write(AT_BOOT, "/etc/edgehold/at-boot");
    site.machine.ok("chmod 755 /etc/edgehold/at-boot && sync && (/etc/edgehold/at-boot </dev/null &)");
    for name in STEADY {
        site.run(name, "Always", &format!("{FOREVER} # {name}"));
    }
    // Exits only mean something where something runs.
    if RUNTIME != "fake" {
        site.run("done", "Never", "exit 3");
        site.run("crash", "Always", "exit 5");
    }
    let others = STEADY.len() + if RUNTIME == "fake" { 0 } else { 2 };
    site.churn(0);
    site.settles("what runs and what has ended", |lines| {
        lines.len() == others && lines.iter().all(is_well)
    })
    .await;
    let done = ended(&site.pod("done"));
    let mut chance = Chance(SEED);
    let mut restarts = 0;
    for round in 0..CUTS {
        // A change, and a moment.
        let churn = chance.below(CHURN_MAX + 1);
        site.churn(churn);
        tokio::time::sleep(Duration::from_millis(chance.below(LIFE_MS_MAX))).await;
        let lost = site.machine.cut(chance.below(u64::from(u32::MAX)));
        println!("round {round}: {churn} come and go, lost {lost}");

        // Back, with no link.
        site.machine.start_again(false);
        site.store_is_whole("/run/after-cut");
        let status = site
            .says(
                &format!("round {round}: what should run does, with no link"),
                |status| {
                    let lines = lines(status);
                    let has = |name: &&str| lines.iter().any(|line| line.name == **name);
                    lines.iter().all(is_well) && STEADY.iter().all(has) && restarts_of_crash(&lines) >= restarts
                },
            )
            .await;
        assert_eq!(status["connected"], false, "round {round}");
        site.steady_run(round).await;
        assert!(
            !site
                .machine
                .exec("ls /var/lib/edgehold/edge/node.db.damaged")
                .status
                .success(),
            "round {round}"
        );

        // The link is back.
        site.machine.link(true);
        let churn = usize::try_from(churn).unwrap();
        let agreed = site
            .settles(&format!("round {round}: all that should be"), |lines| {
                lines.len() == others + churn && lines.iter().all(is_well)
            })
            .await;
        let crash = restarts_of_crash(&agreed);
        assert!(
            crash >= restarts,
            "round {round}: {crash} restarts are fewer than {restarts}"
        );
        restarts = crash;
        assert_eq!(
            ended(&site.pod("done")),
            done,
            "round {round}: what has ended did not end again"
        );
        if RUNTIME != "fake" {
            let last = site.pod("crash");
            let code = last.pointer("/status/containerStatuses/0/lastState/terminated/exitCode");
            let code = code.or_else(|| last.pointer("/status/containerStatuses/0/state/terminated/exitCode"));
            assert_eq!(code.and_then(Value::as_i64), Some(5), "round {round}: {last}");
        }
    }
    // Ten seconds, twenty, forty: had any cut cost the wait, there were one more restart for each.
    assert!(
        restarts < i64::try_from(CUTS / 2).unwrap(),
        "{restarts} restarts: the back-off was not kept"
    );
    println!("{restarts} restarts of what crashes");
}

/// What crashes goes on running between two waits; what has ended does not run again.
fn is_well(line: &Line) -> bool {
    match line.name.as_str() {
        "done" => line.phase == "Failed" && line.restarts == 0,
        _ => line.phase == "Running",
    }
}

fn restarts_of_crash(lines: &[Line]) -> i64 {
    let crash = lines.iter().find(|line| line.name == "crash");
    crash.map_or(0, |line| line.restarts)
}

/// What the machine does before the edge core runs: puts aside the store as the cut left it, and begins to write files that
/// nobody flushes, so that there is something to lose at any moment.
const AT_BOOT: &str = "#!/bin/sh
mkdir -p /run/after-cut
cp /var/lib/edgehold/edge/node.db* /run/after-cut/
while true; do
    i=$(((i + 1) % 40))
    rm -f /root/noise.$i
    dd if=/bin/busybox of=/root/noise.$i bs=16k count=4 oflag=direct
    usleep 50000
done >/dev/null 2>&1 &
";

impl Site {
    /// So many pods that come and go.
    fn churn(&self, count: u64) {
        self.kubectl.apply(&format!(
            "apiVersion: apps/v1
kind: Deployment
metadata: {{name: churn}}
spec:
  replicas: {count}
  selector: {{matchLabels: {{app: churn}}}}
  template:
    metadata: {{labels: {{app: churn}}}}
    spec:
      nodeSelector: {{kubernetes.io/hostname: {NODE}}}
      terminationGracePeriodSeconds: 1
      containers: [{{name: c, image: '{image}', command: [/bin/sh, -c, '{FOREVER} # churn']}}]
",
            image = super::site::WEB
        ));
    }

    /// The processes themselves, each once.
    async fn steady_run(&self, round: u64) {
        if RUNTIME == "fake" {
            return;
        }
        for name in STEADY {
            eventually(&format!("round {round}: one process of {name}"), async || {
                (self.processes(&format!("# {name}")).len() == 1).then_some(())
            })
            .await;
        }
    }
}

/// How a pod's container ended, in full: when, with which code, which container.
fn ended(pod: &Value) -> Value {
    let state = pod.pointer("/status/containerStatuses/0/state/terminated");
    if RUNTIME != "fake" {
        assert_eq!(state.and_then(|state| state["exitCode"].as_i64()), Some(3), "{pod}");
    }
    state.cloned().unwrap_or_default()
}

/// Numbers that a seed decides (SplitMix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

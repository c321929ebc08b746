//! Power fails at moments nobody chose, while pods start and end, what should be changes, and what is gets reported.
//!
//! The machine's disk loses or tears what was not flushed. Each time the node is to come back as it was, with no link: every
//! pod runs that should, what ended stays ended, the store is whole. Then the link returns, and all converges.

use std::time::Duration;

use daemon::clock::mono;
use edgecore::pods::plan::{BACKOFF_FIRST, BACKOFF_MAX};
use serde_json::Value;
use tests::machine::Board;

use super::site::{FOREVER, Line, NODE, Site, lines};

/// Decides the moments, what is lost, and what changes: `VM_SEED` chooses another, and `VM_CUTS` how often power fails.
/// A failure names the round; the same seed repeats the choices.
const SEED: u64 = 20_261_130;
const CUTS: u64 = 20;
/// The longest that a machine lives on after a change before its power fails: longer than a pod takes to start.
const LIFE_MS_MAX: u64 = 4_000;
const STEADY: [&str; 2] = ["steady-1", "steady-2"];
/// Those, what has ended, and what crashes.
const STAY: usize = STEADY.len() + 2;
/// Pods that come and go, and how many at most.
const CHURN: &str = "churn";
const CHURN_MAX: u64 = 3;

#[tokio::test]
async fn arm64_survives_power_cuts_at_any_moment() {
    let begun = mono();
    let site = Site::start(Board::Arm64, "power").await;
    site.machine.write(AT_BOOT, "/etc/edgehold/at-boot");
    let ready = "chmod 755 /etc/edgehold/at-boot && sync && (/etc/edgehold/at-boot </dev/null &)";
    site.machine.ok(ready);
    for name in STEADY {
        site.run(name, "Always", &format!("{FOREVER} # {name}"));
    }
    site.run("done", "Never", "exit 3");
    site.run("crash", "Always", "exit 5");
    site.churn(0);
    let mut restarts = restarts_of_crash(&site.all_is_well("before any cut", 0).await);
    let done = ended(&site.pod("done"));
    let mut chance = Chance(number("VM_SEED").unwrap_or(SEED));
    let mut before = 0;
    for round in 0..number("VM_CUTS").unwrap_or(CUTS) {
        // A change, and a moment.
        let churn = usize::try_from(chance.below(CHURN_MAX + 1)).unwrap();
        site.churn(churn);
        tokio::time::sleep(Duration::from_millis(chance.below(LIFE_MS_MAX))).await;
        let lost = site.machine.cut(chance.below(u64::from(u32::MAX)));
        println!("round {round}: from {before} to {churn} that come and go, lost {lost}");

        // Back, with no link.
        site.machine.start_again(false);
        site.store_is_whole("/run/after-cut");
        let what = format!("round {round}: what should run does, with no link");
        let status = site
            .says(&what, |status| runs_alone(&lines(status), before.min(churn), restarts))
            .await;
        assert_eq!(status["connected"], false, "round {round}");
        for name in STEADY {
            site.process(&format!("# {name}")).await;
        }
        let aside = site.machine.exec("ls /var/lib/edgehold/edge/node.db.damaged");
        assert!(!aside.status.success(), "round {round}: the store was set aside");

        // The link is back.
        site.machine.link(true);
        let agreed = site.all_is_well(&format!("round {round}"), churn).await;
        let crash = restarts_of_crash(&agreed);
        assert!(crash >= restarts, "round {round}: {crash} restarts, after {restarts}");
        (restarts, before) = (crash, churn);
        let now = ended(&site.pod("done"));
        assert_eq!(now, done, "round {round}: what has ended did not end again");
        assert_eq!(
            last_exit(&site.pod("crash")),
            Some(5),
            "round {round}: the exit code is kept"
        );
    }
    let most = restarts_within(mono().since(begun));
    assert!(restarts <= most, "{restarts} restarts: the back-off allows {most}");
    println!("{restarts} restarts of what crashes, of {most}");
}

/// With no link: all that stays is well, and of those that come and go as many run as were there before and after the
/// change. The rest may not have come, or be on its way out.
fn runs_alone(lines: &[Line], churn: usize, restarts: i64) -> bool {
    let (come_and_go, stay): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.name.starts_with(CHURN));
    let running = come_and_go.iter().filter(|line| is_well(line)).count();
    let well = stay.len() == STAY && stay.iter().all(|line| is_well(line));
    well && running >= churn && restarts_of_crash(lines) >= restarts
}

/// How often something that crashes at once can have been restarted in a time: after ten seconds, twenty, and so on up to
/// five minutes. What was starting in the moment of a cut may have started once more.
fn restarts_within(time: Duration) -> i64 {
    let waits = (0..).map(|nr: u32| BACKOFF_FIRST.saturating_mul(1 << nr.min(10)).min(BACKOFF_MAX));
    let mut left = time;
    let mut count = 0;
    for wait in waits {
        let Some(rest) = left.checked_sub(wait) else { break };
        (left, count) = (rest, count + 1);
    }
    count + 1
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
    fn churn(&self, count: usize) {
        self.kubectl.apply(&format!(
            "apiVersion: apps/v1
kind: Deployment
metadata: {{name: {CHURN}}}
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

    /// Waits until node and cloud agree that all is as it should be.
    async fn all_is_well(&self, when: &str, churn: usize) -> Vec<Line> {
        self.settles(&format!("all that should be, {when}"), |lines| {
            lines.len() == STAY + churn && lines.iter().all(is_well)
        })
        .await
    }
}

/// How a pod's container ended, in full: when, with which code, which container.
fn ended(pod: &Value) -> Value {
    let state = pod.pointer("/status/containerStatuses/0/state/terminated");
    assert_eq!(state.and_then(|state| state["exitCode"].as_i64()), Some(3), "{pod}");
    state.cloned().unwrap_or_default()
}

/// The code with which a pod's container ended last.
fn last_exit(pod: &Value) -> Option<i64> {
    let state = |name: &str| pod.pointer(&format!("/status/containerStatuses/0/{name}/terminated/exitCode"));
    state("state").or_else(|| state("lastState"))?.as_i64()
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={value} is no number")),
    )
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

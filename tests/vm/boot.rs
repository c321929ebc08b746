//! A machine boots, joins, runs pods, and loses its link and its power: on both kinds of machines.

use serde_json::json;
use tests::machine::{Board, eventually};

use super::site::{DATA, FOREVER, RUNTIME, Site, all_run, lines};

async fn boots_joins_and_lives_without_a_link(board: Board) {
    let mut site = Site::start(board, "boot").await;
    for name in ["steady-1", "steady-2"] {
        site.run(name, "Always", &format!("{FOREVER} # {name}"));
    }
    site.settles("two pods", all_run(2)).await;
    figures(&site, board, 2);

    // No link: a container that is killed comes back, and what should be changes at the cloud alone.
    site.machine.link(false);
    site.says("it has no link", |status| status["connected"] == false).await;
    let steady = site.process("# steady-1").await;
    site.machine.ok(&format!("kill -9 {steady}"));
    site.says("the killed container was restarted", |status| {
        lines(status)
            .iter()
            .any(|line| line.name == "steady-1" && line.restarts == 1)
            && all_run(2)(&lines(status))
    })
    .await;
    assert_ne!(site.process("# steady-1").await, steady);
    site.run("steady-3", "Always", &format!("{FOREVER} # steady-3"));

    // Power fails, and is back before the link is.
    site.machine.cut(1);
    site.machine.start_again(false);
    site.says("two pods run", |status| all_run(2)(&lines(status))).await;
    site.machine.link(true);
    site.settles("three pods", all_run(3)).await;

    // A clean end and another boot: nothing of the file system needed mending, and the store is whole.
    site.machine.stop();
    site.machine.start_again(true);
    site.settles("three pods again", all_run(3)).await;
    assert!(!site.machine.console().contains("FSCK"), "{}", site.machine.console());
    site.machine.ok("touch /run/no-edgecore; kill $(cat /run/edgecore.pid)");
    eventually("the edge core ends", async || {
        let lives = site.machine.exec("kill -0 $(cat /run/edgecore.pid)");
        (!lives.status.success()).then_some(())
    })
    .await;
    site.store_is_whole(DATA);
    site.cloud.stop().await;
}

/// What the edge core takes there, for the bench: written down, and judged by nobody here.
fn figures(site: &Site, board: Board, pods: usize) {
    let rollup = site.machine.ok("cat /proc/$(cat /run/edgecore.pid)/smaps_rollup");
    let kib = |name: &str| {
        let line = rollup
            .lines()
            .find(|line| line.starts_with(name))
            .expect("the kernel says it");
        let number = line.split_whitespace().nth(1).expect("a line has a number");
        number.parse::<u64>().expect("it is one")
    };
    let document = json!({
        "board": board.arch(), "runtime": RUNTIME, "pods": pods,
        "rssKib": kib("Rss:"), "pssKib": kib("Pss:"), "anonymousKib": kib("Anonymous:"),
    });
    let path = tests::machine::figures(board);
    std::fs::write(&path, format!("{document}\n")).unwrap();
    #[expect(clippy::print_stdout, reason = "figures are what this test is for")]
    {
        println!("{}: {document}", path.display());
    }
}

#[tokio::test]
async fn arm64_boots_joins_and_lives_without_a_link() {
    boots_joins_and_lives_without_a_link(Board::Arm64).await;
}

#[tokio::test]
#[ignore = "takes another static edge core: scripts/test --full"]
async fn amd64_boots_joins_and_lives_without_a_link() {
    boots_joins_and_lives_without_a_link(Board::Amd64).await;
}

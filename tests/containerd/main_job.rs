//! The main job, end to end: real cloud core, real edge core, real containers, real kubectl.

use std::path::PathBuf;
use std::process::Command;

use tests::cores::eventually;

use super::host::{kill, own_mounts};
use super::node::{On, on_both};
use super::site::{Site, new_boot_id, text};

on_both!(
    survives_kills_of_both_cores,
    applies_what_changed_meanwhile,
    survives_a_restored_cloud,
    survives_reboots_without_a_link,
    survives_a_lost_store,
);

async fn survives_kills_of_both_cores(on: On) {
    let mut site = Site::of(on, "kills").await;
    site.deploy(2);
    let uids = site.ready(2).await;
    let shells = site.running(2).await;
    let pod = text(&site.kubectl.pods("app=web")[0], "/metadata/name");
    assert_eq!(site.kubectl.run(&["logs", &pod]), "started");

    // The edge core dies: its containers run on and are taken over.
    site.edge.kill();
    assert_eq!(site.shells(), shells);
    site.edge.start();
    site.connected().await;
    assert_eq!((site.shells(), site.restarts()), (shells.clone(), 0));

    // The cloud dies. A container that ends meanwhile comes back, and so does one after a cold start of the edge core.
    site.cloud.kill();
    kill(*shells.first().unwrap());
    let again = eventually("the container is back", async || {
        let now = site.shells();
        (now.len() == 2 && now != shells).then_some(now)
    })
    .await;
    site.edge.kill();
    kill(*again.last().unwrap());
    site.edge.start();
    let offline = eventually("the container is back after a cold start", async || {
        let now = site.shells();
        (now.len() == 2 && now != again).then_some(now)
    })
    .await;

    // The cloud is back: nothing restarts, and it learns what happened.
    site.cloud.start_again().await;
    site.connected().await;
    eventually("the cloud counts two restarts", async || {
        (site.restarts() == 2).then_some(())
    })
    .await;
    assert_eq!(site.ready(2).await, uids);
    assert_eq!(site.shells(), offline);
    site.finish().await;
}

async fn applies_what_changed_meanwhile(on: On) {
    let mut site = Site::of(on, "meanwhile").await;
    site.deploy(2);
    let before = site.ready(2).await;
    let shells = site.running(2).await;
    // While the node is away: one pod deleted by force and replaced, the config changed.
    site.edge.kill();
    let victim = text(&site.kubectl.pods("app=web")[0], "/metadata/name");
    site.kubectl
        .run(&["delete", "pod", &victim, "--grace-period=0", "--force"]);
    eventually("another pod takes its place", async || {
        (site.kubectl.pods("app=web").len() == 2).then_some(())
    })
    .await;
    site.kubectl.run(&[
        "patch",
        "configmap",
        "settings",
        "-p",
        r#"{"data":{"greeting":"changed"}}"#,
    ]);
    assert_eq!(site.shells(), shells);
    site.edge.start();
    let after = site.ready(2).await;
    assert_eq!(before.intersection(&after).count(), 1);
    // No second copy anywhere, and the one that stayed was not touched.
    let now = site.running(2).await;
    assert_eq!(shells.intersection(&now).count(), 1);
    let survivor = eventually("the survivor sees the change", async || {
        let pods = site.kubectl.pods("app=web");
        let survivor = pods.iter().find(|pod| before.contains(&text(pod, "/metadata/uid")))?;
        let uid = text(survivor, "/metadata/uid");
        let folder: PathBuf = site.node.folder.join("edge/pods").join(&uid).join("volumes");
        let found = Command::new("grep")
            .args(["-r", "changed"])
            .arg(folder)
            .output()
            .unwrap();
        found.status.success().then_some(uid)
    })
    .await;
    assert!(before.contains(&survivor));
    site.finish().await;
}

async fn survives_a_restored_cloud(on: On) {
    let mut site = Site::of(on, "restored").await;
    site.deploy(2);
    let uids = site.ready(2).await;
    let shells = site.running(2).await;
    let backup = site.node.folder.join("backup.db");
    site.cloud.command(&["backup", &backup.display().to_string()]);
    // Later than the back-up: it is lost with the restore.
    site.kubectl.run(&["scale", "deployment", "web", "--replicas=3"]);
    site.ready(3).await;
    site.cloud.kill();
    for file in ["cloud.db", "cloud.db-wal", "cloud.db-shm"] {
        let _ = std::fs::remove_file(site.cloud.folder.join(file));
    }
    std::fs::copy(&backup, site.cloud.folder.join("cloud.db")).unwrap();
    site.cloud.start_again().await;
    site.connected().await;
    assert_eq!(site.ready(2).await, uids);
    assert_eq!(site.running(2).await, shells);
    assert_eq!(site.restarts(), 0);
    // Later changes apply.
    site.kubectl.run(&["scale", "deployment", "web", "--replicas=1"]);
    site.ready(1).await;
    site.running(1).await;
    site.finish().await;
}

async fn survives_reboots_without_a_link(on: On) {
    own_mounts();
    let mut site = Site::of(on, "reboots").await;
    site.deploy(2);
    site.ready(2).await;
    site.running(2).await;
    site.cloud.kill();
    for boot in 1..=20 {
        site.edge.kill();
        site.node.kill_daemon();
        site.node.reboot().await;
        new_boot_id(&site.node.folder, boot);
        site.node.start_daemon();
        site.node.answers().await;
        site.edge.start();
        site.running(2).await;
    }
    site.cloud.start_again().await;
    site.connected().await;
    site.ready(2).await;
    // A reboot is no crash of a container: the count tells how often each was started anew, not 20 of a crash loop's.
    eventually("the cloud knows of the restarts", async || {
        (site.restarts() == 40).then_some(())
    })
    .await;
    site.finish().await;
}

async fn survives_a_lost_store(on: On) {
    let mut site = Site::of(on, "lost").await;
    site.deploy(2);
    let uids = site.ready(2).await;
    let shells = site.running(2).await;
    // With no cloud it does not know that they are wanted, nor that they are not.
    site.cloud.kill();
    site.edge.kill();
    for file in ["node.db", "node.db-wal"] {
        std::fs::remove_file(site.node.folder.join("edge").join(file)).unwrap();
    }
    site.edge.start();
    let begun = site.node.folder.join("edge/node.db");
    eventually("it has begun a store", async || begun.exists().then_some(())).await;
    let looked = async || {
        let status = site.edge.status();
        let looked = status["conditions"].as_array().is_some_and(|list| !list.is_empty());
        (looked && status["pods"].as_array().is_some_and(Vec::is_empty)).then_some(())
    };
    eventually("it has looked at its machine", looked).await;
    site.cloud.start_again().await;
    site.connected().await;
    eventually("the cloud has filled it", async || {
        (site.edge.status()["pods"].as_array()?.len() == 2).then_some(())
    })
    .await;
    assert_eq!(site.ready(2).await, uids);
    assert_eq!((site.shells(), site.restarts()), (shells, 0));
    // What has to go from now on goes.
    site.kubectl.run(&["scale", "deployment", "web", "--replicas=1"]);
    site.running(1).await;
    site.ready(1).await;
    site.finish().await;
}

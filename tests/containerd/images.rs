//! Images into containerd: from archives and from a registry, complete or not at all.

use edgecore::runtime::{Runtime as _, RuntimeError};

use super::node::{Node, WEB, archive, pod};
use super::registry::Registry;

/// Everything containerd keeps: documents and unpacked layers.
fn kept(node: &Node) -> (usize, usize) {
    let content = node.ctr(&["content", "ls", "-q"]).len();
    let snapshots = node.ctr(&["snapshots", "ls"]).len() - 1;
    (content, snapshots)
}

#[tokio::test]
async fn containerd_imports_an_archive_and_keeps_what_runs() {
    let node = Node::empty("import").await;
    assert_eq!(node.runtime.image(WEB).await.unwrap(), None);
    let path = archive("web");
    assert_eq!(node.runtime.import(&path).await.unwrap(), [WEB]);
    let image = node.runtime.image(WEB).await.unwrap().unwrap();
    assert_eq!(image.user, "web");
    assert!(
        image.id.starts_with("sha256:") && image.size_bytes > 100_000,
        "{image:?}"
    );
    // Manifest, configuration, one layer; its packed form is gone.
    assert_eq!(kept(&node), (2, 1));
    assert_eq!(node.runtime.import(&path).await.unwrap(), [WEB]);
    assert_eq!(kept(&node), (2, 1));
    // All of it hangs on the name.
    node.ctr(&["images", "rm", "--sync", WEB]);
    assert_eq!(kept(&node), (0, 0));
    assert_eq!(node.runtime.image(WEB).await.unwrap(), None);
    node.finish(&[], &[]).await;
}

#[tokio::test]
async fn containerd_refuses_a_damaged_archive() {
    let node = Node::empty("damaged").await;
    let path = node.folder.join("x.tar");
    let refused = async || match node.runtime.import(&path).await {
        Err(RuntimeError::Pull { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert!(refused().await.contains("No such file"));
    std::fs::write(&path, "no archive").unwrap();
    refused().await;
    let whole = std::fs::read(archive("web")).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    refused().await;
    // One byte of the layer, in the middle.
    let mut flipped = whole;
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    std::fs::write(&path, &flipped).unwrap();
    assert!(refused().await.contains("does not match its digest"));
    assert_eq!(node.runtime.image(WEB).await.unwrap(), None);
    // The sound one goes in after all of these.
    node.runtime.import(&archive("web")).await.unwrap();
    assert_eq!(kept(&node), (2, 1));
    node.finish(&[], &[]).await;
}

#[tokio::test]
async fn containerd_pulls_and_goes_on_where_the_link_broke() {
    let node = Node::empty("pull").await;
    let registry = Registry::start();
    registry.push(&archive("web"), "team/web", "1", |_| {});
    let name = format!("{}/team/web:1", registry.host);
    let error = node
        .runtime
        .pull(&format!("{}/team/other:1", registry.host), &[])
        .await
        .unwrap_err();
    assert!(error.to_string().contains("does not know it"), "{error}");

    registry.behave(|state| state.cut_after = Some(300_000));
    for _ in 0..2 {
        let error = node.runtime.pull(&name, &[]).await.unwrap_err();
        assert!(
            matches!(error, RuntimeError::Pull { .. }) && error.is_retryable(),
            "{error}"
        );
        assert_eq!(node.runtime.image(&name).await.unwrap(), None);
    }
    registry.behave(|state| state.cut_after = None);
    node.runtime.pull(&name, &[]).await.unwrap();
    assert!(node.runtime.image(&name).await.unwrap().is_some());
    assert_eq!(kept(&node), (2, 1));
    let seen = registry.behave(|state| std::mem::take(&mut state.seen));
    let offsets: Vec<usize> = seen
        .iter()
        .filter(|line| line.contains("/blobs/"))
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .filter(|offset| *offset > 0)
        .collect();
    // Two messages' worth had arrived after two cuts.
    assert_eq!(offsets, [262_144, 524_288]);
    // Nothing new: one question.
    node.runtime.pull(&name, &[]).await.unwrap();
    assert_eq!(registry.behave(|state| state.seen.len()), 1);
    node.finish(&[], &[]).await;
}

#[tokio::test]
async fn containerd_throws_damaged_layers_away() {
    let node = Node::empty("flip").await;
    let registry = Registry::start();
    registry.push(&archive("web"), "team/web", "1", |_| {});
    let name = format!("{}/team/web:1", registry.host);
    registry.behave(|state| state.damage = true);
    for _ in 0..2 {
        let error = node.runtime.pull(&name, &[]).await.unwrap_err();
        assert!(error.to_string().contains("does not match its digest"), "{error}");
    }
    registry.behave(|state| state.damage = false);
    node.runtime.pull(&name, &[]).await.unwrap();
    node.finish(&[], &[]).await;
}

#[tokio::test]
async fn containerd_keeps_the_old_image_until_the_new_one_is_complete() {
    let node = Node::empty("moved").await;
    let registry = Registry::start();
    registry.push(&archive("web"), "team/web", "1", |_| {});
    let name = format!("{}/team/web:1", registry.host);
    let old = node.runtime.pull(&name, &[]).await.unwrap();
    // The tag moves to an image whose configuration claims a layer it does not have.
    registry.push(&archive("web"), "team/web", "1", |config| {
        config["rootfs"]["diff_ids"][0] = format!("sha256:{}", "0".repeat(64)).into();
    });
    let error = node.runtime.pull(&name, &[]).await.unwrap_err();
    assert!(error.to_string().contains("does not match its digest"), "{error}");
    assert_eq!(node.runtime.image(&name).await.unwrap(), Some(old.clone()));
    // Then to a sound one, whose layer is there already.
    registry.push(&archive("web"), "team/web", "1", |config| {
        config["config"]["Cmd"] = vec!["x"].into();
    });
    registry.behave(|state| state.seen.clear());
    let new = node.runtime.pull(&name, &[]).await.unwrap();
    assert_ne!(new.id, old.id);
    assert_eq!(node.runtime.image(&name).await.unwrap(), Some(new));
    assert_eq!(
        registry.behave(|state| state.seen.len()),
        2,
        "manifest and configuration"
    );
    let lease = node.ctr(&["leases", "ls", "-q"]);
    assert_eq!(lease, Vec::<String>::new());
    node.finish(&[], &[]).await;
}

#[tokio::test]
async fn containerd_keeps_a_containers_layers_without_its_image() {
    let node = Node::new("gc").await;
    let uid = pod();
    let id = node
        .run(&node.script(
            uid,
            "c",
            "echo ready; until [ -e /go ]; do sleep 0.1; done; cat /srv/index.html",
        ))
        .await;
    node.logs("c", "stdout F ready").await;
    node.ctr(&["images", "rm", "--sync", WEB]);
    let done = node
        .runtime
        .exec(
            &id,
            &["/bin/touch".into(), "/go".into()],
            std::time::Duration::from_secs(20),
        )
        .await;
    assert_eq!(done.unwrap().code, 0);
    node.logs("c", "stdout F <title>Edgehold</title>").await;
    assert_eq!(node.exit_code(&id).await, 0);
    node.finish(&[&id], &[uid]).await;
}

#[tokio::test]
async fn containerd_runs_the_images_we_ship() {
    let node = Node::new("shipped").await;
    for name in ["mosquitto", "sensor"] {
        node.runtime.import(&archive(name)).await.unwrap();
    }
    let uid = pod();
    let image = |name: &str, image: &str| {
        let mut container = node.script(uid, name, "");
        container.image = format!("images.edgehold.dev/{image}:1");
        (container.command, container.security.user) = (Vec::new(), None);
        container
    };
    let web = node.run(&image("web", "web")).await;
    let broker = node.run(&image("broker", "mosquitto")).await;
    let mut sensor = image("sensor", "sensor");
    sensor.env = vec![("INTERVAL".into(), "1".into())];
    let sensor = node.run(&sensor).await;
    let mut listener = image("listener", "sensor");
    listener.command = [
        "/usr/bin/mosquitto_sub",
        "-h",
        "127.0.0.1",
        "-t",
        "sensors/demo",
        "-C",
        "2",
    ]
    .map(str::to_owned)
    .into();
    let listener = node.run(&listener).await;
    assert_eq!(node.exit_code(&listener).await, 0);
    let readings = node.log("listener");
    assert!(
        readings.len() == 2 && readings.iter().all(|line| line.contains("{\"temperature\":2")),
        "{readings:?}"
    );
    let get = ["/bin/wget", "-q", "-O", "-", "http://127.0.0.1:8080/"].map(str::to_owned);
    let page = node
        .runtime
        .exec(&web, &get, std::time::Duration::from_secs(20))
        .await
        .unwrap();
    assert!(
        page.code == 0 && page.output.contains("<title>Edgehold</title>"),
        "{page:?}"
    );
    node.finish(&[&web, &broker, &sensor, &listener], &[uid]).await;
}

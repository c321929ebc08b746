//! Images on a node: from archives and from a registry, complete or not at all; listed and removed.

use std::path::Path;
use std::process::{Command, Stdio};

use edgecore::runtime::{Runtime as _, RuntimeError};

use tests::cores::program;

use super::node::{Node, On, WEB, archive, on_both, pod};
use super::registry::Registry;

on_both!(
    imports_an_archive_and_keeps_what_runs,
    refuses_a_damaged_archive,
    pulls_and_goes_on_where_the_link_broke,
    throws_damaged_layers_away,
    keeps_the_old_image_until_the_new_one_is_complete,
    keeps_a_containers_layers_without_its_image,
    stops_containers_as_their_image_says,
    runs_the_images_we_ship,
    people_list_images_and_remove_them,
);

/// Everything the runtime keeps: documents and unpacked layers.
fn kept(node: &Node) -> (usize, usize) {
    if node.is_embedded() {
        let images = node.folder.join("edge/embedded/images");
        let count = |name: &str| {
            let entries = std::fs::read_dir(images.join(name)).unwrap().flatten();
            // A layer's record is beside it.
            entries.filter(|entry| entry.path().extension().is_none()).count()
        };
        return (count("blobs"), count("layers"));
    }
    let content = node.ctr(&["content", "ls", "-q"]).len();
    let snapshots = node.ctr(&["snapshots", "ls"]).len() - 1;
    (content, snapshots)
}

async fn imports_an_archive_and_keeps_what_runs(on: On) {
    let node = Node::empty_of(on, "import").await;
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
    assert!(node.runtime.remove_image(WEB).await.unwrap());
    assert!(!node.runtime.remove_image(WEB).await.unwrap());
    assert_eq!(kept(&node), (0, 0));
    assert_eq!(node.runtime.image(WEB).await.unwrap(), None);
    node.finish(&[], &[]).await;
}

/// Who finds it first, the packing or the digest, differs.
fn is_damage(said: &str) -> bool {
    let words = [
        "does not match its digest",
        "has the digest",
        "does not have a matching checksum",
    ];
    words.iter().any(|word| said.contains(word))
}

async fn refuses_a_damaged_archive(on: On) {
    let node = Node::empty_of(on, "damaged").await;
    let path = node.folder.join("x.tar");
    let refused = async || match node.runtime.import(&path).await {
        Err(error @ RuntimeError::Import { .. }) => {
            let said = error.to_string();
            assert!(said.starts_with(&format!("importing {}: ", path.display())), "{said}");
            said
        }
        other => panic!("{other:?}"),
    };
    assert!(refused().await.contains("No such file"));
    let whole = std::fs::read(archive("web")).unwrap();
    let empty = [0; 1024];
    let wrong: [(&[u8], &str); 5] = [
        (b"", "it is empty: copy it again"),
        (b"no archive, but longer than a block of one", "it is no tar archive"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "it is compressed: gunzip it first"),
        (&empty, "it holds no images"),
        (&whole[..whole.len() / 2], "it was cut short"),
    ];
    for (bytes, word) in wrong {
        std::fs::write(&path, bytes).unwrap();
        let said = refused().await;
        assert!(said.contains(word), "{word}: {said}");
    }
    // One byte of the layer, in the middle.
    let mut flipped = whole;
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    std::fs::write(&path, &flipped).unwrap();
    assert!(is_damage(&refused().await));
    assert_eq!(node.runtime.image(WEB).await.unwrap(), None);
    // The sound one goes in after all of these.
    node.runtime.import(&archive("web")).await.unwrap();
    assert_eq!(kept(&node), (2, 1));
    node.finish(&[], &[]).await;
}

async fn pulls_and_goes_on_where_the_link_broke(on: On) {
    let node = Node::empty_of(on, "pull").await;
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
    match on {
        // Two messages' worth had arrived after two cuts.
        On::Containerd => assert_eq!(offsets, [262_144, 524_288]),
        On::Embedded => assert!(offsets.len() == 2 && offsets[0] < offsets[1], "{offsets:?}"),
    }
    // Nothing new: one question.
    node.runtime.pull(&name, &[]).await.unwrap();
    assert_eq!(registry.behave(|state| state.seen.len()), 1);
    node.finish(&[], &[]).await;
}

async fn throws_damaged_layers_away(on: On) {
    let node = Node::empty_of(on, "flip").await;
    let registry = Registry::start();
    registry.push(&archive("web"), "team/web", "1", |_| {});
    let name = format!("{}/team/web:1", registry.host);
    registry.behave(|state| state.damage = true);
    for _ in 0..2 {
        let error = node.runtime.pull(&name, &[]).await.unwrap_err();
        assert!(is_damage(&error.to_string()), "{error}");
    }
    registry.behave(|state| state.damage = false);
    node.runtime.pull(&name, &[]).await.unwrap();
    node.finish(&[], &[]).await;
}

async fn keeps_the_old_image_until_the_new_one_is_complete(on: On) {
    let node = Node::empty_of(on, "moved").await;
    let registry = Registry::start();
    registry.push(&archive("web"), "team/web", "1", |_| {});
    let name = format!("{}/team/web:1", registry.host);
    let old = node.runtime.pull(&name, &[]).await.unwrap();
    // The tag moves to an image whose configuration claims a layer it does not have.
    registry.push(&archive("web"), "team/web", "1", |config| {
        config["rootfs"]["diff_ids"][0] = format!("sha256:{}", "0".repeat(64)).into();
    });
    let error = node.runtime.pull(&name, &[]).await.unwrap_err();
    assert!(is_damage(&error.to_string()), "{error}");
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
    node.finish(&[], &[]).await;
}

async fn stops_containers_as_their_image_says(on: On) {
    let node = Node::of(on, "stop").await;
    let registry = Registry::start();
    let uid = pod();
    let mut ids = Vec::new();
    for (signal, code) in [
        (None, 15),
        (Some("SIGQUIT"), 3),
        (Some("SIGRTMIN+3"), 37),
        (Some("NOTHING"), 15),
    ] {
        let tag = format!("s{}", ids.len());
        registry.push(&archive("web"), "team/web", &tag, |config| {
            config["config"]["StopSignal"] = signal.into();
        });
        let script = "for s in 3 15 37; do trap \"exit $s\" $s; done; echo ready; while true; do sleep 0.1; done";
        let mut container = node.script(uid, &tag, script);
        container.image = format!("{}/team/web:{tag}", registry.host);
        node.runtime.pull(&container.image, &[]).await.unwrap();
        let id = node.run(&container).await;
        node.logs(&tag, "stdout F ready").await;
        node.runtime.stop(&id).await.unwrap();
        assert_eq!(node.exit_code(&id).await, code, "{signal:?}");
        ids.push(id);
    }
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    node.finish(&ids, &[uid]).await;
}

async fn keeps_a_containers_layers_without_its_image(on: On) {
    let node = Node::of(on, "gc").await;
    let uid = pod();
    let id = node
        .run(&node.script(
            uid,
            "c",
            "echo ready; until [ -e /go ]; do sleep 0.1; done; cat /srv/index.html",
        ))
        .await;
    node.logs("c", "stdout F ready").await;
    assert!(node.runtime.remove_image(WEB).await.unwrap());
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

async fn runs_the_images_we_ship(on: On) {
    let node = Node::of(on, "shipped").await;
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

/// What `edgecore image` says: where it worked, and where it did not.
fn image(config: &Path, words: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program("edgecore"));
    command.arg("--config").arg(config).arg("image").args(words);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        assert_eq!(output.status.code(), Some(1));
        Err(text(output.stderr))
    }
}

async fn people_list_images_and_remove_them(on: On) {
    let node = Node::empty_of(on, "shelf").await;
    let config = node.edge_config();
    let fresh = image(&config, &["list"]);
    if on == On::Containerd {
        assert!(fresh.unwrap_err().contains("is this the data folder"));
    }
    let path = archive("web").display().to_string();
    assert_eq!(image(&config, &["import", &path]).unwrap().trim(), WEB);
    let list = image(&config, &["list"]).unwrap();
    let line = list.lines().find(|line| line.starts_with(WEB)).unwrap();
    assert!(
        line.ends_with(" -") && line.contains(" KiB ") | line.contains(" MiB "),
        "{list}"
    );

    // Used by a pod, it stays, and is said to be.
    let uid = pod();
    let id = node.run(&node.script(uid, "c", "sleep 1000")).await;
    let used = image(&config, &["remove", WEB]).unwrap_err();
    assert!(used.contains("is used by default/pod"), "{used}");
    assert!(image(&config, &["list"]).unwrap().contains(" default/pod\n"));
    let unknown = image(&config, &["remove", "images.edgehold.dev/web:2"]).unwrap_err();
    assert!(unknown.contains(&format!("but {WEB}")), "{unknown}");
    node.runtime.remove(&id).await.unwrap();
    node.runtime.release(uid).await.unwrap();
    assert_eq!(image(&config, &["remove", WEB]).unwrap().trim(), WEB);
    assert_eq!(node.runtime.image(WEB).await.unwrap(), None);
    assert_eq!(image(&config, &["list"]).unwrap().lines().count(), 1);
    assert_eq!(kept(&node), (0, 0));
    let help = image(&config, &["remove", "-h"]).unwrap();
    assert!(help.contains("One that a pod uses stays"), "{help}");
    node.finish(&[], &[]).await;
}

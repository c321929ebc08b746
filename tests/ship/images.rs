//! What is in the images, and that it depends on nothing but the source.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tests::ship::{MACHINES, Programs, run, said};

/// What is in a layer: mode, owner and name of each file.
type Files = BTreeSet<(String, String, String)>;

/// Unpacks an archive and checks that every blob is what its name says.
fn unpacked(archive: &Path) -> PathBuf {
    let folder = archive.with_extension("unpacked");
    fs::create_dir_all(&folder).unwrap();
    run(
        "tar",
        ["-xf".as_ref(), archive.as_os_str(), "-C".as_ref(), folder.as_os_str()],
    );
    let blobs = fs::read_dir(folder.join("blobs/sha256"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    for blob in blobs {
        let sum = run("sha256sum", [&blob]);
        assert_eq!(
            sum.split_whitespace().next(),
            blob.file_name().unwrap().to_str(),
            "{sum}"
        );
    }
    folder
}

fn blob(folder: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().unwrap();
    folder
        .join("blobs/sha256")
        .join(digest.strip_prefix("sha256:").unwrap())
}

fn document(folder: &Path, descriptor: &Value) -> Value {
    let bytes = fs::read(blob(folder, descriptor)).unwrap();
    assert_eq!(descriptor["size"], bytes.len());
    serde_json::from_slice(&bytes).unwrap()
}

fn layer(folder: &Path, descriptor: &Value) -> Files {
    let listed = run(
        "tar",
        [
            "--numeric-owner".as_ref(),
            "-tvzf".as_ref(),
            blob(folder, descriptor).as_os_str(),
        ],
    );
    let words = listed
        .lines()
        .map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    words
        .map(|words| (words[0].clone(), words[1].clone(), words[5].clone()))
        .collect()
}

/// Builds an image of headers for every machine.
fn built(folder: &Path, name: &str, out: &str) -> PathBuf {
    let programs = Programs::headers(&folder.join("programs"));
    let out = folder.join(out);
    said(&programs.script("build", [out.to_str().unwrap(), "all", name]));
    out.join(format!("{name}.tar"))
}

/// Looks at an image of every machine; returns each one's configuration and files.
fn look(archive: &Path, name: &str) -> Vec<(Value, Files)> {
    let folder = unpacked(archive);
    let index: Value = serde_json::from_slice(&fs::read(folder.join("index.json")).unwrap()).unwrap();
    let entries = index["manifests"].as_array().unwrap();
    assert_eq!(entries.len(), 1, "{index}");
    let full = entries[0]["annotations"]["org.opencontainers.image.ref.name"]
        .as_str()
        .unwrap();
    assert!(full.starts_with(&format!("images.edgehold.dev/{name}:")), "{full}");
    let machines = document(&folder, &entries[0]);
    let machines = machines["manifests"].as_array().unwrap();
    let platforms: Vec<_> = machines.iter().map(|entry| entry["platform"].clone()).collect();
    let wanted = MACHINES.map(|machine| match machine.platform {
        (architecture, None) => json!({"os": "linux", "architecture": architecture}),
        (architecture, Some(variant)) => json!({"os": "linux", "architecture": architecture, "variant": variant}),
    });
    assert_eq!(platforms, wanted);
    let one = |entry: &Value| {
        let manifest = document(&folder, entry);
        let config = document(&folder, &manifest["config"]);
        assert_eq!(config["architecture"], entry["platform"]["architecture"]);
        assert_eq!(config["variant"], entry["platform"]["variant"]);
        (config["config"].clone(), layer(&folder, &manifest["layers"][0]))
    };
    machines.iter().map(one).collect()
}

#[test]
fn an_edge_core_is_an_image_for_every_machine() {
    let folder = tempfile::tempdir().unwrap();
    for (config, files) in look(&built(folder.path(), "edgecore", "out"), "edgecore") {
        assert_eq!(config["Entrypoint"], json!(["/usr/bin/edgecore"]));
        assert_eq!(config["Cmd"], json!(["run"]));
        assert_eq!(config["User"], "0");
        assert_eq!(config["StopSignal"], "SIGTERM");
        assert_eq!(
            config["Volumes"],
            json!({"/var/lib/edgehold/edge": {}, "/var/log/edgehold/pods": {}})
        );
        has(&files, "-rwxr-xr-x", "0/0", "usr/bin/edgecore");
        has(&files, "-rw-r--r--", "0/0", "etc/ssl/certs/ca-certificates.crt");
        has(&files, "drwx------", "0/0", "var/lib/edgehold/edge/");
        has(&files, "drwxrwxrwt", "0/0", "tmp/");
    }
}

#[test]
fn a_cloud_core_is_an_image_for_every_machine_that_is_nobody() {
    let folder = tempfile::tempdir().unwrap();
    for (config, files) in look(&built(folder.path(), "cloudcore", "out"), "cloudcore") {
        assert_eq!(config["Entrypoint"], json!(["/usr/bin/cloudcore"]));
        assert_eq!(config["User"], "65532");
        assert_eq!(config["ExposedPorts"], json!({"6443/tcp": {}, "7443/udp": {}}));
        let labels = config["Labels"].as_object().unwrap();
        for label in [
            "title",
            "description",
            "version",
            "revision",
            "created",
            "licenses",
            "vendor",
        ] {
            let label = format!("org.opencontainers.image.{label}");
            assert!(labels[&label].as_str().is_some_and(|text| !text.is_empty()), "{label}");
        }
        for program in ["cloudcore", "edgectl"] {
            has(&files, "-rwxr-xr-x", "0/0", &format!("usr/bin/{program}"));
            has(
                &files,
                "-rw-r--r--",
                "0/0",
                &format!("usr/share/doc/edgehold/third-party-{program}.txt"),
            );
        }
        has(&files, "drwx------", "65532/65532", "var/lib/edgehold/cloud/");
        assert!(
            !files
                .iter()
                .any(|(_, _, name)| name.contains("edgecore") || name.contains("ca-certificates"))
        );
    }
}

#[test]
fn the_same_source_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["edgecore", "cloudcore"] {
        let (one, two) = (built(folder.path(), name, "one"), built(folder.path(), name, "two"));
        assert!(fs::read(one).unwrap() == fs::read(two).unwrap(), "{name}");
    }
}

#[track_caller]
fn has(files: &Files, mode: &str, owner: &str, name: &str) {
    let wanted = (mode.to_owned(), owner.to_owned(), name.to_owned());
    assert!(files.contains(&wanted), "{wanted:?} is not in {files:#?}");
}

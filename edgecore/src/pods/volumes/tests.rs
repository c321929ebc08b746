use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use proto::object::Key;

use super::*;
use crate::pods::env::Allocatable;
use crate::pods::refs::Objects;
use crate::pods::testing::Folder;

fn files(list: &[(&str, &str, u32)]) -> Files {
    let one = |(name, text, mode): &(&str, &str, u32)| {
        let bytes = text.as_bytes().to_vec();
        ((*name).to_owned(), File { bytes, mode: *mode })
    };
    list.iter().map(one).collect()
}

fn text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

#[test]
fn a_change_swaps_all_files_at_once() {
    let folder = Folder::new();
    let root = folder.path();
    atomic::write(root, &files(&[("a", "1", 0o644), ("d/b", "1", 0o400)]), None).unwrap();
    assert_eq!(text(root.join("a")).as_deref(), Some("1"));
    assert_eq!(text(root.join("d/b")).as_deref(), Some("1"));
    assert_eq!(
        fs::metadata(root.join("d/b")).unwrap().permissions().mode() & 0o777,
        0o400
    );
    let first = fs::read_link(root.join("..data")).unwrap();
    // The same again writes nothing.
    atomic::write(root, &files(&[("a", "1", 0o644), ("d/b", "1", 0o400)]), None).unwrap();
    assert_eq!(fs::read_link(root.join("..data")).unwrap(), first);
    // A change of a mode is a change.
    atomic::write(root, &files(&[("a", "1", 0o600), ("c", "2", 0o644)]), None).unwrap();
    assert_ne!(fs::read_link(root.join("..data")).unwrap(), first);
    assert_eq!(text(root.join("c")).as_deref(), Some("2"));
    assert!(root.join("d").symlink_metadata().is_err(), "what is gone is not shown");
    let mut names: Vec<_> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["..1", "..data", "a", "c"]);
}

#[test]
fn what_a_crash_left_is_swept() {
    let folder = Folder::new();
    let root = folder.path();
    atomic::write(root, &files(&[("a", "1", 0o644)]), None).unwrap();
    fs::create_dir(root.join("..1")).unwrap();
    fs::write(root.join("..1/half"), "x").unwrap();
    std::os::unix::fs::symlink("..1", root.join("..data_tmp")).unwrap();
    assert_eq!(text(root.join("a")).as_deref(), Some("1"));
    atomic::write(root, &files(&[("a", "2", 0o644)]), None).unwrap();
    assert_eq!(text(root.join("a")).as_deref(), Some("2"));
    assert!(!root.join("..1/half").exists() && !root.join("..0").exists());
}

#[test]
fn readers_never_see_a_mixture() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    let folder = Folder::new();
    let root = folder.path().to_owned();
    let version = |number: u32| {
        let text = number.to_string();
        files(&[("a", &text, 0o644), ("b", &text, 0o644)])
    };
    atomic::write(&root, &version(0), None).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let reader = std::thread::spawn({
        let (root, stop) = (root.clone(), Arc::clone(&stop));
        move || {
            let mut read = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                // A reader that wants both files of one version looks `..data` up once. Its version may be taken away
                // while it reads; then it reads again, as it would after any failed open.
                let Ok(data) = root.join("..data").canonicalize() else {
                    continue;
                };
                if let (Some(a), Some(b)) = (text(data.join("a")), text(data.join("b"))) {
                    assert_eq!(a, b);
                    assert!(!a.is_empty(), "half a file");
                    read += 1;
                    SEEN.store(read, Ordering::Relaxed);
                }
            }
            read
        }
    });
    let mut number = 0;
    while number < 300 || (!reader.is_finished() && SEEN.load(Ordering::Relaxed) == 0) {
        number += 1;
        atomic::write(&root, &version(number), None).unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    assert!(reader.join().unwrap() > 0);
}

fn contents(volume: &str) -> Result<Content, ConfigError> {
    let parse = |json: &str| proto::value::json::parse(json.as_bytes()).unwrap();
    let pod = parse(r#"{"metadata":{"name":"p","namespace":"n","labels":{"a":"b"}}}"#);
    let mut objects = Objects::default();
    for json in [
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","namespace":"n"},
            "data":{"x":"1","y":"2"},"binaryData":{"z":"aGk="}}"#,
        r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"n"},"data":{"k":"aGk="}}"#,
    ] {
        let value = parse(json);
        objects.insert(Key::of(&value).unwrap(), value);
    }
    let around = Surroundings {
        pod: &pod,
        objects: &objects,
        pod_addresses: &[],
        host_addresses: &[],
        allocatable: Allocatable { cpus: 2, ..Allocatable::default() },
    };
    content(&parse(volume), &around)
}

#[test]
fn what_volumes_hold() {
    let check = |volume: &str, expected: &[(&str, &str, u32)], memory: bool| {
        let expected = Content::Files { files: files(expected), memory };
        assert_eq!(contents(volume), Ok(expected), "{volume}");
    };
    check(
        r#"{"name":"v","configMap":{"name":"c"}}"#,
        &[("x", "1", 0o644), ("y", "2", 0o644), ("z", "hi", 0o644)],
        false,
    );
    check(
        r#"{"name":"v","configMap":{"name":"c","defaultMode":256,"items":[{"key":"x","path":"d/e"},
            {"key":"y","path":"f","mode":420}]}}"#,
        &[("d/e", "1", 0o400), ("f", "2", 0o644)],
        false,
    );
    check(
        r#"{"name":"v","configMap":{"name":"none","optional":true}}"#,
        &[],
        false,
    );
    check(
        r#"{"name":"v","secret":{"secretName":"s","defaultMode":384}}"#,
        &[("k", "hi", 0o600)],
        true,
    );
    check(
        r#"{"name":"v","projected":{"sources":[{"configMap":{"name":"c","items":[{"key":"x","path":"x"}]}},
            {"secret":{"name":"s"}},{"downwardAPI":{"items":[{"path":"l","fieldRef":{"fieldPath":"metadata.labels"}}]}}]}}"#,
        &[("k", "hi", 0o644), ("l", "a=\"b\"", 0o644), ("x", "1", 0o644)],
        true,
    );
    check(
        r#"{"name":"v","downwardAPI":{"items":[{"path":"c","resourceFieldRef":{"containerName":"x","resource":"limits.cpu"}}]}}"#,
        &[("c", "2", 0o644)],
        false,
    );
    let missing = contents(r#"{"name":"v","secret":{"secretName":"none"}}"#);
    assert_eq!(missing, Err(ConfigError::NoObject(Key::new("Secret", "n", "none"))));
    for path in ["../x", "/x", "a/../../x", "..data", "a//b", ""] {
        let volume = format!(r#"{{"name":"v","configMap":{{"name":"c","items":[{{"key":"x","path":"{path}"}}]}}}}"#);
        assert!(contents(&volume).is_err(), "{path}");
    }
    let token = r#"{"name":"kube-api-access-x","projected":{"sources":[{"serviceAccountToken":{"path":"t"}}]}}"#;
    assert_eq!(contents(token), Ok(Content::Left));
}

#[test]
fn host_paths_are_checked_by_type() {
    let folder = Folder::new();
    let root = folder.path();
    fs::write(root.join("file"), "").unwrap();
    let check = |name: &str, kind: &str, fits: bool| {
        let content = Content::HostPath { path: root.join(name), kind: kind.to_owned() };
        let volume = Volume { name: "v".to_owned(), content };
        let made = write(&volume, &root.join("unused"), None, false);
        assert_eq!(made.is_ok(), fits, "{name} as {kind:?}");
    };
    check("none", "Directory", false);
    check("any", "", true);
    check("any", "Directory", true);
    check("file", "", true);
    check("file", "Directory", false);
    check("file", "File", true);
    check("made", "DirectoryOrCreate", true);
    check("made", "Directory", true);
    check("made-file", "FileOrCreate", true);
    check("made-file", "File", true);
    check("file", "Socket", false);
}

#[test]
fn sub_paths_are_for_whoever_the_volume_is_for() {
    let folder = tempfile::tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    for (name, wanted) in [("empty", 0o777), ("group", 0o2777), ("closed", 0o700), ("usual", 0o755)] {
        let volume = folder.path().join(name);
        fs::create_dir(&volume).unwrap();
        fs::set_permissions(&volume, fs::Permissions::from_mode(wanted)).unwrap();
        source(&volume, "a/b").unwrap();
        assert_eq!(
            (mode(&volume.join("a")), mode(&volume.join("a/b"))),
            (wanted, wanted),
            "{name}"
        );
        // What is there already is as somebody made it.
        fs::set_permissions(volume.join("a"), fs::Permissions::from_mode(0o750)).unwrap();
        source(&volume, "a/c").unwrap();
        assert_eq!(
            (mode(&volume.join("a")), mode(&volume.join("a/c"))),
            (0o750, wanted),
            "{name}"
        );
    }
}

#[test]
fn sub_paths_stay_inside() {
    let folder = Folder::new();
    let root = folder.path().canonicalize().unwrap();
    let volume = root.join("volume");
    fs::create_dir(&volume).unwrap();
    fs::create_dir(root.join("other")).unwrap();
    std::os::unix::fs::symlink(root.join("other"), volume.join("out")).unwrap();
    assert_eq!(source(&volume, "").unwrap(), volume);
    assert_eq!(source(&volume, "a/b").unwrap(), volume.join("a/b"));
    assert!(volume.join("a/b").is_dir());
    assert!(source(&volume, "out").is_err());
    // What is missing behind a link is not made there.
    assert!(source(&volume, "out/new").is_err());
    std::os::unix::fs::symlink(root.join("nowhere"), volume.join("dangling")).unwrap();
    assert!(source(&volume, "dangling").is_err());
    assert!(!root.join("other/new").exists() && !root.join("nowhere").exists());
}

#[test]
fn a_container_cannot_make_its_volume_too_deep_to_go() {
    let folder = Folder::new();
    let root = folder.path().join("volumes");
    fs::create_dir_all(root.join("v")).unwrap();
    removal::testing::deep(&root.join("v"));
    remove(&root).unwrap();
    assert!(!root.exists());
}

#[test]
fn removing_twice_is_fine() {
    let folder = Folder::new();
    let root = folder.path().join("volumes");
    let volume = Volume {
        name: "v".to_owned(),
        content: Content::Empty { memory: false, size_bytes: None },
    };
    write(&volume, &root.join("v"), None, false).unwrap();
    remove(&root).unwrap();
    remove(&root).unwrap();
    assert!(!root.exists());
}

#[test]
fn an_empty_folder_is_for_everybody_until_its_pod_says_who_it_is_for() {
    let folder = Folder::new();
    let root = folder.path().join("volumes");
    let path = root.join("v");
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    for memory in [false, true] {
        let volume = Volume {
            name: "v".to_owned(),
            content: Content::Empty { memory, size_bytes: None },
        };
        let made = |group| match write(&volume, &path, group, true) {
            Err(VolumeError::Io { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied && memory => false,
            result => {
                result.unwrap();
                true
            }
        };
        let (wanted, group) = if rustix::process::geteuid().is_root() {
            (0o2777, Some(7))
        } else {
            (0o777, None)
        };
        // One that was cut short is made all the same.
        fs::create_dir_all(root.join(".new-v")).unwrap();
        if !made(group) {
            continue;
        }
        assert_eq!(mode(), wanted, "memory: {memory}");
        if group.is_some() {
            use std::os::unix::fs::MetadataExt as _;
            assert_eq!(fs::metadata(&path).unwrap().gid(), 7, "memory: {memory}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(made(group));
        assert_eq!(mode(), 0o700, "memory: {memory}");
        remove(&root).unwrap();
    }
}

#[test]
fn memory_volumes_are_mounted_once_and_go() {
    let folder = Folder::new();
    let root = folder.path().join("volumes");
    let volume = Volume {
        name: "v".to_owned(),
        content: Content::Files { files: files(&[("k", "hidden", 0o400)]), memory: true },
    };
    let path = root.join("v");
    let mounts = || {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let here = format!("tmpfs {} tmpfs", path.display());
        table.lines().filter(|line| line.starts_with(&here)).count()
    };
    match write(&volume, &path, None, true) {
        Ok(()) => {
            write(&volume, &path, None, true).unwrap();
            assert_eq!(mounts(), 1);
            assert_eq!(text(path.join("k")).as_deref(), Some("hidden"));
            remove(&root).unwrap();
            assert!(mounts() == 0 && !root.exists());
        }
        // Without the right to mount there is no volume, rather than one on the disk.
        Err(error) => {
            let VolumeError::Io { source, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!(source.kind(), io::ErrorKind::PermissionDenied);
            assert!(!path.join("k").exists());
        }
    }
}

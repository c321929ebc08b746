//! Machines that lack something, for real: what `edgecore check` says of them, and that the edge core goes on with what
//! there is. Each in mount and network namespaces of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use edgecore::seccomp::{Filter, local};
use tempfile::TempDir;
use tests::cores::program;
use tests::processes::Process;

/// An edge core's folders.
struct Place {
    folder: TempDir,
    config: PathBuf,
}

impl Place {
    fn new(runtime: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let text = format!(
            "data = {:?}\nlogs = {:?}\nrun = {:?}\nruntime = {runtime:?}\n",
            path("data"),
            path("logs"),
            path("run"),
        );
        for name in ["data", "logs", "run"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        let config = path("edgecore.toml");
        std::fs::write(&config, text).unwrap();
        Self { folder, config }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// The edge core on a machine that was made so; it becomes the process that is started.
    fn edgecore(&self, setup: &str, word: &str) -> Command {
        let script = format!("{setup}\nexec \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "sh", "-ec", &script, "sh"]);
        command
            .arg(program("edgecore"))
            .arg("--config")
            .arg(&self.config)
            .arg(word);
        command.stdin(Stdio::null());
        command
    }

    fn check(&self, setup: &str) -> String {
        said(&self.edgecore(setup, "check").output().unwrap())
    }
}

fn said(output: &Output) -> String {
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The one line about something begins so, and has all these words.
fn says(text: &str, mark: &str, what: &str, words: &[&str]) {
    let about = |line: &&str| line.get(8..).is_some_and(|rest| rest.split(' ').next() == Some(what));
    let lines: Vec<_> = text.lines().filter(about).collect();
    let [line] = lines[..] else { panic!("{what}: {text}") };
    assert!(line.starts_with(mark), "{line}");
    for word in words {
        assert!(line.contains(word), "{word}: {line}");
    }
}

#[test]
fn what_a_machine_lacks_has_its_line() {
    let place = Place::new("containerd");
    let run = place.path("run");
    let all = place.check("");
    for what in ["program", "kernel", "time", "namespaces", "seccomp", "overlayfs"] {
        says(&all, "ok", what, &[]);
    }
    for what in ["rootfs", "runfs", "proc", "sys"] {
        assert!(!all.contains(&format!(" {what} ")), "{all}");
    }
    let check = |setup: &str, mark, what, words: &[&str]| says(&place.check(setup), mark, what, words);
    check(
        "mount -o remount,bind,ro /",
        "note",
        "rootfs",
        &["read-only", "remount,rw"],
    );
    let small = format!("mount -t tmpfs -o size=64k none {run}");
    check(&small, "note", "runfs", &["64 KiB left", &run, "remount,size=32M"]);
    let few = format!("mount -t tmpfs -o nr_inodes=50 none {run}");
    check(&few, "note", "runfs", &["room for 4", "files left", &run]);
    let full = format!("{small}; dd if=/dev/zero of={run}/filler bs=64k count=1 2>/dev/null || true");
    check(&full, "MISSING", "run", &[&run, "take away what is not needed"]);
    let no_ipv6 = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6";
    check(no_ipv6, "note", "IPv6", &["IPv4 alone", "disable_ipv6=0"]);
    check("mount -t tmpfs none /sys", "MISSING", "sys", &["mount -t sysfs"]);
    check("umount -l /proc", "MISSING", "proc", &["mount -t proc"]);
}

#[test]
fn a_check_changes_nothing_and_knows_where_overlays_work() {
    let place = Place::new("embedded");
    let (data, logs, run) = (place.path("data"), place.path("logs"), place.path("run"));
    let check = |setup: &str, mark, what, words: &[&str]| says(&place.check(setup), mark, what, words);
    for folder in [&data, &logs, &run] {
        std::fs::remove_dir(folder).unwrap();
    }
    let fresh = place.check("");
    for (what, folder) in [("data", &data), ("logs", &logs), ("run", &run)] {
        says(&fresh, "ok", what, &[folder, "will be made"]);
        assert!(!Path::new(folder).exists(), "{fresh}");
    }
    std::fs::create_dir(&data).unwrap();
    check("", "ok", "overlayfs", &["the kernel has it"]);
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0);
    // What the image store finds out by trying, told before.
    let (overlay, stack) = (place.path("o"), "mkdir -p $o/l $o/u $o/w");
    let on_overlay = format!(
        "o={overlay}; mkdir -p $o; mount -t tmpfs none $o; {stack}; mount -t overlay -o lowerdir=$o/l,upperdir=$o/u,workdir=$o/w none {data}"
    );
    check(&on_overlay, "note", "overlayfs", &["on overlay", "a copy of its image"]);
    let on_tmpfs = format!("mount -t tmpfs -o size=40m none {data}");
    check(&on_tmpfs, "ok", "overlayfs", &[]);
    let short = format!("mount -t tmpfs -o size=16m none {data}");
    check(&short, "note", "room", &["16 MiB left", &data, "less than 32 MiB"]);
    let read_only = format!("mount -t tmpfs -o ro none {data}");
    check(&read_only, "MISSING", "data", &[&data, "read-only", "remount,rw"]);
    let file = format!("umount {data} 2>/dev/null || true; rmdir {data}; touch {data}");
    check(&file, "MISSING", "data", &[&data, "it is a file"]);
    let ca = format!("[images]\nregistry_ca = {data:?}\n");
    let config = std::fs::read_to_string(&place.config).unwrap();
    std::fs::write(&place.config, config + &ca).unwrap();
    check("", "MISSING", "registries", &[&data, "holds no certificate"]);
}

#[test]
fn a_program_that_was_cut_short_says_so() {
    let place = Place::new("fake");
    let copy = place.path("edgecore");
    let mut bytes = std::fs::read(program("edgecore")).unwrap();
    let whole = bytes.len();
    bytes.truncate(whole - 1);
    std::fs::write(&copy, &bytes).unwrap();
    let script = format!("chmod 755 {copy}");
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    let output = Command::new(&copy)
        .arg("--config")
        .arg(&place.config)
        .arg("check")
        .output()
        .unwrap();
    assert!(!output.status.success(), "{output:?}");
    let words = [
        format!("{} bytes of at least {whole}", whole - 1),
        "copy it again".to_owned(),
    ];
    says(
        &said(&output),
        "MISSING",
        "program",
        &words.each_ref().map(String::as_str),
    );
}

#[test]
fn a_kernel_without_filters_is_told() {
    let place = Place::new("containerd");
    let without = br#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[
        {"names":["seccomp"],"action":"SCMP_ACT_ERRNO","errnoRet":38}]}"#;
    let without = Filter::compile(&local::parse(without).unwrap()).unwrap();
    let mut command = place.edgecore("", "check");
    let output = thread::spawn(move || {
        without.load().unwrap();
        command.output().unwrap()
    });
    let text = said(&output.join().unwrap());
    says(
        &text,
        "note",
        "seccomp",
        &["pods that ask for a profile are refused", "CONFIG_SECCOMP_FILTER"],
    );
}

fn log(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[tokio::test]
async fn an_edge_core_goes_on_with_what_there_is() {
    let place = Place::new("fake");
    let (data, run, path) = (place.path("data"), place.path("run"), place.folder.path().join("log"));
    let setup = format!(
        "mount -t tmpfs none {data}; mount -t tmpfs -o size=64k none {run}; mount -o remount,bind,ro /
        echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"
    );
    let mut process = Process::start(&mut place.edgecore(&setup, "run"), &path);
    process
        .until("it is up", async || log(&path).contains("edge core is up"))
        .await;
    for what in ["rootfs", "runfs", "IPv6"] {
        let told = |line: &str| line.contains("WARN") && line.contains(what) && line.contains("goes on with");
        assert!(log(&path).lines().any(told), "{what}: {}", log(&path));
    }
    process.stop().await;
}

#[tokio::test]
async fn an_edge_core_waits_for_a_disk_that_takes_writes() {
    let place = Place::new("fake");
    let (data, path) = (place.path("data"), place.folder.path().join("log"));
    let setup = format!("mount -t tmpfs none {data}; mount -o remount,ro {data}");
    let mut process = Process::start(&mut place.edgecore(&setup, "run"), &path);
    let waits = async || log(&path).contains("waiting for a disk that takes writes");
    process.until("it waits", waits).await;
    assert!(
        log(&path).contains(&data) && log(&path).contains("Read-only file system"),
        "{}",
        log(&path)
    );
    let mut remount = Command::new("nsenter");
    remount.arg("--mount").arg("--target").arg(process.id().to_string());
    let remounted = remount.args(["mount", "-o", "remount,rw", &data]).status();
    assert!(remounted.unwrap().success());
    process
        .until("it is up", async || log(&path).contains("edge core is up"))
        .await;
    process.stop().await;
}

//! `edgecore check` with each prerequisite missing for real: one line that names it, with its fix, and the exit code.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tests::cores::{eventually, program};

use super::host::{fill, own_mounts};
use super::no_clock::Wall;
use super::node::Node;
use super::site::Site;

/// What a check said.
struct Checked {
    lines: Vec<String>,
    good: bool,
}

impl Checked {
    fn of(command: &mut Command) -> Self {
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        Self {
            lines: text.lines().map(str::to_owned).collect(),
            good: output.status.success(),
        }
    }

    /// The one line about something.
    fn line(&self, what: &str) -> &str {
        let about = |line: &&String| line.get(8..).is_some_and(|rest| rest.starts_with(&format!("{what} ")));
        let mut lines = self.lines.iter().filter(about);
        let line = lines
            .next()
            .unwrap_or_else(|| panic!("nothing about {what}: {:#?}", self.lines));
        assert!(lines.next().is_none(), "{what} twice: {:#?}", self.lines);
        line
    }

    /// It has the mark, and all these parts.
    fn says(&self, what: &str, mark: &str, parts: &[&str]) {
        let line = self.line(what);
        assert!(line.starts_with(mark), "{line}");
        for part in parts {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert_eq!(self.good, !self.lines.iter().any(|line| line.starts_with("MISSING")));
    }

    fn misses(&self, what: &str, parts: &[&str]) {
        self.says(what, "MISSING", parts);
        assert!(!self.good);
    }
}

/// The configuration of the site with this in place of that.
fn variant(site: &Site, name: &str, from: &str, to: &str) -> PathBuf {
    let text = std::fs::read_to_string(&site.edge.config).unwrap();
    assert!(text.contains(from), "{from}: {text}");
    let path = site.node.folder.join(name).with_extension("toml");
    std::fs::write(&path, text.replace(from, to)).unwrap();
    path
}

fn edgecore(config: &Path) -> Command {
    let mut command = Command::new(program("edgecore"));
    command.arg("--config").arg(config).arg("check");
    command
}

fn check(config: &Path) -> Checked {
    Checked::of(&mut edgecore(config))
}

fn mount(args: &[&str]) {
    assert!(Command::new("mount").args(args).status().unwrap().success(), "{args:?}");
}

#[tokio::test]
async fn containerd_each_missing_prerequisite_has_its_line() {
    own_mounts();
    let smalls = vec![("ro", "size=1m"), ("cramped", "size=1m")];
    let mut site = Site::joined(Node::on("check", smalls).await).await;
    let config = site.edge.config.clone();
    let folder = |name: &str| site.node.folder.join(name).display().to_string();

    // All that is needed is there; what could be better is a note.
    let all = check(&config);
    assert!(all.good, "{:#?}", all.lines);
    all.says("runtime", "ok", &["containerd://"]);
    all.says("joined", "ok", &["edge-1"]);
    all.says("cloud", "ok", &["127.0.0.1:", "UDP"]);
    all.says("pod network", "note", &["loopback only"]);
    for what in ["root", "data", "logs", "run", "runc", "overlayfs", "cgroups"] {
        all.says(what, "ok", &[]);
    }

    // No containerd.
    let lost = check(&variant(&site, "lost", "c.sock", "nobody.sock"));
    lost.misses(
        "runtime",
        &["nobody.sock", "No such file", "apt-get install containerd"],
    );

    // No runc on the path.
    let bare = Checked::of(edgecore(&config).env("PATH", folder("cni")));
    bare.misses("runc", &["apt-get install runc"]);

    // A data folder that is read-only, one with no room, and one that is a file.
    let data = format!("data = {:?}", folder("edge"));
    mount(&["-o", "remount,ro", &folder("ro")]);
    let ro = check(&variant(&site, "ro", &data, &format!("data = {:?}", folder("ro"))));
    ro.misses("data", &[&folder("ro"), "read-only", "remount,rw"]);
    let filler = fill(Path::new(&folder("cramped")));
    let cramped = check(&variant(
        &site,
        "cramped",
        &data,
        &format!("data = {:?}", folder("cramped")),
    ));
    cramped.misses("data", &[&folder("cramped"), "take away what is not needed"]);
    cramped.says("room", "note", &["0 bytes of 1024 KiB", "DiskPressure"]);
    std::fs::remove_file(filler).unwrap();
    let file = check(&variant(&site, "file", &data, &format!("data = {config:?}")));
    file.misses("data", &["it is a file and no folder", "move the file away"]);

    // A pod network whose plugins are not there, one that is no JSON, and one that is complete.
    let list = site.node.folder.join("cni/10-net.conflist");
    std::fs::write(
        &list,
        r#"{"cniVersion":"0.4.0","name":"n","plugins":[{"type":"bridge"},{"type":"no-such"}]}"#,
    )
    .unwrap();
    check(&config).misses(
        "pod network",
        &[
            "plugins no-such",
            "/usr/lib/cni",
            "apt-get install containernetworking-plugins",
        ],
    );
    let cni = format!("cni_conf = {:?}", folder("cni"));
    let nowhere = variant(
        &site,
        "nowhere",
        &cni,
        &format!("{cni}\ncni_plugins = [{:?}]", folder("root")),
    );
    check(&nowhere).misses("pod network", &["plugins bridge, no-such", &folder("root")]);
    std::fs::write(&list, "{").unwrap();
    check(&config).misses("pod network", &["10-net.conflist", "correct it"]);
    std::fs::write(
        &list,
        r#"{"cniVersion":"0.4.0","name":"n","plugins":[{"type":"bridge"}]}"#,
    )
    .unwrap();
    check(&config).says("pod network", "ok", &["described in"]);

    // A kernel without the memory controller, as Raspberry Pi OS comes.
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers");
    let (file, text) = if unified.exists() {
        (unified, "cpuset cpu io pids\n".to_owned())
    } else {
        let table = std::fs::read_to_string("/proc/cgroups").unwrap();
        let off = |line: &str| {
            let off = line.starts_with("memory").then(|| line.strip_suffix('1')).flatten();
            off.map_or_else(|| format!("{line}\n"), |line| format!("{line}0\n"))
        };
        (Path::new("/proc/cgroups"), table.lines().map(off).collect())
    };
    let fewer = folder("cgroups");
    std::fs::write(&fewer, text).unwrap();
    mount(&["--bind", &fewer, file.to_str().unwrap()]);
    check(&config).misses("cgroups", &["memory is off", "cgroup_enable=memory"]);
    assert!(Command::new("umount").arg(file).status().unwrap().success());
    check(&config).says("cgroups", "ok", &["memory"]);

    // A clock at 1970.
    let wall = Wall::new(&site.node.folder);
    wall.set_to_1970();
    let early = Checked::of(wall.edgecore(&config).arg("check"));
    early.says("clock", "note", &["1970-01-01T00:01:", "before this program was built"]);
    assert!(early.good, "a node works without a clock: {:#?}", early.lines);
    // It can reach the cloud, too.
    early.says("cloud", "ok", &["UDP"]);

    // No cloud, and then one that is connected.
    site.cloud.kill();
    let alone = check(&config);
    alone.says("cloud", "note", &["127.0.0.1:", "let UDP to that port through"]);
    assert!(alone.good, "{:#?}", alone.lines);
    site.edge.start();
    eventually("the edge core runs", async || {
        let status = site.edge.command(&["check"]);
        status.contains("no session").then_some(())
    })
    .await;
    site.cloud.start_again().await;
    site.connected().await;
    check(&config).says("cloud", "ok", &["connected to 127.0.0.1:"]);

    // A key that means nothing.
    let unknown = check(&variant(&site, "unknown", "log = ", "colour = \"red\"\nlog = "));
    unknown.misses("config", &["colour", "no such key"]);
    std::fs::remove_file(list).unwrap();
    site.finish().await;
}

#[tokio::test]
async fn containerd_a_node_that_has_not_joined_or_whose_key_is_revoked_is_told() {
    let site = Site::joined(Node::empty("checkjoin").await).await;
    let data = format!("data = {:?}", site.node.folder.join("edge").display().to_string());
    let other = site.node.folder.join("other").display().to_string();
    let fresh = check(&variant(&site, "fresh", &data, &format!("data = {other:?}")));
    fresh.says("joined", "note", &["edgecore join https://HOST:6443"]);
    assert!(
        fresh.good && !fresh.lines.iter().any(|line| line.contains(" cloud ")),
        "{:#?}",
        fresh.lines
    );
    site.kubectl.run(&["delete", "node", "edge-1"]);
    eventually("the key is barred", async || {
        let output = edgecore(&site.edge.config).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.contains("was revoked: remove node.key").then_some(())
    })
    .await;
    site.finish().await;
}

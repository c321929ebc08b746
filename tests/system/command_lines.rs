//! How all our programs end: 64 for a command line that means nothing, 78 for a configuration that cannot be used, 0
//! for help and the version.

use tempfile::TempDir;
use tests::cores::program;
use tests::shell::{Shell, has};

const PROGRAMS: [&str; 3] = ["cloudcore", "edgecore", "edgectl"];

fn shell(name: &str, folder: &TempDir) -> Shell {
    Shell::new(program(name), folder.path(), &folder.path().join("no.kubeconfig"))
}

#[tokio::test]
async fn help_and_version_are_no_failures() {
    let folder = tempfile::tempdir().unwrap();
    for name in PROGRAMS {
        let shell = shell(name, &folder);
        for line in ["--help", "help"] {
            has(&shell.ok(line).await, &["Usage: ", name, "Commands:"]);
        }
        let version = shell.ok("--version").await;
        assert_eq!(version, format!("{name} {}\n", env!("CARGO_PKG_VERSION")));
    }
    has(&shell("cloudcore", &folder).ok("token create --help").await, &["--ttl"]);
}

#[tokio::test]
async fn a_command_line_that_means_nothing_ends_with_64() {
    let folder = tempfile::tempdir().unwrap();
    let of_all = ["", "fly", "--fly"].map(|line| (line, "Usage"));
    for name in PROGRAMS {
        let own: &[(&str, &str)] = match name {
            "cloudcore" => &[
                ("backup", "<FILE>"),
                (
                    "token create --ttl soon",
                    "'soon' for '--ttl <TTL>': not a length of time, such as 90s",
                ),
                ("token create --uses many", "'many' for '--uses <USES>'"),
                ("token create --label site", "not KEY=VALUE"),
                ("token create --name a --replace b", "cannot be used with"),
            ],
            "edgecore" => &[
                ("join", "<URL>"),
                ("join https://127.0.0.1:1 --label site", "not KEY=VALUE"),
                ("image import", "<ARCHIVE>"),
                ("image remove", "<NAME>"),
            ],
            _ => &[
                ("get", "<RESOURCE>"),
                (
                    "logs a --since soon",
                    "'soon' for '--since <AGE>': not a length of time",
                ),
                ("token create --ttl soon", "not a length of time"),
                ("token create --label site", "not KEY=VALUE"),
            ],
        };
        for (line, part) in own.iter().chain(&of_all) {
            has(&shell(name, &folder).fails(line, 64).await, &[part]);
        }
    }
}

#[tokio::test]
async fn a_configuration_that_cannot_be_used_ends_with_78() {
    let folder = tempfile::tempdir().unwrap();
    for (name, runs) in [("cloudcore", "serve"), ("edgecore", "run")] {
        let shell = shell(name, &folder);
        let check = async |text: &str, parts: &[&str]| {
            shell.file("c.toml", text);
            for line in [runs, "check"] {
                has(
                    &shell.fails(&format!("--config c.toml {line}"), 78).await,
                    &[&[name, "c.toml"], parts].concat(),
                );
            }
        };
        check("data = 1", &["line 1 (data = 1): "]).await;
        check("\nlog = \"loud\"", &["line 2 (log = \"loud\"): ", "one of `error`"]).await;
        check("log = ", &["line 1 (log =): "]).await;
        let missing = shell.fails(&format!("--config nowhere.toml {runs}"), 78).await;
        has(&missing, &["reading nowhere.toml", "No such file"]);
    }
    let edgecore = shell("edgecore", &folder);
    edgecore.file("c.toml", "[link]\nbeat_s = 301");
    has(
        &edgecore.fails("--config c.toml run", 78).await,
        &["link.beat_s: 301 is more than 300"],
    );
    let cloudcore = shell("cloudcore", &folder);
    cloudcore.file("c.toml", "datta = 1");
    has(
        &cloudcore.fails("--config c.toml check", 78).await,
        &["datta: no such key"],
    );

    let edgectl = shell("edgectl", &folder);
    edgectl.file("broken.kubeconfig", "clusters: 1");
    edgectl.file("empty.kubeconfig", "{apiVersion: v1, kind: Config}");
    for (file, part) in [
        ("nowhere", "no kubeconfig at nowhere: copy admin.kubeconfig"),
        ("broken.kubeconfig", "the kubeconfig broken.kubeconfig cannot be used"),
        ("empty.kubeconfig", "the kubeconfig empty.kubeconfig cannot be used"),
    ] {
        has(
            &edgectl.fails(&format!("get pods --kubeconfig {file}"), 78).await,
            &[part],
        );
    }
    // The one that $KUBECONFIG names.
    has(&edgectl.fails("get pods", 78).await, &["no.kubeconfig"]);
}

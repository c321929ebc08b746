//! What both daemons tell the service manager that started them.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;

use tests::cores::{eventually, program};
use tests::processes::Process;

use super::site::configuration;

/// So often it has to be heard of: short, and still no bound on anything that is tested.
const WATCHDOG_MICROS: &str = "400000";

/// Starts a daemon under a manager, hears that it is up and lives, ends it, and hears that.
async fn is_heard_of(name: &str, config: &Path, word: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_nonblocking(true).unwrap();
    let heard = || {
        let mut buffer = [0; 512];
        let count = manager.recv(&mut buffer).ok()?;
        Some(String::from_utf8(buffer[..count].to_vec()).unwrap())
    };
    let mut command = Command::new(program(name));
    command.arg("--config").arg(config).arg(word);
    command
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", WATCHDOG_MICROS);
    let mut process = Process::start(&mut command, &folder.path().join("log"));
    for wanted in ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"] {
        let mut said = String::new();
        process
            .until(&format!("{name} says {wanted}"), async || {
                said = heard().unwrap_or_default();
                !said.is_empty()
            })
            .await;
        assert_eq!(said, wanted, "{name}");
    }
    process.stop().await;
    let said = eventually(&format!("{name} says that it ends"), async || {
        heard().filter(|said| said != "WATCHDOG=1")
    })
    .await;
    assert_eq!(said, "STOPPING=1", "{name}");
}

#[tokio::test]
async fn a_service_manager_hears_of_an_edge_core_that_has_not_even_joined() {
    let folder = tempfile::tempdir().unwrap();
    let (config, _) = configuration(folder.path(), "edge", "");
    is_heard_of("edgecore", &config, "run").await;
}

#[tokio::test]
async fn a_service_manager_hears_of_a_cloud_core() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("cloudcore.toml");
    let data = folder.path().join("cloud");
    let text = format!("data = {data:?}\napi = \"127.0.0.1:0\"\nhub = \"127.0.0.1:0\"\n");
    std::fs::write(&config, text).unwrap();
    is_heard_of("cloudcore", &config, "serve").await;
}

//! A manager made of a socket, and a clock that only the tests move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const PID: u32 = 7;

/// The socket a manager reads.
struct Manager {
    socket: UnixDatagram,
    _folder: Option<tempfile::TempDir>,
    name: OsString,
}

impl Manager {
    fn on_a_path() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        Self::of(socket, Some(folder), path.into())
    }

    fn on_a_name() -> Self {
        let name = format!("edgehold-{}-{:?}", std::process::id(), std::thread::current().id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        Self::of(
            UnixDatagram::bind_addr(&address).unwrap(),
            None,
            format!("@{name}").into(),
        )
    }

    fn of(socket: UnixDatagram, folder: Option<tempfile::TempDir>, name: OsString) -> Self {
        socket.set_nonblocking(true).unwrap();
        Self { socket, _folder: folder, name }
    }

    fn service(&self, others: &[(&str, &str)]) -> Service {
        let variable = |wanted: &str| match wanted {
            "NOTIFY_SOCKET" => Some(self.name.clone()),
            _ => others
                .iter()
                .find(|(name, _)| *name == wanted)
                .map(|(_, value)| (*value).into()),
        };
        Service::named(variable, PID).unwrap()
    }

    /// What was said since it was last asked.
    fn heard(&self) -> Vec<String> {
        let mut heard = Vec::new();
        let mut buffer = [0; 1024];
        while let Ok(count) = self.socket.recv(&mut buffer) {
            heard.push(String::from_utf8(buffer[..count].to_vec()).unwrap());
        }
        heard
    }
}

#[test]
fn what_the_environment_says() {
    let watchdog = |others: &[(&str, &str)]| Manager::on_a_path().service(others).watchdog;
    assert_eq!(watchdog(&[]), None);
    assert_eq!(watchdog(&[("WATCHDOG_USEC", "2000000")]), Some(Duration::from_secs(2)));
    assert_eq!(watchdog(&[("WATCHDOG_USEC", "0")]), None);
    assert_eq!(watchdog(&[("WATCHDOG_USEC", "soon")]), None);
    assert_eq!(
        watchdog(&[("WATCHDOG_USEC", "5"), ("WATCHDOG_PID", "7")]),
        Some(Duration::from_micros(5))
    );
    // It is meant for the parent.
    assert_eq!(watchdog(&[("WATCHDOG_USEC", "5"), ("WATCHDOG_PID", "6")]), None);

    let named = |name: &str| Service::named(|wanted| (wanted == "NOTIFY_SOCKET").then(|| name.into()), PID);
    assert!(named("").unwrap().socket.is_none());
    let refused = named("vsock:2:1").unwrap_err().to_string();
    assert!(
        refused.contains("NOTIFY_SOCKET: vsock:2:1 is neither a path"),
        "{refused}"
    );
}

#[test]
fn both_kinds_of_sockets_hear() {
    for manager in [Manager::on_a_path(), Manager::on_a_name()] {
        let service = manager.service(&[]);
        service.ready();
        service.status("waiting for room\nREADY=0");
        assert_eq!(manager.heard(), ["READY=1", "STATUS=waiting for room"]);
    }
}

#[test]
fn a_status_ends_at_its_limit() {
    let manager = Manager::on_a_path();
    let said = |text: String| {
        manager.service(&[]).status(&text);
        manager.heard().concat().len() - "STATUS=".len()
    };
    assert_eq!(said("x".repeat(STATUS_BYTES_MAX)), STATUS_BYTES_MAX);
    assert_eq!(said("x".repeat(STATUS_BYTES_MAX + 1)), STATUS_BYTES_MAX);
    // A letter of two bytes across the limit goes as a whole.
    assert_eq!(said("x".repeat(STATUS_BYTES_MAX - 1) + "ß"), STATUS_BYTES_MAX - 1);
}

#[test]
fn nobody_there_and_nobody_reading_stop_nothing() {
    Service::default().ready();
    let manager = Manager::on_a_path();
    let service = manager.service(&[]);
    for _ in 0..10_000 {
        service.ready();
    }
    assert!(!manager.heard().is_empty());
    drop(manager);
    service.ready();
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_is_fed_while_the_process_answers() {
    let manager = Manager::on_a_path();
    let service = manager.service(&[("WATCHDOG_USEC", "600000000")]);
    let (stop, well) = (CancellationToken::new(), Arc::new(AtomicBool::new(true)));
    let answers = || async {
        while !well.load(Ordering::Relaxed) {
            sleep(Duration::from_secs(1)).await;
        }
    };
    let lasts = |seconds| sleep(Duration::from_secs(seconds));
    let watch = async {
        lasts(1).await;
        assert_eq!(manager.heard(), ["READY=1", "WATCHDOG=1"]);
        // Twice in the time in which it has to come once, and no more often.
        lasts(600).await;
        assert_eq!(manager.heard(), ["WATCHDOG=1"; 2]);
        well.store(false, Ordering::Relaxed);
        lasts(3600).await;
        assert_eq!(manager.heard(), Vec::<String>::new());
        // What was only slow is well again.
        well.store(true, Ordering::Relaxed);
        lasts(5).await;
        assert_eq!(manager.heard(), ["WATCHDOG=1"]);
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(service.run(answers, stop.clone()), watch);
    ended.unwrap();
    assert_eq!(manager.heard(), ["STOPPING=1"]);
}

#[tokio::test(start_paused = true)]
async fn without_a_watchdog_nothing_wakes() {
    let manager = Manager::on_a_path();
    let stop = CancellationToken::new();
    let asked = AtomicBool::new(false);
    let answers = || async { asked.store(true, Ordering::Relaxed) };
    let watch = async {
        sleep(Duration::from_secs(86_400)).await;
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(manager.service(&[]).run(answers, stop.clone()), watch);
    ended.unwrap();
    assert_eq!(manager.heard(), ["READY=1", "STOPPING=1"]);
    assert!(!asked.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_an_answer() {
    let manager = Manager::on_a_path();
    let service = manager.service(&[("WATCHDOG_USEC", "600000000")]);
    let stop = CancellationToken::new();
    let watch = async {
        sleep(Duration::from_secs(1)).await;
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(service.run(std::future::pending, stop.clone()), watch);
    ended.unwrap();
    assert_eq!(manager.heard(), ["READY=1", "STOPPING=1"]);
}

//! A real kernel's news of its network, in a network namespace of the test's own.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::{Child, Command};
use std::time::Duration;

use edgecore::network::Listener;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(20);

/// A process that holds a namespace, and ends with the test.
struct Namespace(Child);

impl Namespace {
    fn new() -> Self {
        let path = |pid: u32| format!("/proc/{pid}/ns/net");
        let holder = Command::new("unshare")
            .args(["--net", "sleep", "infinity"])
            .spawn()
            .unwrap();
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        while std::fs::read_link(path(holder.id())).unwrap() == own {
            std::thread::yield_now();
        }
        Self(holder)
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    fn ip(&self, args: &str) {
        let done = Command::new("nsenter")
            .arg(format!("--net={}", self.path()))
            .arg("ip")
            .args(args.split(' '))
            .status();
        assert!(done.unwrap().success(), "ip {args}");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_carrier_an_address_and_a_route_are_told() {
    let namespace = Namespace::new();
    let (told, mut heard) = mpsc::channel(16);
    let path = namespace.path();
    // A thread of its own, for only one thread moves to another namespace.
    std::thread::spawn(move || {
        let file = File::open(path).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut listener = Listener::new().unwrap();
            // Said when it listens, and then after every change; it ends with the test.
            while told.send(()).await.is_ok() {
                listener.change().await.unwrap();
            }
        });
    });
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut expect = |what: &str, commands: &[&str]| {
        commands.iter().for_each(|args| namespace.ip(args));
        let next = runtime.block_on(async { timeout(DEADLINE, heard.recv()).await });
        next.unwrap_or_else(|_| panic!("{what} was not told")).unwrap();
    };
    expect("that it listens", &[]);
    let pair = "link add near type veth peer name far";
    expect("a link that comes up", &[pair, "link set near up", "link set far up"]);
    expect("an address", &["addr add 192.0.2.2/24 dev near"]);
    expect("a route", &["route add default via 192.0.2.1"]);
    expect("a carrier that comes back", &["link set far down", "link set far up"]);
}

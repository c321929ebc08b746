//! Hosts as network namespaces, and the links between them and the cloud, which can be cut in either direction.
//!
//! All of it is a network of the test's own, gone with the test: nothing shows in the machine's. Needs root.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, gettid, move_into_link_name_space, unshare_unsafe};

/// Where the cloud's host is reached from all others.
pub const CLOUD: &str = "10.99.0.1";

/// What a link no longer carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Both,
    /// From the host to the cloud.
    Up,
    /// From the cloud to the host.
    Down,
    /// The plug is out, and the host's interface knows it.
    Unplugged,
}

/// Gives this thread, and every process it starts from now on, a network of its own: it is the cloud's host.
pub fn own_network() {
    own_namespace();
    run("ip", &["addr", "add", CLOUD, "dev", "lo"]);
}

/// A host behind a link of its own. It is gone when this is dropped and its processes have ended.
#[derive(Debug)]
pub struct Host {
    namespace: File,
    /// The cloud's end of its link.
    interface: String,
    /// `10.99.N`: the network of its link.
    network: String,
}

impl Host {
    /// A host of [`own_network`]; the number tells it from others.
    pub fn new(number: u8) -> Self {
        let (interface, network) = (format!("edge{number}"), format!("10.99.{number}"));
        let cloud = gettid().as_raw_nonzero().to_string();
        let namespace = apart(|| {
            own_namespace();
            let link = [
                "link", "add", "eth0", "type", "veth", "peer", "name", &interface, "netns", &cloud,
            ];
            run("ip", &link);
            run("ip", &["link", "set", "eth0", "up"]);
            File::open("/proc/thread-self/ns/net").expect("a thread has a network namespace")
        });
        run("ip", &["addr", "add", &format!("{network}.1/24"), "dev", &interface]);
        run("ip", &["link", "set", &interface, "up"]);
        let host = Self { namespace, interface, network };
        host.take_address(2);
        host
    }

    /// Works on this host: what is opened or started there is its.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        apart(|| {
            move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("entering the host");
            work()
        })
    }

    /// Cuts the link, until it is mended.
    pub fn cut(&self, cut: Cut) {
        self.inside(|| {
            if matches!(cut, Cut::Both | Cut::Up) {
                run("iptables", &["-A", "OUTPUT", "-o", "eth0", "-j", "DROP"]);
            }
            if matches!(cut, Cut::Both | Cut::Down) {
                run("iptables", &["-A", "INPUT", "-i", "eth0", "-j", "DROP"]);
            }
        });
        if cut == Cut::Unplugged {
            run("ip", &["link", "set", &self.interface, "down"]);
        }
    }

    pub fn mend(&self) {
        self.inside(|| run("iptables", &["-F"]));
        run("ip", &["link", "set", &self.interface, "up"]);
    }

    /// Its address changes to `10.99.N.last`.
    pub fn take_address(&self, last: u8) {
        let (address, cloud) = (format!("{}.{last}/24", self.network), format!("{}.1", self.network));
        self.inside(|| {
            run("ip", &["addr", "flush", "dev", "eth0"]);
            run("ip", &["addr", "add", &address, "dev", "eth0"]);
            run("ip", &["route", "replace", "default", "via", &cloud]);
        });
    }
}

/// On a thread whose namespace may be another one's.
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join()).expect("the work on a host succeeds")
}

/// This thread's, with its loopback up.
fn own_namespace() {
    #[expect(unsafe_code, reason = "rustix marks it unsafe for what other flags than this one do")]
    // SAFETY: a new network namespace shares no memory or descriptors differently.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("making a network namespace needs root");
    run("ip", &["link", "set", "lo", "up"]);
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {errors}");
}

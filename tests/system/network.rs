//! A real kernel's news of the network, on a host of the test's own.

use std::time::Duration;

use edgecore::network::Listener;
use tests::network::{Cut, Host, own_network};
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(20);

#[test]
fn a_carrier_an_address_and_a_route_are_told() {
    own_network();
    let host = Host::new(1);
    let (told, mut heard) = mpsc::channel(16);
    host.inside(|| {
        // Started here, so that it listens here; it ends with the test.
        std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut listener = Listener::new().unwrap();
                // Said when it listens, and then after every change.
                while told.send(()).await.is_ok() {
                    listener.change().await.unwrap();
                }
            });
        });
    });
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut expect = |what: &str, change: &dyn Fn()| {
        change();
        let next = runtime.block_on(async { timeout(DEADLINE, heard.recv()).await });
        next.unwrap_or_else(|_| panic!("{what} was not told")).unwrap();
    };
    expect("that it listens", &|| {});
    expect("an address and a route", &|| host.take_address(3));
    expect("a plug that is put back", &|| {
        host.cut(Cut::Unplugged);
        host.mend();
    });
}

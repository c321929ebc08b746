//! Addresses and node ports of services. They are few and rarely made, so what is taken is read from the services
//! themselves; whoever makes one holds a lock until it is stored.

use std::collections::BTreeSet;

use proto::object::Kind;
use proto::value::Value;
use tokio::sync::MutexGuard;

use super::Call;
use crate::api::status::Refusal;
use crate::store::Scope;

/// Cluster addresses are 10.96.0.1 to 10.96.255.254.
const NETWORK: [u8; 2] = [10, 96];
const HOSTS: u16 = 65_534;
const NODE_PORT_FIRST: i64 = 30_000;
const NODE_PORTS: u16 = 2_768;

impl Call {
    /// Gives a service what it needs and has not. What is returned is held until the service is stored, so that nobody
    /// else is given the same.
    pub(super) async fn allocate(&self, object: &mut Value) -> Result<Option<MutexGuard<'_, ()>>, Refusal> {
        if self.kind.kind != "Service" || object.text_at(&["spec", "type"]) == Some("ExternalName") {
            return Ok(None);
        }
        let turn = self.api.services.lock().await;
        let scope = Scope::kind(Kind::from("Service"));
        let all = self.everything(&scope).await?;
        let mut taken = Taken::default();
        for service in &all.items {
            taken.note(&service.body());
        }
        let random = u16::from_be_bytes(daemon::random::bytes());
        settle(object, &mut taken, random)
            .ok_or_else(|| Refusal::internal("every service address or node port is taken"))?;
        Ok(Some(turn))
    }
}

/// What other services have.
#[derive(Debug, Default)]
struct Taken {
    addresses: BTreeSet<String>,
    ports: BTreeSet<i64>,
}

impl Taken {
    fn note(&mut self, service: &Value) {
        self.addresses
            .extend(service.text_at(&["spec", "clusterIP"]).map(str::to_owned));
        let ports = service.list_at(&["spec", "ports"]).iter();
        self.ports.extend(ports.filter_map(|port| port.int_at(&["nodePort"])));
    }
}

/// Fills in address, families and node ports; `None` when nothing is left.
fn settle(service: &mut Value, taken: &mut Taken, random: u16) -> Option<()> {
    let given = service
        .text_at(&["spec", "clusterIP"])
        .filter(|address| !address.is_empty());
    let address = match given {
        Some(given) => given.to_owned(),
        None => (0..HOSTS)
            .map(|step| address(random.wrapping_add(step) % HOSTS + 1))
            .find(|address| !taken.addresses.contains(address))?,
    };
    service.set(&["spec", "clusterIP"], address.as_str());
    service.set(&["spec", "clusterIPs"], Value::from_iter([address.as_str()]));
    if service.list_at(&["spec", "ipFamilies"]).is_empty() {
        service.set(&["spec", "ipFamilies"], Value::from_iter(["IPv4"]));
    }
    if service.at(&["spec", "ipFamilyPolicy"]).is_none() {
        service.set(&["spec", "ipFamilyPolicy"], "SingleStack");
    }
    let kind = service.text_at(&["spec", "type"]).unwrap_or_default();
    let wanted = kind == "NodePort"
        || kind == "LoadBalancer"
            && service
                .at(&["spec", "allocateLoadBalancerNodePorts"])
                .and_then(Value::as_bool)
                != Some(false);
    if !wanted {
        return Some(());
    }
    let mut ports = service.list_at(&["spec", "ports"]).to_vec();
    taken
        .ports
        .extend(ports.iter().filter_map(|port| port.int_at(&["nodePort"])));
    for port in &mut ports {
        if port.int_at(&["nodePort"]).is_some_and(|number| number != 0) {
            continue;
        }
        let free = (0..NODE_PORTS)
            .map(|step| NODE_PORT_FIRST + i64::from(random.wrapping_add(step) % NODE_PORTS))
            .find(|number| !taken.ports.contains(number))?;
        taken.ports.insert(free);
        port.set(&["nodePort"], free);
    }
    service.set(&["spec", "ports"], ports);
    Some(())
}

fn address(host: u16) -> String {
    let [high, low] = host.to_be_bytes();
    format!("{}.{}.{high}.{low}", NETWORK[0], NETWORK[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_given_twice() {
        let mut taken = Taken::default();
        let mut seen = BTreeSet::new();
        for _ in 0..100 {
            let text = br#"{"spec":{"type":"NodePort","ports":[{"port":1},{"port":2}]}}"#;
            let mut service = proto::value::json::parse(text).unwrap();
            settle(&mut service, &mut taken, 65_500).unwrap();
            taken.note(&service);
            assert!(seen.insert(service.text_at(&["spec", "clusterIP"]).unwrap().to_owned()));
        }
        assert_eq!(taken.ports.len(), 200);
        assert!(taken.ports.iter().all(|port| (30_000..32_768).contains(port)));
    }

    #[test]
    fn when_all_are_taken_nothing_is_given() {
        let mut taken = Taken {
            addresses: (1..=HOSTS).map(address).collect(),
            ports: BTreeSet::new(),
        };
        let mut service = Value::map();
        assert_eq!(settle(&mut service, &mut taken, 7), None);
        service.set(&["spec", "clusterIP"], "None");
        assert_eq!(settle(&mut service, &mut taken, 7), Some(()));
    }
}

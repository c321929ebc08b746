//! Endpoint slices: the addresses behind a service with a selector.

use std::collections::BTreeMap;
use std::net::IpAddr;

use proto::object::selector::Selector;
use proto::object::{Key, Kind};
use proto::value::Value;
use reconcile::Lane;

use super::owner;
use super::plan::{Edit, Plan, Write, letters};
use super::pods::{self, Contact};
use super::replicaset::changes;
use super::view::{Change, Now, Object, View};
use super::{Controller, at_once, conditions};

pub const KIND: &str = "EndpointSlice.discovery.k8s.io";

/// The most endpoints of one slice, Kubernetes' default.
pub const ENDPOINTS_MAX: usize = 100;

const SERVICE: &str = "kubernetes.io/service-name";
const MANAGER: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGED_BY: &str = "endpointslice-controller.k8s.io";

/// The controller of the slices of services.
#[derive(Debug, Default)]
pub struct EndpointSlices;

impl Controller for EndpointSlices {
    fn name(&self) -> &'static str {
        "endpointslice-controller"
    }

    fn plans(&self) -> &'static [&'static str] {
        &["Service"]
    }

    fn watches(&self) -> &'static [&'static str] {
        &["Service", "Pod", "Node", KIND]
    }

    fn wake(&mut self, change: &Change, view: &dyn View, _now: Now) -> Vec<(Key, Lane)> {
        let Some(latest) = change.latest() else {
            return Vec::new();
        };
        let mut keys = match latest.key.kind.as_str() {
            "Service" => vec![latest.key.clone()],
            "Pod" if facts(change.before.as_ref()) == facts(change.after.as_ref()) => return Vec::new(),
            "Pod" => selecting(change.states(), &latest.key.namespace, view),
            "Node" => {
                let unknown = |node: Option<&Object>| node.is_none_or(|node| pods::is_unknown(&node.value));
                if unknown(change.before.as_ref()) == unknown(change.after.as_ref()) {
                    return Vec::new();
                }
                let pods = view.pods_on(&latest.key.name).into_objects();
                pods.iter()
                    .flat_map(|pod| selecting([pod], &pod.key.namespace, view))
                    .collect()
            }
            _ => latest
                .label(SERVICE)
                .map(|service| Key::new("Service", latest.key.namespace.clone(), service))
                .into_iter()
                .collect(),
        };
        keys.sort();
        keys.dedup();
        at_once(keys)
    }

    fn plan(&mut self, key: &Key, view: &dyn View, _now: Now) -> Plan {
        // Without its service a slice goes by its owner reference.
        let Some(service) = view.get(key).filter(|service| !service.is_deleting()) else {
            return Plan::nothing();
        };
        plan(&service, view)
    }
}

/// What of a pod an endpoint shows.
fn facts(pod: Option<&Object>) -> Option<impl PartialEq + use<'_>> {
    let pod = pod?;
    let paths: [&[&str]; 7] = [
        &["metadata", "uid"],
        &["metadata", "labels"],
        &["metadata", "deletionTimestamp"],
        &["spec", "nodeName"],
        &["status", "podIP"],
        &["status", "podIPs"],
        &["status", "phase"],
    ];
    Some((
        paths.map(|path| pod.value.at(path)),
        conditions::status(&pod.value, "Ready"),
    ))
}

/// The services of the namespace that select one of these states of a pod.
fn selecting<'a>(states: impl IntoIterator<Item = &'a Object>, namespace: &str, view: &dyn View) -> Vec<Key> {
    let states: Vec<_> = states.into_iter().collect();
    let services = view.list(&Kind::from("Service"), Some(namespace)).into_objects();
    let selects = |service: &Object| {
        let selector = selector(service);
        selector.is_some_and(|selector| states.iter().any(|pod| selector.matches_object(&pod.value)))
    };
    services
        .into_iter()
        .filter(selects)
        .map(|service| service.key)
        .collect()
}

fn selector(service: &Object) -> Option<Selector> {
    let selector = Selector::of_map(service.value.at(&["spec", "selector"])?);
    (!selector.is_empty()).then_some(selector)
}

/// Slices by what all endpoints of one have in common: the family of the addresses and the resolved ports.
type Groups = BTreeMap<(&'static str, String), (Value, Vec<Value>)>;

fn plan(service: &Object, view: &dyn View) -> Plan {
    let Some(selector) = selector(service) else {
        return Plan::nothing();
    };
    let mut contact = Contact::new(view);
    let mut groups = Groups::new();
    for pod in view.list(&Kind::from("Pod"), Some(&service.key.namespace)).objects() {
        if !selector.matches_object(&pod.value) || pods::is_finished(&pod.value) {
            continue;
        }
        let silent = contact.is_silent(pod);
        for (family, address) in addresses(&pod.value) {
            let ports = ports(service, &pod.value);
            let name = proto::value::json::write(&ports);
            let group = groups.entry((family, name)).or_insert_with(|| (ports, Vec::new()));
            group.1.push(endpoint(service, pod, &address, silent));
        }
    }
    if groups.is_empty() {
        // An empty slice says that there is nobody, as Kubernetes does.
        groups.insert(("IPv4", String::new()), (Value::List(Vec::new()), Vec::new()));
    }
    let mut wanted = BTreeMap::new();
    for ((family, ports_name), (ports, mut endpoints)) in groups {
        endpoints.sort_by_key(proto::value::json::write);
        let chunks: Vec<_> = if endpoints.is_empty() {
            vec![Vec::new()]
        } else {
            endpoints.chunks(ENDPOINTS_MAX).map(<[Value]>::to_vec).collect()
        };
        for (at, chunk) in chunks.into_iter().enumerate() {
            let mark = super::hash(format!("{} {family} {ports_name} {at}", service.uid).as_bytes());
            let name = format!("{}-{}", service.key.name, letters(mark, 5));
            wanted.insert(name, (family, ports.clone(), chunk));
        }
    }
    settle(service, wanted, view)
}

/// Creates, changes and deletes slices until there are exactly those.
fn settle(service: &Object, mut wanted: BTreeMap<String, (&'static str, Value, Vec<Value>)>, view: &dyn View) -> Plan {
    let mut writes = Vec::new();
    let known = view
        .list(&Kind::from(KIND), Some(&service.key.namespace))
        .into_objects();
    let ours = known
        .into_iter()
        .filter(|slice| slice.label(SERVICE) == Some(&service.key.name) && slice.label(MANAGER) == Some(MANAGED_BY));
    for slice in ours {
        match wanted.remove(&slice.key.name) {
            Some((_, ports, endpoints)) => {
                let edits = vec![Edit::set(&["endpoints"], endpoints), Edit::set(&["ports"], ports)];
                writes.extend(changes(&slice, edits));
            }
            None => writes.push(Write::delete(&slice)),
        }
    }
    for (name, (family, ports, endpoints)) in wanted {
        let labels = Value::from([(SERVICE, service.key.name.as_str()), (MANAGER, MANAGED_BY)]);
        let metadata = Value::from([
            ("name", Value::from(name)),
            ("namespace", service.key.namespace.as_str().into()),
            ("labels", labels),
            ("ownerReferences", vec![owner::controller_reference(service)].into()),
        ]);
        writes.push(Write::Create(Value::from([
            ("apiVersion", Value::from("discovery.k8s.io/v1")),
            ("kind", "EndpointSlice".into()),
            ("metadata", metadata),
            ("addressType", family.into()),
            ("endpoints", endpoints.into()),
            ("ports", ports),
        ])));
    }
    writes.truncate(super::WRITES_MAX);
    Plan::of(writes)
}

fn addresses(pod: &Value) -> Vec<(&'static str, String)> {
    let listed = pod
        .list_at(&["status", "podIPs"])
        .iter()
        .filter_map(|one| one.text_at(&["ip"]));
    let mut all: Vec<_> = listed.chain(pod.text_at(&["status", "podIP"])).collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter()
        .filter_map(|address| match address.parse().ok()? {
            IpAddr::V4(_) => Some(("IPv4", address.to_owned())),
            IpAddr::V6(_) => Some(("IPv6", address.to_owned())),
        })
        .collect()
}

/// One endpoint. On a silent node it is neither ready nor serving: nobody can say that it is.
fn endpoint(service: &Object, pod: &Object, address: &str, silent: bool) -> Value {
    let serving = !silent && conditions::is_true(&pod.value, "Ready");
    let publish = service.value.flag_at(&["spec", "publishNotReadyAddresses"]);
    let conditions = Value::from([
        ("ready", serving && !pod.is_deleting() || publish),
        ("serving", serving),
        ("terminating", pod.is_deleting()),
    ]);
    let target = Value::from([
        ("kind", Value::from("Pod")),
        ("name", pod.key.name.as_str().into()),
        ("namespace", pod.key.namespace.as_str().into()),
        ("uid", pod.uid.to_string().into()),
    ]);
    let mut endpoint = Value::from([
        ("addresses", Value::from_iter([address])),
        ("conditions", conditions),
        ("targetRef", target),
    ]);
    if let Some(node) = pods::node(&pod.value) {
        endpoint.set(&["nodeName"], node);
    }
    endpoint
}

/// The service's ports as this pod has them; a named target is the pod's own port of that name.
fn ports(service: &Object, pod: &Value) -> Value {
    let resolve = |port: &Value| -> Option<i64> {
        match port.get("targetPort") {
            None | Some(Value::Null) => port.int_at(&["port"]),
            Some(Value::I64(number)) => Some(*number),
            Some(name) => {
                let containers = pod.list_at(&["spec", "containers"]).iter();
                let mut all = containers.flat_map(|container| container.list_at(&["ports"]));
                let named = all.find(|one| one.get("name") == Some(name))?;
                named.int_at(&["containerPort"])
            }
        }
    };
    let ports = service.value.list_at(&["spec", "ports"]).iter().filter_map(|port| {
        Some(Value::from([
            ("name", Value::from(port.text_at(&["name"]).unwrap_or_default())),
            ("port", resolve(port)?.into()),
            ("protocol", port.text_at(&["protocol"]).unwrap_or("TCP").into()),
        ]))
    });
    Value::List(ports.collect())
}

#[cfg(test)]
mod tests {
    use super::super::model::{Model, text};
    use super::*;

    fn bench() -> (Model, EndpointSlices, Key) {
        let mut model = Model::default();
        model.node("a", true);
        let key = model.create(
            r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"n"},
                "spec":{"selector":{"app":"web"},"ports":[{"port":80,"targetPort":"http","protocol":"TCP"}]}}"#,
        );
        (model, EndpointSlices, key)
    }

    fn pod(model: &mut Model, name: &str) {
        model.create(&format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}","namespace":"n","labels":{{"app":"web"}}}},
                "spec":{{"nodeName":"a","containers":[{{"name":"c","ports":[{{"name":"http","containerPort":8080}}]}}]}}}}"#
        ));
    }

    fn slices(model: &Model) -> Vec<Object> {
        model.list(&KIND.into(), Some("n")).into_objects()
    }

    #[test]
    fn ready_pods_are_endpoints_and_silent_ones_are_not_ready() {
        let (mut model, mut slices_of, key) = bench();
        model.step(&mut slices_of, &key);
        assert_eq!(text(&slices(&model)[0], &["endpoints"]), "[]");
        pod(&mut model, "p");
        model.report("n", "p", "Running", true);
        model.step(&mut slices_of, &key);
        let all = slices(&model);
        assert_eq!(all.len(), 1);
        assert_eq!(
            text(&all[0], &["ports"]),
            r#"[{"name":"","port":8080,"protocol":"TCP"}]"#
        );
        let ready = |model: &Model| text(&slices(model)[0], &["endpoints", "0", "conditions"]);
        assert_eq!(ready(&model), r#"{"ready":true,"serving":true,"terminating":false}"#);
        assert!(model.step(&mut slices_of, &key).writes.is_empty());
        model.silence("a");
        model.step(&mut slices_of, &key);
        assert_eq!(ready(&model), r#"{"ready":false,"serving":false,"terminating":false}"#);
    }

    #[test]
    fn a_slice_is_full_at_its_limit_and_the_next_begins_past_it() {
        let (mut model, mut slices_of, key) = bench();
        for at in 0..=ENDPOINTS_MAX {
            pod(&mut model, &format!("p{at}"));
            model.report("n", &format!("p{at}"), "Running", true);
            if at + 1 == ENDPOINTS_MAX {
                model.step(&mut slices_of, &key);
                assert_eq!(slices(&model).len(), 1);
            }
        }
        model.step(&mut slices_of, &key);
        let mut sizes: Vec<_> = slices(&model)
            .iter()
            .map(|one| one.value.list_at(&["endpoints"]).len())
            .collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [1, ENDPOINTS_MAX]);
    }
}

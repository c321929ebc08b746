//! What a pod asks of a node, read once per look.

use std::collections::{BTreeMap, BTreeSet};

use proto::object::quantity::Quantity;
use proto::object::selector::{Requirement, Selector, Test};
use proto::value::Value;

/// Amounts by resource name (`cpu`, `memory`, …).
pub type Amounts = BTreeMap<String, Quantity>;

/// What a container without requests is taken to use when nodes are compared, as in Kubernetes: 100m and 200 MB.
const CPU_GUESS: Quantity = Quantity::from_milli(100);
const MEMORY_GUESS: Quantity = Quantity::from_milli(200 * 1024 * 1024 * 1000);

/// A port of the host: protocol, address (empty means all), number.
pub type HostPort = (String, String, i64);

/// A pod's demands.
#[derive(Debug, Clone, Default)]
pub struct Need {
    pub requests: Amounts,
    /// Like the requests, with a guess for containers without any: for comparing only.
    pub guessed: Amounts,
    pub ports: BTreeSet<HostPort>,
    pub node: Option<String>,
    pub selector: Selector,
    /// Alternatives of which one must hold; `None` when the pod has no required affinity.
    pub required: Option<Vec<Term>>,
    pub preferred: Vec<(i64, Term)>,
    pub tolerations: Vec<Toleration>,
    /// The object that controls the pod, to spread its pods by.
    pub owner: Option<String>,
}

/// One node selector term: all its requirements hold. One that is empty or unreadable holds nowhere.
#[derive(Debug, Clone, Default)]
pub struct Term {
    labels: Selector,
    fields: Selector,
    void: bool,
}

impl Term {
    fn of(term: &Value) -> Self {
        let read = |field: &str| -> Option<Vec<Requirement>> {
            let list = term.list_at(&[field]).iter();
            list.map(|one| Requirement::of_expression(one).ok()).collect()
        };
        match (read("matchExpressions"), read("matchFields")) {
            (Some(labels), Some(fields)) => Self {
                void: labels.is_empty() && fields.is_empty(),
                labels: Selector(labels),
                fields: Selector(fields),
            },
            _ => Self { void: true, ..Self::default() },
        }
    }

    pub fn holds(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let field = |field: &str| (field == "metadata.name").then_some(name);
        !self.void && self.labels.matches_map(labels) && self.fields.matches(field)
    }

    /// The one node that the term names, if it does.
    pub fn names(&self) -> Option<&str> {
        self.fields.0.iter().find_map(|requirement| match &requirement.test {
            Test::In(values) if requirement.key == "metadata.name" && values.len() == 1 => Some(values[0].as_str()),
            _ => None,
        })
    }
}

/// What a pod puts up with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toleration {
    key: String,
    /// `None` tolerates every value.
    value: Option<String>,
    effect: String,
}

impl Toleration {
    fn of(toleration: &Value) -> Self {
        let text = |field: &str| toleration.text_at(&[field]).unwrap_or_default().to_owned();
        let any = toleration.text_at(&["operator"]) == Some("Exists");
        Self {
            key: text("key"),
            value: (!any).then(|| text("value")),
            effect: text("effect"),
        }
    }

    pub fn covers(&self, taint: &Taint) -> bool {
        (self.effect.is_empty() || self.effect == taint.effect)
            && (self.key == taint.key || self.key.is_empty() && self.value.is_none())
            && self.value.as_ref().is_none_or(|value| *value == taint.value)
    }
}

/// What a node keeps pods away by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: String,
}

impl Taint {
    pub fn of(taint: &Value) -> Self {
        let text = |field: &str| taint.text_at(&[field]).unwrap_or_default().to_owned();
        Self {
            key: text("key"),
            value: text("value"),
            effect: text("effect"),
        }
    }

    pub fn keeps_out(&self) -> bool {
        matches!(self.effect.as_str(), "NoSchedule" | "NoExecute")
    }
}

impl Need {
    pub fn of(pod: &Value) -> Self {
        let affinity = &["spec", "affinity", "nodeAffinity"];
        let node_affinity = pod.at(affinity).unwrap_or(&Value::Null);
        let required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution");
        let preferred = node_affinity.list_at(&["preferredDuringSchedulingIgnoredDuringExecution"]);
        let owners = pod.list_at(&["metadata", "ownerReferences"]).iter();
        Self {
            requests: requests(pod, false),
            guessed: requests(pod, true),
            ports: host_ports(pod),
            node: pod
                .text_at(&["spec", "nodeName"])
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
            selector: Selector::of_map(pod.at(&["spec", "nodeSelector"]).unwrap_or(&Value::Null)),
            required: required.map(|terms| terms.list_at(&["nodeSelectorTerms"]).iter().map(Term::of).collect()),
            preferred: preferred
                .iter()
                .map(|one| {
                    let term = one.get("preference").map(Term::of).unwrap_or_default();
                    (one.int_at(&["weight"]).unwrap_or(0), term)
                })
                .collect(),
            tolerations: pod
                .list_at(&["spec", "tolerations"])
                .iter()
                .map(Toleration::of)
                .collect(),
            owner: owners
                .filter(|owner| owner.flag_at(&["controller"]))
                .find_map(|owner| owner.text_at(&["uid"]).map(str::to_owned)),
        }
    }

    /// The nodes that the pod names one by one, when it names all it would go to: a daemon's pod does.
    pub fn named(&self) -> Option<BTreeSet<&str>> {
        let terms = self.required.as_ref().filter(|terms| !terms.is_empty())?;
        terms.iter().map(Term::names).collect()
    }

    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|toleration| toleration.covers(taint))
    }
}

/// The larger of what runs together and what any init container needs before, and the pod's overhead.
fn requests(pod: &Value, guess: bool) -> Amounts {
    let of = |container: &Value| -> Amounts {
        let map = container.at(&["resources", "requests"]).and_then(Value::as_map);
        let mut amounts: Amounts = map
            .into_iter()
            .flatten()
            .map(|(name, amount)| (name.to_owned(), quantity(amount)))
            .collect();
        if guess {
            amounts.entry("cpu".to_owned()).or_insert(CPU_GUESS);
            amounts.entry("memory".to_owned()).or_insert(MEMORY_GUESS);
        }
        amounts
    };
    let mut together = Amounts::new();
    for container in pod.list_at(&["spec", "containers"]) {
        add(&mut together, &of(container));
    }
    // A restartable init container runs beside everything that starts after it.
    let (mut beside, mut peak) = (Amounts::new(), Amounts::new());
    for container in pod.list_at(&["spec", "initContainers"]) {
        let mut now = of(container);
        if container.text_at(&["restartPolicy"]) == Some("Always") {
            add(&mut beside, &now);
            now = beside.clone();
        } else {
            add(&mut now, &beside);
        }
        for (name, amount) in now {
            let known = peak.entry(name).or_default();
            *known = amount.max(*known);
        }
    }
    add(&mut together, &beside);
    for (name, amount) in peak {
        let known = together.entry(name).or_default();
        *known = amount.max(*known);
    }
    let overhead = pod.at(&["spec", "overhead"]).and_then(Value::as_map);
    let overhead: Amounts = overhead
        .into_iter()
        .flatten()
        .map(|(name, amount)| (name.to_owned(), quantity(amount)))
        .collect();
    add(&mut together, &overhead);
    together
}

/// Adds amounts to amounts.
pub fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let known = sum.entry(name.clone()).or_default();
        *known = *known + *amount;
    }
}

/// A quantity as text or as a number; what is neither was refused before it was stored.
pub fn quantity(value: &Value) -> Quantity {
    match value {
        Value::Text(text) => text.parse().unwrap_or_default(),
        Value::I64(number) => Quantity::from_milli(i128::from(*number) * 1000),
        _ => Quantity::default(),
    }
}

fn host_ports(pod: &Value) -> BTreeSet<HostPort> {
    let host = pod.flag_at(&["spec", "hostNetwork"]);
    let containers = pod.list_at(&["spec", "containers"]).iter();
    let ports = containers.flat_map(|container| container.list_at(&["ports"]));
    ports
        .filter_map(|port| {
            let number = port
                .int_at(&["hostPort"])
                .or_else(|| port.int_at(&["containerPort"]).filter(|_| host))?;
            let text = |field: &str, default: &str| port.text_at(&[field]).unwrap_or(default).to_owned();
            let address = text("hostIP", "");
            let address = if address == "0.0.0.0" { String::new() } else { address };
            Some((text("protocol", "TCP"), address, number))
        })
        .filter(|(_, _, number)| *number > 0)
        .collect()
}

/// Whether two sets of host ports cannot live on one host.
pub fn ports_clash(a: &BTreeSet<HostPort>, b: &BTreeSet<HostPort>) -> bool {
    let overlap =
        |(p, ip, n): &HostPort, (q, jp, m): &HostPort| p == q && n == m && (ip == jp || ip.is_empty() || jp.is_empty());
    a.iter().any(|one| b.iter().any(|other| overlap(one, other)))
}

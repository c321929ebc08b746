use super::*;
use crate::controllers::model::{Model, text};
use crate::controllers::owner;
use proto::value::{Value, json};

fn node(name: &str, rest: &str) -> (String, Value) {
    let mut node = json::parse(rest.as_bytes()).unwrap();
    if node.at(&["status", "allocatable"]).is_none() {
        node.set(
            &["status", "allocatable"],
            [("cpu", "2"), ("memory", "2Gi"), ("pods", "3")],
        );
    }
    if node.at(&["status", "conditions"]).is_none() {
        node.set(&["status", "conditions"], vec![condition("Ready", "True", "", "")]);
    }
    (name.to_owned(), node)
}

const SILENT: &str = r#""status":{"conditions":[{"type":"Ready","status":"Unknown"}]}"#;

fn cache(nodes: Vec<(String, Value)>) -> Cache {
    let mut cache = Cache::default();
    for (name, node) in nodes {
        cache.node_changed(&name, Some(&node));
    }
    cache
}

fn need(spec: &str) -> Need {
    Need::of(&Value::from([("spec", json::parse(spec.as_bytes()).unwrap())]))
}

fn asks(cpu: &str) -> String {
    format!(r#"{{"containers":[{{"resources":{{"requests":{{"cpu":"{cpu}"}}}}}}]}}"#)
}

fn place(cache: &mut Cache, uid: u8, node: &str, spec: &str) {
    cache.reserve(Uid([uid; 16]), node, need(spec));
    cache.settle(Uid([uid; 16]), true);
}

/// The node, with `?` behind one that is not in contact, or the message.
fn decide(cache: &Cache, spec: &str) -> String {
    match schedule(&need(spec), cache) {
        Decision::Bind { node, on_return: false } => node,
        Decision::Bind { node, on_return: true } => node + "?",
        Decision::No { message } => message,
    }
}

#[test]
fn each_filter_says_no_in_its_own_words() {
    let check = |node_text: &str, spec: &str, reason: &str| {
        let cache = cache(vec![node("a", node_text)]);
        let expected = if reason.is_empty() {
            "a".to_owned()
        } else {
            format!("0/1 nodes are available: 1 {reason}.")
        };
        assert_eq!(decide(&cache, spec), expected, "{node_text} {spec}");
    };
    check("{}", "{}", "");
    check(
        "{}",
        r#"{"nodeName":"b"}"#,
        "node(s) didn't match the requested node name",
    );
    check("{}", &asks("2"), "");
    check("{}", &asks("2001m"), "Insufficient cpu");
    check(
        "{}",
        r#"{"containers":[{"resources":{"requests":{"example.org/gpu":"1"}}}]}"#,
        "Insufficient example.org/gpu",
    );
    // Selectors and affinity.
    let labelled = r#"{"metadata":{"labels":{"zone":"x","cores":"4"}}}"#;
    check(labelled, r#"{"nodeSelector":{"zone":"x"}}"#, "");
    check(
        labelled,
        r#"{"nodeSelector":{"zone":"y"}}"#,
        "node(s) didn't match Pod's node affinity/selector",
    );
    let affinity = |terms: &str| {
        format!(
            r#"{{"affinity":{{"nodeAffinity":{{"requiredDuringSchedulingIgnoredDuringExecution":{{"nodeSelectorTerms":{terms}}}}}}}}}"#
        )
    };
    let no = "node(s) didn't match Pod's node affinity/selector";
    check(
        labelled,
        &affinity(r#"[{"matchExpressions":[{"key":"cores","operator":"Gt","values":["3"]}]}]"#),
        "",
    );
    check(
        labelled,
        &affinity(r#"[{"matchExpressions":[{"key":"cores","operator":"Lt","values":["3"]}]}]"#),
        no,
    );
    check(
        labelled,
        &affinity(
            r#"[{"matchExpressions":[{"key":"q","operator":"Exists"}]},{"matchExpressions":[{"key":"zone","operator":"NotIn","values":["y"]}]}]"#,
        ),
        "",
    );
    check(
        labelled,
        &affinity(r#"[{"matchFields":[{"key":"metadata.name","operator":"In","values":["a"]}]}]"#),
        "",
    );
    check(
        labelled,
        &affinity(r#"[{"matchFields":[{"key":"metadata.name","operator":"In","values":["b"]}]}]"#),
        no,
    );
    check(labelled, &affinity("[{}]"), no);
    check(labelled, &affinity("[]"), no);
    // Architecture: by label, or by what the node says where there is no label.
    let arm = r#"{"status":{"nodeInfo":{"architecture":"arm64"}}}"#;
    check(arm, r#"{"nodeSelector":{"kubernetes.io/arch":"arm64"}}"#, "");
    check(
        arm,
        r#"{"nodeSelector":{"kubernetes.io/arch":"amd64"}}"#,
        "node(s) didn't match the requested architecture",
    );
    // Taints.
    let tainted = r#"{"spec":{"taints":[{"key":"k","value":"v","effect":"NoSchedule"}]}}"#;
    let taint = "node(s) had untolerated taint(s)";
    check(tainted, "{}", taint);
    for tolerated in [
        r#"{"key":"k","value":"v","effect":"NoSchedule"}"#,
        r#"{"key":"k","operator":"Equal","value":"v"}"#,
        r#"{"key":"k","operator":"Exists"}"#,
        r#"{"operator":"Exists"}"#,
    ] {
        check(tainted, &format!(r#"{{"tolerations":[{tolerated}]}}"#), "");
    }
    for untolerated in [
        r#"{"key":"k","value":"w"}"#,
        r#"{"key":"j","operator":"Exists"}"#,
        r#"{"key":"k","operator":"Exists","effect":"NoExecute"}"#,
    ] {
        check(tainted, &format!(r#"{{"tolerations":[{untolerated}]}}"#), taint);
    }
    check(
        r#"{"spec":{"taints":[{"key":"k","effect":"PreferNoSchedule"}]}}"#,
        "{}",
        "",
    );
    check(r#"{"spec":{"unschedulable":true}}"#, "{}", "node(s) were unschedulable");
}

#[test]
fn places_taken_count() {
    let mut cache = cache(vec![node("a", "{}")]);
    place(
        &mut cache,
        1,
        "a",
        r#"{"containers":[{"ports":[{"containerPort":80,"hostPort":8080}]}]}"#,
    );
    let ports = |spec: &str| decide(&cache, spec);
    let clash = "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.";
    assert_eq!(ports(r#"{"containers":[{"ports":[{"hostPort":8080}]}]}"#), clash);
    assert_eq!(
        ports(r#"{"hostNetwork":true,"containers":[{"ports":[{"containerPort":8080,"hostIP":"10.0.0.1"}]}]}"#),
        clash
    );
    assert_eq!(
        ports(r#"{"containers":[{"ports":[{"hostPort":8080,"protocol":"UDP"}]}]}"#),
        "a"
    );
    place(&mut cache, 2, "a", &asks("1500m"));
    assert_eq!(decide(&cache, &asks("500m")), "a");
    assert_eq!(
        decide(&cache, &asks("501m")),
        "0/1 nodes are available: 1 Insufficient cpu."
    );
    place(&mut cache, 3, "a", "{}");
    assert_eq!(decide(&cache, "{}"), "0/1 nodes are available: 1 Too many pods.");
    cache.pod_changed(Uid([3; 16]), None);
    assert_eq!(decide(&cache, "{}"), "a");
}

#[test]
fn requests_of_a_pod() {
    let check = |spec: &str, cpu_milli: i128| {
        let need = need(spec);
        assert_eq!(
            need.requests.get("cpu").map_or(0, |cpu| cpu.milli()),
            cpu_milli,
            "{spec}"
        );
    };
    let one = |cpu: &str, more: &str| format!(r#"{{"resources":{{"requests":{{"cpu":"{cpu}"}}}}{more}}}"#);
    check("{}", 0);
    check(
        &format!(r#"{{"containers":[{},{}]}}"#, one("100m", ""), one("1", "")),
        1100,
    );
    check(
        &format!(
            r#"{{"containers":[{}],"initContainers":[{}]}}"#,
            one("1", ""),
            one("3", "")
        ),
        3000,
    );
    let beside = one("1", r#","restartPolicy":"Always""#);
    check(
        &format!(
            r#"{{"containers":[{}],"initContainers":[{beside},{}]}}"#,
            one("1", ""),
            one("2", "")
        ),
        3000,
    );
    check(
        &format!(r#"{{"containers":[{}],"overhead":{{"cpu":"50m"}}}}"#, one("1", "")),
        1050,
    );
}

#[test]
fn counts_of_a_message_add_up_to_the_nodes() {
    let cache = cache(vec![
        node("a", r#"{"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}"#),
        node(
            "b",
            r#"{"spec":{"taints":[{"key":"k","effect":"NoSchedule"}],"unschedulable":true}}"#,
        ),
        node("c", r#"{"status":{"allocatable":{"memory":"1Mi","cpu":"1m"}}}"#),
        node("d", "{}"),
        node(
            "e",
            "{\"spec\":{\"taints\":[{\"key\":\"k\",\"effect\":\"NoExecute\"}]}}",
        ),
    ]);
    let spec = r#"{"containers":[{"resources":{"requests":{"memory":"3Gi","cpu":"1"}}}]}"#;
    assert_eq!(
        decide(&cache, spec),
        "0/5 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 3 node(s) had untolerated taint(s)."
    );
    assert_eq!(decide(&Cache::default(), "{}"), "no nodes available to schedule pods");
}

#[test]
fn a_pod_that_names_its_node_is_counted_like_any_other() {
    let mut cache = cache(vec![node("a", "{}"), node("b", "{}"), node("c", "{}")]);
    let named = r#"{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[
        {"matchFields":[{"key":"metadata.name","operator":"In","values":["b"]}]}]}}}}"#;
    assert_eq!(decide(&cache, named), "b");
    for uid in 1..=3 {
        place(&mut cache, uid, "b", "{}");
    }
    assert_eq!(
        decide(&cache, named),
        "0/3 nodes are available: 1 Too many pods, 2 node(s) didn't match Pod's node affinity/selector."
    );
    cache.node_changed("b", None);
    assert_eq!(
        decide(&cache, named),
        "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."
    );
}

#[test]
fn the_better_node_wins() {
    let mut emptier = cache(vec![node("a", "{}"), node("b", "{}")]);
    place(&mut emptier, 1, "a", &asks("1"));
    assert_eq!(decide(&emptier, &asks("100m")), "b");
    let preferred = cache(vec![
        node("a", "{}"),
        node("b", r#"{"metadata":{"labels":{"ssd":"yes"}}}"#),
    ]);
    let spec = r#"{"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[
        {"weight":10,"preference":{"matchExpressions":[{"key":"ssd","operator":"Exists"}]}}]}}}"#;
    assert_eq!(decide(&preferred, spec), "b");
    assert_eq!(decide(&preferred, "{}"), "a", "of equals the first");
    let tainted = cache(vec![
        node("a", r#"{"spec":{"taints":[{"key":"k","effect":"PreferNoSchedule"}]}}"#),
        node("b", "{}"),
    ]);
    assert_eq!(decide(&tainted, "{}"), "b");
    let mut spread = cache(vec![node("a", "{}"), node("b", "{}")]);
    let mut owned = need("{}");
    owned.owner = Some("web".to_owned());
    spread.reserve(Uid([1; 16]), "a", owned.clone());
    assert_eq!(
        schedule(&owned, &spread),
        Decision::Bind { node: "b".to_owned(), on_return: false }
    );
}

#[test]
fn silence_changes_where_new_work_goes() {
    let cache = cache(vec![node("a", &format!("{{{SILENT}}}")), node("b", "{}")]);
    assert_eq!(decide(&cache, "{}"), "b");
}

#[test]
fn what_only_a_silent_node_matches_is_bound_for_its_return() {
    let labelled = |silent: &str| format!(r#"{{"metadata":{{"labels":{{"site":"x"}}}}{silent}}}"#);
    let cache = cache(vec![node("a", &labelled(&format!(",{SILENT}"))), node("b", "{}")]);
    assert_eq!(decide(&cache, r#"{"nodeSelector":{"site":"x"}}"#), "a?");
    // The node's own unreachable taint is no obstacle to that, a person's is.
    let taint = |key: &str| format!(r#"{{"spec":{{"taints":[{{"key":"{key}","effect":"NoSchedule"}}]}},{SILENT}}}"#);
    assert_eq!(
        decide(
            &self::cache(vec![node("a", &taint("node.kubernetes.io/unreachable"))]),
            "{}"
        ),
        "a?"
    );
    assert_eq!(
        decide(&self::cache(vec![node("a", &taint("mine"))]), "{}"),
        "0/1 nodes are available: 1 node(s) had untolerated taint(s)."
    );
}

#[test]
fn where_a_node_in_contact_is_only_full_the_pod_waits_for_it() {
    let mut cache = cache(vec![node("a", &format!("{{{SILENT}}}")), node("b", "{}")]);
    place(&mut cache, 1, "b", &asks("2"));
    assert_eq!(
        decide(&cache, &asks("1")),
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were not in contact."
    );
    // A node that could never take it is no reason to wait.
    cache.node_changed("b", Some(&node("b", r#"{"status":{"allocatable":{"cpu":"500m"}}}"#).1));
    assert_eq!(decide(&cache, &asks("1")), "a?");
}

#[test]
fn mass_silence_still_binds_new_work_and_moves_nothing() {
    let cache = cache(vec![
        node("a", &format!("{{{SILENT}}}")),
        node("b", &format!("{{{SILENT}}}")),
    ]);
    assert_eq!(decide(&cache, "{}"), "a?");
}

#[test]
fn a_reservation_is_given_back_exactly_once() {
    let uid = Uid([1; 16]);
    let fresh = || cache(vec![node("a", "{}")]);
    let empty = cache::Usage::default();
    let bound =
        json::parse(br#"{"spec":{"nodeName":"a","containers":[{"resources":{"requests":{"cpu":"1"}}}]}}"#).unwrap();
    let mut unbound = bound.clone();
    unbound.remove(&["spec", "nodeName"]);
    // Refused, twice.
    let mut cache = fresh();
    cache.reserve(uid, "a", need(&asks("1")));
    assert_eq!(cache.usage("a").pods, 1);
    assert!(cache.settle(uid, false) && !cache.settle(uid, false));
    assert_eq!(cache.usage("a"), empty);
    // Seen unbound meanwhile: the reservation stands until the binding has ended.
    cache.reserve(uid, "a", need(&asks("1")));
    cache.pod_changed(uid, Some(&unbound));
    assert_eq!(cache.usage("a").pods, 1);
    assert!(cache.settle(uid, false));
    assert_eq!(cache.usage("a"), empty);
    // Deleted before the binding fails.
    cache.reserve(uid, "a", need(&asks("1")));
    assert!(cache.pod_changed(uid, None) && !cache.settle(uid, false));
    assert_eq!(cache.usage("a"), empty);
    // Committed, and seen in either order.
    for seen_first in [true, false] {
        let mut cache = fresh();
        cache.reserve(uid, "a", need(&asks("1")));
        if seen_first {
            cache.pod_changed(uid, Some(&bound));
        }
        assert!(!cache.settle(uid, true));
        cache.pod_changed(uid, Some(&bound));
        assert!(
            !cache.settle(uid, false),
            "a late refusal of what was seen bound changes nothing"
        );
        assert_eq!(cache.usage("a").pods, 1);
        cache.pod_changed(uid, None);
        assert_eq!(cache.usage("a"), empty);
    }
    // Finished pods need no place.
    cache.pod_changed(uid, Some(&bound));
    let mut finished = bound.clone();
    finished.set(&["status", "phase"], "Succeeded");
    assert!(cache.pod_changed(uid, Some(&finished)));
    assert_eq!(cache.usage("a"), empty);
}

#[test]
fn a_pod_that_fits_nowhere_says_so_and_is_woken_by_room() {
    let (mut model, mut scheduler) = (Model::default(), Scheduler::default());
    let key = model.create(r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"n"},"spec":{}}"#);
    model.schedule(&mut scheduler);
    let said = text(&model.get(&key).unwrap(), &["status", "conditions", "0", "message"]);
    assert_eq!(said, r#""no nodes available to schedule pods""#);
    assert_eq!(model.told, ["FailedScheduling no nodes available to schedule pods"]);
    assert!(model.step(&mut scheduler, &key).writes.is_empty(), "said once");
    model.node("a", true);
    let change = model.changes.remove(0);
    scheduler.observe(&change, model.now);
    assert_eq!(scheduler.wake(&change, &model, model.now), [(key.clone(), Lane::Fast)]);
    model.schedule(&mut scheduler);
    let pod = model.get(&key).unwrap();
    assert_eq!(pods::node(&pod.value), Some("a"));
    assert_eq!(text(&pod, &["status", "conditions", "0", "status"]), r#""True""#);
    assert_eq!(model.told.last().unwrap(), "Scheduled Successfully assigned n/p to a");
    assert_eq!(owner::controller_uid(&pod.value), None);
}

#[test]
fn a_binding_that_was_overtaken_gives_its_place_back() {
    let (mut model, mut scheduler) = (Model::default(), Scheduler::default());
    model.node("a", true);
    let key = model.create(r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"n"},"spec":{}}"#);
    for change in std::mem::take(&mut model.changes) {
        scheduler.observe(&change, model.now);
    }
    let plan = scheduler.plan(&key, &model, model.now);
    assert_eq!(scheduler.usage("a").pods, 1);
    model.edit(&key, &["metadata", "labels"], [("x", "y")]);
    assert!(!model.commit(&plan.writes));
    scheduler.ended(&key, false);
    assert_eq!(scheduler.usage("a"), cache::Usage::default());
    model.schedule(&mut scheduler);
    assert_eq!(scheduler.usage("a").pods, 1);
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let (mut model, mut scheduler) = (Model::default(), Scheduler::default());
    model.node("a", true);
    let mut create = |name: &str, spec: &str| {
        model.create(&format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}","namespace":"n"}},"spec":{spec}}}"#
        ))
    };
    let other = create("other", r#"{"schedulerName":"volcano"}"#);
    let gated = create("gated", r#"{"schedulingGates":[{"name":"x"}]}"#);
    model.schedule(&mut scheduler);
    assert_eq!(pods::node(&model.get(&other).unwrap().value), None);
    let gated = model.get(&gated).unwrap();
    assert_eq!(
        text(&gated, &["status", "conditions", "0", "reason"]),
        r#""SchedulingGated""#
    );
}

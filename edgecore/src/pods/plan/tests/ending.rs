//! Probes that fail, containers and pods that end.

use super::*;

#[test]
fn how_pods_end() {
    let check = |policy: &str, code: i32, phase: &str, restarts: i64| {
        let mut bench = Bench::new(PLAIN);
        bench.edit(&["spec", "restartPolicy"], policy);
        bench.settle();
        bench.exit("a", code);
        bench.settle();
        let found = (bench.text(&["phase"]).to_owned(), bench.restarts());
        assert_eq!(found, (phase.to_owned(), restarts), "{policy} {code}");
        if phase != "Running" {
            assert!(bench.seen.is_empty() && bench.cleaned);
            assert_eq!(bench.condition("Ready").0, "False");
            // An end is for ever.
            bench.reboot();
            bench.settle();
            assert_eq!(bench.text(&["phase"]), phase);
            assert!(bench.seen.is_empty());
        }
    };
    check("Always", 0, "Running", 1);
    check("Always", 1, "Running", 1);
    check("OnFailure", 0, "Succeeded", 0);
    check("OnFailure", 1, "Running", 1);
    check("Never", 0, "Succeeded", 0);
    check("Never", 1, "Failed", 0);
}

#[test]
fn sidecars_run_as_long_as_the_pod() {
    let spec = r#"{"restartPolicy":"Never","initContainers":[{"name":"s","image":"i:1","restartPolicy":"Always"}],
        "containers":[{"name":"a","image":"i:1"}]}"#;
    let mut bench = Bench::new(spec);
    bench.settle();
    assert!(bench.took().ends_with(&["create a.0".into(), "start a.0".into()]));
    bench.exit("s", 1);
    bench.settle();
    assert_eq!(bench.took(), ["remove s.0", "create s.1", "start s.1"]);
    bench.exit("a", 0);
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Succeeded");
    let took = bench.took();
    assert!(took.contains(&"signal s.1 15".to_owned()), "{took:?}");
    // A deletion stops them last.
    let mut bench = Bench::new(spec);
    bench.settle();
    bench.took();
    bench.edit(&["metadata", "deletionTimestamp"], "1970-01-01T00:00:00Z");
    bench.settle();
    let took = bench.took();
    let at = |word: &str| took.iter().position(|step| step == word).unwrap();
    assert!(at("remove a.0") < at("signal s.0 15"), "{took:?}");
}

#[test]
fn deletion_is_asked_for_then_enforced() {
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    bench.took();
    bench.stubborn = true;
    bench.edit(&["metadata", "deletionTimestamp"], "1970-01-01T00:00:00Z");
    bench.edit(&["metadata", "deletionGracePeriodSeconds"], 20_i64);
    bench.settle();
    assert_eq!(bench.took(), ["event Killing", "signal a.0 15"]);
    assert_eq!(bench.wake_at, Some(bench.now + Duration::from_secs(20)));
    assert_eq!(bench.condition("Ready").0, "False");
    bench.pass(5);
    // Another edge core asks again; the grace goes on.
    bench.forget();
    bench.settle();
    assert_eq!(bench.took(), ["signal a.0 15"]);
    bench.pass(14);
    bench.settle();
    assert_eq!(bench.took(), [""; 0]);
    bench.pass(1);
    bench.settle();
    assert_eq!(bench.took(), ["signal a.0 9", "remove a.0", "release", "gone"]);
    assert_eq!(bench.text(&["phase"]), "Failed");
}

#[test]
fn a_second_deletion_shortens_the_first() {
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    bench.stubborn = true;
    bench.edit(&["metadata", "deletionTimestamp"], "1970-01-01T00:00:00Z");
    bench.settle();
    assert_eq!(bench.wake_at, Some(bench.now + Duration::from_secs(30)));
    bench.edit(&["metadata", "deletionGracePeriodSeconds"], 0_i64);
    bench.settle();
    assert!(bench.gone);
}

#[test]
fn a_pod_that_was_taken_away_without_waiting_has_little_time() {
    for (own, given) in [(60, 2), (3, 2), (2, 2), (1, 1)] {
        let mut bench = Bench::new(PLAIN);
        bench.edit(&["spec", "terminationGracePeriodSeconds"], own);
        bench.settle();
        bench.stubborn = true;
        bench.wanted = false;
        bench.forget();
        bench.settle();
        assert_eq!(bench.wake_at, Some(bench.now + Duration::from_secs(given)));
        bench.pass(given);
        bench.settle();
        assert!(bench.gone && bench.seen.is_empty());
    }
    // Nor has one that was being stopped already.
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    bench.stubborn = true;
    bench.edit(&["metadata", "deletionTimestamp"], "1970-01-01T00:00:00Z");
    bench.settle();
    assert_eq!(bench.wake_at, Some(bench.now + Duration::from_secs(30)));
    bench.wanted = false;
    bench.settle();
    assert_eq!(bench.wake_at, Some(bench.now + Duration::from_secs(2)));
    // Also one that nothing is remembered about.
    let mut bench = Bench::new(PLAIN);
    bench.wanted = false;
    bench.add("a", 4, 1, State::Running { started_ms: 0 });
    bench.settle();
    assert_eq!(
        bench.took(),
        ["event Killing", "signal a.4 15", "remove a.4", "release", "gone"]
    );
}

#[test]
fn a_dead_container_is_restarted_with_back_off() {
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    bench.took();
    for wait in [None, Some(10)] {
        let health = bench.health.get_mut("a").unwrap();
        health.dead = Some((ProbeKind::Liveness, Some(Duration::from_secs(2))));
        bench.settle();
        assert!(bench.took().starts_with(&["event Killing".into()]));
        assert_eq!(bench.wake_at.map(|at| at.since(bench.now).as_secs()), wait);
    }
    // A pod that is not to be restarted ends.
    let mut bench = Bench::new(PLAIN);
    bench.edit(&["spec", "restartPolicy"], "Never");
    bench.settle();
    bench.health.get_mut("a").unwrap().dead = Some((ProbeKind::Startup, None));
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Failed");
}

#[test]
fn readiness_is_said_when_it_flips() {
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    bench.pass(9);
    bench.health.get_mut("a").unwrap().ready = false;
    bench.settle();
    assert_eq!(bench.condition("Ready"), ("False", "1970-01-01T00:00:10Z"));
    assert_eq!(bench.condition("Initialized"), ("True", "1970-01-01T00:00:01Z"));
    let rows = bench.status.list_at(&["conditions"]).to_vec();
    assert!(
        rows.iter()
            .any(|row| row.text_at(&["message"]) == Some("containers with unready status: [a]"))
    );
}

#[test]
fn a_deadline_ends_a_pod_also_over_a_reboot() {
    let mut bench = Bench::new(PLAIN);
    bench.edit(&["spec", "activeDeadlineSeconds"], 60_i64);
    bench.settle();
    bench.pass(20);
    bench.reboot();
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Running");
    bench.pass(59);
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Running");
    bench.pass(1);
    bench.settle();
    assert_eq!(
        (bench.text(&["phase"]), bench.text(&["reason"])),
        ("Failed", "DeadlineExceeded")
    );
    assert!(bench.seen.is_empty());
}

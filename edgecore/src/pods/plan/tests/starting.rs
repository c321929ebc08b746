//! What has to be there before a container runs, and what is said while it does not.

use super::*;

/// What a start that failed may leave: nothing that ran, what is about to be seen ended, what has ended.
const LEFT_BY_A_START: [State; 3] = [
    State::Created,
    State::Running { started_ms: 5 },
    State::Exited { code: 255, oom_killed: false, started_ms: 5, finished_ms: 6 },
];

#[test]
fn what_cannot_be_started_says_why_and_is_tried_with_back_off() {
    for left in &LEFT_BY_A_START {
        let mut bench = Bench::broken(PLAIN, left);
        bench.settle();
        let text = |bench: &Bench, path: &[&str]| {
            let found = bench.container(path).and_then(Value::as_text);
            found.unwrap_or_default().to_owned()
        };
        let mut waits = Vec::new();
        for _ in 0..4 {
            let last = ["lastState", "terminated"];
            assert_eq!(text(&bench, &[last[0], last[1], "reason"]), "StartError", "{left:?}");
            assert_eq!(text(&bench, &[last[0], last[1], "message"]), "no such program");
            let code = bench.container(&[last[0], last[1], "exitCode"]).and_then(Value::as_i64);
            assert_eq!(code, Some(128));
            waits.push(bench.waiting().to_owned());
            let message = text(&bench, &["state", "waiting", "message"]);
            assert!(
                message.contains("no such program") != message.contains("back-off"),
                "{message}"
            );
            let wake_at = bench.wake_at.unwrap();
            bench.now = wake_at;
            bench.settle();
        }
        assert_eq!(waits[0], "RunContainerError");
        assert!(waits[1..].iter().all(|wait| wait == "CrashLoopBackOff"), "{waits:?}");
        assert_eq!(bench.restarts(), 5);
        assert_eq!(bench.text(&["phase"]), "Running", "as a kubelet has it: it was tried");
        // No second container was made while the first was there.
        assert!(bench.seen.len() <= 1);
        // It can be started now.
        bench.broken = None;
        bench.now = bench.wake_at.unwrap();
        bench.settle();
        assert!(bench.container(&["state", "running"]).is_some());
    }
}

#[test]
fn what_cannot_be_started_ends_a_pod_that_is_not_tried_again() {
    for left in &LEFT_BY_A_START {
        let mut bench = Bench::broken(PLAIN, left);
        bench.edit(&["spec", "restartPolicy"], "Never");
        bench.settle();
        assert_eq!(bench.text(&["phase"]), "Failed");
        let ended = bench.container(&["state", "terminated"]).unwrap();
        let text = |field: &str| ended.text_at(&[field]).unwrap();
        assert_eq!((text("reason"), text("message")), ("StartError", "no such program"));
        assert_eq!(ended.int_at(&["exitCode"]), Some(128));
        assert!(bench.seen.is_empty() && bench.cleaned);
    }
}

#[test]
fn init_containers_run_one_after_another() {
    let spec = r#"{"initContainers":[{"name":"x","image":"i:1"},{"name":"y","image":"i:1"}],
        "containers":[{"name":"a","image":"i:1"}]}"#;
    let mut bench = Bench::new(spec);
    bench.settle();
    assert_eq!(bench.waiting(), "PodInitializing");
    assert_eq!(bench.condition("Initialized").0, "False");
    assert_eq!(bench.seen.len(), 1);
    bench.exit("x", 1);
    bench.settle();
    assert!(
        bench
            .took()
            .ends_with(&["remove x.0".into(), "create x.1".into(), "start x.1".into()])
    );
    bench.exit("x", 0);
    bench.settle();
    bench.exit("y", 0);
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Running");
    assert_eq!(bench.condition("Initialized").0, "True");
    bench.took();
    // They are done; only a reboot, which empties memory volumes, has them run again.
    bench.exit("a", 1);
    bench.settle();
    assert_eq!(bench.took(), ["remove a.0", "create a.1", "start a.1"]);
    bench.reboot();
    bench.settle();
    assert!(bench.took().contains(&"create x.2".to_owned()));
    let mut never = Bench::new(spec);
    never.edit(&["spec", "restartPolicy"], "Never");
    never.settle();
    never.exit("x", 1);
    never.settle();
    assert_eq!(never.text(&["phase"]), "Failed");
}

/// How init containers and the others stand in the status, which is all that `kubectl` has to go by.
#[test]
fn how_a_pod_with_init_containers_is_told() {
    let spec = r#"{"initContainers":[{"name":"x","image":"i:1"},{"name":"y","image":"i:1"}],
        "containers":[{"name":"a","image":"i:1"}]}"#;
    let told = |bench: &Bench| -> Vec<String> {
        let of = |list: &'static str| bench.status.list_at(&[list]).iter();
        let all = of("initContainerStatuses").chain(of("containerStatuses"));
        let state = |status: &Value| {
            let at = |path: &[&str]| status.text_at(path).unwrap_or_default().to_owned();
            let waits = at(&["state", "waiting", "reason"]);
            let ended = at(&["state", "terminated", "reason"]);
            match status.at(&["state", "running"]) {
                Some(_) => "runs".to_owned(),
                None => waits + &ended,
            }
        };
        all.map(state).collect()
    };
    let run = |policy: &str, broken: bool, codes: &[i32]| {
        let mut bench = Bench::new(spec);
        bench.broken = broken.then_some(State::Created);
        bench.edit(&["spec", "restartPolicy"], policy);
        bench.plan();
        let creating = told(&bench);
        assert_eq!(creating, ["PodInitializing"; 3], "{policy}");
        bench.settle();
        for code in codes {
            bench.exit("x", *code);
            bench.settle();
        }
        (told(&bench), bench.text(&["phase"]).to_owned())
    };
    let check = |policy: &str, broken: bool, codes: &[i32], expected: [&str; 3], phase: &str| {
        let (told, found) = run(policy, broken, codes);
        assert_eq!(
            (told.as_slice(), found.as_str()),
            (expected.map(str::to_owned).as_slice(), phase),
            "{policy} {codes:?}"
        );
    };
    let waits = "PodInitializing";
    for policy in ["Always", "OnFailure", "Never"] {
        check(policy, false, &[], ["runs", waits, waits], "Pending");
        check(policy, false, &[0], ["Completed", "runs", waits], "Pending");
    }
    for policy in ["Always", "OnFailure"] {
        check(policy, false, &[3], ["runs", waits, waits], "Pending");
        check(policy, false, &[3, 3], ["CrashLoopBackOff", waits, waits], "Pending");
        check(policy, true, &[], ["RunContainerError", waits, waits], "Pending");
    }
    check("Never", false, &[3], ["Error", waits, waits], "Failed");
    check("Never", true, &[], ["StartError", waits, waits], "Failed");
}

#[test]
fn what_is_not_honoured_is_not_run() {
    let mut bench = Bench::new(r#"{"runtimeClassName":"kata","containers":[{"name":"a","image":"i:1"}]}"#);
    bench.settle();
    assert_eq!(bench.took(), ["event UnsupportedField", "release"]);
    assert_eq!(bench.text(&["phase"]), "Failed");
    assert_eq!(bench.text(&["reason"]), "UnsupportedField");
    assert_eq!(
        bench.text(&["message"]),
        "spec.runtimeClassName: not supported on this node"
    );
    // What ran before runs on.
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    bench.edit(&["spec", "newField"], true);
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Running");
}

#[test]
fn a_wrong_image_name_keeps_its_own_container_only() {
    let mut bench = Bench::new(r#"{"containers":[{"name":"a","image":"UP/x"},{"name":"b","image":"i:1"}]}"#);
    bench
        .wrong
        .insert("UP/x".to_owned(), ("InvalidImageName", "no such name".to_owned()));
    bench.settle();
    assert_eq!(bench.waiting(), "InvalidImageName");
    assert_eq!(
        bench.container(&["state", "waiting", "message"]),
        Some(&Value::from("no such name"))
    );
    assert_ne!(
        bench.text(&["containerStatuses", "1", "state", "running", "startedAt"]),
        ""
    );
}

#[test]
fn what_is_missing_is_waited_for() {
    let mut bench = Bench::new(PLAIN);
    bench
        .missing
        .insert("a".to_owned(), "configmap \"c\" not found".to_owned());
    bench.settle();
    assert_eq!(bench.waiting(), "CreateContainerConfigError");
    let message = bench.container(&["state", "waiting", "message"]).unwrap();
    assert_eq!(message, &Value::from("configmap \"c\" not found"));
    bench.missing.clear();
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Running");
    bench.missing.insert("a".to_owned(), "gone".to_owned());
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Running", "a running container does not care");
}

#[test]
fn pull_policies() {
    let check = |policy: &str, image: &str, present: bool, pulls: bool, waiting: &str| {
        let mut bench = Bench::new(PLAIN);
        let container = Value::from([("name", "a"), ("image", image), ("imagePullPolicy", policy)]);
        bench.edit(&["spec", "containers"], Value::from(vec![container]));
        bench.present = present.then(|| image.to_owned()).into_iter().collect();
        bench.settle();
        let pulled = bench.took().iter().any(|step| step.starts_with("pull"));
        assert_eq!(
            (pulled, bench.waiting()),
            (pulls, waiting),
            "{policy} {image} {present}"
        );
        if waiting.is_empty() {
            // Later containers of the pod need no registry.
            bench.reboot();
            bench.settle();
            assert!(!bench.took().iter().any(|step| step.starts_with("pull")));
            assert_eq!(bench.text(&["phase"]), "Running");
        }
    };
    check("Always", "i:1", true, true, "");
    check("IfNotPresent", "i:1", true, false, "");
    check("IfNotPresent", "i:1", false, true, "");
    check("Never", "i:1", true, false, "");
    check("Never", "i:1", false, false, "ErrImageNeverPull");
    check("", "i", true, true, "");
    check("", "i:2", true, false, "");
}

#[test]
fn failed_pulls_are_told_and_tried_again() {
    let mut bench = Bench::new(PLAIN);
    bench.present.clear();
    let work = Work::Pull("i:1".to_owned());
    for (count, reason) in [(1, "ErrImagePull"), (2, "ImagePullBackOff")] {
        let retry_at = bench.now + Duration::from_secs(10);
        let message = "no route".to_owned();
        bench
            .failures
            .insert(work.clone(), Failure { count, retry_at, message });
        let steps = bench.plan();
        assert!(!steps.iter().any(|step| matches!(step, Step::Pull { .. })));
        assert_eq!(bench.waiting(), reason);
        assert_eq!(bench.wake_at, Some(retry_at));
        bench.now = retry_at;
        let steps = bench.plan();
        assert!(steps.iter().any(|step| matches!(step, Step::Pull { .. })));
    }
    bench.failures.clear();
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Running");
}

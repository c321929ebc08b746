//! The tasks over the fake runtime, in virtual time.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use proto::object::{Key, Uid};

use super::testing::{Rig, desired};

const PLAIN: &str = r#"{"containers":[{"name":"a","image":"i:1"}]}"#;

/// Calls of the runtime after which something else happens; taking a pod away takes fewer.
const MOMENTS: u64 = 12;

/// A started node with one pod, `n/p`, on its desk.
fn rig(spec: &str) -> (Rig, Uid, Key) {
    let mut rig = Rig::new();
    let pod = desired(7, spec);
    let (uid, key) = (pod.uid, pod.key.clone());
    rig.desk.put(pod);
    rig.start();
    (rig, uid, key)
}

/// Waits for so many further calls of the runtime, or until there seem to be no more.
async fn after_calls(rig: &Rig, count: u64) {
    let calls = || rig.runtime.all_calls().values().sum::<u64>();
    let wanted = calls() + count;
    for _ in 0..20_000 {
        if calls() >= wanted {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_comes_up_and_then_there_is_silence() {
    let (rig, uid, _) = rig(r#"{"containers":[{"name":"a","image":"i:2"}]}"#);
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    assert_eq!(rig.desk.reasons(), ["Pulling", "Pulled", "Created", "Started"]);
    assert_eq!(rig.desk.papers().events[3].field_path, "spec.containers{a}");
    let before = (rig.desk.papers().writes, rig.runtime.all_calls());
    rig.pass(Duration::from_secs(599)).await;
    assert_eq!((rig.desk.papers().writes, rig.runtime.all_calls()), before);
    rig.pass(Duration::from_secs(3600)).await;
    assert_eq!(rig.desk.papers().writes, before.0);
}

#[tokio::test(start_paused = true)]
async fn a_killed_edge_core_restarts_nothing() {
    let (mut rig, uid, _) = rig(PLAIN);
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    let (status, containers) = (rig.desk.status(uid), rig.runtime.containers());
    let memory = rig.desk.papers().memory.clone();
    for _ in 0..20 {
        rig.kill().await;
        rig.pass(Duration::from_secs(5)).await;
        rig.start();
        rig.pass(Duration::from_secs(5)).await;
    }
    assert_eq!(rig.runtime.containers(), containers);
    assert_eq!(rig.desk.status(uid), status);
    assert_eq!(rig.desk.papers().memory, memory);
    // One that ends while nobody looks is started again.
    rig.kill().await;
    assert_eq!(rig.runtime.exit("a", 3), 1);
    rig.start();
    rig.until("a new one", |rig| rig.runtime.running().len() == 1).await;
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    assert_eq!(
        rig.desk.status(uid).int_at(&["containerStatuses", "0", "restartCount"]),
        Some(1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_changed_config_map_reaches_the_files_and_restarts_nothing() {
    let mut rig = Rig::new();
    let map = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","namespace":"n"},"data":{"k":"1"}}"#;
    let spec = r#"{"volumes":[{"name":"v","configMap":{"name":"c"}}],"containers":[{"name":"a","image":"i:1",
        "env":[{"name":"K","valueFrom":{"configMapKeyRef":{"name":"c","key":"k"}}}],
        "volumeMounts":[{"name":"v","mountPath":"/v"}]}]}"#;
    let pod = desired(7, spec);
    let uid = pod.uid;
    rig.desk.put(pod);
    rig.start();
    rig.until("waiting", |rig| {
        let status = rig.desk.status(uid);
        let waiting = ["containerStatuses", "0", "state", "waiting"];
        status.at(&waiting).and_then(|waiting| waiting.text_at(&["reason"])) == Some("CreateContainerConfigError")
    })
    .await;
    let key = rig.desk.put_json(map);
    rig.wake(&key);
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    let id = rig.runtime.running()[0].id.clone();
    let made = rig.runtime.spec(&id).unwrap();
    assert_eq!(made.env, [("K".to_owned(), "1".to_owned())]);
    let file = made.mounts[0].source.join("k");
    assert_eq!(fs::read_to_string(&file).unwrap(), "1");
    rig.desk.edit(&key, &["data", "k"], "2");
    rig.wake(&key);
    rig.until("new file", |_| fs::read_to_string(&file).unwrap() == "2")
        .await;
    assert_eq!(rig.runtime.running()[0].id, id);
    // Its going leaves the files.
    rig.desk.remove(&key);
    rig.wake(&key);
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "2");
    assert!(rig.is_ready(uid));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_leaves_nothing() {
    let (rig, uid, key) = rig(
        r#"{"volumes":[{"name":"v","emptyDir":{}}],"containers":[{"name":"a","image":"i:1",
        "volumeMounts":[{"name":"v","mountPath":"/v"}]}]}"#,
    );
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    assert!(rig.folders().volumes(uid).join("v").is_dir());
    rig.desk
        .edit(&key, &["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
    rig.wake(&key);
    rig.until("gone", |rig| rig.desk.papers().gone == [uid]).await;
    assert!(rig.runtime.containers().is_empty() && rig.runtime.sandboxes().is_empty());
    assert!(!rig.folders().pod(uid).exists());
    assert!(fs::read_dir(rig.folders().logs).unwrap().next().is_none());
    assert!(rig.desk.papers().memory.is_empty());
    rig.pass(Duration::from_secs(3600)).await;
    assert_eq!(rig.desk.papers().gone, [uid], "said once");
}

#[tokio::test(start_paused = true)]
async fn a_pod_under_an_old_name_waits_for_the_old_one() {
    let (rig, uid, key) = rig(PLAIN);
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    rig.runtime.make_stubborn("a");
    let next = desired(8, PLAIN);
    let next_uid = next.uid;
    rig.desk.put(next);
    rig.wake(&key);
    rig.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.runtime.running()[0].labels.pod, uid);
    rig.until("ready", |rig| rig.is_ready(next_uid)).await;
    assert_eq!(rig.runtime.containers().len(), 1);
    assert_eq!(rig.runtime.violations(), [""; 0]);
    // Its own grace is half a minute; its object was taken away without waiting for that.
    assert!((2..30).contains(&rig.clock_seconds()));
}

#[tokio::test(start_paused = true)]
async fn what_nobody_wants_is_taken_down_before_anything_starts() {
    let (mut rig, uid, _) = rig(PLAIN);
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    rig.kill().await;
    // Replaced under its name while the edge core was away.
    let next = desired(8, PLAIN);
    let next_uid = next.uid;
    rig.desk.put(next);
    rig.start();
    rig.until("ready", |rig| rig.is_ready(next_uid)).await;
    assert_eq!(rig.runtime.violations(), [""; 0]);
    assert_eq!(rig.runtime.containers().len(), 1);
    assert!(!rig.folders().pod(uid).exists());
}

#[tokio::test(start_paused = true)]
async fn what_is_wanted_again_while_it_is_taken_away_begins_anew() {
    for moment in 0..MOMENTS {
        let (mut rig, uid, key) = rig(PLAIN);
        rig.until("ready", |rig| rig.is_ready(uid)).await;
        rig.kill().await;
        let pod = rig.desk.papers().objects.remove(&key).unwrap();
        // Without a container, only its folder is left.
        if moment % 2 == 0 {
            rig.runtime = Arc::default();
            rig.runtime.add_image("i:1");
        }
        rig.start();
        after_calls(&rig, moment).await;
        rig.desk.papers().objects.insert(key.clone(), pod);
        rig.wake(&key);
        rig.until("ready", |rig| rig.is_ready(uid) && rig.runtime.running().len() == 1)
            .await;
        assert_eq!(rig.desk.papers().gone, [], "{moment}");
        assert_eq!(rig.runtime.violations(), [""; 0]);
        let logs: Vec<_> = fs::read_dir(rig.folders().logs)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert_eq!(logs, [rig.folders().pod_logs("n", "p", uid)], "{moment}");
        // And it can be deleted.
        rig.desk
            .edit(&key, &["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
        rig.wake(&key);
        rig.until("gone", |rig| rig.desk.papers().gone == [uid]).await;
        assert!(fs::read_dir(rig.folders().logs).unwrap().next().is_none(), "{moment}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_said_to_be_gone_and_is_wanted_again_runs() {
    let (rig, uid, key) = rig(PLAIN);
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    let before = rig.desk.papers().objects[&key].clone();
    rig.desk
        .edit(&key, &["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
    let deleting = rig.desk.papers().objects[&key].clone();
    rig.wake(&key);
    rig.until("gone", |rig| rig.desk.papers().gone == [uid]).await;
    // The cloud did not hear it: first it still deletes, and then it is put back to a state from before.
    for (pod, running) in [(deleting, 0), (before, 1)] {
        rig.desk.papers().objects.insert(key.clone(), pod);
        rig.wake(&key);
        rig.pass(Duration::from_secs(60)).await;
        assert_eq!(rig.runtime.running().len(), running);
    }
    assert_eq!(rig.desk.papers().gone, [uid], "said once");
}

#[tokio::test(start_paused = true)]
async fn what_is_deleted_while_it_is_taken_away_is_said_to_be_gone() {
    for moment in 0..MOMENTS {
        let (mut rig, uid, key) = rig(PLAIN);
        rig.until("ready", |rig| rig.is_ready(uid)).await;
        rig.kill().await;
        rig.desk
            .edit(&key, &["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
        let pod = rig.desk.papers().objects.remove(&key).unwrap();
        rig.start();
        after_calls(&rig, moment).await;
        rig.desk.papers().objects.insert(key.clone(), pod);
        rig.wake(&key);
        rig.until("gone", |rig| rig.desk.papers().gone == [uid]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_read_ends_nothing() {
    let (mut rig, uid, key) = rig(PLAIN);
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    let (containers, status) = (rig.runtime.containers(), rig.desk.status(uid));
    rig.desk.papers().unreadable = true;
    rig.wake(&key);
    rig.pass(Duration::from_secs(3600)).await;
    assert_eq!(rig.runtime.containers(), containers);
    // Nor when the edge core starts on it.
    rig.kill().await;
    rig.start();
    rig.pass(Duration::from_secs(3600)).await;
    assert_eq!((rig.runtime.containers(), rig.desk.status(uid)), (containers, status));
    assert_eq!(rig.desk.papers().gone, []);
    // What was deleted meanwhile goes once it can be read again.
    rig.desk.papers().unreadable = false;
    rig.desk.remove(&key);
    rig.until("taken down", |rig| rig.runtime.containers().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_lost_ends_nothing() {
    let (mut rig, uid, key) = rig(
        r#"{"volumes":[{"name":"v","emptyDir":{}}],"containers":[{"name":"a","image":"i:1",
        "volumeMounts":[{"name":"v","mountPath":"/v"}]}]}"#,
    );
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    let containers = rig.runtime.containers();
    let kept = rig.folders().volumes(uid).join("v/kept");
    fs::write(&kept, "").unwrap();
    rig.kill().await;
    let pod = rig.desk.papers().objects.remove(&key).unwrap();
    rig.desk.papers().memory.clear();
    rig.desk.papers().begun_anew = true;
    rig.start();
    rig.pass(Duration::from_secs(3600)).await;
    assert_eq!(rig.runtime.containers(), containers);
    // The cloud fills it: the container is taken over as it is.
    rig.desk.papers().objects.insert(key.clone(), pod);
    rig.desk.papers().begun_anew = false;
    rig.desk.papers().status.clear();
    rig.pods.as_ref().unwrap().wake_all();
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    assert_eq!(rig.runtime.containers(), containers);
    assert!(kept.exists());
}

#[tokio::test(start_paused = true)]
async fn probes_decide_on_readiness_and_life() {
    let (rig, uid, _) = rig(r#"{"containers":[{"name":"a","image":"i:1",
        "readinessProbe":{"exec":{"command":["x"]},"periodSeconds":1,"failureThreshold":2},
        "livenessProbe":{"exec":{"command":["y"]},"periodSeconds":10,"failureThreshold":3}}]}"#);
    rig.runtime.set_exec("a", 1);
    rig.until("running", |rig| rig.runtime.running().len() == 1).await;
    rig.pass(Duration::from_secs(5)).await;
    assert!(!rig.is_ready(uid));
    rig.runtime.set_exec("a", 0);
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    let writes = rig.desk.papers().writes;
    rig.pass(Duration::from_secs(500)).await;
    assert_eq!(rig.desk.papers().writes, writes, "good checks are not news");
    rig.runtime.set_exec("a", 1);
    rig.until("killed", |rig| rig.desk.reasons().contains(&"Killing")).await;
    rig.runtime.set_exec("a", 0);
    rig.until("ready again", |rig| rig.is_ready(uid)).await;
    assert_eq!(
        rig.desk.status(uid).int_at(&["containerStatuses", "0", "restartCount"]),
        Some(1)
    );
    assert!(rig.desk.reasons().contains(&"Unhealthy"));
}

#[tokio::test(start_paused = true)]
async fn a_registry_out_of_reach_stops_only_what_has_no_image() {
    let (rig, uid, _) = rig(r#"{"containers":[{"name":"a","image":"i:1","imagePullPolicy":"Always"},
        {"name":"b","image":"i:2"}]}"#);
    for _ in 0..4 {
        rig.runtime.fail("pull", "no route to host");
    }
    rig.until("one runs", |rig| rig.runtime.running().len() == 1).await;
    assert_eq!(rig.runtime.running()[0].labels.container, "a");
    rig.pass(Duration::from_secs(15)).await;
    let status = rig.desk.status(uid);
    let waiting = ["containerStatuses", "1", "state", "waiting", "reason"];
    assert_eq!(status.text_at(&waiting), Some("ImagePullBackOff"));
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    // Tried at 0, 10, 30 s and then with success at 70 s: one of the four failures was the other image's.
    assert_eq!(rig.runtime.calls("pull"), 5);
    let failed = rig
        .desk
        .papers()
        .events
        .iter()
        .filter(|event| event.reason == "Failed")
        .count();
    assert_eq!(failed, 2, "the same failure is told once");
}

#[tokio::test(start_paused = true)]
async fn a_link_that_comes_back_ends_the_wait_for_images() {
    let (rig, uid, _) = rig(r#"{"containers":[{"name":"a","image":"i:2"}]}"#);
    for _ in 0..6 {
        rig.runtime.fail("pull", "no route to host");
    }
    // The waits are 10, 20, 40, 80, 160 and 300 s: the sixth failure comes after 310 s.
    rig.until("six", |rig| rig.runtime.calls("pull") == 6).await;
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(rig.runtime.calls("pull"), 6);
    rig.pods.as_ref().unwrap().network_back();
    rig.pass(Duration::from_secs(1)).await;
    assert!(rig.is_ready(uid));
}

#[tokio::test(start_paused = true)]
async fn a_lost_signal_is_sent_again() {
    let (rig, uid, key) = rig(PLAIN);
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    rig.runtime.fail("signal", "not today");
    rig.desk
        .edit(&key, &["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
    rig.wake(&key);
    rig.pass(Duration::from_secs(5)).await;
    assert_eq!(rig.desk.papers().gone, [uid], "long before it would have been killed");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_does_not_answer_is_waited_for() {
    let (rig, uid, _) = rig(PLAIN);
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    let lost = rig.pods.as_ref().unwrap().runtime_lost();
    let status = rig.desk.status(uid);
    rig.runtime.set_lost(true);
    rig.pass(Duration::from_secs(1000)).await;
    assert!(*lost.borrow());
    assert_eq!(rig.desk.status(uid), status, "unknown is not dead");
    rig.runtime.exit("a", 1);
    rig.runtime.set_lost(false);
    rig.until("healed", |rig| rig.runtime.running().len() == 1).await;
    assert!(!*lost.borrow());
}

#[tokio::test(start_paused = true)]
async fn steps_that_fail_are_tried_again() {
    let (rig, uid, _) = rig(PLAIN);
    for call in ["prepare", "create", "create", "start"] {
        rig.runtime.fail(call, "not today");
    }
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    let reasons = rig.desk.reasons();
    assert!(
        reasons.contains(&"FailedCreatePodSandBox") && reasons.contains(&"Failed"),
        "{reasons:?}"
    );
    assert_eq!(
        rig.desk.status(uid).int_at(&["containerStatuses", "0", "restartCount"]),
        Some(0)
    );
    // A removal that fails holds the next container back, and nothing else.
    rig.runtime.fail("remove", "not today");
    rig.runtime.exit("a", 1);
    rig.until("again", |rig| rig.runtime.running().len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_retry() {
    let mut rig = Rig::new();
    let pod = desired(7, PLAIN);
    let uid = pod.uid;
    rig.desk.put(pod);
    rig.desk.papers().panics = 1;
    rig.start();
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    assert_eq!(rig.desk.papers().panics, 0);
}

#[tokio::test(start_paused = true)]
async fn last_words_are_kept() {
    let (rig, uid, _) = rig(r#"{"restartPolicy":"Never","containers":[{"name":"a","image":"i:1"}]}"#);
    rig.until("running", |rig| rig.is_ready(uid)).await;
    let words = rig.folders().last_words(uid, "a", 0);
    fs::write(words, "x".repeat(5000)).unwrap();
    rig.runtime.exit("a", 2);
    rig.until("ended", |rig| {
        rig.desk.status(uid).text_at(&["phase"]) == Some("Failed")
    })
    .await;
    let status = rig.desk.status(uid);
    let state = status.at(&["containerStatuses", "0", "state", "terminated"]).unwrap();
    assert_eq!(state.text_at(&["message"]).unwrap().len(), 4096);
    assert_eq!(state.int_at(&["exitCode"]), Some(2));
}

#[tokio::test(start_paused = true)]
async fn too_many_wakes_become_one_look_at_everything() {
    let (rig, uid, _) = rig(PLAIN);
    rig.until("ready", |rig| rig.is_ready(uid)).await;
    let lists = rig.runtime.calls("list");
    let name = |number: usize| Key::new("ConfigMap", "n", number.to_string());
    (0..super::WAKES_MAX).for_each(|number| rig.wake(&name(number)));
    rig.pass(Duration::from_secs(1)).await;
    let after = rig.runtime.calls("list");
    (0..=super::WAKES_MAX).for_each(|number| rig.wake(&name(number)));
    rig.pass(Duration::from_secs(1)).await;
    assert!(rig.runtime.calls("list") > after && after >= lists);
    assert!(rig.is_ready(uid));
}

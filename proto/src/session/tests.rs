//! What single machines do; whole conversations are the simulator's.

use super::edge::{Batch, Edge, Input, News, Recovered};
use super::*;
use crate::object::{Key, Uid};
use crate::time::BootId;

/// An edge that holds one pod and has no link.
fn edge() -> (Edge, Uid) {
    let uid = Uid([1; 16]);
    let mut recovered = Recovered { incarnation: [1; 8], ..Recovered::default() };
    let hash = crate::digest::EntryHash::of(&Key::new("Pod", "default", "one"), uid, &Value::map());
    recovered.held.insert(uid, hash);
    (Edge::new(BootId([1; 16]), 30, 1, recovered), uid)
}

fn event(text: &str) -> Input {
    Input::Event(Value::from([("message", text)]))
}

/// What it asks to be made durable now, which then is.
fn commits(edge: &mut Edge, now: Mono) -> Vec<Batch> {
    let mut found = Vec::new();
    while let Some(effect) = edge.poll_effect() {
        let Effect::<Batch, News>::Commit(batch) = effect else {
            continue;
        };
        found.push(batch);
        edge.committed(now, Ok(Vec::new()), &());
    }
    found
}

#[test]
fn an_event_is_written_with_the_report_that_follows_it() {
    let (mut edge, uid) = edge();
    let now = Mono(0);
    edge.handle(now, event("a probe failed"));
    assert_eq!(commits(&mut edge, now), []);
    edge.handle(now, Input::Reports(vec![(uid, Value::from([("phase", "Running")]))]));
    let written = commits(&mut edge, now);
    assert_eq!(written.len(), 1);
    assert_eq!((written[0].events.len(), written[0].reports.len()), (1, 1));
    assert_eq!(edge.wake_at(), None);
}

#[test]
fn an_event_waits_for_a_second_and_no_longer() {
    let (mut edge, _) = edge();
    edge.handle(Mono(0), event("first"));
    edge.handle(Mono(500), event("second"));
    assert_eq!(edge.wake_at(), Some(Mono(1000)));
    edge.tick(Mono(999));
    assert_eq!(commits(&mut edge, Mono(999)), []);
    edge.tick(Mono(1000));
    let written = commits(&mut edge, Mono(1000));
    assert_eq!(written.len(), 1);
    assert_eq!(written[0].events.len(), 2);
    assert_eq!(edge.wake_at(), None);
}

#[test]
fn a_flood_of_events_does_not_wait() {
    let (mut edge, _) = edge();
    for number in 1..edge::EVENTS_WAITING_MAX {
        edge.handle(Mono(0), event(&number.to_string()));
        assert_eq!(commits(&mut edge, Mono(0)), []);
    }
    edge.handle(Mono(0), event("one more"));
    let written = commits(&mut edge, Mono(0));
    assert_eq!(written.len(), 1);
    assert_eq!(written[0].events.len(), edge::EVENTS_WAITING_MAX);
}

#[test]
fn a_stop_writes_what_waits() {
    let (mut edge, _) = edge();
    edge.handle(Mono(0), event("last words"));
    edge.handle(Mono(1), Input::Flush);
    assert_eq!(commits(&mut edge, Mono(1))[0].events.len(), 1);
    assert_eq!(edge.wake_at(), None);
}

#[test]
fn an_event_that_found_no_room_is_tried_again() {
    let (mut edge, _) = edge();
    edge.handle(Mono(0), event("on a full disk"));
    edge.tick(Mono(1000));
    assert!(matches!(edge.poll_effect(), Some(Effect::Commit(_))));
    edge.committed(Mono(1000), Err(CommitError::Full), &());
    let again = edge.wake_at().unwrap();
    assert!(
        again > Mono(1000) && again <= Mono(1000) + Duration::from_secs(60),
        "{again:?}"
    );
    edge.tick(again);
    let written = commits(&mut edge, again);
    assert_eq!(written.len(), 1);
    assert!(written[0].whole);
    assert_eq!(written[0].events.len(), 1);
}
